"""`ServedModel`: what it takes, what it refuses, what a card may say."""

import ast
import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.serving import load
from bert_keras.serving.load import _tensors, load_saved_model


@pytest.mark.parametrize(
    "lie",
    [
        {"needs": "tensorflow"},
        {"default": "other"},
        {"signatures": []},
        {"signatures": {"classify": 5}},
        {"signatures": {"classify": {"inputs": {}, "padded": []}}},
        {"signatures": json.loads('{"a":' * 70 + "1" + "}" * 70)},
    ],
)
def test_a_card_that_lies_is_refused(toy_export, tmp_path, lie):
    (tmp_path / "saved_model.pb").touch()
    card = files.read_json(os.path.join(toy_export, "signature_card.json"))
    path = tmp_path / "signature_card.json"
    path.write_text(json.dumps({**card, **lie}))
    with pytest.raises(InputError, match="no signature card"):
        load_saved_model(tmp_path)


def test_calls_that_make_no_sense_are_refused(toy_served, tmp_path):
    with pytest.raises(InputError, match="Put it in a list"):
        toy_served.classify("bad")
    with pytest.raises(InputError, match="text and text_pair"):
        toy_served.next_sentence(["bad"])
    with pytest.raises(InputError, match="one length"):
        toy_served.next_sentence(["bad"], ["good", "film"])
    with pytest.raises(AttributeError, match="classify"):
        toy_served.translate(["bad"])
    with pytest.raises(InputError, match="not a folder"):
        load_saved_model(tmp_path / "missing")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match="from_preset"):
        load_saved_model(tmp_path)


def test_a_served_model_shows_what_it_answers(toy_served):
    shown = repr(toy_served)
    assert shown.startswith("<ServedModel: answer(question, context), ")
    for name in toy_served.signatures:
        inputs = toy_served.card["signatures"][name]["input_order"]
        assert f"{name}({', '.join(inputs)})" in shown


def test_loading_needs_no_model_code():
    tree = ast.parse(pathlib.Path(load.__file__).read_text())
    modules = {
        getattr(node, "module", None) or node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert {m for m in modules if m.startswith("bert_keras")} == {
        "bert_keras",
        "bert_keras.errors",
        "bert_keras.manifest",
        "bert_keras.text.wordpiece",
    }
    assert "keras" not in modules


ENTRIES = {
    "text": {"input_order": ["text"], "inputs": {"text": "string (B,)"}},
    "ids": {"input_order": ["ids"], "inputs": {"ids": "int32 (B, N)"}},
    "lists": {"input_order": ["lists"], "inputs": {"lists": "string (B, N)"}},
    "rows": {"input_order": ["rows"], "inputs": {"rows": "int32 (B, K, N)"}},
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
        ("text", {"text": ["a"]}, "takes a list as text; got {'text'"),
        ("ids", [[2, 3], [-1, 3]], "0 and more .* row 1"),
        ("ids", [[2.5]], "row 0"),
        ("ids", [2, 5], r"row 0 is 2 \(int\)"),
    ],
)
def test_a_served_model_names_the_row_that_it_cannot_take(name, rows, message):
    with pytest.raises(InputError, match=message):
        _tensors("classify", ENTRIES[name], [rows], {})


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        (
            "rows",
            [[], [[2, 5, 3], [2]]],
            [[[0] * 3] * 2, [[2, 5, 3], [2, 0, 0]]],
        ),
        ("ids", list(np.array([[2, 5], [2, 3]])), [[2, 5], [2, 3]]),
        ("lists", [[], ["a"]], [[b""], [b"a"]]),
        ("lists", [[]], [[]]),
    ],
)
def test_lists_of_unequal_length_are_filled_up(name, rows, expected):
    tensor = _tensors("classify", ENTRIES[name], [rows], {})[name]
    assert tensor.dtype == ("string" if name == "lists" else "int32")
    assert tensor.numpy().tolist() == expected
