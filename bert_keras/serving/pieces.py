"""The signatures `tokenize`, `ids`, `fill_mask` and `next_sentence`."""

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling import embedder, task_models
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.serving import graph
from bert_keras.serving.graph import SENTENCE, Signature
from bert_keras.text.windows import in_chunks

# Maximum number of masks in a call of the masked-LM head. With a vocabulary of
# 30,522, the logits of one call take 31 MB.
MASKS_AT_ONCE = 256


def tokenize(rows):
    """Return the signature `tokenize`: all word pieces of a text."""

    def function(text):
        ids, start, end = rows.tokenizer.tokenize_with_offsets(text)
        return {
            "token_ids": ids.to_tensor(-1),
            **rows.tokens(ids, start, end),
        }

    outputs = {"token_ids": "int32 (B, T): padded with -1", **graph.TOKENS}
    padded = tuple(outputs)
    outputs["count"] = "int32 (B,): number of word pieces"
    return Signature("tokenize", {"text": SENTENCE}, function, outputs, padded)


def fill_mask(model, rows, top_k=5):
    """Return the signature `fill_mask`: the best tokens for each `[MASK]`."""

    def function(text):
        ids = _tokenize_with_masks(rows.tokenizer, text)
        inputs = rows.pack(ids)
        vectors = model.encoder(inputs, training=False)["sequence_output"]
        is_mask = inputs["token_ids"] == rows.tokenizer.mask_id  # (B, T)
        count = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=-1)
        best, pieces = _likeliest(
            model.mlm,
            tf.boolean_mask(vectors, is_mask),  # (masks, D)
            rows.tokenizer.vocabulary_size,
            top_k,
        )

        def by_row(values, missing):  # (masks, top_k) to (B, M, top_k)
            ragged = tf.RaggedTensor.from_row_lengths(values, count)
            return ragged.to_tensor(missing)

        return {
            "pieces": by_row(rows.pieces(pieces), ""),
            "piece_ids": by_row(pieces, -1),
            "probabilities": by_row(best, -1.0),
            "count": count,
            "truncated": rows.are_cut(ids),
        }

    mask_outputs = {
        "pieces": f"string (B, M, {top_k}): likeliest first, padded with ''",
        "piece_ids": f"int32 (B, M, {top_k}): ids of `pieces`, padded with -1",
        "probabilities": f"float32 (B, M, {top_k}): padded with -1",
    }
    outputs = mask_outputs | {
        "count": f"int32 (B,): number of {graph.MASK} that the model reads"
    }
    inputs, padded = (
        {"text": f"An {graph.MASK} well spent."},
        tuple(mask_outputs),
    )
    return Signature(
        "fill_mask", inputs, function, outputs | graph.TRUNCATED, padded
    )


def _tokenize_with_masks(tokenizer, text):
    """Return ragged ids of strings (B,), with the mask id for `[MASK]`."""
    between = tf.strings.split(text, graph.MASK)  # (B, None): text parts
    ids = tokenizer(between.values)  # (parts, None)
    # Put a mask before each part, then remove the first mask of each row.
    masks = tf.fill([ids.nrows(), 1], tokenizer.mask_id)
    ids = tf.concat([tf.cast(masks, ids.dtype), ids], axis=1)
    rows = tf.RaggedTensor.from_row_splits(ids, between.row_splits)
    return rows.merge_dims(1, 2)[:, 1:]


def _likeliest(head, vectors, vocabulary_size, top_k):
    """Return probabilities and ids of the likeliest tokens, (N, top_k) each.

    The logits of all masks may take 16 times the memory of all other tensors,
    so they are computed for `MASKS_AT_ONCE` masks at a time.

    Args:
        head: a `MaskedLanguageModelHead`.
        vectors: (N, D), outputs of the encoder at the masks.
        vocabulary_size: number of tokens; further logits are padding.
        top_k: number of tokens for each mask.
    """
    # The head fails on an empty array, so append one vector.
    vectors = tf.pad(vectors, [[0, 1], [0, 0]])

    def predict_masks(begin, end):
        # The head takes (1, n + 1, D). The logits are (n, V).
        logits = head(vectors[tf.newaxis, begin : end + 1])[0, : end - begin]
        probabilities = tf.nn.softmax(logits[:, :vocabulary_size])
        return list(tf.math.top_k(probabilities, top_k))

    return in_chunks(
        predict_masks,
        tf.shape(vectors, tf.int64)[0] - 1,
        [
            tf.TensorSpec([None, top_k], tf.float32),
            tf.TensorSpec([None, top_k], tf.int32),
        ],
        MASKS_AT_ONCE,
    )


