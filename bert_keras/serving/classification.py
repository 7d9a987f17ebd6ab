"""The signatures `classify`, `choose`, `rank` and `entail`."""

import tensorflow as tf

from bert_keras.modeling.heads import check_long_text
from bert_keras.serving.signature import (
    NEXT,
    SENTENCE,
    TRUNCATED,
    Output,
    Signature,
    pad_to,
    padded,
)
from bert_keras.serving.texts import mean_over_windows
from bert_keras.text.windows import in_chunks

NO_CHOICE = -1e30  # logit of an empty choice, passage or candidate
HYPOTHESIS = "This example is {}."  # the default in transformers, too
LIST_TRUNCATED = {
    "truncated": Output(
        "bool", ("B",), "True if one of the row's texts was cut"
    )
}


def classify(model, preprocess, pair=False, long_text="truncate"):
    """Return the signature `classify`: label and probabilities, or a score.

    Args:
        model: a `BertClassifier`.
        preprocess: the model's preprocessor; see `copy_for_serving`.
        pair: True if the signature reads `text` and `text_pair`.
        long_text: "truncate", or "windows" for the mean result over windows of
            the text, weighted by window length.
    """
    check_long_text(long_text, pair)
    in_windows = long_text == "windows"
    if model.problem == "multi":
        parts = _several_labels(model.labels, model.thresholds)
    elif model.problem == "single":
        parts = _single_label(model.labels, model.thresholds)
    else:
        parts = _regression(model.labels)
    activation, answer, outputs = parts

    def scores(inputs):
        return activation(model(inputs, training=False))

    def function(*texts):
        segments = [preprocess.tokenizer(text) for text in texts]
        if in_windows:
            width = model.output_shape[-1]
            return answer(
                mean_over_windows(preprocess, scores, segments[0], width)
            )
        return {
            **answer(scores(preprocess.packer(segments))),
            "truncated": preprocess.packer.is_cut(segments),
        }

    return Signature(
        "classify",
        {"text": SENTENCE, **({"text_pair": NEXT} if pair else {})},
        function,
        outputs if in_windows else outputs | TRUNCATED,
        labels=tuple(model.labels or ()),
        reads_windows=in_windows,
    )


def _single_label(labels, thresholds):
    names = tf.constant(labels)
    least = tf.constant(thresholds or [0.0] * len(labels), tf.float32)

    def answer(probabilities):
        index = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        is_unsure = tf.reduce_max(probabilities, -1) < tf.gather(least, index)
        return {
            "label": tf.gather(names, index),
            "label_index": index,
            "probabilities": probabilities,
            **({"unsure": is_unsure} if thresholds else {}),
        }

    outputs = {
        "label": Output("string", ("B",), "the likeliest label"),
        "label_index": Output(
            "int32", ("B",), "index of the label in the card's `labels`"
        ),
        "probabilities": Output(
            "float32", ("B", "C"), "probability of every label"
        ),
    }
    if thresholds:
        outputs["unsure"] = Output(
            *("bool", ("B",)),
            "True if the label's probability is below its threshold",
        )
    return tf.nn.softmax, answer, outputs


def _several_labels(labels, thresholds):
    # Each row is padded with "" and -1 to the batch's largest number of labels.
    names = tf.constant([*labels, ""])
    indices = tf.constant([*range(len(labels)), -1])
    least = tf.constant(thresholds or [0.5] * len(labels), tf.float32)

    def answer(probabilities):
        holds = probabilities >= least  # (B, C)
        count = tf.reduce_sum(tf.cast(holds, tf.int32), axis=-1)
        ranks = probabilities
        if thresholds:  # labels that reach their threshold come first
            ranks += tf.cast(holds, tf.float32)
        order = tf.argsort(ranks, axis=-1, direction="DESCENDING")
        width = tf.reduce_max(tf.concat([count, [0]], axis=0))
        is_label = tf.range(width) < count[:, tf.newaxis]  # (B, width)
        order = tf.where(is_label, order[:, :width], len(labels))
        return {
            "label": tf.gather(names, order),
            "label_index": tf.gather(indices, order),
            "probabilities": probabilities,
            "count": count,
        }

    limit = "their threshold" if thresholds else "0.5"
    outputs = {
        "label": padded(
            *("string", ("B", "N")),
            f"labels with a probability of at least {limit}, likeliest first",
        ),
        "label_index": padded(
            "int32", ("B", "N"), "indices in the card's `labels`"
        ),
        "probabilities": Output(
            "float32", ("B", "C"), "sigmoid of each label's logit"
        ),
        "count": Output(
            "int32", ("B",), "number of entries in the output `label`"
        ),
    }
    return tf.sigmoid, answer, outputs


