"""Flags of a script, defined and parsed in the process of the test."""

import functools

from absl import flags

from official_tasks import script


def parse_flags(define_flags, command, monkeypatch):
    """Return a command line's flag values, checked as in `script.start`."""
    values = flags.FlagValues()
    for name in dir(flags):
        if name.startswith(("DEFINE_", "register_", "mark_", "adopt_")):
            function = functools.partial(
                getattr(flags, name), flag_values=values
            )
            monkeypatch.setattr(flags, name, function)
    monkeypatch.setattr(script, "_limits", [])
    define_flags()
    values(["script", *command])
    script.check_limits(values)
    return values
