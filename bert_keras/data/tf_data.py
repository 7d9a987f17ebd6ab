"""Workarounds for `tf.data`, which may end a pass late or hang at exit."""

import atexit
import functools
import threading
import time

import tensorflow as tf


def disable_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the data set without the autotuning thread of `tf.data`.

    The thread sleeps twice as long each time. At the end of a pass, TensorFlow
    2.21 may wait until the thread wakes, for example 1.1 s in a pass of 1.4 s.
    Without the thread, `tf.data.AUTOTUNE` has no effect, so use integers.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


# When the interpreter exits, TensorFlow's threads may still call the Python
# functions of a data set. Such a call waits for the interpreter, which waits
# for the data set, so the process hangs. Therefore `_Calls.end` runs at exit.
# It refuses new calls. It waits until no call runs and none has come for
# `_QUIET` seconds. Calls soon stop, because a data set only fills its buffers.

_QUIET = 0.3  # seconds without a call before `_Calls.end` stops waiting
_MAX_WAIT = 10  # maximum seconds to wait at exit


class _Calls:
    """Counter of running calls, which can also refuse new calls."""

    def __init__(self):
        self._lock = threading.Lock()
        self._running = 0
        self._last = 0.0
        self._ending = False

    def call(self, function, *arguments):
        with self._lock:
            self._last = time.monotonic()
            if self._ending:
                raise StopIteration
            self._running += 1
        try:
            return function(*arguments)
        finally:
            with self._lock:
                self._running -= 1

    def end(self):
        """Refuse new calls; wait until no call runs and no new call comes."""
        start = self._last = time.monotonic()
        self._ending = True
        while time.monotonic() < start + _MAX_WAIT:
            with self._lock:
                quiet = time.monotonic() - self._last
                if not self._running and quiet > _QUIET:
                    return
            time.sleep(_QUIET / 30)


_calls = _Calls()


@functools.cache
def _end_in_time():
    atexit.register(_calls.end)


def python_call(function, arguments, types):
    """Call `tf.numpy_function` without the risk of a hang at exit.

    Args:
        function: gets NumPy arrays and returns a list of arrays.
        arguments: list of tensors.
        types: dtypes of the returned arrays.
    """

    _end_in_time()

    def call(*values):
        return _calls.call(function, *values)

    return tf.numpy_function(call, arguments, types)