def _regression(labels):
    def answer(scores):
        return {"score": scores if labels else scores[:, 0]}

    score = Output("float32", ("B",), "the predicted number")
    if labels:
        score = Output("float32", ("B", "C"), f"a score for each of {labels}")
    return tf.identity, answer, {"score": score}


def choose(model, preprocess):
    """Return the signature `choose`: the best choice for a prompt.

    An empty choice is never the best. The model skips empty choices, so the
    padding of shorter lists costs no time.

    Args:
        model: a `BertChooser`.
        preprocess: the model's preprocessor; see `copy_for_serving`.
    """

    def score(inputs):
        # (n, T) to (n, 1, T): each row is a list of one choice.
        inputs = {name: x[:, tf.newaxis] for name, x in inputs.items()}
        return model(inputs, training=False)  # (n, 1)

    def function(prompt, choices):
        logits, truncated = _score_lists(score, preprocess, prompt, choices)
        logits = logits[..., 0]  # (B, K)
        is_real = logits > NO_CHOICE / 2
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return {
            "choice": tf.where(tf.reduce_any(is_real, axis=-1), best, -1),
            "probabilities": tf.where(is_real, tf.nn.softmax(logits), 0.0),
            "truncated": truncated,
        }

    outputs = {
        "choice": Output(
            "int32", ("B",), "index of the best choice, -1 if all are empty"
        ),
        "probabilities": _describe_entries(
            "float32", "softmax over the choices, 0 for an empty choice"
        ),
        **LIST_TRUNCATED,
    }
    inputs = {
        "prompt": "She opened the umbrella because",
        "choices": ["it was raining.", "it was Tuesday."],
    }
    return Signature("choose", inputs, function, outputs)


def rank(model, preprocess):
    """Return the signature `rank`: scores and order of passages for a query.

    The model skips empty passages. Their score is 0.

    Args:
        model: a `BertClassifier` with problem "ranking".
        preprocess: the model's preprocessor; see `copy_for_serving`.
    """

    def score(inputs):
        return model(inputs, training=False)  # (n, 1)

    def function(query, passages):
        logits, truncated = _score_lists(score, preprocess, query, passages)
        logits = logits[..., 0]  # (B, K)
        return {
            "score": tf.sigmoid(logits),
            # Stable, so that padding comes after a list's empty passages.
            "order": tf.argsort(
                logits, axis=-1, direction="DESCENDING", stable=True
            ),
            "truncated": truncated,
        }

    outputs = {
        "score": _describe_entries(
            "float32", "sigmoid of each passage's logit, 0 for an empty passage"
        ),
        "order": _describe_entries(
            "int32", "indices of the passages, best first"
        ),
        **LIST_TRUNCATED,
    }
    inputs = {
        "query": "When is it wise to carry an umbrella?",
        "passages": ["Rain is likely today.", "It is Tuesday."],
    }
    return Signature("rank", inputs, function, outputs)


def find_entailment(labels):
    """Return the indices of the label for entailment and of its opposite.

    As in transformers, the label for entailment is the first one that begins
    with "entail". The opposite is the first label that begins neither with
    "entail" nor with "neutral". The case of the labels is ignored.

    Returns:
        A pair of integers, or None if one of the two labels is missing.
    """
    names = [name.lower() for name in labels or ()]
    entailed = [i for i, n in enumerate(names) if n.startswith("entail")]
    no_opposite = ("entail", "neutral")
    opposite = [i for i, n in enumerate(names) if not n.startswith(no_opposite)]
    return (entailed[0], opposite[0]) if entailed and opposite else None


