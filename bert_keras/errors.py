"""Errors and warnings. This module imports no other module of the package."""

import contextlib
import os

MAX_MESSAGE_LENGTH = 4_000  # characters, about a page


class InputError(ValueError):
    """Raised when a file, a setting or an argument is invalid.

    The message says what was wrong, what was expected, what was found, and
    what to do. The scripts print the message without a traceback and exit with
    code 2. The middle of a long message is left out.

    Examples:
        >>> from bert_keras import InputError, adamw
        >>> try:
        ...     adamw(2e-5, ema=2)
        ... except InputError as error:
        ...     print(error)
        `ema` is 2; expected a fraction below 1.
    """

    # Without these attributes, Keras adds the arguments of a layer's call to
    # the message of an error in it, and AutoGraph adds code to one in a graph.
    # tests/modeling/test_keras_adapter.py checks both.
    _keras_call_info_injected = True
    ag_pass_through = True

    def __init__(self, message: object = "") -> None:
        super().__init__(cut_middle(str(message), MAX_MESSAGE_LENGTH))


class UntrainedWarning(UserWarning):
    """Issued when some weights of a loaded model are newly initialized."""


def get_first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's class."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def cut_middle(text, longest):
    """Return the text, cut in the middle to at most `longest` characters."""
    if len(text) <= longest:
        return text
    half = (longest - len(" [...] ")) // 2
    return f"{text[:half]} [...] {text[-half:]}"


def format_count(number, one, many=None):
    """Return a number with its noun, such as "1 row" or "2,000 rows".

    Args:
        number: int.
        one: words after the number 1.
        many: words after other numbers; the default is `one` with "s".
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def install_command(extra):
    """Return how to install an extra: the package is in no package index."""
    return f"pip install '.[{extra}]' in a clone of bert_keras"


def refuse_arguments(function, names, renamed):
    """Raise an error for unknown arguments, if there are any.

    Args:
        function: name of the function.
        names: names of the arguments that the function does not have.
        renamed: dict of another library's argument -> our name of it.
    """
    for name in names:
        if name not in renamed:
            raise TypeError(f"{function}() has no argument {name!r}.")
        raise InputError(
            f"{function} has no argument {name}. Use {renamed[name]}."
        )


def require_tensorflow(what):
    """Raise `InputError` if Keras does not run on TensorFlow.

    Args:
        what: subject of the error message, such as "Pre-training".
    """
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise InputError(
            f"{what} needs Keras on TensorFlow, but Keras runs on {backend}. "
            "Set KERAS_BACKEND=tensorflow. To move a model to another backend, "
            "save it with save_preset and load it with from_preset."
        )


def refuse_fork(process):
    """Raise `InputError` in a fork of the process that made a model.

    A forked process lacks TensorFlow's threads, so the model would hang.

    Args:
        process: id of the process that made the model.
    """
    if os.getpid() != process:
        raise InputError(
            "The model was made before this process was forked. TensorFlow "
            "would hang here. Make or load the model in this process."
        )


def check_integers(name, values, limit=1 << 31, advice=""):
    """Raise `InputError` unless values are whole numbers from 0 to `limit` - 1.

    Args:
        name: name of the values, for the message.
        values: a NumPy array.
        limit: the values must be below it. By default int32 can hold them.
        advice: what to do, for the message; by default about token ids.
    """
    import numpy as np

    kind = values.dtype.kind
    if np.ma.is_masked(values):
        found = "masked values"
    elif kind not in "biufV":  # "V" is bfloat16
        found = f"values of {values.dtype}"
    else:
        is_valid = (values >= 0) & (values < limit)
        if kind in "fV":
            is_valid &= values == np.floor(values)
        if is_valid.all():
            return
        found = f"the number {values[~is_valid].flat[0]}"
    advice = advice or "make the ids with the tokenizer"
    raise InputError(
        f"{name} contains {found}. Expected whole numbers from 0 to "
        f"{limit - 1}: {advice}."
    )


@contextlib.contextmanager
def collect_faults(faults):
    """Catch an `InputError` in a `with` block; append its message to `faults`.

    If `faults` is None, the error is raised, not caught.
    """
    try:
        yield
    except InputError as error:
        if faults is None:
            raise
        faults.append(str(error))


MAX_FAULTS = 20  # maximum number of lines with faults in a message


def raise_all(faults):
    """Raise one `InputError` that lists the faults, if there are any.

    Repeated lines are left out. At most `MAX_FAULTS` lines are listed.
    """
    lines = list(dict.fromkeys("\n".join(faults).splitlines()))
    if len(lines) > MAX_FAULTS:
        more = len(lines) - MAX_FAULTS
        lines = [
            *lines[:MAX_FAULTS],
            f"... and {format_count(more, 'more fault')}",
        ]
    if lines:
        raise InputError("\n".join(lines))
