"""Computation on the real tokens of a batch, without its padding."""

from keras import ops

from bert_keras.modeling.kernels import gather


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
