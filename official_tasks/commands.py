r"""Runs any script of the package as `bert-keras NAME`, from any folder.

    bert-keras finetune --task=mrpc --data_dir=glue --init=runs/pretrain/model \
        --output=runs/mrpc
    bert-keras export --help
    bert-keras --list
    bert-keras --version

`python -m official_tasks.finetune` and, in a clone, `python tools/export.py`
are the same scripts.
"""

import ast
import difflib
import importlib.util
import runpy
import sys
from pathlib import Path

from bert_keras import __version__
from official_tasks.script import print_error, refuse_output


def main() -> int | None:
    """Run the command that `sys.argv` names; return the exit code."""
    commands = find_commands()
    name, *words = sys.argv[1:] or ["--help"]
    name = name.replace("-", "_")
    if name in commands:
        module, _ = commands[name]
        sys.argv = [module, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return None
    texts = {
        "__list": list_commands(commands),
        "__version": f"bert_keras {__version__}",
    }
    for help_name in ("__help", "_h", "help"):
        texts[help_name] = f"{__doc__}\n{texts['__list']}"
    if name not in texts:
        return _refuse(sys.argv[1], commands)
    try:
        print(texts[name], flush=True)
    except OSError as error:
        return refuse_output(error)
    return 0


def list_commands(commands):
    """Return a line for each command: its name and what it does."""
    width = max(map(len, commands))
    return "\n".join(
        f"{name:{width}}  {line}" for name, (_, line) in commands.items()
    )


def _refuse(name, commands):
    known = name.replace("-", "_").lower()
    nearest = difflib.get_close_matches(known, commands)
    hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
    return print_error(
        f"there is no command {name!r}.{hint} bert-keras --list prints all "
        "commands.",
        "bert-keras",
    )


def find_commands():
    """Return a dict: name of a script -> (module, first line of docstring).

    The scripts are read as text, which is faster than importing them.
    """
    commands = {}
    scripts = Path(__file__).parent
    packages = {"official_tasks": scripts}
    if spec := importlib.util.find_spec("official_tasks.tools"):
        (folder, *_) = spec.submodule_search_locations
        packages["official_tasks.tools"] = Path(folder)
    else:  # a clone that is not installed
        packages["tools"] = scripts.parent / "tools"
    for package, folder in packages.items():
        for path in sorted(folder.glob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "\n    script.start(main" in text:
                line, *_ = ast.get_docstring(ast.parse(text)).splitlines()
                commands[path.stem] = f"{package}.{path.stem}", line
    return commands


if __name__ == "__main__":
    sys.exit(main())
