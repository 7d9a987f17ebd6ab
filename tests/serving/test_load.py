"""`ServedModel`: its inputs, its refusals and the checks of its card."""

import ast
import json
import os
import pathlib
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import json_files
from bert_keras.errors import InputError
from bert_keras.manifest import add_hash
from bert_keras.modeling.task_models import BertClassifier
from bert_keras.serving import export as exporting
from bert_keras.serving import load
from bert_keras.serving.export import export_saved_model
from bert_keras.serving.load import (
    as_tensor,
    load_saved_model,
    read_columns,
    to_tensors,
)
from tests.support.model_samples import fill
from tests.support.served_samples import encoder, live_signatures, preprocessor


@pytest.fixture
def export(toy_export, tmp_path):
    """A copy of the toy export that a test may damage."""
    return shutil.copytree(toy_export, tmp_path / "served")


def change_card(folder, **fields):
    """Change fields of the card and update its hash; None removes a field."""
    path = folder / "signature_card.json"
    card = {**json_files.read_json(path), **fields}
    del card["sha256"]
    card = {name: value for name, value in card.items() if value is not None}
    path.write_text(json.dumps(add_hash(card)))


def test_a_folder_of_versions_stands_for_the_highest(export, tmp_path):
    versions = tmp_path / "versions"
    for name in ("9", "10", "next"):
        shutil.copytree(export, versions / name)
    (versions / "11.old").mkdir()
    assert load_saved_model(versions).folder == str(versions / "10")
    assert load_saved_model(versions / "9").folder == str(versions / "9")
    (versions / "12").mkdir()
    with pytest.raises(InputError, match="12 is not an export"):
        load_saved_model(versions)
    (export / "13").mkdir()
    assert load_saved_model(export).folder == str(export)


@pytest.mark.parametrize(
    ("lie", "word"),
    [
        ({"needs": "tensorflow"}, "needs"),
        ({"needs": None}, "needs"),
        ({"default": "other"}, "other"),
        ({"signatures": []}, "signatures"),
        ({"signatures": {"classify": 5}}, "does not describe"),
        ({"signatures": {"classify": {"inputs": {}, "labels": []}}}, "missing"),
        ({"fingerprint": None}, "fingerprint"),
        ({"options": None}, "options"),
        ({"sequence_length": None}, "sequence_length"),
        ({"files": {}}, "saved_model.pb"),
        ({"files": {"../x": {"bytes": 1, "sha256": ""}}}, "../x"),
        ({"signatures": json.loads('{"a":' * 70 + "1" + "}" * 70)}, "deep"),
    ],
)
def test_a_card_that_lies_is_refused(export, lie, word):
    change_card(export, **lie)
    with pytest.raises(InputError, match="signature_card.json") as raised:
        load_saved_model(export)
    assert word in str(raised.value)


@pytest.mark.parametrize(
    "field", ["inputs", "outputs", "request", "reads_windows"]
)
def test_a_signature_without_a_field_is_refused(export, field):
    card = json_files.read_json(export / "signature_card.json")
    del card["signatures"]["classify"][field]
    change_card(export, signatures=card["signatures"])
    with pytest.raises(InputError, match=f"'{field}' is missing"):
        load_saved_model(export)


def as_format_2(entry):
    """Return a signature's entry as cards of format 2 have it."""

    def describe(spec):
        axes = spec["shape"]
        text = ", ".join(map(str, axes)) + "," * (len(axes) < 2)
        return f"{spec['dtype']} ({text})"

    old = {
        **entry,
        "inputs": {k: describe(v) for k, v in entry["inputs"].items()},
        "outputs": {
            k: f"{describe(v)}: {v['text']}"
            for k, v in entry["outputs"].items()
        },
        "padded": [k for k, v in entry["outputs"].items() if v["padded"]],
    }
    del old["reads_windows"], old["skips_padding"]
    return old


def test_an_export_with_an_older_card_gives_the_same_answers(
    export, toy_served
):
    entries = toy_served.card["signatures"]
    old = {name: as_format_2(entry) for name, entry in entries.items()}
    change_card(export, signatures=old, format_version=2)
    served = load_saved_model(export)
    found = served.card["signatures"]
    for name, entry in entries.items():
        described = json.loads(json.dumps(entry["outputs"]))
        for output in described.values():  # sizes were texts
            output["shape"] = list(map(str, output["shape"]))
        assert found[name] == {**old[name], **entry, "outputs": described}
    assert found["answer"]["reads_windows"]
    assert not found["tag"]["reads_windows"]
    request = entries["choose"]["request"]
    assert served.choose(**request) == toy_served.choose(**request)


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


