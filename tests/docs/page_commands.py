"""The commands that a page tells, and the flags that their scripts have."""

import functools
import re
import shlex

from run_script import ROOT, run_script


def commands(page):
    """The words behind `python` of each command of a page, in its order."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^    python (.*?)(?: \.\.\.)?$", text, re.M)
    return [shlex.split(line) for line in lines]


def script_of(command):
    """The words of a command that name its script, for any folder."""
    return command[:2] if command[0] == "-m" else [ROOT / command[0]]


def small_commands(page, smaller):
    """(script's name, words) of each command of a page.

    Args:
        smaller: name -> flags to append, so that it takes seconds.
    """
    for command in commands(page):
        script = script_of(command)
        told = command[len(script) - 1]
        name = re.split(r"[./]", told.removesuffix(".py"))[-1]
        words = [*script, *command[len(script) :], *smaller[name].split()]
        yield name, words


@functools.cache
def flags_of(*script):
    """The names of a script's flags, by its --help."""
    told = run_script(*script, "--help", folder=ROOT).stdout
    found = re.findall(r"^  --(\[no\])?(\w+)", told, re.M)
    return {no.strip("[]") + name for no, name in found} | {
        name for _, name in found
    }
