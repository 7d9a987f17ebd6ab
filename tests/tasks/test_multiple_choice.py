import csv
from pathlib import Path

import numpy as np
import pytest

from bert_keras import InputError
from official_tasks.engine.notes import note_data
from official_tasks.tasks.multiple_choice import SWAG, choice_task
from tests.support.shared_data import shared
from tests.support.task_samples import read_csv
from tests.support.toy_words import PIECES, preprocessor

pytestmark = pytest.mark.fast

HEADER = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
    "ending0,ending1,ending2,ending3,label"
).split(",")


def write(path, *rows, header=HEADER):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def swag_row(label="2"):
    endings = ["opens it.", "closes it.", "opens the door.", "and it"]
    start = ["0", "v", "1", "He opens the door. She", "He opens the door."]
    return [*start, "She", "gold", *endings, label]


def test_a_choice_goes_on_from_the_second_sentence(tmp_path):
    file = write(tmp_path / "val.csv", swag_row(), swag_row("0"))
    (first, second) = choice_task(SWAG, dev=file).read("dev")
    assert first.prompt == "He opens the door."
    assert first.choices[1] == "She closes it."
    assert (first.label, second.label) == (2, 0)
    unlabelled = write(
        tmp_path / "test.csv", swag_row()[:-1], header=HEADER[:-1]
    )
    task = choice_task(SWAG, data_dir=str(tmp_path))
    assert task.read("test")[0].label is None
    assert Path(unlabelled).name == "test.csv"
    write(tmp_path / "test.csv", swag_row(""), swag_row(" "))
    assert [row.label for row in task.read("test")] == [None, None]
    for bad in ("4", ""):
        write(tmp_path / "test.csv", swag_row("1"), swag_row(bad))
        with pytest.raises(InputError, match=f"line 3: .* got '{bad}'"):
            task.read("test")


def test_the_choices_of_a_question_are_folded_into_one_row(tmp_path):
    file = write(tmp_path / "val.csv", swag_row(), swag_row("0"))
    task = choice_task(SWAG, dev=file)
    preprocess = preprocessor(9)
    encoded = task.encode(task.read("dev"), preprocess)
    ids = encoded.inputs["token_ids"]
    assert ids.shape.as_list() == [2, 4, None]
    tokens = [[PIECES[i] for i in row] for row in ids[0].to_list()]
    frame = "[CLS] he opens {} [SEP] she {} [SEP]"
    assert tokens[0] == frame.format("the", "opens it").split()
    assert tokens[3] == frame.format("the", "and it").split()
    assert encoded.targets.tolist() == [2, 0]
    # The longest choice has 5 + 5 tokens, and a row of 9 has room for 6 between
    # its 3 special tokens. So 4 tokens are cut, and 13 positions are enough.
    assert encoded.cut.tolist() == [4] * 2
    (note,) = note_data({}, encoded, preprocess)
    assert "sequence_length=13` would hold most" in note


def test_the_score_is_accuracy_beside_the_commonest_label(tmp_path):
    rows = [swag_row(label) for label in "0010"]
    task = choice_task(SWAG, dev=write(tmp_path / "val.csv", *rows))
    examples = task.read("dev")
    outputs = np.eye(4)[[0, 1, 1, 3]] * [[2], [4], [2], [2]]
    assert task.score(examples, outputs) == {
        "accuracy": 0.5,
        "majority_baseline": 0.75,
    }
    shown = task.mistakes(examples, outputs)
    assert [m["predicted"] for m in shown] == ["She closes it.", "She and it"]
    assert shown[0]["truth"] == "She opens it."
    task.write(examples, outputs, tmp_path)
    text = (tmp_path / "predictions.csv").read_text()
    assert text == "pred\n0\n1\n1\n3\n"
    read = task.read_predictions(tmp_path / "predictions.csv", examples)
    assert task.score(examples, read)["accuracy"] == 0.5


def test_predictions_of_another_form_are_refused(tmp_path):
    task = choice_task(SWAG, dev=write(tmp_path / "val.csv", swag_row()))
    predictions = tmp_path / "p.csv"
    predictions.write_text("pred\n1\n2\n")
    with pytest.raises(InputError, match="each of the 1 examples, got 2"):
        task.read_predictions(predictions, task.read("dev"))
    for text, line in (("9\n", 1), ("pred\n9\n", 2), ("pred\n\n\n9\n", 4)):
        predictions.write_text(text)
        with pytest.raises(InputError, match=f"line {line}: .* '9'. Is it a"):
            task.read_predictions(predictions, task.read("dev"))
    predictions.write_bytes(b"pred\n\xff\n")
    with pytest.raises(InputError, match="UTF-8 text, got the byte 0xff"):
        task.read_predictions(predictions, task.read("dev"))


def test_the_choices_of_allennlps_file_go_on_from_its_start_phrases():
    file = shared("swag/swag_allennlp_fixture.csv")
    rows = read_csv(file)
    examples = choice_task(SWAG, dev=str(file)).read("dev")
    assert [e.label for e in examples] == [int(row["label"]) for row in rows]
    for example, row in zip(examples, rows, strict=True):
        assert [f"{example.prompt} {choice}" for choice in example.choices] == [
            f"{row['startphrase']} {row[f'ending{n}']}" for n in range(4)
        ]
