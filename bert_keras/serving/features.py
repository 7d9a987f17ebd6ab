"""One vector a token, by the paper's recipes, and where the token stands."""

import tensorflow as tf

# The rows of the paper's table 7, of the embeddings' output and each layer's;
# the weights of its weighted sums are equal here.
RECIPES = {
    "embeddings": lambda states: states[0],
    "second_to_last": lambda states: states[-2],
    "last": lambda states: states[-1],
    "sum_last_four": lambda states: tf.add_n(states[-4:]),
    "concat_last_four": lambda states: tf.concat(states[-4:], axis=-1),
    "sum_all": lambda states: tf.add_n(states[1:]),
}
LAST_FOUR = ("sum_last_four", "concat_last_four")
TOKEN_OUTPUTS = {
    "features": "float32 (B, T, F): a vector a token, 0 padded",
    "pieces": "string (B, T): the tokens, '' padded",
    "start": "int32 (B, T): its first character, -1 padded",
    "end": "int32 (B, T): one after its last, -1 padded",
}


class Tokens:
    """The tokens of strings (B,), cut to a row, with their offsets."""

    def __init__(self, rows, text):
        ids, start, end = rows.tokenizer.tokenize_with_offsets(text)
        room = rows.sequence_length - 2
        self.ids = ids
        self.inputs = rows.framed(ids)
        self._count = tf.minimum(tf.cast(ids.row_lengths(), tf.int32), room)
        pieces = ids.with_values(rows.pieces(ids.values))
        self._places = {
            "pieces": pieces[:, :room].to_tensor(""),
            "start": start[:, :room].to_tensor(-1),
            "end": end[:, :room].to_tensor(-1),
            "count": self._count,
        }

    def outputs(self, vectors):
        """The signature's outputs, of vectors (B, T, F) of whole rows."""
        width = tf.shape(self._places["start"])[1]
        is_token = tf.sequence_mask(self._count, width)[..., tf.newaxis]
        own = vectors[:, 1 : width + 1]  # without [CLS], [SEP] and padding
        return {"features": tf.where(is_token, own, 0.0), **self._places}
