"""`ids`: token ids in, model outputs out, under names that clients know."""

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling.classifier import BertClassifier
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.span import BertSpanPredictor
from bert_keras.modeling.tagger import BertTagger
from bert_keras.serving.signature import Signature

# Style -> what it calls token_ids, padding_mask, segment_ids.
INPUTS = {
    "ours": ("token_ids", "padding_mask", "segment_ids"),
    "original": ("input_ids", "input_mask", "segment_ids"),
    "transformers": ("input_ids", "attention_mask", "token_type_ids"),
}


def ids(model, rows, style):
    """The model on ids that the client made.

    Args:
        model: an encoder or a task model in float32.
        rows: `Rows` of its preprocessor.
        style: whose names: "original" (what its code and its hub modules fed
            and fetched), "transformers" or "ours".
    """
    if style not in INPUTS:
        raise InputError(
            f"ids_signature is {style!r}. Expected one of {', '.join(INPUTS)}."
        )
    if type(model) not in _ANSWERS:
        raise InputError(
            f"A {type(model).__name__} has no signature of ids. Export it "
            "without ids_signature."
        )
    tokenizer = rows.tokenizer
    sentence = [tokenizer.cls_id, tokenizer.unk_id, tokenizer.sep_id]
    inputs = dict(
        zip(INPUTS[style], [sentence, [1, 1, 1], [0, 0, 0]], strict=True)
    )
    answer, outputs = _ANSWERS[type(model)](model, style)

    def function(token_ids, padding_mask, segment_ids):
        inputs = {
            "token_ids": token_ids,
            "padding_mask": padding_mask,
            "segment_ids": segment_ids,
        }
        if isinstance(model, BertPretrainer):  # every position is scored
            places = tf.range(tf.shape(token_ids)[1])[tf.newaxis]
            places = tf.broadcast_to(places, tf.shape(token_ids))
            inputs["mask_positions"] = places
        return answer(model(inputs, training=False))

    return Signature("ids", inputs, function, outputs)


def _of_encoder(model, style):
    sequence, pooled = {
        "transformers": ("last_hidden_state", "pooler_output"),
    }.get(style, ("sequence_output", "pooled_output"))

    def answer(encoded):
        return {
            sequence: encoded["sequence_output"],
            pooled: encoded["pooled_output"],
        }

    return answer, {
        sequence: "float32 (B, T, D): a vector a token",
        pooled: "float32 (B, D): the pooler's",
    }


def _of_classifier(model, style):
    if style == "original" and model.problem == "single":
        return (
            lambda logits: {"probabilities": tf.nn.softmax(logits)},
            {"probabilities": "float32 (B, C): of every label"},
        )
    return (
        lambda logits: {"logits": logits},
        {"logits": "float32 (B, C): of every label"},
    )


def _of_tagger(model, style):
    return (
        lambda logits: {"logits": logits},
        {"logits": "float32 (B, T, C): of every label, for each token"},
    )


def _of_span_predictor(model, style):
    start, end = ("start", "end")
    if style != "ours":
        start, end = ("start_logits", "end_logits")
    return (
        lambda logits: {start: logits["start"], end: logits["end"]},
        {
            start: "float32 (B, T): that the answer begins there",
            end: "float32 (B, T): that it ends there",
        },
    )


def _of_pretrainer(model, style):
    mlm, nsp = {
        "transformers": ("prediction_logits", "seq_relationship_logits"),
        "original": ("mlm_logits", "nsp_logits"),
    }.get(style, ("mlm", "nsp"))

    def answer(logits):
        return {mlm: logits["mlm"], nsp: logits["nsp"]}

    return answer, {
        mlm: "float32 (B, T, V): of every piece at every position",
        nsp: "float32 (B, 2): that B follows A, that it is random",
    }


_ANSWERS = {
    BertClassifier: _of_classifier,
    BertEncoder: _of_encoder,
    BertPretrainer: _of_pretrainer,
    BertSpanPredictor: _of_span_predictor,
    BertTagger: _of_tagger,
}
