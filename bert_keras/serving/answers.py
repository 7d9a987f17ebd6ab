"""`answer`: the slice of a context, of any length, that answers a question."""

import tensorflow as tf

from bert_keras.serving.graph import Signature, cut_out
from bert_keras.text.windows import best_context, in_chunks, windows

# Of the original's run_squad.py: tokens of a question, tokens of an answer,
# and from one window of the context to the next.
QUESTION_LENGTH = 64
ANSWER_LENGTH = 30
STRIDE = 128
MOST_ANSWERS = 3 * ANSWER_LENGTH  # the spans of the shortest row
NOWHERE = -1e30


def answer(model, rows, top_k=5):
    """The `top_k` best answers, cut from the context.

    The context is read in windows that overlap by all but 128 tokens. A span
    of at most 30 tokens counts in the window where its first token has most
    context around it. Scores are start logit plus end logit, as the
    original's; every span is compared, not only those of the best 20 starts
    and ends.

    Args:
        model: a `BertSpanPredictor` in float32.
        rows: `Rows` of its preprocessor.
        top_k: how many answers.
    """

    def function(question, context):
        most = min(QUESTION_LENGTH, (rows.sequence_length - 3) // 2)
        question_ids = rows.tokenizer(question)[:, :most]
        ids, begins, ends = rows.byte_offsets(context)
        room = rows.sequence_length - 3 - question_ids.row_lengths()
        cut = windows(ids, room, tf.minimum(room, STRIDE))
        scores, first, last, null = _spans(
            model, rows, question_ids, cut, top_k
        )
        best, place = tf.math.top_k(_by_text(cut, scores, NOWHERE), top_k)
        first, last = (
            tf.gather(_by_text(cut, x, 0), place, batch_dims=1)  # (B, top_k)
            for x in (first, last)
        )
        is_real = best > NOWHERE / 2
        slices, start, end = cut_out(
            context, _at(begins, first), _at(ends, last), is_real
        )
        return {
            "answer": slices,
            "start": start,
            "end": end,
            "score": tf.where(is_real, best, -1.0),
            "count": tf.reduce_sum(tf.cast(is_real, tf.int32), axis=1),
            "null_score": tf.math.unsorted_segment_min(
                null, cut.text, cut.num_texts
            ),
        }

    of_answer = {
        "answer": f"string (B, {top_k}): cut from the context, best first",
        "start": f"int32 (B, {top_k}): its first character, -1 padded",
        "end": f"int32 (B, {top_k}): one after its last, -1 padded",
        "score": f"float32 (B, {top_k}): start logit plus end logit",
    }
    outputs = {
        **of_answer,
        "count": "int32 (B,): how many answers there are",
        "null_score": "float32 (B,): of no answer, comparable with `score`",
    }
    inputs = {
        "question": "Where was it found?",
        "context": "It was lost for years, then found in an attic in Bern.",
    }
    return Signature("answer", inputs, function, outputs, tuple(of_answer))


def _spans(model, rows, question_ids, cut, top_k):
    """The best spans of each window, and its null score.

    Returns:
        `scores` float32 (W, top_k), `first` and `last` int32 (W, top_k),
        places among the text's tokens, `null` float32 (W,).
    """
    may_start = best_context(cut)  # ragged bool (W, None)

    def of_windows(begin, end):
        questions = tf.gather(question_ids, cut.text[begin:end])
        ids = cut.ids[begin:end]
        inputs = rows.pack(questions, ids)
        logits = model(inputs, training=False)  # start and end, (n, T) each
        before = tf.cast(questions.row_lengths(), tf.int32) + 2
        length = tf.shape(inputs["token_ids"])[1]
        is_start = _shift(may_start[begin:end], before, length)
        is_end = _shift(tf.ones_like(ids, tf.bool), before, length)
        scores, first, last = _best_spans(
            tf.where(is_start, logits["start"], NOWHERE),
            tf.where(is_end, logits["end"], NOWHERE),
            top_k,
        )
        # Places in the row to places in the text.
        moved = tf.cast(cut.start[begin:end], tf.int32) - before
        return [
            scores,
            first + moved[:, tf.newaxis],
            last + moved[:, tf.newaxis],
            logits["start"][:, 0] + logits["end"][:, 0],  # of [CLS]
        ]

    of_span = tf.TensorSpec([None, top_k], tf.int32)
    scores = tf.TensorSpec([None, top_k], tf.float32)
    null = tf.TensorSpec([None], tf.float32)
    return in_chunks(
        of_windows, cut.ids.nrows(), [scores, of_span, of_span, null]
    )


def _shift(values, before, length):
    """Ragged bool (n, None) in rows (n, `length`), each after `before`."""
    lead = tf.ragged.range(before)
    lead = lead.with_values(tf.zeros_like(lead.values, tf.bool))
    rows = tf.concat([lead, values], axis=1).to_tensor(False)
    return tf.pad(rows, [[0, 0], [0, length - tf.shape(rows)[1]]])


def _best_spans(start, end, top_k):
    """Scores, first and last tokens of the best spans: (n, top_k) each."""
    beyond = tf.pad(
        end, [[0, 0], [0, ANSWER_LENGTH - 1]], constant_values=NOWHERE
    )
    ends = tf.signal.frame(beyond, ANSWER_LENGTH, 1)  # (n, T, lengths)
    sums = start[:, :, tf.newaxis] + ends
    # (n, T, lengths) to (n, T * lengths)
    flat = tf.reshape(sums, [tf.shape(sums)[0], tf.size(sums[0])])
    scores, place = tf.math.top_k(flat, top_k)
    first = place // ANSWER_LENGTH
    return scores, first, first + place % ANSWER_LENGTH


def _by_text(cut, values, missing):
    """Values (W, top_k) of the windows in a row a text, (B, N)."""
    ragged = tf.RaggedTensor.from_value_rowids(
        values, cut.text, nrows=cut.num_texts, validate=False
    )  # (B, windows of each, top_k)
    return ragged.merge_dims(1, 2).to_tensor(missing)


def _at(offsets, places):
    """Ragged offsets (B, None) at places (B, top_k); 0 where there is none."""
    flat = places + tf.cast(offsets.row_starts(), tf.int32)[:, tf.newaxis]
    padded = tf.concat([offsets.values, [0]], axis=0)
    return tf.gather(padded, tf.clip_by_value(flat, 0, tf.size(offsets.values)))
