"""The learning rate of BERT: linear warm-up, then decay or a constant."""

import math
import warnings

import keras
from keras import ops

from bert_keras.errors import InputError, format_count
from bert_keras.modeling.inputs import ShowsArguments
from bert_keras.modeling.keras_adapter import learning_rate_schedule
from bert_keras.training import SCHEDULES


def schedule(peak, steps, warmup=0, shape="linear"):
    """Return a schedule that rises linearly, then falls or is constant.

    Args:
        peak: the rate that the warm-up rises towards.
        steps: total number of optimizer steps.
        warmup: fraction of the steps (below 1) or number of steps (from 1).
        shape: "linear", see `WarmupLinearDecay`; "cosine", half a cosine from
            the end of the warm-up to 0 after the last step; or "constant".

    Raises:
        InputError: the rate, steps, warm-up or shape is invalid.
    """
    peak = to_number("learning_rate", peak)
    steps, warmup = to_number("steps", steps), to_number("warmup", warmup)
    if steps < 0 or not math.isfinite(steps):
        raise InputError(
            f"`steps` is {steps:g}. Expected the number of training steps. If "
            "cardinality() is -1, the data set repeats without end. If it is "
            "-2, TensorFlow does not know the length: count the batches."
        )
    if not 0 <= warmup < math.inf:
        raise InputError(
            f"`warmup` is {warmup}. Expected a fraction of the steps (below 1) "
            "or a number of steps (from 1)."
        )
    if shape not in SCHEDULES:
        raise InputError(
            f"`schedule` is {shape!r}. Expected one of {', '.join(SCHEDULES)}."
        )
    warmup_steps = int(warmup * steps) if 0 < warmup < 1 else int(warmup)
    rate = WarmupLinearDecay(peak, steps, warmup_steps)
    if shape == "linear":
        return rate
    return keras.optimizers.schedules.CosineDecay(
        0.0 if warmup_steps else rate.peak,
        max(rate.steps - warmup_steps, 1),
        alpha=1.0 if shape == "constant" else 0.0,  # final rate / peak
        warmup_target=rate.peak if warmup_steps else None,
        warmup_steps=warmup_steps,
    )


def to_number(name, value):
    """Return an int or float unchanged; convert a tensor or text to a float.

    Raises:
        InputError: `value` is not a number.
    """
    if isinstance(value, int | float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"`{name}` is {value!r}; expected a number.") from None


@keras.saving.register_keras_serializable("bert_keras")
class WarmupLinearDecay(
    ShowsArguments, keras.optimizers.schedules.LearningRateSchedule
):
    """Linear warm-up over `warmup_steps`, then linear decay to 0 at `steps`.

    During the warm-up, the rate is `peak * step / warmup_steps`. As in
    `create_optimizer` of the original, the rate after the warm-up is
    `peak * (1 - step / steps)`. So the decay counts from step 0, not from the
    end of the warm-up. Steps are optimizer steps.
    """

    def __init__(self, peak, steps, warmup_steps=0):
        self.peak = float(peak)
        self.steps = int(steps)
        self.warmup_steps = int(warmup_steps)
        if not 0 <= self.peak < math.inf:
            raise InputError(
                f"The learning rate is {peak}; expected a number, 0 or more."
            )
        if not 0 <= self.warmup_steps <= self.steps or self.steps < 1:
            raise InputError(
                f"A schedule of {steps} steps with {warmup_steps} warm-up "
                "steps is not possible. Expected at least one step, and no "
                "more warm-up steps than steps."
            )

    def __call__(self, step):
        # This is exact up to step 2**24, about 16 million.
        step = ops.cast(step, "float32")
        # After the last step the rate stays 0.
        left = ops.maximum(1.0 - step / self.steps, 0.0)
        warmup = step / max(self.warmup_steps, 1)
        return self.peak * ops.where(step < self.warmup_steps, warmup, left)

    def get_config(self):
        names = "peak", "steps", "warmup_steps"
        return {name: getattr(self, name) for name in names}


class ScheduleWatch(keras.callbacks.Callback):
    """Callback that warns if training goes on after the rate fell to 0."""

    def __init__(self):
        super().__init__()
        self._has_warned = False

    def on_epoch_begin(self, epoch, logs=None):
        self._check(next_steps=1)

    def on_train_end(self, logs=None):
        self._check(next_steps=0)

    def _check(self, next_steps):
        optimizer = self.model.optimizer
        end = _find_end(learning_rate_schedule(optimizer))
        if self._has_warned or end is None:
            return
        taken = optimizer.iterations
        # On JAX with `gradient_accumulation_steps`, Keras returns an array.
        taken = taken.numpy() if hasattr(taken, "numpy") else taken
        if int(taken) + next_steps > end:
            self._has_warned = True
            warnings.warn(
                f"The learning rate is 0, because the schedule ended after "
                f"{format_count(end, 'step')}. To train further, make adamw "
                "or lamb with the steps of all epochs, and compile again.",
                stacklevel=2,
            )


def _find_end(schedule):
    """Return the step where the decay reaches 0, or None if none is known."""
    if isinstance(schedule, WarmupLinearDecay):
        return schedule.steps
    cosine = keras.optimizers.schedules.CosineDecay
    if isinstance(schedule, cosine) and schedule.alpha == 0:
        # Without `warmup_target`, Keras ignores `warmup_steps`.
        is_warmed_up = schedule.warmup_target is not None
        return schedule.decay_steps + is_warmed_up * schedule.warmup_steps
    return None
