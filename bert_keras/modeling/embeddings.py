"""Token, position and segment embeddings."""

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling.dropout import SeededLayer, dropout
from bert_keras.modeling.initialization import weights_initializer
from bert_keras.modeling.lora import KeepsLora
from bert_keras.modeling.normalization import NORM_EPSILON, LayerNorm


@keras.saving.register_keras_serializable("bert_keras")
class Table(KeepsLora, keras.layers.Embedding):
    """Keras's `Embedding`, whose table gets its gradient as one tensor.

    TensorFlow's own gradient would be a list of rows, to which the gradient
    of the tied output layer is added row by row, and which replicas would
    exchange as such a list.
    """

    def __init__(self, input_dim, output_dim, **kwargs):
        kwargs.setdefault("embeddings_initializer", weights_initializer())
        super().__init__(input_dim, output_dim, **kwargs)

    def call(self, inputs):
        # Reshaped into its own shape: a tensor, where the custom gradient
        # does not take a variable.
        table = ops.reshape(self.embeddings, (self.input_dim, self.output_dim))
        if self.input_dim <= 4:
            # For so few rows a product is faster than a gather, both ways.
            one_hot = ops.one_hot(inputs, self.input_dim, dtype=table.dtype)
            return ops.matmul(one_hot, table)
        return _rows(table, inputs)


def _rows(table, ids):
    height, width = table.shape
    # Else Keras would count a negative id from the table's end.
    ids = ops.where(ids < 0, ids - height, ids)

    @ops.custom_gradient
    def rows(table):
        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            upstream = ops.reshape(upstream, (-1, width))
            return ops.segment_sum(upstream, ops.reshape(ids, (-1,)), height)

        return ops.take(table, ids, axis=0), gradient

    return rows(table)


@keras.saving.register_keras_serializable("bert_keras")
class BertEmbeddings(SeededLayer):
    """The sum of token, position and segment vectors, normalised.

    Sum, then layer normalisation in float32, then dropout. Padding gets a
    vector like any token; attention leaves it out. Equals `embedding_lookup`
    with `embedding_postprocessor` of the original.

    Args:
        vocabulary_size: number of word pieces.
        hidden_dim: width of a vector.
        max_sequence_length: number of positions that have a vector.
        num_segments: number of segments that have a vector.
        dropout: share of the output dropped in training.
        norm_epsilon: added to a variance before its root.

    Call arguments:
        token_ids: int32 (B, T).
        segment_ids: int32 (B, T); all 0 where None.
        position_ids: int32 (B, T); 0, 1, 2, ... where None.
        training: bool.

    Returns:
        float (B, T, D).

    Raises:
        InputError: T is above `max_sequence_length`.

    Example:
    >>> BertEmbeddings(100, 8)(np.array([[2, 45, 3]])).shape
    (1, 3, 8)
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        max_sequence_length=512,
        num_segments=2,
        dropout=0.1,
        norm_epsilon=NORM_EPSILON,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.dropout = dropout
        self.norm_epsilon = norm_epsilon
        self.token = self._table(vocabulary_size, "token")
        self.position = self._table(max_sequence_length, "position")
        self.segment = self._table(num_segments, "segment")
        self.norm = LayerNorm(
            epsilon=norm_epsilon, name="norm", dtype=self.variable_dtype
        )

    def _table(self, rows, name):
        # The sum and its normalisation stay in the variables' precision.
        return Table(
            rows, self.hidden_dim, name=name, dtype=self.variable_dtype
        )

    def build(self, token_ids_shape=None):
        for table in (self.token, self.position, self.segment):
            table.build()
        self.norm.build((None, None, self.hidden_dim))
        self.build_seed(self.dropout)

    def call(
        self, token_ids, segment_ids=None, position_ids=None, training=False
    ):
        if position_ids is None:
            position_ids = self._positions(token_ids)
        if segment_ids is None:
            segment_ids = ops.zeros((1,), "int32")
        x = self.token(token_ids)  # (B, T, D)
        x = x + self.segment(segment_ids) + self.position(position_ids)
        x = dropout(self.norm(x), self.dropout, self.draw_seed(training))
        return ops.cast(x, self.compute_dtype)

    def _positions(self, token_ids):
        length = ops.shape(token_ids)[1]
        if isinstance(length, int) and length > self.max_sequence_length:
            raise InputError(
                f"The rows are {length} tokens long, but the model has "
                f"{self.max_sequence_length} positions. Shorten the rows "
                "(`sequence_length` of the preprocessor)."
            )
        return ops.arange(length, dtype="int32")

    def compute_output_shape(self, token_ids_shape, *args, **kwargs):
        return (*token_ids_shape, self.hidden_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "max_sequence_length": self.max_sequence_length,
            "num_segments": self.num_segments,
            "dropout": self.dropout,
            "norm_epsilon": self.norm_epsilon,
        }
