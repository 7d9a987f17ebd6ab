"""Token, position and segment embeddings."""

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling.dropout import SeededLayer, dropout
from bert_keras.modeling.initialization import weights_initializer
from bert_keras.modeling.normalization import NORM_EPSILON, LayerNorm


def lookup(embedding, ids):
    """Rows of the table of an `Embedding`, (..., D), in the table's dtype.

    The table's gradient is one dense tensor. TensorFlow's own would be a list
    of rows, to which the gradient of the tied output layer is added row by
    row, and which replicas would exchange as such a list.
    """

    height, width = embedding.input_dim, embedding.output_dim

    @ops.custom_gradient
    def rows(table):
        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            upstream = ops.reshape(upstream, (-1, width))
            return ops.segment_sum(upstream, ops.reshape(ids, (-1,)), height)

        return ops.take(table, ids, axis=0), gradient

    # Reshaped into its own shape: a tensor, where a variable is not allowed.
    return rows(ops.reshape(embedding.embeddings, (height, width)))


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
        # The sum and its normalisation stay in the variables' precision.
        self.norm = LayerNorm(
            epsilon=norm_epsilon, name="norm", dtype=self.variable_dtype
        )
        self.autocast = False

    def _table(self, rows, name):
        return keras.layers.Embedding(
            rows,
            self.hidden_dim,
            embeddings_initializer=weights_initializer(),
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape=None):
        for table in (self.token, self.position, self.segment):
            table.build()
        self.norm.build((None, None, self.hidden_dim))
        self.build_seed(self.dropout)

    def call(
        self, token_ids, segment_ids=None, position_ids=None, training=False
    ):
        x = lookup(self.token, token_ids)  # (B, T, D)
        x = x + self._segment_vectors(segment_ids)
        x = x + self._position_vectors(token_ids, position_ids)
        x = dropout(self.norm(x), self.dropout, self.draw_seed(training))
        return ops.cast(x, self.compute_dtype)

    def _segment_vectors(self, segment_ids):
        table = ops.convert_to_tensor(self.segment.embeddings)
        if segment_ids is None:
            return table[0]
        # A product: with two rows it is faster than a gather, both ways.
        one_hot = ops.one_hot(segment_ids, self.num_segments, dtype=table.dtype)
        return ops.matmul(one_hot, table)  # (B, T, D)

    def _position_vectors(self, token_ids, position_ids):
        if position_ids is not None:
            return lookup(self.position, position_ids)
        length = ops.shape(token_ids)[1]
        if isinstance(length, int) and length > self.max_sequence_length:
            raise InputError(
                f"The rows are {length} tokens long, but the model has "
                f"{self.max_sequence_length} positions. Shorten the rows "
                "(`sequence_length` of the preprocessor)."
            )
        return ops.convert_to_tensor(self.position.embeddings)[:length]

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
