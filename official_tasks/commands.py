r"""Runs any script of the package as `bert-keras NAME`, from any folder.

    bert-keras finetune --task=mrpc --data_dir=glue --init=runs/pretrain/model \
        --output=runs/mrpc
    bert-keras export --help
    bert-keras --list

`bert-keras NAME` does the same as `python -m official_tasks.NAME` or
`python tools/NAME.py`.
"""

import ast
import difflib
import importlib.util
import runpy
import sys
from pathlib import Path

from official_tasks.script import USER_ERROR

PACKAGES = ("official_tasks", "official_tasks.tools")


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
    if name in ("__help", "_h", "help"):
        print(__doc__)
    elif name != "__list":
        return _refuse(sys.argv[1], commands)
    width = max(map(len, commands))
    for name, (_, line) in commands.items():
        print(f"{name:{width}}  {line}")
    return 0


def _refuse(name, commands):
    known = name.replace("-", "_").lower()
    nearest = difflib.get_close_matches(known, commands)
    hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
    print(
        f"bert-keras: there is no command {name!r}.{hint} bert-keras --list "
        "prints all commands.",
        file=sys.stderr,
    )
    return USER_ERROR


def find_commands():
    """Return a dict: name of a script -> (module, first line of docstring).

    The scripts are read as text, which is faster than importing them.
    """
    commands = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        (folder, *_) = spec.submodule_search_locations
        for path in sorted(Path(folder).glob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "\n    script.start(main" in text:
                line, *_ = ast.get_docstring(ast.parse(text)).splitlines()
                commands[path.stem] = f"{package}.{path.stem}", line
    return commands


if __name__ == "__main__":
    sys.exit(main())
