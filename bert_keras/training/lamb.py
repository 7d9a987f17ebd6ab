"""LAMB, the optimizer for very large batches."""

import keras
from keras import ops

from bert_keras.training.optimization import AdamW, schedule


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
