"""Flags of a script, defined and parsed in the process of the test."""

from absl import flags

from official_tasks import options


def parse_flags(cls, command):
    """Return a command line's flag values, checked as in `cli.start`."""
    values = flags.FlagValues()
    options.define_flags(cls, values)
    values(["script", *command])
    options.check_conditions(cls, values)
    return values