def next_sentence(model, rows):
    """Return the signature `next_sentence`: does text_pair follow text?"""

    def function(text, text_pair):
        inputs = rows.pack(rows.tokenizer(text), rows.tokenizer(text_pair))
        # The output `mlm` is not used, but it needs at least one position.
        inputs["mask_positions"] = tf.zeros_like(inputs["token_ids"][:, :1])
        logits = model(inputs, training=False)["nsp"]
        return {"probability": tf.nn.softmax(logits)[:, 0]}

    description = "float32 (B,): probability that text_pair follows text"
    outputs = {"probability": description}
    inputs = {"text": SENTENCE, "text_pair": graph.NEXT}
    return Signature("next_sentence", inputs, function, outputs)


# The signature `ids` takes token ids and returns the outputs of the model. Its
# inputs and outputs can have the names that other libraries use.

ID_INPUTS = ("token_ids", "padding_mask", "segment_ids")
# Style (see `ids`) -> names of token_ids, padding_mask and segment_ids.
INPUTS = {
    "bert_keras": ID_INPUTS,
    "original": ("input_ids", "input_mask", "segment_ids"),
    "transformers": ("input_ids", "attention_mask", "token_type_ids"),
    "model_garden": ("input_word_ids", "input_mask", "input_type_ids"),
}
# Model class -> (descriptions of outputs, {style: names of outputs}).
OUTPUTS = {
    BertEncoder: (
        ("float32 (B, T, D): token vectors", "float32 (B, D): pooler output"),
        {
            "bert_keras": ("sequence_output", "pooled_output"),
            "original": ("sequence_output", "pooled_output"),
            "transformers": ("last_hidden_state", "pooler_output"),
            "model_garden": ("sequence_output", "pooled_output"),
        },
    ),
    task_models.BertClassifier: (
        ("float32 (B, C): a value for each label",),
        {
            "bert_keras": ("logits",),
            "original": ("probabilities",),
            "transformers": ("logits",),
            "model_garden": ("outputs",),
        },
    ),
    task_models.BertTagger: (
        ("float32 (B, T, C): a logit for each token and label",),
        dict.fromkeys(INPUTS, ("logits",)),
    ),
    task_models.BertSpanPredictor: (
        (
            "float32 (B, T): logits of the answer's first token",
            "float32 (B, T): logits of the answer's last token",
        ),
        {
            **dict.fromkeys(INPUTS, ("start_logits", "end_logits")),
            "bert_keras": ("start", "end"),
        },
    ),
    embedder.BertEmbedder: (
        ("float32 (B, D): a vector for each text",),
        dict.fromkeys(INPUTS, ("embedding",)),
    ),
    task_models.BertChooser: (
        ("float32 (B, K): a logit for each choice",),
        {
            **dict.fromkeys(INPUTS, ("logits",)),
            "model_garden": ("outputs",),
        },
    ),
    BertPretrainer: (
        (
            "float32 (B, T, V): a logit for each position and token",
            "float32 (B, 2): logits that B follows A, and that B is random",
        ),
        {
            "bert_keras": ("mlm", "nsp"),
            "original": ("mlm_logits", "nsp_logits"),
            "transformers": ("prediction_logits", "seq_relationship_logits"),
            "model_garden": ("mlm_logits", "next_sentence"),
        },
    ),
}


