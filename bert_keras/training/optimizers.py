"""The optimizers of BERT: AdamW and LAMB over the global batch."""

import math
import re

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.training.step import GlobalStep

# What all our optimizers do with the gradients before they use them. Sum over
# replicas, then one norm of all together, then clip; a step whose gradients are
# not finite changes nothing and is counted.

# Keras's own of these act before the sum over replicas, know no exclusion by
# path or count the schedule in parts of a step.
_NOT_KERAS = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "gradient_accumulation_steps",
)


def number(name, value):
    """A number as it is; what holds one, such as a tensor, as a float.

    Raises:
        InputError: it is none.
    """
    if isinstance(value, int | float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; expected a number.") from None


class GlobalOptimizer(GlobalStep, keras.optimizers.Optimizer):
    """Base of `AdamW` and `Lamb`: clips after the sum, skips what is broken.

    Where the norm of all gradients together is not finite, every gradient
    reaches `update_step` as 0 throughout; `taken` there tells.

    Args:
        learning_rate: float or schedule; a schedule counts optimizer steps.
        clip_norm: greatest norm of all gradients together; None clips
            nothing.
        accumulate: parts into which each replica's rows of a batch are cut
            and that are computed one after another, in the memory of one.
            Takes a task model of ours.
        **kwargs: `use_ema`, `ema_momentum` and what else Keras's optimizers
            take beyond clipping and accumulation.

    Attributes:
        gradient_norm: of the last step, before clipping.
        skipped_steps: steps so far whose gradients were not finite.
        skipped_in_row: how many of them came last without one between.
    """

    def __init__(
        self, learning_rate, clip_norm=1.0, accumulate=1, name=None, **kwargs
    ):
        _refuse([k for k in _NOT_KERAS if kwargs.get(k) is not None])
        accumulate = number("accumulate", accumulate)
        if clip_norm is not None:
            clip_norm = number("clip_norm", clip_norm)
        if not accumulate >= 1 or accumulate % 1:
            raise InputError(
                "accumulate is the number of parts of a batch, 1 or more; got "
                f"{accumulate}."
            )
        if clip_norm is not None and not clip_norm > 0:
            raise InputError(
                f"clip_norm is {clip_norm}; expected more than 0, or None."
            )
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.clip_norm = clip_norm
        self.accumulate = int(accumulate)
        self._knows_parts = False

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.gradient_norm = self._counter("gradient_norm", "float32")
        self.skipped_steps = self._counter("skipped_steps", "int")
        self.skipped_in_row = self._counter("skipped_in_row", "int")

    def _counter(self, name, dtype):
        return self.add_variable((), dtype=dtype, name=name)

    def train_step(self, model, *arguments):
        self._knows_parts = True
        return super().train_step(model, *arguments)

    def apply(self, grads, trainable_variables=None):
        if self.accumulate > 1 and not self._knows_parts:
            raise InputError(
                f"accumulate={self.accumulate} takes a task model of "
                "bert_keras, such as BertPretrainer: another Keras model does "
                "not cut its batch. Take accumulate=1 here."
            )
        return super().apply(grads, trainable_variables)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        """On TensorFlow: where the gradients are summed over replicas."""
        pairs = [(_dense(g, v), v) for g, v in grads_and_vars]
        pairs = super()._all_reduce_sum_gradients(pairs)
        grads = self._clip_together([gradient for gradient, _ in pairs])
        return list(zip(grads, [v for _, v in pairs], strict=True))

    def _clip_gradients(self, grads):
        """On other backends: gradients are already global here."""
        if keras.backend.backend() == "tensorflow":
            return grads
        return self._clip_together(grads)

    def _clip_together(self, grads):
        norm = global_norm(grads)
        finite = ops.isfinite(norm)
        skipped = ops.cast(ops.logical_not(finite), self.skipped_steps.dtype)
        self.gradient_norm.assign(ops.cast(norm, "float32"))
        self.skipped_steps.assign(self.skipped_steps + skipped)
        self.skipped_in_row.assign((self.skipped_in_row + skipped) * skipped)
        divisor = ops.ones_like(norm)
        if self.clip_norm is not None:
            divisor = ops.maximum(norm, self.clip_norm) / self.clip_norm
        # Divided by 0, whatever is broken becomes 0: one pass for both.
        divisor = ops.where(finite, divisor, 0.0)
        return [ops.divide_no_nan(g, ops.cast(divisor, g.dtype)) for g in grads]

    def taken(self, dtype):
        """1.0, or 0.0 in a skipped step."""
        return ops.cast(ops.equal(self.skipped_in_row, 0), dtype)

    @property
    def updates(self):
        """Steps so far that were not skipped."""
        return self.iterations - self.skipped_steps

    def get_config(self):
        config = super().get_config()
        return {
            **{k: v for k, v in config.items() if k not in _NOT_KERAS},
            "clip_norm": self.clip_norm,
            "accumulate": self.accumulate,
        }


def global_norm(grads):
    """Of all gradients together, in float32 or better."""
    squares = [
        _sum_of_squares(ops.cast(g, _at_least_float32(g))) for g in grads
    ]
    return ops.sqrt(ops.sum(ops.stack(squares)))


def _sum_of_squares(x):
    if keras.backend.backend() == "tensorflow":
        from bert_keras.training import step_tensorflow

        return step_tensorflow.sum_of_squares(x)
    return ops.sum(ops.square(x))


def _at_least_float32(x):
    return keras.backend.result_type(x.dtype, "float32")


def _dense(gradient, variable):
    """A gradient that TensorFlow gives as a list of rows, as a whole."""
    if hasattr(gradient, "indices"):
        return ops.add(gradient, ops.zeros(variable.shape, gradient.dtype))
    return gradient


def _refuse(names):
    if names:
        raise InputError(
            f"{', '.join(names)} cannot be given to this optimizer: Keras "
            "clips before gradients are summed over replicas, and counts the "
            "schedule in parts of a step. Give clip_norm and accumulate."
        )


# The optimizer and the learning rate that BERT was trained with.

# Biases and layer normalisation are not decayed, as in the original.
NOT_DECAYED = re.compile(r"(^|/|_)(bias|beta|gamma)(:0)?$")


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
        step = ops.cast(step, "float32")
        left = ops.maximum(1.0 - step / self.steps, 0.0) ** self.power
        risen = step / max(self.warmup_steps, 1)
        return self.peak * ops.where(step < self.warmup_steps, risen, left)

    def get_config(self):
        return {
            "peak": self.peak,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
            "power": self.power,
        }


def schedule(peak, steps, warmup=0, power=1.0):
    """The learning rate of the original: linear up, then linear to 0.

    Args:
        peak: what the rate rises to.
        steps: number of optimizer steps in all.
        warmup: share of the steps (below 1) or number of steps (1 and more).
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
            f"A warm-up of {warmup} is not possible. Expected a share of the "
            "steps or a number of them."
        )
    warmup_steps = int(warmup * steps) if 0 < warmup < 1 else int(warmup)
    return WarmupLinearDecay(peak, steps, warmup_steps, power)


@keras.saving.register_keras_serializable("bert_keras")
class AdamW(GlobalOptimizer):
    """Adam with decoupled weight decay, as BERT's original code has it.

    Gradients are clipped together to `clip_norm` after they were summed over
    all replicas; then `update = m / (sqrt(v) + epsilon)`, plus
    `weight_decay * variable` except for biases and layer normalisation; then
    `variable -= learning_rate * update`. Equals `AdamWeightDecayOptimizer`
    of the original with `tf.clip_by_global_norm` before it, where
    `bias_correction` is off; Loshchilov and Hutter's AdamW where it is on. A
    step whose gradients are not finite changes
    nothing and counts in the schedule only.

    Args:
        learning_rate: float or schedule.
        weight_decay: share of a weight taken off per unit of learning rate.
        beta_1: share of the old first moment kept.
        beta_2: share of the old second moment kept.
        epsilon: added to the root of the second moment.
        clip_norm: greatest norm of all gradients together; None clips
            nothing.
        bias_correction: scales the moments up in the first steps, as Adam's
            paper does and the original code does not.
        layer_decay: factor on the learning rate from each encoder layer to
            the one below it; the heads and the pooler learn at the full rate,
            the embeddings most slowly.
        accumulate: parts of a replica's rows that are computed one after
            another, in the memory of one: see `GlobalOptimizer`.

    Raises:
        InputError: a number that is none of its kind.
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
        super().__init__(learning_rate, clip_norm, accumulate, name, **kwargs)
        weight_decay = number("weight_decay", weight_decay)
        beta_1, beta_2 = number("beta_1", beta_1), number("beta_2", beta_2)
        epsilon = number("epsilon", epsilon)
        layer_decay = number("layer_decay", layer_decay)
        for name, value, fits, expected in (
            ("weight_decay", weight_decay, weight_decay >= 0, "0 or more"),
            ("beta_1", beta_1, 0 <= beta_1 < 1, "a share below 1"),
            ("beta_2", beta_2, 0 <= beta_2 < 1, "a share below 1"),
            ("epsilon", epsilon, epsilon >= 0, "0 or more"),
            ("layer_decay", layer_decay, layer_decay > 0, "more than 0"),
        ):
            if not fits:
                raise InputError(f"{name} is {value}; expected {expected}.")
        # Not Keras's own `weight_decay`: it knows no exclusion by path.
        self.decay = weight_decay
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self.layer_decay = layer_decay

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )
        paths = [getattr(v, "path", v.name) for v in variables]
        self._decayed = [
            not NOT_DECAYED.search(path) and self._use_weight_decay(variable)
            for path, variable in zip(paths, variables, strict=True)
        ]
        self._rates = layer_rates(paths, self.layer_decay)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, variable.dtype)
        taken = self.taken(variable.dtype)
        rate = ops.cast(learning_rate, variable.dtype) * self._rates[index]
        if self._is_fused(variable):
            return self._fused(gradient, variable, m, v, rate, taken)
        self.assign_add(m, (gradient - m) * ((1.0 - self.beta_1) * taken))
        self.assign_add(
            v, (ops.square(gradient) - v) * ((1.0 - self.beta_2) * taken)
        )
        update = (
            self._corrected(m, v)
            if self.bias_correction
            else m / (ops.sqrt(v) + self.epsilon)
        )
        decayed = self._decayed[index]
        if self.decay and decayed:
            update = update + self.decay * variable
        update = self.trusted(update, variable, decayed)
        return self.assign_sub(variable, rate * taken * update)

    def _is_fused(self, variable):
        """Whether one operation of the backend does the whole step."""
        if keras.backend.backend() != "tensorflow":
            return False
        from bert_keras.training import step_tensorflow

        # The operation rounds 1 - beta_2 to 1e-5 of itself, of which only
        # the correction by the same beta_2 leaves nothing.
        plain = self.bias_correction and type(self).trusted is AdamW.trusted
        return plain and step_tensorflow.fits(variable)

    def _fused(self, gradient, variable, m, v, rate, taken):
        from bert_keras.training import step_tensorflow

        betas = self.beta_1, self.beta_2
        # A first step that is skipped leaves 0, which corrects nothing.
        step = ops.cast(ops.maximum(self.updates + 1, 1), variable.dtype)
        index = self._get_variable_index(variable)
        step_tensorflow.adam(
            variable,
            m.value,
            v.value,
            gradient,
            rate=rate * taken,
            decay=self.decay if self._decayed[index] else 0,
            # A moment of which all is kept does not move.
            betas=[1.0 - (1.0 - beta) * taken for beta in betas],
            powers=[ops.cast(b, variable.dtype) ** step for b in betas],
            epsilon=self.epsilon,
        )

    def trusted(self, update, variable, decayed):
        """The update by its trust ratio, where the optimizer has one."""
        return update

    def _corrected(self, m, v):
        # Where the first step of all is skipped, it is not yet 1.
        step = ops.maximum(ops.cast(self.updates + 1, m.dtype), 1.0)
        m = m / (1.0 - ops.power(ops.cast(self.beta_1, m.dtype), step))
        v = v / (1.0 - ops.power(ops.cast(self.beta_2, v.dtype), step))
        return m / (ops.sqrt(v) + self.epsilon)

    def get_config(self):
        return {
            **super().get_config(),
            "weight_decay": self.decay,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "bias_correction": self.bias_correction,
            "layer_decay": self.layer_decay,
        }


