"""AdamW and LAMB for BERT, on any number of devices.

A step sums the gradients over all replicas, clips them by their global norm and
applies them. A step whose gradients are not finite changes no weight, and
`skipped_steps` counts it. `step_tensorflow.py` and `step_jax.py` compute the
gradients of a global batch.
"""

import re
import types
from typing import Any, SupportsFloat

import keras
from keras import ops

from bert_keras.errors import InputError, refuse_arguments
from bert_keras.modeling.inputs import ShowsArguments
from bert_keras.modeling.keras_adapter import (
    SumsGradients,
    takes_summed_gradients,
)
from bert_keras.training import schedules
from bert_keras.training.schedules import WarmupLinearDecay, to_number

fused: Any = None  # operations of TensorFlow, if Keras runs on it
if keras.backend.backend() == "tensorflow":
    from bert_keras.training import (  # type: ignore[no-redef]
        optimizers_tensorflow as fused,
    )

# Biases and layer normalisation are not decayed, as in the original.
NOT_DECAYED = re.compile(r"(^|/|_)(bias|beta|gamma)(:0)?$")
# Refused arguments of Keras's optimizers. They would clip before the sum over
# replicas, undo loss scaling after clipping, or count micro-batches as steps.
_REFUSED_ARGUMENTS = (
    "clipnorm clipvalue global_clipnorm gradient_accumulation_steps "
    "loss_scale_factor".split()
)
# Argument of Keras's optimizers -> argument of `adamw` and `lamb`.
_KERAS_ARGUMENTS = {
    "gradient_accumulation_steps": (
        "accumulate, which splits each batch: for 4 steps of 8 rows, batches "
        "of 32 rows and accumulate=4"
    ),
    "global_clipnorm": "clip_norm",
    "clipnorm": "`clip_norm`, the norm of all gradients together",
    "use_ema": "ema, the momentum of the averages",
    "ema_momentum": "ema",
}


def adamw(
    learning_rate: float,
    steps: SupportsFloat | None = None,
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    layer_decay: float = 1.0,
    bias_correction: bool = True,
    accumulate: int = 1,
    schedule: str = "linear",
    ema: float | None = None,
    **others: Any,
) -> "AdamW":
    """Return BERT's optimizer with its schedule, ready for `compile`.

    Args:
        learning_rate: the rate that the warm-up rises towards. The paper uses
            1e-4 for pre-training and 2e-5 to 5e-5 for fine-tuning.
        steps: total number of training steps, which is the number of epochs
            times `len(dataset)` or `dataset.cardinality()`. With None, the rate
            is constant, and callbacks such as `LearningRateScheduler` and
            `ReduceLROnPlateau` can set it.
        warmup: fraction of the steps (below 1) or number of steps (from 1).
        weight_decay: factor of the decoupled weight decay. Biases and layer
            normalisation are not decayed.
        clip_norm: maximum global norm of the gradients; None for no clipping.
        layer_decay: an encoder layer's learning rate is this factor times the
            rate of the layer above it.
        bias_correction: True as in Adam's paper; False as in BERT's original
            code. Short runs and fine-tuning on few labels are more stable with
            True (Mosbach et al. 2021, Zhang et al. 2021).
        accumulate: number of micro-batches into which each replica splits its
            rows. The memory then holds one micro-batch at a time. Without
            dropout, the result equals the result of a step on the whole batch.
            For a loss that compares the rows of a batch, such as
            `InBatchNegatives`, each micro-batch is computed twice (GradCache).
            A number above 1 needs a task model of this package.
        schedule: shape of the rate after the warm-up: "constant", or "linear"
            or "cosine", which reach 0 after the last step.
        ema: momentum of the moving average of each weight, such as 0.99. At the
            end of `fit` the averages replace the weights. None for no averages.
        **others: refused, with the name that an argument has here.

    Raises:
        InputError: an argument is out of its range, or `warmup` or `schedule`
            is set without `steps`.

    Examples:
        >>> from bert_keras import adamw
        >>> optimizer = adamw(2e-5, steps=1000)
        >>> optimizer.get_config()["learning_rate"]["config"]
        {'peak': 2e-05, 'steps': 1000, 'warmup_steps': 100}
    """
    refuse_arguments("adamw", others, _KERAS_ARGUMENTS)
    return AdamW(
        _make_rate(learning_rate, steps, warmup, schedule),
        weight_decay=weight_decay,
        clip_norm=clip_norm,
        layer_decay=layer_decay,
        bias_correction=bias_correction,
        accumulate=accumulate,
        **_make_average_arguments(ema),
    )


