"""The signatures `tokenize` and `ids`, which are on token ids."""

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling import embedder, task_models
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.serving.signature import (
    SENTENCE,
    TOKENS,
    Output,
    Signature,
    padded,
)
from bert_keras.serving.texts import describe_tokens


def tokenize(preprocess):
    """Return the signature `tokenize`: all word pieces of a text."""

    def function(text):
        ids, start, end = preprocess.tokenizer.tokenize_with_offsets(text)
        tokens = describe_tokens(preprocess.tokenizer, ids, start, end)
        return {"token_ids": ids.to_tensor(-1), **tokens}

    ids = padded("int32", ("B", "T"), "padded with -1")
    outputs = {"token_ids": ids, **TOKENS}
    return Signature("tokenize", {"text": SENTENCE}, function, outputs)


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
# Model class -> (outputs, {style: names of outputs}).
OUTPUTS = {
    BertEncoder: (
        (
            Output("float32", ("B", "T", "D"), "token vectors"),
            Output("float32", ("B", "D"), "pooler output"),
        ),
        {
            "bert_keras": ("sequence_output", "pooled_output"),
            "original": ("sequence_output", "pooled_output"),
            "transformers": ("last_hidden_state", "pooler_output"),
            "model_garden": ("sequence_output", "pooled_output"),
        },
    ),
    task_models.BertClassifier: (
        (Output("float32", ("B", "C"), "a value for each label"),),
        {
            "bert_keras": ("logits",),
            "original": ("probabilities",),
            "transformers": ("logits",),
            "model_garden": ("outputs",),
        },
    ),
    task_models.BertTagger: (
        (
            Output(
                "float32", ("B", "T", "C"), "a logit for each token and label"
            ),
        ),
        dict.fromkeys(INPUTS, ("logits",)),
    ),
    task_models.BertSpanPredictor: (
        (
            Output("float32", ("B", "T"), "logits of the answer's first token"),
            Output("float32", ("B", "T"), "logits of the answer's last token"),
        ),
        {
            **dict.fromkeys(INPUTS, ("start_logits", "end_logits")),
            "bert_keras": ("start", "end"),
        },
    ),
    embedder.BertEmbedder: (
        (Output("float32", ("B", "D"), "a vector for each text"),),
        dict.fromkeys(INPUTS, ("embedding",)),
    ),
    task_models.BertChooser: (
        (
            Output(
                "float32", ("B", "K"), "a logit for each choice", per_entry=True
            ),
        ),
        {
            **dict.fromkeys(INPUTS, ("logits",)),
            "model_garden": ("outputs",),
        },
    ),
    BertPretrainer: (
        (
            Output(
                *("float32", ("B", "T", "V")),
                "a logit for each position and token",
            ),
            Output(
                *("float32", ("B", 2)),
                "logits that B follows A, and that B is random",
            ),
        ),
        {
            "bert_keras": ("mlm", "nsp"),
            "original": ("mlm_logits", "nsp_logits"),
            "transformers": ("prediction_logits", "seq_relationship_logits"),
            "model_garden": ("mlm_logits", "next_sentence"),
        },
    ),
}


def ids(model, preprocess, style):
    """Return the signature `ids`: the model's outputs for token ids.

    Args:
        model: an encoder or a task model; a chooser takes ids (B, K, T), every
            other model (B, T).
        preprocess: the model's preprocessor.
        style: library whose input and output names are used: "original"
            (Google's code and hub modules), "transformers", "model_garden" (its
            serving modules) or "bert_keras". For "original", a classifier with
            the problem "single" returns probabilities instead of logits.
    """
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

    return Signature(
        "ids",
        dict(zip(INPUTS[style], _make_example(model, preprocess), strict=True)),
        function,
        dict(zip(names, OUTPUTS[type(model)][0], strict=True)),
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


def _make_example(model, preprocess):
    tokenizer = preprocess.tokenizer
    sentence = [tokenizer.cls_id, tokenizer.unk_id, tokenizer.sep_id]
    example = [sentence, [1, 1, 1], [0, 0, 0]]
    if isinstance(model, task_models.BertChooser):
        return [[row, row] for row in example]
    return example
