"""Texts of any length as rows that overlap; each token counts in one."""

from typing import Any, NamedTuple

from official_tasks.encoding import without_padding


class WindowedRows(NamedTuple):
    """Rows of texts, R of them, each a window of its text.

    Attributes:
        inputs: dict of ragged `int32 (R, None)`, what a BERT model reads.
        text: int64 `(R,)`, the number of the text that a row is of.
        start: int64 `(R,)`, the place of a row's first token in its text.
        before: int64 `(R,)`, the tokens of a row that precede the window.
        places: ragged int64 `(R, None)`, of each token of a window its place
            among the tokens of all texts.
        counts: ragged bool `(R, None)`, whether a token has in this window
            as much context as in any other, and in none before it.
    """

    inputs: dict
    text: Any
    start: Any
    before: Any
    places: Any
    counts: Any


def windowed_rows(preprocess, texts, stride: int, lead=None) -> WindowedRows:
    """Every text in windows that begin `stride` tokens after one another.

    Windows and the rule for which of them a token counts in are those of the
    exported model: see `bert_keras.serving.windows`.

    Args:
        preprocess: the `BertPreprocessor` whose frame and length rows have.
        texts: ragged int32 ids `(B, None)`.
        stride: see above; no more than a window holds is skipped.
        lead: ragged ids `(B, None)` that stand whole in front of each window
            as the first segment, such as a question.
    """
    import tensorflow as tf

    from bert_keras.serving.windows import best_context, windows

    packer = preprocess.packer
    room = packer.room(1 if lead is None else 2)
    taken = 0 if lead is None else lead.row_lengths()
    room = tf.fill([texts.nrows()], tf.constant(room, tf.int64)) - taken
    cut = windows(texts, room, tf.minimum(room, stride))
    segments = [cut.ids]
    before = tf.ones_like(cut.text)
    if lead is not None:
        segments.insert(0, tf.gather(lead, cut.text))
        before = segments[0].row_lengths() + 2
    rows = packer.framed(segments)
    return WindowedRows(
        without_padding(rows, rows["padding_mask"]),
        cut.text,
        cut.start,
        before,
        cut.places,
        best_context(cut),
    )


def rows_by_example(example, count: int) -> list[list[int]]:
    """For each of `count` examples, the numbers of its rows."""
    rows: list[list[int]] = [[] for _ in range(count)]
    for number, owner in enumerate(example):
        rows[owner].append(number)
    return rows