def layer_rates(paths, layer_decay):
    """The factor on the learning rate of each variable, by its path."""
    layers = [re.search(r"(?:^|/)layer_(\d+)/", path) for path in paths]
    number = max((int(found[1]) + 1 for found in layers if found), default=0)

    def above(path, found):
        """Layers between this variable and the heads, its own included."""
        if found:
            return number - int(found[1])
        return number + 1 if re.search(r"(^|/)embeddings/", path) else 0

    pairs = zip(paths, layers, strict=True)
    return [layer_decay ** above(path, found) for path, found in pairs]


def adamw(
    learning_rate,
    steps,
    warmup=0.1,
    weight_decay=0.01,
    clip_norm=1.0,
    layer_decay=1.0,
    bias_correction=True,
    power=1.0,
    accumulate=1,
):
    """BERT's optimizer with its schedule, ready for `compile`.

    Args:
        learning_rate: the rate at the end of the warm-up; the paper has 1e-4
            for pre-training and 2e-5 to 5e-5 for fine-tuning.
        steps: number of training steps in all, such as `len(dataset)` or
            `dataset.cardinality()` for each epoch.
        warmup: share of the steps (below 1) or number of steps (1 and more).
        weight_decay: decoupled decay; biases and norms are left out.
        clip_norm: greatest norm of all gradients together.
        layer_decay: factor on the rate from each encoder layer to the one
            below it.
        bias_correction: as Adam's paper, and unlike the original code; runs
            of a few thousand steps, and fine-tuning on few labels, learn more
            surely with it (Mosbach et al. 2021, Zhang et al. 2021).
        power: of the decay of the rate after the warm-up; 1 is a line.
        accumulate: parts of a batch that are computed one after another, in
            the memory of one; the step is that of the whole batch.
    """
    return AdamW(
        schedule(learning_rate, steps, warmup, power),
        weight_decay=weight_decay,
        clip_norm=clip_norm,
        layer_decay=layer_decay,
        bias_correction=bias_correction,
        accumulate=accumulate,
    )


