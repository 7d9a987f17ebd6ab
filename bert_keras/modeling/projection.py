"""The dense layer that the whole model is made of."""

import keras
from keras import ops

from bert_keras.modeling.initialization import weights_initializer
from bert_keras.modeling.lora import KeepsLora


@keras.saving.register_keras_serializable("bert_keras")
class Projection(KeepsLora, keras.layers.Dense):
    """Keras's `Dense`, begun as the original begins it, on a matrix inside.

    All leading axes are folded into one for the product: TensorFlow then adds
    the bias within the product, which it does not do for three axes.
    """

    def __init__(self, units, **kwargs):
        kwargs.setdefault("kernel_initializer", weights_initializer())
        super().__init__(units, **kwargs)

    def call(self, inputs, training=None):
        if len(inputs.shape) == 2:
            return super().call(inputs, training=training)
        *lead, width = ops.shape(inputs)
        x = super().call(ops.reshape(inputs, (-1, width)), training=training)
        return ops.reshape(x, (*lead, self.units))