FILES = (
    "saved_model.pb",
    "signature_card.json",
    "variables/variables.index",
    "variables/variables.data-00000-of-00001",
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", [damage, os.remove, pathlib.Path.touch])
def test_a_damaged_or_missing_file_is_named(export, name, change):
    if change is pathlib.Path.touch:  # an empty file
        os.remove(export / name)
    change(export / name)
    with pytest.raises(InputError, match=name):
        load_saved_model(export)


def test_a_name_that_no_folder_can_have_is_refused_before_the_work(
    tmp_path, monkeypatch
):
    model = BertClassifier(encoder(), labels=["a", "b"])
    monkeypatch.setattr(exporting, "make_signatures", pytest.fail)
    with pytest.raises(InputError, match="255 bytes"):
        export_saved_model(model, tmp_path / ("x" * 256), preprocessor())


def test_calls_that_make_no_sense_are_refused(toy_served, tmp_path):
    with pytest.raises(InputError, match="Put it in a list"):
        toy_served.classify("bad")
    with pytest.raises(InputError, match="text and text_pair"):
        toy_served.next_sentence(["bad"])
    with pytest.raises(InputError, match="equal length"):
        toy_served.next_sentence(["bad"], ["good", "film"])
    with pytest.raises(AttributeError, match="classify"):
        toy_served.translate(["bad"])
    with pytest.raises(InputError, match="no folder"):
        load_saved_model(tmp_path / "missing")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match="from_preset"):
        load_saved_model(tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("kind", ["served", "call", "predict"])
def test_a_fork_refuses_a_model_of_its_parent(toy_served, kind):
    """A fork, as by `gunicorn --preload`, lacks TensorFlow's threads."""
    model = BertClassifier(encoder(), labels=["bad", "good"])
    ids = np.array([[2, 5, 3]])
    call = {
        "served": lambda: toy_served.classify(["bad"]),
        "call": lambda: model.encoder(ids),
        "predict": lambda: model.predict(ids, verbose=0),
    }[kind]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # without a refusal, the call would hang
            call()
        except InputError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as file:
        assert "forked" in file.read()
    os.waitpid(child, 0)


def test_an_answer_has_a_value_for_each_entry_of_its_own_list(toy_served):
    prompts, choices = ["an hour", "bad"], [["good"], ["film", "", "was"]]
    found = toy_served.choose(prompts, choices)["probabilities"]
    for row, expected in enumerate(found):
        alone = toy_served.choose(prompts[row:][:1], choices[row:][:1])
        assert expected == pytest.approx(alone["probabilities"][0], abs=1e-5)
    ranker = fill(BertClassifier(encoder(), problem="ranking", pair=True))
    signature = live_signatures(ranker, preprocessor())["rank"]
    passages = [["", "good"], ["film", "", "was", "an"]]
    columns = {"query": prompts, "passages": passages}
    tensors = map(as_tensor, columns.values(), signature.specs())
    outputs = {n: vars(output) for n, output in signature.outputs.items()}
    entry = {"outputs": outputs}
    found = load._to_python(signature.function(*tensors), entry, columns)
    assert found["order"][0] == [1, 0] and found["order"][1][3] == 1
    assert [len(row) for row in found["score"]] == [2, 4]
    assert found["score"][0][0] == 0 < found["score"][0][1]


def test_a_refusal_of_the_graph_is_one_sentence(toy_served):
    with pytest.raises(InputError) as raised:
        toy_served.ids([[2] * 33], [[1] * 33], [[0] * 33])
    assert str(raised.value) == (
        "ids cannot answer these rows: A row must have at most 32 token ids"
    )


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
        "bert_keras.json_files",
        "bert_keras.manifest",
        "bert_keras.text.wordpiece",
    }
    assert "keras" not in modules


ENTRIES = {
    "text": {
        "input_order": ["text"],
        "inputs": {"text": {"dtype": "string", "shape": ["B"]}},
    },
    "ids": {
        "input_order": ["ids"],
        "inputs": {"ids": {"dtype": "int32", "shape": ["B", "N"]}},
    },
    "lists": {
        "input_order": ["lists"],
        "inputs": {"lists": {"dtype": "string", "shape": ["B", "N"]}},
    },
    "rows": {
        "input_order": ["rows"],
        "inputs": {"rows": {"dtype": "int32", "shape": ["B", "K", "N"]}},
    },
}


def tensors(name, rows):
    columns = read_columns("classify", ENTRIES[name], {name: rows})
    return to_tensors(ENTRIES[name], columns)


@pytest.mark.parametrize(
    "texts",
    [
        ["an", "hour"],
        np.array(["an", "hour"]),
        tf.constant(["an", "hour"]),
        iter([b"an", "hour"]),
    ],
)
def test_a_served_model_takes_texts_of_any_holder(texts):
    found = tensors("text", texts)["text"]
    assert found.numpy().tolist() == [b"an", b"hour"]


def test_half_of_a_surrogate_pair_is_served_as_u_fffd():
    for holder in (list, np.array):
        found = tensors("text", holder(["\ud800an"]))["text"]
        assert found.numpy().tolist() == ["\ufffdan".encode()]


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
        ("ids", [[2, 3], [-1, 3]], r"integers in \[0, .* row 1"),
        ("ids", [[2.5]], "row 0"),
        ("ids", [2, 5], r"row 0 is 2 \(int\)"),
    ],
)
def test_a_served_model_names_the_row_that_it_cannot_take(name, rows, message):
    with pytest.raises(InputError, match=message):
        tensors(name, rows)


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        (
            "rows",
            [[], [[2, 5, 3], [2]]],
            [[[0] * 3] * 2, [[2, 5, 3], [2, 0, 0]]],
        ),
        ("ids", list(np.array([[2, 5], [2, 3]])), [[2, 5], [2, 3]]),
        (
            "ids",
            np.array([np.array([2, 5]), np.array([2])], object),
            [[2, 5], [2, 0]],
        ),
        ("lists", tf.ragged.constant([[], ["a"]]), [[b""], [b"a"]]),
        ("lists", [[], ["a"]], [[b""], [b"a"]]),
        ("lists", [[]], [[]]),
    ],
)
def test_lists_of_unequal_length_are_filled_up(name, rows, expected):
    tensor = tensors(name, rows)[name]
    assert tensor.dtype == ("string" if name == "lists" else "int32")
    assert tensor.numpy().tolist() == expected