# LAMB, the optimizer for very large batches.


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
        bias_correction: as the paper has it.
        **kwargs: as of `AdamW`.
    """

    def __init__(
        self,
        learning_rate=1e-3,
        weight_decay=0.01,
        bias_correction=True,
        name="lamb",
        **kwargs,
    ):
        super().__init__(
            learning_rate,
            weight_decay,
            bias_correction=bias_correction,
            name=name,
            **kwargs,
        )

    def trusted(self, update, variable, decayed):
        if not decayed:
            return update
        length, step = _norm(variable), _norm(update)
        usable = ops.logical_and(length > 0, step > 0)
        one = ops.ones_like(length)
        ratio = ops.where(usable, length / ops.where(usable, step, one), one)
        return ops.cast(ratio, update.dtype) * update


def _norm(x):
    x = ops.convert_to_tensor(x)
    dtype = keras.backend.result_type(x.dtype, "float32")
    return ops.sqrt(ops.sum(ops.square(ops.cast(x, dtype))))


def lamb(
    learning_rate,
    steps,
    warmup=0.1,
    weight_decay=0.01,
    clip_norm=1.0,
    power=1.0,
    accumulate=1,
):
    """LAMB with the schedule of BERT, ready for `compile`.

    Args:
        learning_rate: the rate at the end of the warm-up. The paper's rule
            for BERT at 128 pieces: 5 / 2 ** 3 / 1000 at 512 sequences a step,
            times the root of 2 for each doubling of the batch.
        steps: number of training steps in all.
        warmup: share of the steps (below 1) or number of steps (1 and more).
        weight_decay: biases and norms are left out.
        clip_norm: greatest norm of all gradients together.
        power: of the decay of the rate after the warm-up; 1 is a line.
        accumulate: parts of a batch that are computed one after another.
    """
    return Lamb(
        schedule(learning_rate, steps, warmup, power),
        weight_decay,
        clip_norm=clip_norm,
        accumulate=accumulate,
    )
