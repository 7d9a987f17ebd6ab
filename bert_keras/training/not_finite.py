"""Callback that ends a run whose gradients stay infinite or NaN."""

import logging
import math

import keras

from bert_keras.errors import format_count
from bert_keras.training.optimizers import AdamW

logger = logging.getLogger(__name__)
# After this number of skipped steps in a row, the run ends.
IN_A_ROW = 10
# In float16, the run ends below this loss scale. Keras starts with 2**15 and
# halves the scale after each step whose gradients are not finite.
LEAST_SCALE = 2**-10


class NotFiniteError(ArithmeticError):
    """Raised when the gradients of many successive steps were not finite."""


class StopWhenNotFinite(keras.callbacks.Callback):
    """Callback that logs skipped steps, and ends the run after many in a row.

    `AdamW` and `Lamb` skip a step whose gradients are not finite, and count
    skipped steps. The callback logs this count as `skipped_steps` at the end of
    each epoch, and warns when it grows.

    Reading the count waits for the current step, so the callback reads it only
    every `IN_A_ROW` steps and at the end of each epoch. A run therefore ends
    after `IN_A_ROW` to 2 * `IN_A_ROW` skipped steps in a row. With a
    `steps_per_execution` above 1, the callback reads the count only at the end
    of an execution, so a run may end later.

    In float16, Keras skips such steps itself and does not count them. The run
    then ends when Keras has lowered the loss scale below `LEAST_SCALE`. Other
    optimizers skip no step, so the run ends when the loss is not finite.
    """

    def __init__(self):
        super().__init__()
        self._known = 0
        self._unchecked = 0

    def on_train_begin(self, logs=None):
        optimizer = self.model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._skips = isinstance(optimizer, AdamW) or hasattr(
            self.model.optimizer, "dynamic_scale"
        )
        # An earlier `fit`, or the run before a resume, has warned of these. An
        # optimizer gets its variables when it is built.
        self._counts = optimizer
        self._known = self._read("skipped_steps")

    def _read(self, name):
        value = getattr(self._counts, name, 0)
        return int(keras.ops.convert_to_numpy(value))

    def on_epoch_begin(self, epoch, logs=None):
        self._seen = 0

    def on_train_batch_end(self, batch, logs=None):
        # With `steps_per_execution`, `batch` grows by more than 1 per call.
        self._unchecked += batch + 1 - self._seen
        self._seen = batch + 1
        if self._unchecked >= IN_A_ROW:
            self._check(logs)

    def on_epoch_end(self, epoch, logs=None):
        self._check(logs)
        if logs is not None:
            logs["skipped_steps"] = float(self._known)

    def _check(self, logs):
        self._unchecked = 0
        loss = float((logs or {}).get("loss", 0.0))
        if not (self._skips or math.isfinite(loss)):
            raise NotFiniteError(
                f"The loss is {loss}, and the optimizer has applied its "
                "gradients. Train again with a lower learning rate, or with "
                "adamw or lamb, which skip such steps."
            )
        skipped = self._read("skipped_steps")
        in_row = self._read("skipped_in_row")
        if skipped > self._known:
            logger.warning(
                "Skipped so far: %s, because the gradients were not finite.",
                format_count(skipped, "step"),
            )
            self._known = skipped
        scale = getattr(self.model.optimizer, "dynamic_scale", LEAST_SCALE)
        if keras.ops.convert_to_numpy(scale) < LEAST_SCALE:
            raise NotFiniteError(
                "The gradients of many steps were not finite, although Keras "
                f"lowered the loss scale to {float(scale):g}. These steps did "
                "not change the weights. Use a lower learning rate or float32, "
                "or check the data of these steps."
            )
        if in_row >= IN_A_ROW:
            raise NotFiniteError(
                f"The gradients of the last {in_row} steps were not finite; "
                f"expected fewer than {IN_A_ROW} such steps in a row. These "
                "steps did not change the weights. Use a lower learning rate "
                "or float32, or check the data of these steps."
            )