def lamb(
    learning_rate: float,
    steps: SupportsFloat | None = None,
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    layer_decay: float = 1.0,
    accumulate: int = 1,
    schedule: str = "linear",
    ema: float | None = None,
    **others: Any,
) -> "Lamb":
    """Return LAMB with the schedule of BERT, ready for `compile`.

    Args:
        learning_rate: the rate that the warm-up rises towards. LAMB's paper
            uses 5 / (2 ** 3 * 1000) for batches of 512 sequences of 128 tokens.
            It multiplies this by sqrt(2) for each doubling of the batch.
        steps: see `adamw`.
        warmup: see `adamw`.
        weight_decay: see `adamw`.
        clip_norm: see `adamw`.
        layer_decay: see `adamw`.
        accumulate: see `adamw`.
        schedule: see `adamw`.
        ema: see `adamw`.
        **others: see `adamw`.

    Examples:
        >>> from bert_keras import lamb
        >>> optimizer = lamb(1e-3, steps=1000, warmup=0.05)
        >>> optimizer.get_config()["learning_rate"]["config"]
        {'peak': 0.001, 'steps': 1000, 'warmup_steps': 50}
    """
    refuse_arguments("lamb", others, _KERAS_ARGUMENTS)
    return Lamb(
        _make_rate(learning_rate, steps, warmup, schedule),
        weight_decay,
        clip_norm=clip_norm,
        layer_decay=layer_decay,
        accumulate=accumulate,
        **_make_average_arguments(ema),
    )


def _make_average_arguments(ema):
    if ema is None:
        return {}
    if not 0 <= to_number("ema", ema) < 1:
        raise InputError(f"`ema` is {ema}; expected a fraction below 1.")
    return {"use_ema": True, "ema_momentum": float(ema)}


def _make_rate(peak, steps, warmup, shape):
    """Return the schedule, or the float `peak` if `steps` is None."""
    if steps is not None:
        return schedules.schedule(peak, steps, warmup, shape)
    if (warmup, shape) != (0.1, "linear"):
        raise InputError(
            f"`warmup` is {warmup} and `schedule` is {shape!r}. Without "
            "`steps`, the learning rate is constant. Give `steps`, or leave "
            "`warmup` and `schedule` out."
        )
    return WarmupLinearDecay(to_number("learning_rate", peak), 1).peak


