"""The signature `ids` in each naming style, compared with the model."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.modeling.embedder import BertEmbedder
from bert_keras.modeling.task_models import BertClassifier
from bert_keras.serving.load import as_tensor
from bert_keras.serving.texts import copy_for_serving
from bert_keras.serving.tokens import ID_INPUTS, INPUTS, ids
from bert_keras.serving.verify import HARD_TEXTS, make_ids_request
from tests.support.model_samples import fill
from tests.support.served_samples import encoder, preprocessor, task_models

TEXTS = [t.encode() if isinstance(t, str) else t for t in HARD_TEXTS[:-1]]
# Model -> names of its outputs in each style, in the order of `INPUTS`.
OUTPUTS = {
    "BertClassifier": "logits probabilities logits outputs",
    "BertSpanPredictor": "start,end" + 3 * " start_logits,end_logits",
    "BertTagger": "logits logits logits logits",
    "BertChooser": "logits logits logits outputs",
    "BertPretrainer": "mlm,nsp mlm_logits,nsp_logits prediction_logits,"
    "seq_relationship_logits mlm_logits,next_sentence",
    "BertEncoder": "sequence_output,pooled_output "
    "sequence_output,pooled_output last_hidden_state,pooler_output "
    "sequence_output,pooled_output",
}
PER_TOKEN = {"sequence_output", "start", "end", "mlm"}
CLIENTS = {
    "original": "input_ids input_mask segment_ids",
    "transformers": "input_ids attention_mask token_type_ids",
    "model_garden": "input_word_ids input_mask input_type_ids",
}


@functools.cache
def rows():
    return copy_for_serving(preprocessor())


@functools.cache
def models():
    every = [*task_models(), fill(encoder())]
    return {type(model).__name__: model for model in every}


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_model_answers_ids_under_every_name(name):
    model, live = models()[name], {}
    styles = zip(INPUTS, OUTPUTS[name].split(), strict=True)
    for style, outputs in styles:
        signature = ids(model, rows(), style)
        assert " ".join(signature.inputs) == CLIENTS.get(
            style, " ".join(ID_INPUTS)
        )
        assert ",".join(signature.outputs) == outputs
        request = make_ids_request(signature, preprocessor(), TEXTS)
        tensors = map(as_tensor, request.values(), signature.specs())
        answer = signature.function(*tensors)
        found = [np.array(answer[key]) for key in signature.outputs]
        if not live:  # the style "bert_keras" is first
            arrays = map(np.array, request.values())
            outputs_live = called(
                model, dict(zip(ID_INPUTS, arrays, strict=True))
            )
            live = {key: outputs_live[key] for key in signature.outputs}
        real = np.array(list(request.values())[1], bool)
        for (ours, expected), value in zip(live.items(), found, strict=True):
            if "probabilities" in outputs:
                expected = np.array(tf.nn.softmax(expected))
            if ours in PER_TOKEN or (name == "BertTagger"):
                expected, value = expected[real], value[real]
            np.testing.assert_allclose(value, expected, atol=1e-5)


def called(model, inputs):
    """Return the model's outputs by name; `mlm` at every position."""
    if type(model).__name__ == "BertPretrainer":
        rows, length = inputs["token_ids"].shape
        inputs["mask_positions"] = np.tile(np.arange(length), (rows, 1))
    outputs = model(inputs)
    outputs = outputs if isinstance(outputs, dict) else {"logits": outputs}
    return {name: np.array(value) for name, value in outputs.items()}


def test_values_at_padding_are_those_of_the_model():
    """Exports of other libraries compute them too."""
    model = models()["BertEncoder"]
    signature = ids(model, rows(), "bert_keras")
    request = make_ids_request(signature, preprocessor(), TEXTS)
    tensors = map(as_tensor, request.values(), signature.specs())
    found = signature.trace()(*tensors)["sequence_output"]
    arrays = map(np.array, request.values())
    expected = called(model, dict(zip(ID_INPUTS, arrays, strict=True)))
    assert not np.all(request["padding_mask"])
    np.testing.assert_allclose(found, expected["sequence_output"], atol=1e-5)


def test_an_embedder_gives_its_vectors_of_ids():
    model = fill(BertEmbedder(encoder(), "max"))
    signature = ids(model, rows(), "transformers")
    request = make_ids_request(signature, preprocessor(), TEXTS)
    tensors = map(as_tensor, request.values(), signature.specs())
    found = signature.function(*tensors)
    arrays = map(np.array, request.values())
    expected = model(dict(zip(ID_INPUTS, arrays, strict=True)))
    np.testing.assert_allclose(found["embedding"], expected, atol=1e-5)


def test_several_labels_are_logits_under_the_originals_names():
    labels = list("abc")
    model = BertClassifier(encoder(), labels=labels, problem="multi")
    signature = ids(model, rows(), "original")
    assert list(signature.outputs) == ["logits"]


def test_choices_are_three_axes():
    signature = ids(models()["BertChooser"], rows(), "bert_keras")
    assert [spec.shape.rank for spec in signature.specs()] == [3, 3, 3]


@pytest.mark.parametrize(
    ("tokens", "segments", "message"),
    [
        ([2, -1, 3], [0] * 3, "Token ids must be numbers from 0"),
        ([2, 10_000, 3], [0] * 3, "Token ids must be numbers from 0"),
        ([2, 5, 3], [0, 2, 0], "Segment ids must be numbers from 0 to 1"),
        ([2] * 33, [0] * 33, "at most 32 token ids"),
    ],
)
def test_ids_outside_the_tables_are_refused(tokens, segments, message):
    signature = ids(fill(encoder()), rows(), "bert_keras")
    request = [[tokens], [[1] * len(tokens)], [segments]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signature.function(*map(tf.constant, request))
