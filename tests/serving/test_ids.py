"""`ids`: every model under every client's names, against the live model."""

import live_answers as live
import numpy as np
import pytest
import tensorflow as tf
from served_samples import encoder, preprocessor, spread, task_models

from bert_keras.errors import InputError
from bert_keras.modeling.classifier import BertClassifier
from bert_keras.serving.graph import Rows
from bert_keras.serving.ids import INPUTS, ids
from bert_keras.serving.load import _tensors, as_tensor
from bert_keras.serving.verify import HARD_TEXTS

MODELS = [*task_models(), spread(encoder())]
TEXTS = [t.encode() if isinstance(t, str) else t for t in HARD_TEXTS[:-1]]


@pytest.mark.parametrize("style", INPUTS)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_model_answers_ids_under_every_name(model, style):
    signature = ids(model, Rows(preprocessor()), style)
    assert tuple(signature.inputs) == INPUTS[style]
    request = live.request(model, preprocessor(), style, TEXTS)
    answer = signature.function(*map(as_tensor, request.values()))
    assert set(answer) == set(signature.outputs)
    answer = {key: np.array(value) for key, value in answer.items()}
    options = {"ids_signature": style}
    check = live.ids
    arguments = model, preprocessor(), options
    assert check(*arguments, answer, *request.values()) <= 1e-5
    for name in answer:
        wrong = answer | {name: answer[name] + np.float32(1e-3)}
        assert check(*arguments, wrong, *request.values()) > 5e-4


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_what_is_said_of_padding_does_not_count(model):
    request = live.request(model, preprocessor(), "ours", TEXTS)
    real = np.array(request["padding_mask"], bool)
    signature = ids(model, Rows(preprocessor()), "ours")
    answer = signature.function(*map(as_tensor, request.values()))
    per_token = {"sequence_output", "start", "end", "mlm"}
    if model.name == "tagger_model":
        per_token.add("logits")
    for name, value in answer.items():
        value = np.array(value)
        if name in per_token:
            value[~real] += 3
        answer[name] = value
    difference = live.ids(
        model,
        preprocessor(),
        {"ids_signature": "ours"},
        answer,
        *request.values(),
    )
    assert difference <= 1e-5


def test_the_names_are_those_that_clients_know():
    rows = Rows(preprocessor())
    models = {type(model).__name__: model for model in MODELS}

    def names(model, style):
        signature = ids(models[model], rows, style)
        return [*signature.inputs, *signature.outputs]

    garden = ["input_word_ids", "input_mask", "input_type_ids"]
    assert names("BertClassifier", "model_garden") == [*garden, "outputs"]
    spans = ["start_logits", "end_logits"]
    assert names("BertSpanPredictor", "model_garden") == [*garden, *spans]
    assert names("BertTagger", "model_garden") == [*garden, "logits"]
    old = ["input_ids", "input_mask", "segment_ids"]
    assert names("BertClassifier", "original") == [*old, "probabilities"]
    hugging = ["input_ids", "attention_mask", "token_type_ids"]
    assert names("BertChooser", "transformers") == [*hugging, "logits"]
    vectors = ["last_hidden_state", "pooler_output"]
    assert names("BertEncoder", "transformers") == [*hugging, *vectors]


def test_several_labels_are_logits_under_the_originals_names():
    labels = list("abc")
    model = BertClassifier(encoder(), labels=labels, problem="multi")
    signature = ids(model, Rows(preprocessor()), "original")
    assert list(signature.outputs) == ["logits"]


def test_choices_are_three_axes_and_filled_up():
    chooser = next(m for m in MODELS if m.name == "chooser_model")
    signature = ids(chooser, Rows(preprocessor()), "ours")
    assert [spec.shape.rank for spec in signature.specs()] == [3, 3, 3]
    tensor = as_tensor([[[2, 5, 3], [2, 3]], [[2, 3], [2, 3]]])
    assert tensor.numpy()[0].tolist() == [[2, 5, 3], [2, 3, 0]]
    rows = as_tensor(list(np.array([[2, 5, 3], [2, 3, 0]])))
    assert rows.numpy().tolist() == [[2, 5, 3], [2, 3, 0]]


@pytest.mark.parametrize("wrong", [-1, 10_000])
def test_an_id_that_the_vocabulary_has_not_is_refused(wrong):
    signature = ids(spread(encoder()), Rows(preprocessor()), "ours")
    rows = [as_tensor(x) for x in ([[2, wrong, 3]], [[1, 1, 1]], [[0, 0, 0]])]
    with pytest.raises(tf.errors.InvalidArgumentError, match="numbers from 0"):
        signature.function(*rows)


ENTRIES = {
    "text": {"input_order": ["text"], "inputs": {"text": "string (B,)"}},
    "ids": {"input_order": ["ids"], "inputs": {"ids": "int32 (B, N)"}},
}


@pytest.mark.parametrize(
    "texts",
    [
        ["an", "hour"],
        np.array(["an", "hour"]),
        tf.constant(["an", "hour"]),
        iter([b"an", "hour"]),
        ["an", "\ud800hour"],
    ],
)
def test_a_served_model_takes_texts_of_any_holder(texts):
    found = _tensors("classify", ENTRIES["text"], [texts], {})["text"]
    assert found.numpy().tolist() == [b"an", b"hour"]


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("text", [1], r"strings \(B,\) as text; row 0 is 1 \(int\)"),
        ("text", ["a", None], r"row 1 is None \(NoneType\)"),
        ("text", ["a", float("nan")], r"row 1 is nan \(float\)"),
        ("text", [["a", "b"]], r"row 0 is .* \(list\)"),
        ("text", tf.constant("a"), "takes a list as text; got one string"),
        ("text", None, "takes a list as text; got None"),
        ("ids", [[2, 3], [-1, 3]], "0 and more .* row 1"),
        ("ids", [[2.5]], "row 0"),
        ("ids", [2, 5], r"row 0 is 2 \(int\)"),
    ],
)
def test_a_served_model_names_the_row_that_it_cannot_take(name, rows, message):
    with pytest.raises(InputError, match=message):
        _tensors("classify", ENTRIES[name], [rows], {})
