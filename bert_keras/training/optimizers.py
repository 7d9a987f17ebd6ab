"""AdamW and LAMB as BERT is trained with, on any number of devices.

The gradients of a step are summed over all replicas, then clipped by their
common norm, then applied. A step whose gradients are not finite changes
nothing and is counted. How the gradients of a global batch are computed is in
`step.py`, `step_tensorflow.py` and `step_jax.py`; fused arithmetic is in
`optimizers_tensorflow.py`.
"""

import math
import re
import types
import warnings
from typing import SupportsFloat

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling.keras_adapter import (
    SumsGradients,
    learning_rate_schedule,
    takes_summed_gradients,
)

# Biases and layer normalisation are not decayed, as in the original.
NOT_DECAYED = re.compile(r"(^|/|_)(bias|beta|gamma)(:0)?$")
# Keras's own of these act before the sum over replicas or after clipping, or
# count the schedule in micro-batches.
_NOT_KERAS = (
    "clipnorm clipvalue global_clipnorm gradient_accumulation_steps "
    "loss_scale_factor".split()
)


def adamw(
    learning_rate: float,
    steps: SupportsFloat | None = None,
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    layer_decay: float = 1.0,
    bias_correction: bool = True,
    power: float = 1.0,
    accumulate: int = 1,
) -> "AdamW":
    """Return BERT's optimizer with its schedule, ready for `compile`.

    Args:
        learning_rate: the rate at the end of the warm-up; the paper has 1e-4
            for pre-training and 2e-5 to 5e-5 for fine-tuning.
        steps: number of training steps in all, such as `len(dataset)` or
            `dataset.cardinality()` for each epoch. Without it the rate is
            constant, for callbacks such as `LearningRateScheduler` and
            `ReduceLROnPlateau` to set.
        warmup: fraction of the steps (below 1) or number of steps (1 and
            more).
        weight_decay: decoupled decay; biases and norms are left out.
        clip_norm: greatest norm of all gradients together.
        layer_decay: factor on the rate from each encoder layer to the one
            below it.
        bias_correction: as Adam's paper, and unlike the original code; runs
            of a few thousand steps, and fine-tuning on few labels, learn more
            surely with it (Mosbach et al. 2021, Zhang et al. 2021).
        power: of the decay of the rate after the warm-up; 1 is a line.
        accumulate: micro-batches into which a batch is cut; they are computed
            one after another in the memory of one, and the step is that of
            the whole batch.
    """
    return AdamW(
        _rate(learning_rate, steps, warmup, power),
        weight_decay=weight_decay,
        clip_norm=clip_norm,
        layer_decay=layer_decay,
        bias_correction=bias_correction,
        accumulate=accumulate,
    )


def lamb(
    learning_rate: float,
    steps: SupportsFloat | None = None,
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    layer_decay: float = 1.0,
    power: float = 1.0,
    accumulate: int = 1,
) -> "Lamb":
    """Return LAMB with the schedule of BERT, ready for `compile`.

    Args:
        learning_rate: the rate at the end of the warm-up. The paper's rule
            for BERT at 128 tokens: 5 / 2 ** 3 / 1000 at 512 sequences a step,
            times the root of 2 for each doubling of the batch.
        steps, warmup, weight_decay, clip_norm, layer_decay, power, accumulate:
            as of `adamw`.
    """
    return Lamb(
        _rate(learning_rate, steps, warmup, power),
        weight_decay,
        clip_norm=clip_norm,
        layer_decay=layer_decay,
        accumulate=accumulate,
    )


def _rate(peak, steps, warmup, power):
    """Return the schedule, or without `steps` a constant rate."""
    if steps is not None:
        return schedule(peak, steps, warmup, power)
    if (warmup, power) != (0.1, 1.0):
        raise InputError(
            f"warmup is {warmup} and power {power}, but without steps the "
            "learning rate is constant. Give steps, or leave both out."
        )
    return WarmupLinearDecay(number("learning_rate", peak), 1).peak


