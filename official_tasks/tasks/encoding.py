"""Encode texts as rows without padding; cut long texts, or make windows."""

from typing import Any, NamedTuple

import numpy as np

CHUNK = 2048  # texts to encode at a time; limits the memory of padded rows


def encode_texts(preprocess, *segments):
    """Encode texts, or pairs of texts, as rows for a BERT model.

    Args:
        preprocess: a `BertPreprocessor`. Its packer cuts rows and adds [CLS]
            and [SEP].
        *segments: one list of str for texts, two lists for pairs.

    Returns:
        `(inputs, cut)`. `inputs` is a dict of token_ids, segment_ids and
        padding_mask, each ragged `int32 (R, None)`. `cut` is int `(R,)`, the
        number of tokens that each row lost.
    """
    import tensorflow as tf

    preprocess.packer.room(len(segments))  # raises for a short sequence_length
    rows, cuts = [], []
    for chunk in chunks(len(segments[0])):
        pieces = tuple(
            preprocess.tokenizer(tf.constant(segment[chunk], tf.string))
            for segment in segments
        )
        rows.append(without_padding(preprocess.packer(pieces)))
        cuts.append(preprocess.packer.count_cut(pieces).numpy())
    return concat_rows(rows), np.concatenate(cuts)


def encode_with_prompt(preprocess, texts):
    """Encode texts, each with the prompt of `preprocess` before the text.

    See `encode_texts`. If the prompt is not pooled, the inputs also have a
    `pooling_mask` of the same shape.
    """
    import tensorflow as tf

    from bert_keras.modeling.inputs import POOLING_MASK
    from bert_keras.serving.embedding import count_unpooled

    prompt = preprocess.prompts.get(preprocess.prompt, "")
    inputs, cut = encode_texts(preprocess, [prompt + text for text in texts])
    if not preprocess.include_prompt:
        positions = tf.ragged.range(inputs["padding_mask"].row_lengths())
        is_pooled = positions >= count_unpooled(preprocess, prompt)
        inputs[POOLING_MASK] = tf.cast(is_pooled, tf.int32)
    return inputs, cut


def chunks(count) -> list[slice]:
    """Return slices of up to `CHUNK` texts; for 0 texts, one empty slice."""
    begins = range(0, max(1, count), CHUNK)
    return [slice(begin, min(begin + CHUNK, count)) for begin in begins]


def concat_rows(parts):
    """Concatenate dicts of ragged rows `(R, None)` into one dict."""
    import tensorflow as tf

    return {
        name: tf.concat([part[name] for part in parts], axis=0)
        for name in parts[0]
    }


def without_padding(rows):
    """Return a dict of padded rows `(R, T)` as ragged rows `(R, None)`."""
    import tensorflow as tf

    lengths = tf.reduce_sum(tf.cast(rows["padding_mask"], tf.int64), axis=1)
    return {
        name: tf.RaggedTensor.from_tensor(values, lengths)
        for name, values in rows.items()
    }


def fold_choices(inputs, choices: int):
    """Reshape rows `(R K, None)` to `(R, K, None)`, K choices per example."""
    import tensorflow as tf

    return {
        name: tf.RaggedTensor.from_uniform_row_length(rows, choices)
        for name, rows in inputs.items()
    }


def encode_windows(preprocess, texts):
    """Encode texts in overlapping windows, as an exported model does.

    Returns:
        `(inputs, text)`: inputs as in `encode_texts`, and int64 `(R,)`, the
        index of each row's text.
    """
    import tensorflow as tf

    from bert_keras.text.windows import overlapping_stride

    ids = tf.concat(
        [
            preprocess.tokenizer(tf.constant(texts[chunk], tf.string))
            for chunk in chunks(len(texts))
        ],
        axis=0,
    )
    stride = overlapping_stride(preprocess.packer.room(1))
    rows = windowed_rows(preprocess, ids, stride)
    return rows.inputs, rows.text.numpy()


def average_windows(encoded, values, count):
    """Return `(count, C)`: means over each text's windows, weighted by length.

    Args:
        encoded: `Encoded` with the inputs of `encode_windows`. `notes["text"]`
            has the index of each row's text.
        values: `(R, C)`, the outputs for the rows.
        count: number of texts.
    """
    from bert_keras.text.windows import mean_by_text

    # The length of a window does not include [CLS] and [SEP].
    lengths = encoded.inputs["token_ids"].row_lengths() - 2
    text = encoded.notes["text"]
    return mean_by_text(values, text, lengths, count).numpy()


class WindowedRows(NamedTuple):
    """Texts of any length as R rows. Each row is a window of a text.

    Windows may overlap, but each token counts in only one window.

    Attributes:
        inputs: dict of ragged `int32 (R, None)`, the inputs of a BERT model.
        text: int64 `(R,)`, the index of the row's text.
        start: int64 `(R,)`, the index of the window's first token in its text.
        before: int64 `(R,)`, the number of tokens before the window in the row.
        indices: ragged int64 `(R, None)`, the index of each token of a window
            among the tokens of all texts.
        counts: ragged bool `(R, None)`, True if the token counts in this
            window; see `best_context`.
    """

    inputs: dict
    text: Any
    start: Any
    before: Any
    indices: Any
    counts: Any


def windowed_rows(preprocess, texts, stride: int, lead=None) -> WindowedRows:
    """Cut texts into windows that start `stride` tokens apart.

    An exported model cuts the same windows; see `bert_keras.text.windows`.

    Args:
        preprocess: `BertPreprocessor`, which sets the length of the rows.
        texts: ragged int32 ids `(B, None)`.
        stride: number of tokens, capped at the length of a window.
        lead: ragged ids `(B, None)`, a segment for each text, such as a
            question. Each window of the text follows the whole segment.
    """
    import tensorflow as tf

    parts = []
    for chunk in chunks(int(texts.nrows())):
        rows = _cut_windows(
            preprocess,
            texts[chunk],
            stride,
            None if lead is None else lead[chunk],
        )
        tokens_before = texts.row_splits[chunk.start]
        parts.append(
            rows._replace(
                text=rows.text + chunk.start,
                indices=rows.indices + tokens_before,
            )
        )
    inputs, *columns = zip(*parts, strict=True)
    return WindowedRows(
        concat_rows(inputs), *(tf.concat(list(c), axis=0) for c in columns)
    )


def _cut_windows(preprocess, texts, stride, lead):
    import tensorflow as tf

    from bert_keras.text.windows import best_context, windows

    packer = preprocess.packer
    lead_lengths = 0 if lead is None else lead.row_lengths()
    room = packer.room(1 if lead is None else 2) - lead_lengths
    cut = windows(texts, room, stride)
    segments = [cut.ids]
    before = tf.ones_like(cut.text)  # [CLS]
    if lead is not None:
        segments.insert(0, tf.gather(lead, cut.text))
        # Tokens before the window: [CLS], `lead` and [SEP].
        before = segments[0].row_lengths() + 2
    return WindowedRows(
        without_padding(packer.frame(segments)),
        cut.text,
        cut.start,
        before,
        cut.positions,
        best_context(cut),
    )