def ids(model, rows, style):
    """Return the signature `ids`: the model's outputs for token ids.

    Args:
        model: an encoder or a task model; a chooser takes ids (B, K, T), every
            other model (B, T).
        rows: `Rows` of the model's preprocessor.
        style: library whose input and output names are used: "original"
            (Google's code and hub modules), "transformers", "model_garden" (its
            serving modules) or "bert_keras". For "original", a classifier with
            the problem "single" returns probabilities instead of logits.
    """
    if style not in INPUTS:
        raise InputError(
            f"`ids_signature` is {style!r}. Expected one of "
            f"{', '.join(INPUTS)}."
        )
    if type(model) not in OUTPUTS:
        raise InputError(
            f"A {type(model).__name__} has no signature for ids. Export it "
            "without `ids_signature`."
        )
    names = output_names(model, style)
    encoder = getattr(model, "encoder", model)

    def function(*tensors):
        inputs = dict(zip(ID_INPUTS, tensors, strict=True))
        with tf.control_dependencies(_check_ids(inputs, encoder)):
            inputs = {name: tf.identity(x) for name, x in inputs.items()}
        return dict(
            zip(names, compute_outputs(model, inputs, style), strict=True)
        )

    # In this signature, `mlm` is per token, because every position is scored.
    token_outputs = {*model.token_outputs, "mlm"}
    names_by_style = zip(output_names(model, "bert_keras"), names, strict=True)
    return Signature(
        "ids",
        dict(zip(INPUTS[style], _make_example(model, rows), strict=True)),
        function,
        dict(zip(names, OUTPUTS[type(model)][0], strict=True)),
        per_token=tuple(
            n for name, n in names_by_style if name in token_outputs
        ),
        # Exports of other libraries also compute the outputs at padding. To
        # return equal outputs, a model with outputs per token does the same.
        skips_padding=isinstance(
            model,
            task_models.BertClassifier
            | task_models.BertChooser
            | embedder.BertEmbedder,
        ),
    )


def _check_ids(inputs, encoder):
    """Return assertions on the length of rows and the range of ids."""
    most = encoder.max_sequence_length
    checks = [
        tf.debugging.assert_less_equal(
            tf.shape(inputs["token_ids"])[-1],
            most,
            f"A row must have at most {most} token ids",
        )
    ]
    for noun, name, size in (
        ("Token", "token_ids", encoder.vocabulary_size),
        ("Segment", "segment_ids", encoder.num_segments),
    ):
        message = f"{noun} ids must be numbers from 0 to {size - 1}"
        checks += [
            # In an int8 table, a negative id would index from the end.
            tf.debugging.assert_non_negative(inputs[name], message),
            tf.debugging.assert_less(inputs[name], size, message),
        ]
    return checks


def output_names(model, style):
    """Return the names of the model's outputs in a style; see `ids`."""
    if style == "original" and getattr(model, "problem", "") in (
        "multi",
        "regression",
        "ranking",
    ):
        return ("logits",)  # the original BERT code has no such head
    return OUTPUTS[type(model)][1][style]


def compute_outputs(model, inputs, style):
    """Return a list of the model's outputs, in the order of `output_names`."""
    if isinstance(model, BertPretrainer):  # predict a token at each position
        shape = tf.shape(inputs["token_ids"])
        positions = tf.broadcast_to(tf.range(shape[1]), shape)  # (B, T)
        inputs = {**inputs, "mask_positions": positions}
    outputs = model(inputs, training=False)
    if isinstance(outputs, dict):
        outputs = [
            outputs[name] for name in OUTPUTS[type(model)][1]["bert_keras"]
        ]
        return [tf.cast(output, tf.float32) for output in outputs]
    if output_names(model, style) == ("probabilities",):
        outputs = tf.nn.softmax(outputs)
    return [outputs]


def _make_example(model, rows):
    tokenizer = rows.tokenizer
    sentence = [tokenizer.cls_id, tokenizer.unk_id, tokenizer.sep_id]
    example = [sentence, [1, 1, 1], [0, 0, 0]]
    if isinstance(model, task_models.BertChooser):
        return [[row, row] for row in example]
    return example
