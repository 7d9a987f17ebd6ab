import json
import types

import numpy as np
import pytest

from bert_keras.errors import InputError
from bert_keras.serving import load
from official_tasks.engine.answer_formats import WRITERS, Table
from tools.compare import compare, main, note_labels, read_records


def classify(texts):
    share = np.array([len(text) / 10 for text in texts])
    return {
        "label": ["long" if s > 0.5 else "short" for s in share],
        "probabilities": np.stack([1 - share, share], axis=-1),
    }


def describe(dtype, axes, per_entry=False, padded=False):
    """Return an input or output as the card describes it."""
    flags = {"per_entry": per_entry, "padded": padded}
    return {"dtype": dtype, "shape": list(axes), **flags}


SERVED = types.SimpleNamespace(
    folder="served",
    card={
        "default": "classify",
        "signatures": {
            "classify": {
                "input_order": ["text"],
                "outputs": {
                    "label": describe("string", "B"),
                    "probabilities": describe("float32", "BC"),
                },
            }
        },
    },
    signatures=["classify"],
    classify=classify,
)


def record(text, label, share):
    answer = {"label": label, "probabilities": [1 - share, share]}
    return {"inputs": {"text": text}, "answer": answer}


def test_shares_differences_and_worst_cases_are_found():
    records = [record("a" * n, "short", n / 10) for n in range(40)]
    for n in range(6, 40):
        records[n]["answer"]["label"] = "long"
    records[2] = record("aa", "long", 0.25)
    records[35] = record("a" * 35, "long", 3.0)
    found = compare(records, SERVED, worst=1)
    assert found["label"]["compared"] == 40
    assert found["label"]["equal"] == 39 / 40
    (case,) = found["label"]["worst"]
    assert (case["inputs"], case["old"]) == ({"text": "aa"}, "long")
    assert case["new"] == "short"
    numbers = found["probabilities"]
    assert numbers["greatest_difference"] == pytest.approx(0.5)
    assert numbers["worst"][0]["inputs"] == {"text": "a" * 35}


def test_padding_of_a_recorded_list_is_no_difference():
    """A server pads the scores of a row to the longest list of its batch."""
    entry = {
        "input_order": ["text", "passages"],
        "outputs": {"score": describe("float32", "BK", per_entry=True)},
    }
    served = types.SimpleNamespace(
        card={"default": "rank", "signatures": {"rank": entry}},
        signatures=["rank"],
        rank=lambda text, passages: {"score": [[0.5] for _ in text]},
    )
    inputs = {"text": "a", "passages": ["b"]}
    answers = [{"score": [0.5]}, {"score": [0.5, 0.0]}, {"score": [0.4, 0.5]}]
    records = [{"inputs": inputs, "answer": answer} for answer in answers]
    assert compare(records, served)["score"]["equal"] == 2 / 3


def test_padding_of_a_servers_entities_is_no_difference():
    entry = {
        "input_order": ["text"],
        "outputs": {
            "text": describe("string", "BN", padded=True),
            "start": describe("int32", "BN", padded=True),
        },
    }
    served = types.SimpleNamespace(
        card={"default": "tag", "signatures": {"tag": entry}},
        signatures=["tag"],
        tag=lambda text: {
            "text": [["Rome"] for _ in text],
            "start": [[3] for _ in text],
        },
    )
    padded = {"text": ["Rome", ""], "start": [3, -1], "count": 1}
    records = [
        {"inputs": {"text": "a"}, "answer": answer}
        for answer in (padded, {"text": ["Rome"], "start": [3]})
    ]
    found = compare(records, served)
    assert found["text"]["equal"] == found["start"]["equal"] == 1


def test_labels_that_look_like_numbers_are_compared_as_text():
    served = types.SimpleNamespace(**vars(SERVED))
    served.classify = lambda texts: {"label": ["1.0"] * len(texts)}
    records = [
        {"inputs": {"text": "a"}, "answer": {"label": label}}
        for label in ("1", "1.0")
    ]
    found = compare(records, served)["label"]
    assert found["equal"] == 0.5 and "greatest_difference" not in found


