"""What all our optimizers do with the gradients before they use them.

Sum over replicas, then one norm of all together, then clip; a step whose
gradients are not finite changes nothing and is counted.
"""

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.training.global_step import GlobalStep

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
        from bert_keras.training import tensorflow_update

        return tensorflow_update.sum_of_squares(x)
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
