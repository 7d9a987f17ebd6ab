"""The one error type that the library raises for what its caller gave it."""


class InputError(ValueError):
    """What the caller gave (a file, a setting, a value) cannot be used.

    The message says what was wrong, what was expected, what came, and what
    to do. The scripts print it alone, without a traceback, and exit with 2.
    """
