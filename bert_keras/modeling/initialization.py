"""How new weights begin, and how to leave that out before loading."""

import contextlib
import contextvars

import keras

_SKIP = contextvars.ContextVar("skip_initialization", default=False)


def weights_initializer():
    """The original's: normal, deviation 0.02, cut at two deviations."""
    if _SKIP.get():
        return keras.initializers.Zeros()
    return keras.initializers.TruncatedNormal(stddev=0.02)


@contextlib.contextmanager
def skip_initialization():
    """Models built inside begin at zero: their weights are loaded next."""
    token = _SKIP.set(True)
    try:
        yield
    finally:
        _SKIP.reset(token)