@keras.saving.register_keras_serializable("bert_keras")
class AdamW(ShowsArguments, SumsGradients, keras.optimizers.Optimizer):
    """Adam with decoupled weight decay, as in BERT's original code.

    A step sums the gradients over all replicas and clips them by their global
    norm to `clip_norm`. Then it subtracts `learning_rate * update` from the
    weight. `update` is `m / (sqrt(v) + epsilon) + weight_decay * weight`, where
    m and v are the first and the second moment. Biases and layer normalisation
    have no decay. With `bias_correction=False` this equals
    `tf.clip_by_global_norm` and then `AdamWeightDecayOptimizer` in the original
    code. With True, m and v are corrected for bias, and this equals Loshchilov
    and Hutter's AdamW. A step whose gradients are not finite changes no weight
    and no moment, but the schedule counts this step.

    Args:
        learning_rate: float or schedule; a schedule counts optimizer steps.
        weight_decay: factor of the decoupled weight decay.
        beta_1: exponential decay rate of the first moment.
        beta_2: exponential decay rate of the second moment.
        epsilon: added to the square root of the second moment.
        clip_norm: maximum global norm of the gradients; None for no clipping.
        bias_correction: True to scale the moments up in the first steps, as in
            Adam's paper; False as in the original code.
        layer_decay: an encoder layer's learning rate is this factor times the
            rate of the layer above it. The heads and the pooler have the full
            rate. The embeddings have the lowest rate.
        accumulate: number of micro-batches into which each replica splits its
            rows. The memory then holds one micro-batch at a time. A number
            above 1 needs a task model of this package.
        name: name of the optimizer.
        **kwargs: other arguments of Keras's optimizers, such as `use_ema`.

    Attributes:
        gradient_norm: norm of the last step's gradients before clipping.
        skipped_steps: number of steps with gradients that were not finite.
        skipped_in_row: number of successive skipped steps up to the last step.

    Raises:
        InputError: an argument is out of its range, or the class refuses it,
            such as `clipnorm`.
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
        refused = [k for k in _REFUSED_ARGUMENTS if kwargs.get(k) is not None]
        if refused:
            raise InputError(
                f"{', '.join(refused)} cannot be set for this optimizer. Keras "
                "would clip or unscale the gradients at the wrong time, or "
                "count micro-batches as steps. To clip, set `clip_norm`. "
                "For micro-batches, set `accumulate`."
            )
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        # Keras's `weight_decay` can exclude weights by name, but not by path.
        self.decay = to_number("weight_decay", weight_decay)
        self.beta_1 = to_number("beta_1", beta_1)
        self.beta_2 = to_number("beta_2", beta_2)
        self.epsilon = to_number("epsilon", epsilon)
        self.clip_norm = clip_norm and to_number("clip_norm", clip_norm)
        self.bias_correction = bias_correction
        self.layer_decay = to_number("layer_decay", layer_decay)
        accumulate = to_number("accumulate", accumulate)
        is_count = accumulate >= 1 and accumulate % 1 == 0
        positive = self.clip_norm is None or self.clip_norm > 0
        for name, value, fits, expected in (
            ("weight_decay", self.decay, self.decay >= 0, "0 or more"),
            ("beta_1", beta_1, 0 <= self.beta_1 < 1, "a fraction below 1"),
            ("beta_2", beta_2, 0 <= self.beta_2 < 1, "a fraction below 1"),
            ("epsilon", epsilon, self.epsilon >= 0, "0 or more"),
            ("clip_norm", clip_norm, positive, "more than 0, or None"),
            ("layer_decay", layer_decay, self.layer_decay > 0, "more than 0"),
            ("accumulate", accumulate, is_count, "a whole number from 1"),
        ):
            if not fits:
                raise InputError(f"`{name}` is {value}; expected {expected}.")
        self.accumulate = int(accumulate)
        # During a step, `values` is a dict of (dtype, layer rate) ->
        # result of `_compute_shared_values`.
        self._shared = types.SimpleNamespace(values=None)

    def build(self, variables):
        if self.built:
            return
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
            # `_use_weight_decay` applies Keras's `exclude_from_weight_decay`.
            not NOT_DECAYED.search(path) and self._use_weight_decay(variable)
            for path, variable in zip(paths, variables, strict=True)
        ]
        dtypes = [keras.backend.standardize_dtype(v.dtype) for v in variables]
        rates = layer_rates(paths, self.layer_decay)
        # For each weight, the arguments of `_compute_shared_values`. Weights
        # with equal arguments share the result.
        self._groups = list(zip(dtypes, rates, strict=True))

    def apply(self, grads, trainable_variables=None):
        grads = list(grads)
        if not takes_summed_gradients(self):
            # These gradients are not from a training step of this package. So
            # no step has split the batch or summed over the replicas.
            if self.accumulate > 1:
                raise InputError(
                    f"accumulate={self.accumulate} needs a task model of "
                    "bert_keras, such as BertPretrainer: other Keras models do "
                    "not split a batch. Set accumulate=1 for this model."
                )
            if fused is not None:
                grads = fused.sum_over_replicas(grads)
        if not self.built:
            if trainable_variables is None:
                raise InputError(
                    "The optimizer is not built. Call "
                    "optimizer.build(model.trainable_variables) first, outside "
                    "of strategy.run."
                )
            with keras.name_scope(self.name, caller=self):
                self.build(trainable_variables)
        if any(gradient is not None for gradient in grads):
            self._share_values(grads)
        try:
            super().apply(grads, trainable_variables)
        finally:
            # Tensors that stay here would keep their graph in memory.
            self._shared.values = None

    def _share_values(self, grads):
        """Set the values of this step that all weights share.

        They follow from the global norm of the gradients. Also set
        `gradient_norm`, and count skipped steps.
        """
        wide = [_at_least_float32(g) for g in grads if g is not None]
        if fused is not None:
            norm = ops.sqrt(fused.sum_of_squares(wide))
        else:
            squares = [ops.sum(ops.square(gradient)) for gradient in wide]
            norm = ops.sqrt(ops.sum(ops.stack(squares)))
        finite = ops.isfinite(norm)
        skipped = ops.cast(ops.logical_not(finite), self.skipped_steps.dtype)
        self.gradient_norm.assign(ops.cast(norm, "float32"))
        self.skipped_steps.assign(self.skipped_steps + skipped)
        # In a step that is not skipped, `skipped` is 0, so the count becomes 0.
        self.skipped_in_row.assign((self.skipped_in_row + skipped) * skipped)
        divisor = ops.ones_like(norm)
        # Divide by max(1, norm / clip_norm), as tf.clip_by_global_norm does.
        if self.clip_norm is not None:
            divisor = ops.maximum(norm, self.clip_norm) / self.clip_norm
        # With the divisor 0, `divide_no_nan` returns 0, even for NaN.
        divisor = ops.where(finite, divisor, 0.0)
        self._shared.values = {
            group: self._compute_shared_values(divisor, *group)
            for group in dict.fromkeys(self._groups)
        }

    def _compute_shared_values(self, divisor, dtype, layer_rate):
        """Return this step's values for weights with one dtype and rate factor.

        Args:
            divisor: divisor that clips the gradients; 0 in a skipped step.
            dtype: dtype of the weights.
            layer_rate: factor on the learning rate.

        Returns:
            dict of "divisor", "rate" (the learning rate times `layer_rate`),
            "gains" (1 - beta_1 and 1 - beta_2), and "powers" (beta_1 ** t and
            beta_2 ** t). In a skipped step, the rate and the gains are 0. For
            the fused step, the dict of `adam_values` instead.
        """
        betas = self.beta_1, self.beta_2
        # 0 in a skipped step, else 1.
        is_taken = ops.cast(ops.equal(self.skipped_in_row, 0), dtype)
        # `step` is t in Adam's formulas. Skipped steps do not count, and t is
        # at least 1 even if the first step is skipped.
        step = ops.maximum(self.iterations - self.skipped_steps + 1, 1)
        step = ops.cast(step, dtype)
        values = {
            "divisor": divisor,
            "rate": ops.cast(self.learning_rate, dtype) * layer_rate * is_taken,
            # Factors of the gradient and of its square in the new moments. In
            # a skipped step they are 0, so the moments stay the same.
            "gains": [(1.0 - beta) * is_taken for beta in betas],
            "powers": [ops.power(ops.cast(b, dtype), step) for b in betas],
        }
        if self._can_fuse(dtype):
            return fused.adam_values(self.decay, self.epsilon, **values)
        return values

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        group, is_decayed = self._groups[index], self._decayed[index]
        # The argument `learning_rate` is not used, because values["rate"]
        # already includes it and the layer's factor.
        values = self._shared.values[group]
        decay = self.decay if is_decayed else 0
        if self._can_fuse(group[0]):
            return fused.adam(
                variable, m.value, v.value, gradient, values, bool(decay)
            )
        divisor = ops.cast(values["divisor"], gradient.dtype)
        gradient = ops.divide_no_nan(gradient, divisor)
        gradient = ops.cast(gradient, variable.dtype)
        # Kingma and Ba 2015, algorithm 1. beta m + (1 - beta) g is written as
        # m + (1 - beta) (g - m), so a skipped step, with gain 0, adds 0.
        gain_1, gain_2 = values["gains"]
        self.assign_add(m, (gradient - m) * gain_1)
        self.assign_add(v, (ops.square(gradient) - v) * gain_2)
        # The moments begin at 0, so they are too small in the first steps.
        if self.bias_correction:
            power_1, power_2 = values["powers"]
            m, v = m / (1.0 - power_1), v / (1.0 - power_2)
        update = m / (ops.sqrt(v) + self.epsilon)
        # The decay does not change the moments, as in the original (Loshchilov
        # and Hutter 2019, algorithm 2).
        if decay:
            update = update + decay * variable
        update = self.scale_update(update, variable, is_decayed)
        return self.assign_sub(variable, values["rate"] * update)

    def _can_fuse(self, dtype):
        """Return True if TensorFlow's fused Adam can take the step."""
        # The fused operation computes 1 - beta_2 with a relative error of 1e-5.
        # Only bias correction cancels this error.
        return (
            fused is not None
            and dtype in ("float32", "float64")
            and self.bias_correction
            and type(self).scale_update is AdamW.scale_update
        )

    def scale_update(self, update, variable, is_decayed):
        """Return the update unchanged; `Lamb` overrides this method."""
        return update

    def get_config(self):
        config = super().get_config()
        return {
            **{k: v for k, v in config.items() if k not in _REFUSED_ARGUMENTS},
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
    """LAMB: Adam whose step for a weight is proportional to the weight's norm.

    `update` is Adam's update with bias correction plus `weight_decay * weight`.
    The trust ratio is `norm(weight) / norm(update)`. A step subtracts
    `learning_rate * ratio * update` from the weight. Biases and layer
    normalisation have no weight decay and the ratio 1. This is algorithm 2 of
    the paper (You et al. 2020, "Large Batch Optimization for Deep Learning"),
    with the exclusions of the authors' code. Keras's Lamb adds the decay
    outside the ratio. It applies the ratio to biases and layer normalisation
    too.

    Args:
        learning_rate: float or schedule.
        weight_decay: factor of the weight in `update`.
        name: name of the optimizer.
        **kwargs: arguments of `AdamW`.
    """

    def __init__(
        self, learning_rate=1e-3, weight_decay=0.01, *, name="lamb", **kwargs
    ):
        super().__init__(learning_rate, weight_decay, name=name, **kwargs)

    def scale_update(self, update, variable, is_decayed):
        """Return the update; scale it by the trust ratio if `is_decayed`.

        The ratio is 1 if the norm of the weight or of the update is 0.
        """
        if not is_decayed:
            return update
        length, step = _norm(variable), _norm(update)
        ratio = ops.where(
            ops.logical_and(length > 0, step > 0),
            ops.divide_no_nan(length, step),
            ops.ones_like(length),
        )
        return ops.cast(ratio, update.dtype) * update


def layer_rates(paths, layer_decay):
    """Return a list: the factor on the learning rate for each path."""
    # A path is, for example, encoder/layer_11/attention/query/kernel.
    layers = [re.search(r"(?:^|/)layer_(\d+)/", path) for path in paths]
    count = max((int(match[1]) + 1 for match in layers if match), default=0)

    rates = []
    for path, match in zip(paths, layers, strict=True):
        depth = 0  # number of layers between the variable and the heads
        if match:
            depth = count - int(match[1])
        elif re.search(r"(^|/)embeddings/", path):
            depth = count + 1
        rates.append(layer_decay**depth)
    return rates


def _norm(x):
    return ops.sqrt(ops.sum(ops.square(_at_least_float32(x))))


def _at_least_float32(x):
    x = ops.convert_to_tensor(x)
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
