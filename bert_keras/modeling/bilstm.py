"""A bidirectional LSTM on the encoder, for the paper's ablation."""

import keras
from keras import ops

from bert_keras.modeling.initialization import weights_initializer


@keras.saving.register_keras_serializable("bert_keras")
class BiLSTM(keras.layers.Layer):
    """Reads the token vectors forwards and backwards; skips padding.

    The paper adds it, new, on an encoder that sees in one direction only,
    for fine-tuning (section 5.1).

    Weights, by path: both/{forward,backward}_lstm/lstm_cell/
    {kernel,recurrent_kernel,bias}.

    Args:
        units: width of each direction.

    Call arguments:
        inputs: float (B, T, D).
        padding_mask: int (B, T), 1 at tokens; every place is one where None.

    Returns:
        float (B, T, 2 units).
    """

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        lstm = keras.layers.LSTM(
            units,
            kernel_initializer=weights_initializer(),
            return_sequences=True,
            name="lstm",
            dtype=self.dtype_policy,
        )
        self.both = keras.layers.Bidirectional(
            lstm, name="both", dtype=self.dtype_policy
        )

    def build(self, inputs_shape, padding_mask_shape=None):
        self.both.build(inputs_shape)

    def call(self, inputs, padding_mask=None, training=False):
        if padding_mask is not None:
            padding_mask = ops.cast(padding_mask, "bool")
        read = self.both(inputs, mask=padding_mask, training=training)
        # A copy has no Keras mask, which would go on to the loss and scale it.
        return ops.copy(read)

    def compute_output_spec(self, inputs, padding_mask=None, training=False):
        shape = (*inputs.shape[:-1], 2 * self.units)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "units": self.units}
