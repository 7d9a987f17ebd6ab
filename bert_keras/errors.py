"""What the library raises and warns of for what its caller gave it."""


class InputError(ValueError):
    """What the caller gave (a file, a setting, a value) cannot be used.

    The message says what was wrong, what was expected, what came, and what
    to do. The scripts print it alone, without a traceback, and exit with 2.
    """


class UntrainedWarning(UserWarning):
    """Weights of a loaded model begin at random: it wants training first.

    The scripts print the message as one line.
    """
