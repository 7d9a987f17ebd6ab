"""What the library raises and warns of for what its caller gave it.

Every module imports it: it imports no other one.
"""

import contextlib

LONGEST = 4_000  # characters of a message: a page


class InputError(ValueError):
    """What the caller gave (a file, a setting, a value) cannot be used.

    The message says what was wrong, what was expected, what came, and what
    to do. The scripts print it alone, without a traceback, and exit with 2.
    What is quoted in it may be of any length: its middle is left out then.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(cut_middle(str(message), LONGEST))


class UntrainedWarning(UserWarning):
    """Weights of a loaded model begin at random: it wants training first.

    The scripts print the message as one line.
    """


def cut_middle(text, longest):
    """The text, or its beginning and end where it is longer."""
    if len(text) <= longest:
        return text
    half = (longest - len(" [...] ")) // 2
    return f"{text[:half]} [...] {text[-half:]}"


def require_tensorflow(what):
    """Says in one sentence that Keras runs on another backend.

    Raises:
        InputError: it does.
    """
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise InputError(
            f"{what} needs Keras on TensorFlow; it runs on {backend}. Run this "
            "with KERAS_BACKEND=tensorflow; weights go over by save_preset "
            "and from_preset."
        )


@contextlib.contextmanager
def collected(faults):
    """Add an `InputError` within to the list `faults`; None raises it."""
    try:
        yield
    except InputError as error:
        if faults is None:
            raise
        faults.append(str(error))


MOST_FAULTS = 20  # that a message lists


def raise_all(faults):
    """Raise one `InputError` of all faults, a line each, if there are any."""
    lines = list(dict.fromkeys("\n".join(faults).splitlines()))
    if len(lines) > MOST_FAULTS:
        more = len(lines) - MOST_FAULTS
        lines = [*lines[:MOST_FAULTS], f"... and {more} more faults"]
    if lines:
        raise InputError("\n".join(lines))
