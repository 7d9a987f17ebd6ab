"""Positions of a batch that the layers of an encoder compute.

The layers read and write matrices (L, D): a vector for each of L tokens. Only
attention needs rows.
"""

from keras import ops

from bert_keras.modeling.kernels import gather


class AllTokens:
    """All positions of a batch, L = B T. All layers use the same instance.

    Args:
        x: tensor (B, T) or (B, T, D).
        num_heads: number of attention heads, N.
    """

    def __init__(self, x, num_heads):
        self.batch, self.length = ops.shape(x)[:2]
        self.num_heads = num_heads

    def flatten(self, x):
        """Return the vectors of `x` (B, T, D) as a matrix (L, D)."""
        return ops.reshape(x, (-1, ops.shape(x)[-1]))

    def put_in_rows(self, x):
        """Put vectors (L, D) in their rows, (B, T, D)."""
        # Pass all sizes: TensorFlow cannot infer -1 for an empty batch.
        return ops.reshape(x, (self.batch, self.length, x.shape[-1]))

    def split_heads(self, x):
        """Split vectors (L, D) into heads (B, N, T, H)."""
        width = x.shape[-1] // self.num_heads
        shape = (self.batch, self.length, self.num_heads, width)
        return ops.transpose(ops.reshape(x, shape), (0, 2, 1, 3))

    def merge_heads(self, x):
        """Merge heads (B, N, T, H) into vectors (L, D)."""
        width = self.num_heads * x.shape[-1]
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, width))


class RealTokens:
    """The positions of the L real tokens of a batch.

    The first token of a row counts as real even if its mask is 0, so each row
    has a real token. Padding gets a copy of the vector of a real token in its
    row. All layers use the same instance.

    Args:
        padding_mask: int (B, T), 1 at tokens.
        num_heads: number of attention heads, N.
    """

    def __init__(self, padding_mask, num_heads):
        shape = ops.shape(padding_mask)
        self.length = shape[1]
        is_first = ops.equal(ops.arange(self.length), 0)
        is_real = ops.logical_or(ops.cast(padding_mask, "bool"), is_first)
        flat = ops.reshape(is_real, (-1,))  # (B T,)
        (positions,) = ops.nonzero(flat)
        # `positions` (L,): index of each real token among the B T positions.
        # `tokens` (B, T): for each position, the last real token at or before
        # it, as an index from 0 to L - 1.
        self.positions = ops.cast(positions, "int32")
        tokens = ops.cumsum(ops.cast(flat, "int32")) - 1
        self.tokens = ops.reshape(tokens, shape)
        # `heads` (B, N, T): indices with which `split_heads` gathers from
        # (L N, H). `head_positions` (L, N): indices with which `merge_heads`
        # gathers from (B N T, H).
        self.num_heads = num_heads
        heads = ops.arange(num_heads, dtype="int32")
        self.heads = self.tokens[:, None] * num_heads + heads[:, None]
        row, column = self.positions // self.length, self.position_ids()
        first = row * num_heads * self.length + column  # (L,), of head 0
        self.head_positions = first[:, None] + heads * self.length

    def select(self, x):
        """Return the values of `x` (B, T) at real tokens, (L,)."""
        return gather(ops.reshape(x, (-1,)), self.positions)

    def position_ids(self):
        """Return the position of each real token in its row, (L,)."""
        return self.positions % self.length

    def put_in_rows(self, x):
        """Put the vectors of real tokens (L, D) in their rows, (B, T, D)."""
        return gather(x, self.tokens)

    def split_heads(self, x):
        """Split vectors of real tokens (L, D) into heads (B, N, T, H)."""
        x = ops.reshape(x, (-1, x.shape[-1] // self.num_heads))  # (L N, H)
        return gather(x, self.heads)  # (B, N, T, H)

    def merge_heads(self, x):
        """Merge heads (B, N, T, H) into vectors of real tokens (L, D)."""
        width = x.shape[-1]
        x = ops.reshape(x, (-1, width))  # (B N T, H)
        x = gather(x, self.head_positions)  # (L, N, H)
        return ops.reshape(x, (-1, self.num_heads * width))  # (L, D)
