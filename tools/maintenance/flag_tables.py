"""Tables of a script's flags: flag, default, range, meaning.

The program prints the flags that --help of a script shows, as JSON:

    python tools/maintenance/flag_tables.py bert-keras finetune --task=ner

Needs the repository's root in PYTHONPATH.
"""

import contextlib
import json
import re
import runpy
import sys
from unittest import mock

from official_tasks import options, script

REPEATED = ";\n    repeat this option"  # absl appends it to the help
VALUES = re.compile(r"^<[^>]*>: ")  # of an enum, before its help
VALUE = r"=(?:[^\s|,;:)]|,(?=\w))*[\w'\"]"
FLAG = re.compile(rf"(?<![\w`-])(--\w+(?:{VALUE})?)")


def list_rows(module, words):
    """Return a list of (flag, default, range, meaning) for a script."""
    rows = []

    def keep(cls):
        for named in options.list_flags(cls).values():
            rows.extend(map(_describe, named.values()))

    words = [module, *words, "--help"]
    with (
        mock.patch.object(sys, "argv", words),
        mock.patch.object(script, "_print_help", keep),
        contextlib.suppress(SystemExit),
    ):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return rows


def _describe(flag):
    default = flag.default
    if isinstance(default, list):
        default = ",".join(default)
    is_set = default is not None and default is not False and default != ""
    meaning = " ".join(flag.help.partition(REPEATED)[0].split())
    meaning = VALUES.sub("", meaning)
    return (
        f"`--{flag.name}`",
        f"`{default}`" if is_set else "",
        _find_range(flag),
        mark_flags(meaning).replace("|", "\\|"),
    )


def _find_range(flag):
    if flag.boolean:
        return "switch"
    if values := getattr(flag.parser, "enum_values", None):
        return " ".join(f"`{value}`" for value in values)
    messages = [validator.message for validator in flag.validators]
    limits = [
        message.removeprefix("expected ")
        for message in messages
        if message.startswith("expected ") and "--" not in message
    ]
    # Such as "a positive integer", "an integer in the range [2, 4]".
    return "; ".join(limits) or flag.parser.syntactic_help


def mark_flags(text):
    """Return a text in which each flag is code."""
    return FLAG.sub(r"`\1`", text)


if __name__ == "__main__":
    print(json.dumps(list_rows(sys.argv[1], sys.argv[2:])))