def schedule(peak, steps, warmup=0, power=1.0):
    """Return the learning rate of the original: linear up, linear to 0.

    Args:
        peak: what the rate rises to.
        steps: number of optimizer steps in all.
        warmup: fraction of the steps (below 1) or number of steps (1 and
            more).
        power: of the decay; 1 is a line.

    Raises:
        InputError: a rate, steps or a warm-up that are not possible.
    """
    peak, power = number("learning_rate", peak), number("power", power)
    steps, warmup = number("steps", steps), number("warmup", warmup)
    if steps < 0 or not math.isfinite(steps):
        raise InputError(
            f"steps is {steps:g}. Expected the number of training steps; a "
            "data set whose cardinality is -1 repeats without end, and one "
            "of -2 does not know its length: count it, and give the number."
        )
    if not 0 <= warmup < math.inf:
        raise InputError(
            f"A warm-up of {warmup} is not possible. Expected a fraction of "
            "the steps or a number of them."
        )
    warmup_steps = int(warmup * steps) if 0 < warmup < 1 else int(warmup)
    return WarmupLinearDecay(peak, steps, warmup_steps, power)


def number(name, value):
    """Return a number as it is; what holds one, such as a tensor, as float.

    Raises:
        InputError: it is not a number.
    """
    if isinstance(value, int | float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; expected a number.") from None


@keras.saving.register_keras_serializable("bert_keras")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rises from 0 over `warmup_steps`, then falls to 0 at `steps`.

    Equals `create_optimizer` of the original: after the warm-up the rate is
    `peak * (1 - step / steps) ** power`, a line (for power 1) that starts at
    step 0 and not at the end of the warm-up. Steps are optimizer steps.
    """

    def __init__(self, peak, steps, warmup_steps=0, power=1.0):
        self.peak = float(peak)
        self.steps = int(steps)
        self.warmup_steps = int(warmup_steps)
        self.power = float(power)
        if not 0 <= self.peak < math.inf:
            raise InputError(
                f"The learning rate is {peak}; expected a number, 0 or more."
            )
        if not 0 <= self.warmup_steps <= self.steps or self.steps < 1:
            raise InputError(
                f"A schedule of {steps} steps with {warmup_steps} of them "
                "for warm-up is not possible. Expected at least one step and "
                "a warm-up no longer than all steps."
            )

    def __call__(self, step):
        # float32 counts exactly to 16 million steps.
        step = ops.cast(step, "float32")
        # After the last step the rate stays 0.
        left = ops.maximum(1.0 - step / self.steps, 0.0) ** self.power
        risen = step / max(self.warmup_steps, 1)
        return self.peak * ops.where(step < self.warmup_steps, risen, left)

    def get_config(self):
        names = "peak", "steps", "warmup_steps", "power"
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable("bert_keras")
class AdamW(SumsGradients, keras.optimizers.Optimizer):
    """Adam with decoupled weight decay, as BERT's original code has it.

    Gradients are clipped together to `clip_norm` after they were summed over
    all replicas; then `update = m / (sqrt(v) + epsilon)`, plus
    `weight_decay * variable` except for biases and layer normalisation; then
    `variable -= learning_rate * update`. Equals `AdamWeightDecayOptimizer`
    of the original with `tf.clip_by_global_norm` before it, where
    `bias_correction` is off; Loshchilov and Hutter's AdamW where it is on. A
    step whose gradients are not finite changes nothing and counts in the
    schedule only.

    Args:
        learning_rate: float or schedule; a schedule counts optimizer steps.
        weight_decay: fraction of a weight subtracted per unit of learning
            rate.
        beta_1: weight of the old first moment in the new one.
        beta_2: weight of the old second moment in the new one.
        epsilon: added to the root of the second moment.
        clip_norm: greatest norm of all gradients together; None clips
            nothing.
        bias_correction: scales the moments up in the first steps, as Adam's
            paper does and the original code does not.
        layer_decay: factor on the learning rate from each encoder layer to
            the one below it; the heads and the pooler learn at the full rate,
            the embeddings most slowly.
        accumulate: micro-batches into which each replica's rows of a batch
            are cut and that are computed one after another, in the memory of
            one. Task models of this package only.
        **kwargs: `use_ema`, `ema_momentum` and what else Keras's optimizers
            take beyond clipping and accumulation.

    Attributes:
        gradient_norm: of the last step, before clipping.
        skipped_steps: steps so far whose gradients were not finite.
        skipped_in_row: how many of them came last without one between.

    Raises:
        InputError: an argument out of its range, or one of Keras's that would
            act before the sum over replicas; weights in half precision.
    """

    def __init__(
        self,
        learning_rate=1e-4,
        weight_decay=0.01,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        clip_norm=1.0,
        bias_correction=True,
        layer_decay=1.0,
        accumulate=1,
        name="adamw",
        **kwargs,
    ):
        refused = [k for k in _NOT_KERAS if kwargs.get(k) is not None]
        if refused:
            raise InputError(
                f"{', '.join(refused)} cannot be given to this optimizer: "
                "Keras clips before gradients are summed over replicas, and "
                "counts the schedule in micro-batches. Give clip_norm and "
                "accumulate."
            )
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        # Not Keras's own `weight_decay`: it knows no exclusion by path.
        self.decay = number("weight_decay", weight_decay)
        self.beta_1 = number("beta_1", beta_1)
        self.beta_2 = number("beta_2", beta_2)
        self.epsilon = number("epsilon", epsilon)
        self.clip_norm = clip_norm and number("clip_norm", clip_norm)
        self.bias_correction = bias_correction
        self.layer_decay = number("layer_decay", layer_decay)
        accumulate = number("accumulate", accumulate)
        is_count = accumulate >= 1 and accumulate % 1 == 0
        positive = self.clip_norm is None or self.clip_norm > 0
        for name, value, fits, expected in (
            ("weight_decay", self.decay, self.decay >= 0, "0 or more"),
            ("beta_1", beta_1, 0 <= self.beta_1 < 1, "a fraction below 1"),
            ("beta_2", beta_2, 0 <= self.beta_2 < 1, "a fraction below 1"),
            ("epsilon", epsilon, self.epsilon >= 0, "0 or more"),
            ("clip_norm", clip_norm, positive, "more than 0, or None"),
            ("layer_decay", layer_decay, self.layer_decay > 0, "more than 0"),
            ("accumulate", accumulate, is_count, "the number of micro-batches"),
        ):
            if not fits:
                raise InputError(f"{name} is {value}; expected {expected}.")
        self.accumulate = int(accumulate)
        # What a step has in common for all weights, while it is applied.
        self._shared = types.SimpleNamespace(numbers=None)

    def build(self, variables):
        if self.built:
            return
        check_dtypes(variables)
        super().build(variables)
        self.gradient_norm, self.skipped_steps, self.skipped_in_row = (
            self.add_variable((), dtype=dtype, name=name)
            for name, dtype in (
                ("gradient_norm", "float32"),
                ("skipped_steps", "int"),
                ("skipped_in_row", "int"),
            )
        )
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )
        paths = [getattr(v, "path", v.name) for v in variables]
        self._decayed = [
            # By path, and by Keras's `exclude_from_weight_decay`.
            not NOT_DECAYED.search(path) and self._use_weight_decay(variable)
            for path, variable in zip(paths, variables, strict=True)
        ]
        dtypes = [keras.backend.standardize_dtype(v.dtype) for v in variables]
        rates = layer_rates(paths, self.layer_decay)
        # Weights of one kind share the numbers of a step: see `_numbers`.
        self._kinds = list(zip(dtypes, rates, strict=True))

    def apply(self, grads, trainable_variables=None):
        grads = list(grads)
        if not takes_summed_gradients(self):
            # A foreign model's step: a task model of ours sums by itself.
            if self.accumulate > 1:
                raise InputError(
                    f"accumulate={self.accumulate} takes a task model of "
                    "bert_keras, such as BertPretrainer: another Keras model "
                    "does not cut its batch. Take accumulate=1 here."
                )
            if keras.backend.backend() == "tensorflow":
                grads = _fused().sum_over_replicas(grads)
        if not self.built and trainable_variables is not None:
            with keras.name_scope(self.name, caller=self):
                self.build(trainable_variables)
        if any(gradient is not None for gradient in grads):
            grads = self._clip_together(grads)
        try:
            super().apply(grads, trainable_variables)
        finally:
            # Tensors of a graph, which would keep it alive.
            self._shared.numbers = None

    def _clip_together(self, grads):
        """Return clipped gradients; compute what `update_step` shares.

        All gradients are 0 where their common norm is not finite: a skipped
        step.
        """
        norm = _global_norm([g for g in grads if g is not None])
        finite = ops.isfinite(norm)
        skipped = ops.cast(ops.logical_not(finite), self.skipped_steps.dtype)
        self.gradient_norm.assign(ops.cast(norm, "float32"))
        self.skipped_steps.assign(self.skipped_steps + skipped)
        # 0 again with the first step that is taken.
        self.skipped_in_row.assign((self.skipped_in_row + skipped) * skipped)
        divisor = ops.ones_like(norm)
        # max(1, norm / clip_norm), by which tf.clip_by_global_norm divides.
        if self.clip_norm is not None:
            divisor = ops.maximum(norm, self.clip_norm) / self.clip_norm
        # Divided by 0, whatever is broken becomes 0: one pass for both.
        divisor = ops.where(finite, divisor, 0.0)
        kinds = dict.fromkeys(self._kinds)
        self._shared.numbers = {kind: self._numbers(*kind) for kind in kinds}
        return [
            None
            if g is None
            else ops.divide_no_nan(g, ops.cast(divisor, g.dtype))
            for g in grads
        ]

    def _numbers(self, dtype, layer_rate):
        """Return what the step of all weights of one kind has in common.

        Once a step and not once a weight: a base model has 199 of them.

        Args:
            dtype: of the weights.
            layer_rate: factor on the learning rate.
        """
        betas = self.beta_1, self.beta_2
        # 1.0, or 0.0 in a skipped step
        taken = ops.cast(ops.equal(self.skipped_in_row, 0), dtype)
        # Adam's number of this step: skipped ones do not count, and where the
        # very first is skipped it is not yet 1.
        step = ops.maximum(self.iterations - self.skipped_steps + 1, 1)
        step = ops.cast(step, dtype)
        numbers = {
            "rate": ops.cast(self.learning_rate, dtype) * layer_rate * taken,
            # By these the moments move towards the gradient and its square.
            "moved": [(1.0 - beta) * taken for beta in betas],
            "powers": [ops.power(ops.cast(b, dtype), step) for b in betas],
        }
        if self._is_fused(dtype):
            return _fused().adam_numbers(self.decay, self.epsilon, **numbers)
        return numbers

    def update_step(self, gradient, variable, learning_rate):
        # Each moment has the shape of its weight.
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        kind, decayed = self._kinds[index], self._decayed[index]
        numbers = self._shared.numbers[kind]  # the learning rate among them
        decay = self.decay if decayed else 0
        gradient = ops.cast(gradient, variable.dtype)
        if self._is_fused(kind[0]):
            return _fused().adam(
                variable, m.value, v.value, gradient, numbers, bool(decay)
            )
        # Kingma and Ba 2015, algorithm 1: beta m + (1 - beta) g, written as
        # what is added, so that a skipped step adds 0.
        moved_1, moved_2 = numbers["moved"]
        self.assign_add(m, (gradient - m) * moved_1)
        self.assign_add(v, (ops.square(gradient) - v) * moved_2)
        # The moments began at 0: what they lack in the first steps.
        if self.bias_correction:
            power_1, power_2 = numbers["powers"]
            m, v = m / (1.0 - power_1), v / (1.0 - power_2)
        update = m / (ops.sqrt(v) + self.epsilon)
        # Behind the moments, so decoupled from them (Loshchilov and Hutter
        # 2019, algorithm 2); the original adds it in the same place.
        if decay:
            update = update + decay * variable
        update = self.scale_update(update, variable, decayed)
        return self.assign_sub(variable, numbers["rate"] * update)

    def _is_fused(self, dtype):
        """Return True if one operation of TensorFlow does the update."""
        # The operation rounds 1 - beta_2 to 1e-5 of itself, of which only
        # the correction by the same beta_2 leaves nothing.
        return (
            keras.backend.backend() == "tensorflow"
            and dtype in ("float32", "float64")
            and self.bias_correction
            and type(self).scale_update is AdamW.scale_update
        )

    def scale_update(self, update, variable, decayed):
        """Return the update times a factor of its weight: none in Adam."""
        return update

    def get_config(self):
        config = super().get_config()
        return {
            **{k: v for k, v in config.items() if k not in _NOT_KERAS},
            "weight_decay": self.decay,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "clip_norm": self.clip_norm,
            "bias_correction": self.bias_correction,
            "layer_decay": self.layer_decay,
            "accumulate": self.accumulate,
        }


@keras.saving.register_keras_serializable("bert_keras")
class Lamb(AdamW):
    """Adam whose step on each weight is as long as the weight times the rate.

    Adam's update with bias correction, plus the decay; then scaled by the
    trust ratio, the norm of the weight over the norm of that sum; then times
    the learning rate. Biases and layer normalisation are neither decayed nor
    scaled. Equals algorithm 2 of the paper (You et al. 2020, "Large Batch
    Optimization for Deep Learning") with the authors' exclusions. Keras's own
    decays outside the ratio and scales everything.

    Args:
        learning_rate: float or schedule.
        weight_decay: weight of the variable in the sum.
        **kwargs: as of `AdamW`, whose bias correction is on by default.
    """

    def __init__(
        self, learning_rate=1e-3, weight_decay=0.01, *, name="lamb", **kwargs
    ):
        super().__init__(learning_rate, weight_decay, name=name, **kwargs)

    def scale_update(self, update, variable, decayed):
        """Return the update times the trust ratio, 1 where a norm is 0."""
        if not decayed:
            return update
        length, step = _norm(variable), _norm(update)
        usable = ops.logical_and(length > 0, step > 0)
        one = ops.ones_like(length)
        # The inner choice keeps a division by 0 out.
        ratio = ops.where(usable, length / ops.where(usable, step, one), one)
        return ops.cast(ratio, update.dtype) * update


def layer_rates(paths, layer_decay):
    """Return the factor on the learning rate of each variable, by path."""
    # encoder/layer_11/attention/query/kernel
    layers = [re.search(r"(?:^|/)layer_(\d+)/", path) for path in paths]
    count = max((int(match[1]) + 1 for match in layers if match), default=0)

    def depth(path, match):
        """Count the layers up to the heads, the variable's own included."""
        if match:
            return count - int(match[1])
        return count + 1 if re.search(r"(^|/)embeddings/", path) else 0

    pairs = zip(paths, layers, strict=True)
    return [layer_decay ** depth(path, match) for path, match in pairs]


def check_dtypes(variables):
    """Raise if weights that train are in half precision.

    Most updates are below the distance of a bfloat16 weight to the next one,
    and 0.999, Adam's beta_2, is 1.
    """
    for variable in variables:
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if dtype in ("bfloat16", "float16"):
            raise InputError(
                f"The weight {getattr(variable, 'path', variable.name)} is "
                f"{dtype}, in which most updates round to 0. Train in "
                f'dtype="mixed_{dtype}", with float32 weights: '
                f'model.with_dtype("mixed_{dtype}").'
            )


class ScheduleWatch(keras.callbacks.Callback):
    """Warns at the first step beyond a `WarmupLinearDecay`.

    The rate is 0 from there on, so that nothing is learned.
    """

    def on_train_begin(self, logs=None):
        self._warned = False
        self._steps = self._iterations()
        self._seen = 0
        # A first step now would be one beyond.
        self._check(self._steps + 1)

    def on_epoch_begin(self, epoch, logs=None):
        self._seen = 0

    def on_train_batch_end(self, batch, logs=None):
        # `batch` grows by more than 1 under `steps_per_execution`.
        self._steps += batch + 1 - self._seen
        self._seen = batch + 1
        self._check(self._steps)

    def _iterations(self):
        return int(self.model.optimizer.iterations.numpy())

    def _check(self, steps):
        schedule = learning_rate_schedule(self.model.optimizer)
        if self._warned or not isinstance(schedule, WarmupLinearDecay):
            return
        if steps > schedule.steps:
            self._warned = True
            warnings.warn(
                f"The learning rate is 0: the schedule ended after "
                f"{schedule.steps} steps, and training goes on. Give adamw or "
                "lamb the steps of all epochs, and compile again to train "
                "further.",
                stacklevel=2,
            )


def _fused():
    """Return the module with TensorFlow's fused operations."""
    # Now, so that this file is imported where there is no TensorFlow.
    from bert_keras.training import optimizers_tensorflow

    return optimizers_tensorflow


def _global_norm(grads):
    """Return the norm of all gradients together, in float32 or better."""
    grads = [_at_least_float32(gradient) for gradient in grads]
    if keras.backend.backend() == "tensorflow":
        return ops.sqrt(_fused().sum_of_squares(grads))
    # One number a weight; the root of their sum is the common norm.
    squares = [ops.sum(ops.square(gradient)) for gradient in grads]
    return ops.sqrt(ops.sum(ops.stack(squares)))


def _norm(x):
    return ops.sqrt(ops.sum(ops.square(_at_least_float32(x))))


def _at_least_float32(x):
    x = ops.convert_to_tensor(x)
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