def test_numbers_are_equal_but_for_rounding():
    records = [record("a" * 3, "short", share) for share in (0.3, 0.3 + 3e-8)]
    records += [record("a" * 3, "short", 0.3 + 2e-5)]
    found = compare(records, SERVED)["probabilities"]
    assert found["equal"] == 2 / 3 and len(found["worst"]) == 1
    assert found["greatest_difference"] == pytest.approx(2e-5, rel=1e-2)


def test_the_accuracy_is_that_of_both_models():
    records = [record("a" * n, "short", n / 10) for n in (2, 4, 6, 8)]
    for one, truth in zip(
        records, ("short", "long", "long", "long"), strict=True
    ):
        one["keep"] = {"stars": truth}
    found = compare(records, SERVED, label="stars")
    assert found["label"]["accuracy"] == [1 / 4, 3 / 4]
    for some, column in ((records, "label"), (records[:0], "stars")):
        with pytest.raises(InputError, match="--keep="):
            compare(some, SERVED, label=column)
    for one in records:
        one["answer"]["label"] = ["short"]
    with pytest.raises(InputError, match="stars: .* one label a text"):
        compare(records, SERVED, label="stars")

    for one in records:
        one["answer"]["label"] = "short"
    for one, truth in zip(records, ("short", "long", "x", "x"), strict=True):
        one["keep"] = {"stars": truth}
    records[2]["answer"]["label"] = "x"
    found = compare(records, SERVED, label="stars")["label"]
    assert found["accuracy"] == [1 / 2, 1 / 4]
    assert (found["fixed"], found["broken"]) == (0, 1)
    assert found["by_class"] == {"x": [0, 1]}
    records[1]["inputs"]["text"] = "a" * 9
    found = compare(records, SERVED, label="stars")["label"]
    assert (found["fixed"], found["broken"]) == (1, 1)
    assert found["by_class"] == {"long": [1, 0], "x": [0, 1]}


def with_labels(*labels):
    """Return `SERVED` with other labels; the last one is always the answer."""
    served = types.SimpleNamespace(**vars(SERVED))
    entry = {
        "input_order": ["text"],
        "inputs": {"text": describe("string", "B")},
        "outputs": {
            "label": describe("string", "B"),
            "label_index": describe("int32", "B"),
            "probabilities": describe("float32", "BC"),
        },
        "labels": list(labels),
    }
    served.card = {"default": "classify", "signatures": {"classify": entry}}
    last, count = len(labels) - 1, len(labels)
    served.classify = lambda texts: {
        "label": [labels[last]] * len(texts),
        "label_index": np.array([last] * len(texts)),
        "probabilities": np.eye(count, dtype="f4")[[last] * len(texts)],
    }
    return served


def recorded(served, texts, truth="c"):
    answers = served.classify(texts)
    answers = {k: np.asarray(v).tolist() for k, v in answers.items()}
    return [
        {
            "inputs": {"text": text},
            "keep": {"label": truth},
            "answer": {name: value[i] for name, value in answers.items()},
        }
        for i, text in enumerate(texts)
    ]


@pytest.mark.parametrize(
    ("ending", "separator"), [(".csv", None), (".csv", ";"), (".tsv", None)]
)
def test_a_table_of_predict_is_read(tmp_path, ending, separator):
    old, new = with_labels("a", "b"), with_labels("a", "b", "c")
    # csv's own limit is 131,072 characters in a cell.
    records = recorded(old, ["x" * 140_000, "a, 'b' \""])
    lines = [json.dumps(one) for one in records]
    entry = old.card["signatures"]["classify"]
    table = Table(["label"], entry, separator)
    path = tmp_path / f"old{ending}"
    WRITERS[ending](lambda: lines, path, table)
    found = read_records(path, old.card, separator)
    assert [one["inputs"] for one in found] == [r["inputs"] for r in records]
    assert found[1]["keep"] == {"label": "c"}
    same = compare(found, old, label="label")
    assert all(summary["equal"] == 1 for summary in same.values())
    assert note_labels(found, ["a", "b"]) == []
    assert note_labels(found, ["a", "b", "c"]) == [
        "labels of only the export: c"
    ]
    other = compare(found, new, label="label")
    assert other["label"]["fixed"] == 2
    assert other["probabilities"]["greatest_difference"] == 1  # of a and b
    for bad in "text\nx\n", "text,label\nx\rx,a\n":
        path.write_bytes(bad.encode())
        with pytest.raises(
            InputError, match="record 1 .*: text and an output such as"
        ):
            read_records(path, old.card)


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("abc", "abcd", False),
        ("abx", "abc", False),
        ("acb", "bac", False),
        ("abc", "abc", True),
    ],
)
def test_labels_that_differ_are_named_and_not_compared_by_index(
    old, new, is_same
):
    records, served = recorded(with_labels(*old), ["x"]), with_labels(*new)
    notes = note_labels(records, [*new])
    assert any("the labels differ" in note for note in notes) != is_same
    compared = {*compare(records, served)}
    assert "label" in compared
    assert ({"probabilities", "label_index"} <= compared) == is_same
    assert "probabilities" not in compared or is_same