def entail(model, preprocess, hypothesis=HYPOTHESIS):
    """Return the signature `entail`: the best candidate label for each text.

    Each candidate label is put into a hypothesis. The model predicts if the
    text entails the hypothesis (Yin et al. 2019). The results equal the results
    of transformers' zero-shot pipeline, with one exception. For a label order
    such as neutral, entailment, contradiction, transformers takes "neutral" as
    the opposite. An empty candidate is never the best.

    Args:
        model: a `BertClassifier` of pairs, with a label for entailment and
            one for its opposite; see `find_entailment`.
        preprocess: the model's preprocessor; see `copy_for_serving`.
        hypothesis: sentence with {}, which the candidate replaces.
    """
    before, after = hypothesis.split("{}")
    indices = find_entailment(model.labels)

    def score(inputs):
        # (n, C) to (n, 2)
        return tf.gather(model(inputs, training=False), indices, axis=-1)

    def function(text, candidates):
        candidates = pad_to(candidates, [None, 1])
        hypotheses = tf.where(
            tf.strings.length(candidates) > 0,
            tf.strings.join([before, candidates, after]),
            "",
        )
        logits, truncated = _score_lists(score, preprocess, text, hypotheses, 2)
        entailed, opposite = tf.unstack(logits, axis=-1)  # (B, K) each
        is_real = entailed > NO_CHOICE / 2
        best = tf.argmax(entailed, axis=-1)
        return {
            "label": tf.gather(candidates, best, batch_dims=1),
            "probabilities": tf.where(is_real, tf.nn.softmax(entailed), 0.0),
            "entailment": tf.where(
                is_real, tf.sigmoid(entailed - opposite), 0.0
            ),
            "truncated": truncated,
        }

    outputs = {
        "label": Output(
            "string", ("B",), "the likeliest candidate, '' if all are empty"
        ),
        "probabilities": _describe_entries(
            "float32", "softmax over the candidates, 0 for an empty candidate"
        ),
        "entailment": _describe_entries(
            "float32",
            "independent probability of each candidate, for texts with several "
            "labels; 0 for an empty candidate",
        ),
        **LIST_TRUNCATED,
    }
    inputs = {"text": SENTENCE, "candidates": ["praise", "a complaint"]}
    return Signature("entail", inputs, function, outputs)


def _describe_entries(dtype, text):
    return Output(dtype, ("B", "K"), text, per_entry=True)


def _score_lists(score, preprocess, first, lists, width=1):
    """Score pairs: the text `first[i]` with each string of `lists[i]`.

    Args:
        score: function of the model's inputs (n, T); returns logits, float32
            (n, `width`).
        preprocess: the model's preprocessor.
        first: strings (B,), the first text of each pair.
        lists: strings (B, K), the second texts, padded with "".
        width: number of logits of each pair, W.

    Returns:
        logits, float32 (B, K, W), which are `NO_CHOICE` for ""; and bool (B,),
        True if one of the text's pairs was cut.
    """
    lists = pad_to(lists, [None, 1])
    is_real = tf.strings.length(lists) > 0  # (B, K)
    # (N, 2), the indices of the nonempty entries. If there are none, padding
    # adds [0, 0], an empty entry, because the model needs at least one row.
    entries = pad_to(tf.where(is_real), [1, None])
    # Keep more tokens than fit in a row, so that `is_cut` detects long texts.
    most = preprocess.sequence_length
    first_ids = preprocess.tokenizer(first)[:, :most]
    list_ids = preprocess.tokenizer(tf.gather_nd(lists, entries))[:, :most]

    def score_pairs(begin, end):
        firsts = tf.gather(first_ids, entries[begin:end, 0])
        segments = firsts, list_ids[begin:end]
        pack = preprocess.packer
        return [score(pack(segments)), pack.is_cut(segments)]

    logits, are_cut = in_chunks(
        score_pairs,
        tf.shape(entries, tf.int64)[0],
        [
            tf.TensorSpec([None, width], tf.float32),
            tf.TensorSpec([None], tf.bool),
        ],
    )
    # (N, W) back to (B, K, W).
    shape = tf.shape(lists, tf.int64)
    logits = tf.scatter_nd(entries, logits, tf.concat([shape, [width]], 0))
    logits = tf.where(is_real[..., tf.newaxis], logits, NO_CHOICE)
    are_cut = tf.scatter_nd(entries, tf.cast(are_cut, tf.int32), shape)
    return logits, tf.reduce_any(are_cut > 0, axis=-1)
