"""The commands of a page, and the flags of their scripts."""

import functools
import re
import runpy
import shlex
import warnings
from unittest import mock

from absl import flags

from official_tasks import options
from tests.support.run_script import ROOT


def commands(page):
    """Return the words after `python` of each command of a page, in order.

    A command `bert-keras NAME` gets the words of the script of that name.
    """
    return commands_in((ROOT / page).read_text(encoding="utf-8"))


def commands_in(text):
    text = text.replace("\\\n", " ")
    found = []
    pattern = r"^    (python|bert-keras) (.*?)(?: \.\.\.)?$"
    for program, line in re.findall(pattern, text, re.M):
        words = shlex.split(line)
        if program == "bert-keras":
            if words[0].startswith("--"):  # --list, --version
                continue
            words[:1] = script_named(words[0])
        found.append(words)
    return found


def script_named(name):
    """Return the words of `bert-keras NAME` after `python`."""
    if (ROOT / "official_tasks" / f"{name}.py").exists():
        return ["-m", f"official_tasks.{name}"]
    return [f"tools/{name}.py"]


def script_of(command):
    """Return a command's script: ["-m", module] or [absolute path]."""
    return command[:2] if command[0] == "-m" else [ROOT / command[0]]


def small_commands(page, smaller):
    """Yield (script's name, words) for each command of a page.

    Args:
        smaller: dict of script name -> flags that make it run in seconds.
    """
    for command in commands(page):
        script = script_of(command)
        file = command[len(script) - 1].removesuffix(".py")
        name = re.split(r"[./]", file)[-1]
        words = [*script, *command[len(script) :], *smaller[name].split()]
        yield name, words


@functools.cache
def flags_of(*script):
    """Return the names of a script's flags, and "no" + name of booleans."""
    with (
        mock.patch("official_tasks.cli.start") as start,
        warnings.catch_warnings(),
    ):
        # runpy warns if a test has imported the script as a module before.
        warnings.filterwarnings("ignore", ".*found in sys.modules")
        if script[0] == "-m":
            runpy.run_module(script[1], run_name="__main__")
        else:
            runpy.run_path(str(script[0]), run_name="__main__")
    values = flags.FlagValues()
    options.define_flags(start.call_args.args[1], values)
    return {*values} | {f"no{n}" for n in values if values[n].boolean}


def python_of(page, folder="docs"):
    text = (ROOT / folder / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
