"""Functions of texts that several signatures use."""

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.windows import in_chunks, overlapping_stride, windows


def copy_for_serving(preprocess, portable=False):
    """Return a `BertPreprocessor` that pads to the longest row.

    It has the arguments of `preprocess`, which may be of a subclass. With
    `portable`, its tokenizer uses only operations of TensorFlow's core.
    """
    tokenizer = preprocess.tokenizer
    if portable:
        config = tokenizer.get_config() | {"portable": True}
        tokenizer = type(tokenizer).from_config(config)
    changes = {"tokenizer": tokenizer, "pad_to_longest": True}
    return BertPreprocessor(**{**preprocess.arguments(), **changes})


def mean_over_windows(preprocess, function, ids, width):
    """Return the mean of `function` over overlapping windows of each text.

    Args:
        preprocess: the model's preprocessor.
        function: function of the model's inputs; returns float (rows, `width`).
        ids: ragged ids (B, None) of any length.
        width: number of values that `function` returns for a row.

    Returns:
        float32 (B, width), the mean weighted by window length.
    """
    room = preprocess.packer.room(1)
    cut = windows(ids, room, overlapping_stride(room))

    def run_windows(begin, end):
        return [function(preprocess.packer(cut.ids[begin:end]))]

    spec = tf.TensorSpec([None, width], tf.float32)
    (values,) = in_chunks(run_windows, cut.ids.nrows(), [spec])  # (W, width)
    return cut.mean(values)


def check_top_k(top_k, most):
    """Raise `InputError` unless `top_k` is a whole number from 1 to `most`."""
    if not (type(top_k) is int and 1 <= top_k <= most):
        raise InputError(
            f"`top_k` is {top_k!r}. Expected a whole number from 1 to {most}."
        )


def find_pieces(tokenizer, token_ids):
    """Return the word pieces for ids of any shape."""
    return tf.gather(tf.constant(tokenizer.vocabulary), token_ids)


def describe_tokens(tokenizer, ids, start, end):
    """Return the outputs `TOKENS` of ragged ids and offsets."""
    pieces = ids.with_values(find_pieces(tokenizer, ids.values))  # (B, None)
    return {
        "pieces": pieces.to_tensor(""),
        "start": start.to_tensor(-1),
        "end": end.to_tensor(-1),
        "count": tf.cast(ids.row_lengths(), tf.int32),
    }
