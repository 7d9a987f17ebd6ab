"""The encoder's dense layers on real tokens alone, without the padding."""

import contextlib
import contextvars

from keras import ops

_skips = contextvars.ContextVar("skips_padding", default=False)


@contextlib.contextmanager
def skipping_padding(skips=True):
    """Encoders called within compute nothing but attention on padding.

    Their outputs are the same at real tokens; at padding they repeat a real
    token of the same row. How many tokens are real is known only from the
    values, so it takes a backend that allows such shapes: TensorFlow without
    XLA, or anything eager.
    """
    token = _skips.set(skips)
    try:
        yield
    finally:
        _skips.reset(token)


def real_tokens(padding_mask):
    """`RealTokens` within `skipping_padding()`, else None."""
    if padding_mask is None or not _skips.get():
        return None
    return RealTokens(padding_mask)


class RealTokens:
    """Where the real tokens of a batch stand, L in all.

    The first token of a row counts as real, whatever the mask says, so that
    every row has one.

    Args:
        padding_mask: int (B, T), 1 at tokens.
    """

    def __init__(self, padding_mask):
        self.shape = ops.shape(padding_mask)
        is_first = ops.equal(ops.arange(self.shape[1]), 0)
        is_real = ops.logical_or(ops.cast(padding_mask, "bool"), is_first)
        flat = ops.reshape(is_real, (-1,))  # (B T,)
        (places,) = ops.nonzero(flat)
        # For each real token its place among B T, (L,); for each place the
        # token that stands there or was the last before it, (B, T).
        self.places = ops.cast(places, "int32")
        tokens = ops.cumsum(ops.cast(flat, "int32")) - 1
        self.tokens = ops.reshape(tokens, self.shape)

    def of(self, x):
        """Values (B, T) of the real tokens alone, (L,)."""
        return ops.take(ops.reshape(x, (-1,)), self.places, axis=0)

    def position_ids(self):
        """Of each real token its place in its row, (L,)."""
        return self.places % self.shape[1]

    def in_rows(self, x):
        """Vectors (L, D) in their rows again, (B, T, D)."""
        return ops.take(x, self.tokens, axis=0)

    def split_heads(self, x, num_heads):
        """Vectors (L, D) in rows, by heads: (B, N, T, H).

        One copy, as splitting rows would be.
        """
        width = ops.shape(x)[-1] // num_heads
        x = ops.reshape(x, (-1, width))  # (L N, H)
        heads = ops.arange(num_heads, dtype="int32")[:, None]  # (N, 1)
        # Rows of x to take, (B, N, T): the token's first head, and the head.
        return ops.take(x, self.tokens[:, None] * num_heads + heads, axis=0)

    def join_heads(self, x):
        """Heads (B, N, T, H) as vectors of real tokens, (L, D)."""
        _, num_heads, length, width = ops.shape(x)
        x = ops.reshape(x, (-1, width))  # (B N T, H)
        row, place = self.places // length, self.places % length
        first = row * num_heads * length + place  # (L,)
        heads = ops.arange(num_heads, dtype="int32") * length
        x = ops.take(x, first[:, None] + heads, axis=0)  # (L, N, H)
        return ops.reshape(x, (-1, num_heads * width))  # (L, D)
