"""`tokenize`: what the tokenizer in the graph makes of a text."""

import tensorflow as tf

from bert_keras.serving.signature import SENTENCE, Signature


def tokenize(rows):
    """The word pieces of a text, whole and without special tokens."""

    def function(text):
        ids, start, end = rows.tokenizer.tokenize_with_offsets(text)
        return {
            "token_ids": ids.to_tensor(-1),
            "pieces": ids.with_values(rows.pieces(ids.values)).to_tensor(""),
            "start": start.to_tensor(-1),
            "end": end.to_tensor(-1),
            "count": tf.cast(ids.row_lengths(), tf.int32),
        }

    outputs = {
        "token_ids": "int32 (B, T): -1 padded",
        "pieces": "string (B, T): '' padded",
        "start": "int32 (B, T): its first character, -1 padded",
        "end": "int32 (B, T): one after its last, -1 padded",
        "count": "int32 (B,): how many pieces a row has",
    }
    inputs, padded = {"text": SENTENCE}, ("token_ids", "pieces", "start", "end")
    return Signature("tokenize", inputs, function, outputs, padded)
