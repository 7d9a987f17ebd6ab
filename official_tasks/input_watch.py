"""Whether training waits for its input, measured where the two meet."""

import keras
import tensorflow as tf

from bert_keras.data.python_calls import python_call

BUFFER = 2  # batches that lie ready
# A batch that lay ready for less than this share of a step was waited for.
JUST_MADE = 0.1
FIRST = 10  # batches that only fill the buffers on the way to the device


class InputWatch(keras.callbacks.Callback):
    """Logs "input_waits": the share of steps whose batch was not ready.

    A buffer stands between the data and the training. Where the data are
    faster, it is full and each batch lies in it for a step or longer; where
    training is faster, it is empty and each batch leaves it as it comes. This
    says which of the two decides the speed, not how much faster the other is.
    """

    def __init__(self):
        super().__init__()
        self._start()

    def _start(self):
        self._batches = self._late = self._seen = 0
        self._last = None

    def watched(self, dataset):
        """The same batches, counted as they are taken."""
        self._start()
        stamped = dataset.map(lambda *batch: (tf.timestamp(), batch))
        return stamped.prefetch(BUFFER).map(self._counted)

    def _counted(self, made, batch):
        now = tf.timestamp()
        python_call(self._count, [made, now], [])
        return batch

    def _count(self, made, now):
        self._seen += 1
        if self._seen > FIRST:
            self._batches += 1
            self._late += bool(now - made < JUST_MADE * (now - self._last))
        self._last = now
        return []

    def on_epoch_end(self, epoch, logs):
        logs["input_waits"] = self.share()

    def share(self):
        """Of the batches since the last call; 0 where there were none."""
        batches, late = self._batches, self._late
        self._batches = self._late = 0
        return late / batches if batches else 0.0
