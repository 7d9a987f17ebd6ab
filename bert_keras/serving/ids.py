"""`ids`: token ids in, model outputs out, under names that clients know."""

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_models import (
    BertChooser,
    BertClassifier,
    BertEmbedder,
    BertSpanPredictor,
    BertTagger,
)
from bert_keras.serving.graph import Signature

OURS = ("token_ids", "padding_mask", "segment_ids")
# Style -> what it calls token_ids, padding_mask, segment_ids.
INPUTS = {
    "ours": OURS,
    "original": ("input_ids", "input_mask", "segment_ids"),
    "transformers": ("input_ids", "attention_mask", "token_type_ids"),
    "model_garden": ("input_word_ids", "input_mask", "input_type_ids"),
}
# Of each model what comes out, in our order: what it is, and style -> names.
_OUTPUTS = {
    BertEncoder: (
        ("float32 (B, T, D): a vector a token", "float32 (B, D): the pooler's"),
        {
            "ours": ("sequence_output", "pooled_output"),
            "original": ("sequence_output", "pooled_output"),
            "transformers": ("last_hidden_state", "pooler_output"),
            "model_garden": ("sequence_output", "pooled_output"),
        },
    ),
    BertClassifier: (
        ("float32 (B, C): of every label",),
        {
            "ours": ("logits",),
            "original": ("probabilities",),
            "transformers": ("logits",),
            "model_garden": ("outputs",),
        },
    ),
    BertTagger: (
        ("float32 (B, T, C): of every label, for each token",),
        dict.fromkeys(INPUTS, ("logits",)),
    ),
    BertSpanPredictor: (
        (
            "float32 (B, T): that the answer begins there",
            "float32 (B, T): that it ends there",
        ),
        {
            **dict.fromkeys(INPUTS, ("start_logits", "end_logits")),
            "ours": ("start", "end"),
        },
    ),
    BertEmbedder: (
        ("float32 (B, D): a vector a text",),
        dict.fromkeys(INPUTS, ("embedding",)),
    ),
    BertChooser: (
        ("float32 (B, K): of every choice",),
        {
            **dict.fromkeys(INPUTS, ("logits",)),
            "model_garden": ("outputs",),
        },
    ),
    BertPretrainer: (
        (
            "float32 (B, T, V): of every piece at every position",
            "float32 (B, 2): that B follows A, that it is random",
        ),
        {
            "ours": ("mlm", "nsp"),
            "original": ("mlm_logits", "nsp_logits"),
            "transformers": ("prediction_logits", "seq_relationship_logits"),
            "model_garden": ("mlm_logits", "next_sentence"),
        },
    ),
}


def ids(model, rows, style):
    """The model on ids that the client made.

    Args:
        model: an encoder or a task model in float32; a chooser takes ids
            (B, K, T), every other (B, T).
        rows: `Rows` of its preprocessor.
        style: whose names: "original" (what its code and its hub modules fed
            and fetched), "transformers", "model_garden" (its serving
            modules') or "ours".
    """
    if style not in INPUTS:
        raise InputError(
            f"ids_signature is {style!r}. Expected one of {', '.join(INPUTS)}."
        )
    if type(model) not in _OUTPUTS:
        raise InputError(
            f"A {type(model).__name__} has no signature of ids. Export it "
            "without ids_signature."
        )
    names = output_names(model, style)
    size = getattr(model, "encoder", model).vocabulary_size

    def function(*tensors):
        inputs = dict(zip(OURS, tensors, strict=True))
        ids = inputs["token_ids"]
        # A lookup in int8 weights counts a negative id from the end.
        message = f"Token ids are numbers from 0 to {size - 1}"
        checks = [
            tf.debugging.assert_non_negative(ids, message),
            tf.debugging.assert_less(ids, size, message),
        ]
        with tf.control_dependencies(checks):
            inputs["token_ids"] = tf.identity(ids)
        return dict(zip(names, outputs_of(model, inputs, style), strict=True))

    # A pre-trainer scores every position here.
    of_tokens = {*model.token_outputs, "mlm"}
    by_our_name = zip(output_names(model, "ours"), names, strict=True)
    return Signature(
        "ids",
        dict(zip(INPUTS[style], _example(model, rows), strict=True)),
        function,
        dict(zip(names, _OUTPUTS[type(model)][0], strict=True)),
        per_token=tuple(n for ours, n in by_our_name if ours in of_tokens),
        # Vectors and logits of padding stay those that the old server gave.
        skips_padding=isinstance(
            model, BertClassifier | BertChooser | BertEmbedder
        ),
    )


def output_names(model, style):
    """What the style calls the model's outputs, in our order."""
    if style == "original" and getattr(model, "problem", "") in (
        "multi",
        "regression",
        "ranking",
    ):
        return ("logits",)  # the original had neither
    return _OUTPUTS[type(model)][1][style]


def outputs_of(model, inputs, style):
    """The model's outputs for these inputs, in our order: list of tensors."""
    if isinstance(model, BertPretrainer):  # every position is scored
        places = tf.range(tf.shape(inputs["token_ids"])[1])[
            tf.newaxis
        ]  # (1, T)
        places = tf.broadcast_to(places, tf.shape(inputs["token_ids"]))
        inputs = {**inputs, "mask_positions": places}
    outputs = model(inputs, training=False)
    if isinstance(outputs, dict):
        outputs = [outputs[name] for name in _OUTPUTS[type(model)][1]["ours"]]
        return [tf.cast(output, tf.float32) for output in outputs]
    if output_names(model, style) == ("probabilities",):
        outputs = tf.nn.softmax(outputs)
    return [outputs]


def _example(model, rows):
    """ids, mask and segments of one row."""
    tokenizer = rows.tokenizer
    sentence = [tokenizer.cls_id, tokenizer.unk_id, tokenizer.sep_id]
    example = [sentence, [1, 1, 1], [0, 0, 0]]
    if isinstance(model, BertChooser):
        return [[row, row] for row in example]
    return example