def test_labels_of_one_model_are_named_and_the_common_ones_compared():
    records = recorded(with_labels("a", "x"), ["one", "two"])
    first, _ = note_labels(records, ["a", "b", "c"])
    assert first == "labels of only the records: x"
    named = [{"label": "x", "probability": 0.6}]
    named += [{"label": "a", "probability": 0.25}]
    for record in records:
        record["answer"] = {"probabilities": named}
    (note, other) = note_labels(records, ["a", "b", "c"])
    assert note.endswith("the records: x")
    assert other.endswith("the export: b, c")
    found = compare(records, with_labels("a", "b", "c"))["probabilities"]
    assert found["greatest_difference"] == 0.25
    found = compare(records, with_labels("a", "x", "c"))["probabilities"]
    assert found["greatest_difference"] == pytest.approx(0.6)
    none = compare(records, with_labels("b", "c"))  # no label is common
    assert "probabilities" not in none
    for entry in (served := with_labels("a", "b")).card["signatures"].values():
        del entry["labels"]  # an output without labels has no common label
    assert compare(records, served)["probabilities"]["equal"] == 0


def test_an_output_that_the_export_lacks_is_an_error(
    tmp_path, monkeypatch, capsys
):
    path = tmp_path / "old.jsonl"
    answer = {"label": "short", "old": 1}
    path.write_text(json.dumps({"inputs": {"text": "a"}, "answer": answer}))
    monkeypatch.setattr(load, "load_saved_model", lambda _: SERVED)
    values = types.SimpleNamespace(worst=1, label=None, separator=None)
    with pytest.raises(InputError, match="served lacks the outputs old,"):
        main(values, path, "served")
    shown = capsys.readouterr().out
    assert "label\n{'compared': 1, 'equal': 1.0" in shown and "old" not in shown


def test_what_cannot_be_asked_is_named(tmp_path):
    with pytest.raises(InputError, match="need the signatures tag"):
        compare([record("a", "b", 1) | {"signature": "tag"}], SERVED)
    path = tmp_path / "old.jsonl"
    good = json.dumps(record("a", "b", 1))
    path.write_text(good + "\n")
    (found,) = read_records(path, SERVED.card)
    assert found == record("a", "b", 1) | {"keep": {}}
    for bad in (
        "{",
        "[]",
        '{"inputs": {"text": "a"}}',
        '{"inputs": 3}',
        '{"inputs": {}, "answer": {"label": "b"}}',
        '{"inputs": {"text": "a"}, "answer": {"label": "b"}, "signature": []}',
        '{"inputs": {"text": "\u00e4"}, "answer": {"label": "b"}}',
    ):
        path.write_text(f"{good}\n{bad}\n", encoding="latin-1")
        with pytest.raises(InputError, match="record 2"):
            read_records(path, SERVED.card)
    path.write_text("")
    with pytest.raises(InputError, match="has no answers"):
        read_records(path, SERVED.card)


def test_an_input_that_a_record_lacks_is_named(classifier_export):
    served = load.load_saved_model(classifier_export)
    records = [record("a", "b", 0.5), record("a", "b", 0.5)]
    records[1]["inputs"] = {"txt": "a"}
    with pytest.raises(InputError, match="strings .* as text; row 1 is None"):
        compare(records, served)
