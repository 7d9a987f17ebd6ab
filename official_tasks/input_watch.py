"""How long training waits for its input, measured where the two meet."""

import time

import keras

from bert_keras.data.python_calls import python_call


class InputWatch(keras.callbacks.Callback):
    """Logs "input_waits": the share of the time in which steps waited.

    A step waits from when it begins until its batch has been taken from the
    data; a batch that TensorFlow took ahead of its step made nobody wait. The
    first step of a `fit` is left out, since it traces the graph. Of steps that
    are executed together, the first one stands for all.
    """

    def watched(self, dataset):
        """The same batches, for the next `fit`; noted as they are taken."""
        self._steps = self._taken = 0
        self._asked = None
        return dataset.map(self._noted)

    def _noted(self, *batch):
        python_call(self._take, [], [])
        return batch

    def _take(self):
        if self._taken == self._asked:
            self._wait = time.monotonic() - self._began
        self._taken += 1
        return []

    def on_epoch_begin(self, epoch, logs=None):
        self._first = self._steps
        self._ended = None
        self._seconds = self._waited = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self._wait, self._began = 0.0, time.monotonic()
        self._asked = self._first + batch

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        together = self._first + batch + 1 - self._steps
        if self._steps:
            seconds = now - (self._ended or self._began)
            self._seconds += seconds
            self._waited += min(together * self._wait, seconds)
        self._steps += together
        self._ended = now

    def on_epoch_end(self, epoch, logs):
        logs["input_waits"] = self._waited / max(self._seconds, 1e-9)
