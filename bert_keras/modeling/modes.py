"""Settings for models that are made or called inside a `with` block."""

import contextlib
import contextvars
from typing import NamedTuple


class Mode(NamedTuple):
    """Settings that `use` changes in a `with` block."""

    # False: new weights are zeros, because the caller loads weights next.
    draw_weights: bool = True
    # False, for exports: functions record no custom gradients. A SavedModel
    # with custom gradients would store only the names of the gradients. It
    # would load more slowly, with warnings about unsaved gradients.
    gradients: bool = True
    # True: on TensorFlow, XLA compiles functions decorated by `compile_large`.
    compile_large: bool = False
    # True: encoders skip padding everywhere except in attention. Outputs at
    # real tokens stay the same. Outputs at padding repeat a real token of the
    # row. XLA and JAX's jit fail, because shapes depend on values.
    skip_padding: bool = False


_mode = contextvars.ContextVar("mode", default=Mode())  # noqa: B039


@contextlib.contextmanager
def use(**changes):
    """Change fields of `Mode` inside the `with` block."""
    token = _mode.set(_mode.get()._replace(**changes))
    try:
        yield
    finally:
        _mode.reset(token)


def current():
    """Return the active `Mode`."""
    return _mode.get()
