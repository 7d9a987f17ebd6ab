import json

import numpy as np
import pytest

from bert_keras import InputError
from official_tasks.tasks.answers import Answer, best_answer
from official_tasks.tasks.spans import Question, Window, answer_span
from official_tasks.tasks.squad import (
    SQUAD_1,
    SQUAD_2,
    read_questions,
    squad_task,
)
from tests.support.model_samples import fill
from tests.support.toy_words import PIECES, pieces_of, preprocessor

CONTEXT = "Ada Lovelace (1815) lived in Bérn, and in London, and in Bern."


def squad_file(path, *asked, context=CONTEXT):
    """Write a SQuAD file; `asked` has (id, answers) for each question.

    The answers are a list of (text, start), or None to leave them out.
    """
    rows = []
    for key, answers in asked:
        row = {"id": key, "question": "Who was he?"}
        if answers is not None:
            row["answers"] = [
                {"text": text, "answer_start": start} for text, start in answers
            ]
            row["is_impossible"] = not answers
        rows.append(row)
    paragraphs = [{"context": context, "qas": rows}]
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return str(path)


def test_the_best_answers_are_those_of_all_spans_by_brute_force():
    random = np.random.default_rng(0)
    text = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"
    for number in range(20):
        rows, spans = [], []
        for first in (0, 16):
            start, end = random.normal(size=(2, 40))
            start[0] += number % 2 * 4  # if odd, "no answer" is among the best
            counts = random.random(36) < 0.5
            begins = np.arange(first, first + 36)
            window = Window(0, first, 3, begins, begins + 1, counts)
            rows.append((window, start, end))
            for i in np.flatnonzero(counts):
                for j in range(i, min(i + 30, 36)):
                    score = start[i + 3] + end[j + 3]
                    spans.append((score, text[first + i : first + j + 1]))
        distinct = {}
        for score, part in sorted(spans, reverse=True):
            distinct.setdefault(part, score)
        answer = best_answer(text, rows, may_be_none=False)
        assert answer.odds is None
        assert [c.text for c in answer.candidates] == [*distinct][:20]
        assert [c.score for c in answer.candidates] == pytest.approx(
            [*distinct.values()][:20]
        )
        assert sum(c.probability for c in answer.candidates) == pytest.approx(1)
        with_none = best_answer(text, rows, may_be_none=True)
        none = min(start[0] + end[0] for _, start, end in rows)
        assert with_none.odds == pytest.approx(none - max(spans)[0])
        assert with_none.text == answer.text
        # As in run_squad.py, "no answer" is added if not among the best 20.
        nbest = sorted([*distinct.values(), none], reverse=True)[:20]
        nbest += [] if none in nbest else [none]
        assert [c.score for c in with_none.candidates] == pytest.approx(nbest)


def test_a_context_that_leaves_only_the_empty_answer_is_no_crash():
    nothing = np.zeros(0, int)
    window = Window(0, 0, 3, nothing, nothing, nothing == 1)
    empty = [(window, np.ones(3), np.ones(3))]
    assert best_answer("", empty, may_be_none=False) == ("", None, ())
    answer = best_answer("", empty, may_be_none=True)
    assert (answer.text, answer.odds) == ("", 2.0)
    assert [c.text for c in answer.candidates] == [""]
    window = Window(0, 0, 3, np.array([0]), np.array([1]), np.array([False]))
    blocked = [(window, np.ones(4), np.ones(4))]
    assert best_answer("x", blocked, may_be_none=True).text == ""


def test_targets_lead_back_to_the_answer_as_it_is_written(tmp_path):
    answers = ["Bérn", "(1815)", "London", "Lovelace", CONTEXT[:-1]]
    file = squad_file(
        tmp_path / "dev.json",
        *[(a, [(a, CONTEXT.index(a))]) for a in answers],
    )
    task = squad_task(SQUAD_1, dev=file, stride=3)
    examples = task.read("dev")
    encoded = task.encode(examples, preprocessor())
    lengths = encoded.inputs["token_ids"].row_lengths().numpy()
    assert len(lengths) > len(examples)  # a row per window
    assert max(lengths) == 16
    outputs = {
        name: [
            np.where(np.arange(length) == place, 9.0, 0.0)
            if place
            else np.full(length, -9.0)
            for length, place in zip(
                lengths, encoded.targets[name], strict=True
            )
        ]
        for name in ("start", "end")
    }
    predictions = task.decode(examples, encoded, outputs)
    # The last answer is longer than a window, so no window contains it.
    assert [a.text for a in predictions[:-1]] == answers[:-1]
    examples_of_rows = [w.example for w in encoded.notes["windows"]]
    own = np.array(examples_of_rows) == len(answers) - 1
    assert not encoded.targets["start"][own].any()
    assert task.score(examples[:-1], predictions[:-1])["exact_match"] == 1


def test_rows_are_the_question_and_windows_of_the_context(tmp_path):
    file = squad_file(tmp_path / "dev.json", ("1", [("Bern", 57)]))
    task = squad_task(SQUAD_1, dev=file, stride=3)
    encoded = task.encode(task.read("dev"), preprocessor())
    tokens = pieces_of(encoded)
    assert tokens[0][:6] == ["[CLS]", "who", "was", "he", "[UNK]", "[SEP]"]
    assert [row[6] for row in tokens] == ["ada", "(", "lived", ","]
    assert encoded.inputs["segment_ids"].to_list()[0][4:8] == [0, 0, 1, 1]
    # Only the last window has the answer; the others point to [CLS].
    assert encoded.targets["start"].tolist()[:3] == [0, 0, 0]
    assert tokens[3][encoded.targets["start"][3]] == "bern"


def test_answers_equal_those_of_the_exported_signature():
    from bert_keras import BertEncoder, BertSpanPredictor
    from bert_keras.serving.spans import answer
    from bert_keras.serving.texts import copy_for_serving
    from official_tasks.engine.scoring import Predictor

    encoder = BertEncoder(
        len(PIECES), 2, 2, 16, 32, max_sequence_length=16, name="encoder"
    )
    model = fill(BertSpanPredictor(encoder))
    preprocess = preprocessor()
    question = Question("1", "Who lived in London?", CONTEXT * 3, (), None)
    task = squad_task(SQUAD_2, stride=128)
    encoded = task.encode([question], preprocess)
    outputs = Predictor(model, per_token=True)(encoded)
    (mine,) = task.decode([question], encoded, outputs)
    served = answer(model, copy_for_serving(preprocess), top_k=3).function(
        np.array([question.question]), np.array([question.context])
    )
    assert served["answer"][0, 0].numpy().decode() == mine.text
    best = [c for c in mine.candidates if c.text]
    assert float(served["score"][0, 0]) == pytest.approx(
        best[0].score, abs=1e-4
    )
    odds = float(served["null_score"][0] - served["score"][0, 0])
    assert mine.odds == pytest.approx(odds, abs=1e-4)


def test_answers_that_cannot_be_placed_are_left_out_of_training_and_noted(
    tmp_path,
):
    file = squad_file(
        tmp_path / "train.json",
        ("good", [("London", CONTEXT.index("London"))]),
        ("moved", [("London", 0)]),  # occurs once
        ("twice", [("in", 0)]),
        ("absent", [("Paris", 3)]),
    )
    task = squad_task(SQUAD_1, train=file)
    kept = task.read("train")
    assert [q.id for q in kept] == ["good", "moved"]
    assert answer_span(kept[0]) == answer_span(kept[1])
    notes = " | ".join(kept.notes)
    assert "not found; the first is 'absent'" in notes
    assert "ambiguous; the first is 'twice'" in notes
    assert "| 1 answer not at the start" in notes
    none = squad_file(tmp_path / "none.json", ("twice", [("in", 0)]))
    with pytest.raises(InputError, match="left to train on: .* ambiguous"):
        squad_task(SQUAD_1, train=none).read("train")
    # On dev, "twice" and "absent" count in the score, but have loss weight 0.
    task = squad_task(SQUAD_1, dev=file)
    encoded = task.encode(task.read("dev"), preprocessor(64))
    assert encoded.weights["start"].tolist() == [1, 1, 0, 0]


def test_predictions_are_written_and_score_the_same_when_read(tmp_path):
    file = squad_file(
        tmp_path / "dev.json",
        ("1", [("London", 42)]),
        ("2", []),
        ("3", [("Bern", 57)]),
    )
    task = squad_task(SQUAD_2, dev=file)
    examples = task.read("dev")
    encoded = task.encode(examples, preprocessor(64))
    random = np.random.default_rng(4)
    lengths = encoded.inputs["token_ids"].row_lengths().numpy()
    outputs = {
        name: [random.normal(size=length) for length in lengths]
        for name in ("start", "end")
    }
    predictions = task.decode(examples, encoded, outputs)
    task.null_threshold = sorted(a.odds for a in predictions)[1]
    shown = task.mistakes(examples, predictions)
    right = round(task.score(examples, predictions)["exact_match"] * 3)
    assert len(shown) == 3 - right
    assert all(0 < mistake["probability"] < 1 for mistake in shown)
    task.write(examples, predictions, tmp_path)
    written = json.loads((tmp_path / "predictions.json").read_text())
    assert sorted(key for key, text in written.items() if not text) == [
        max(zip((a.odds for a in predictions), "123", strict=True))[1]
    ]
    nbest = json.loads((tmp_path / "nbest_predictions.json").read_text())
    assert {"text", "probability", "start_logit", "end_logit"} == set(
        nbest["1"][0]
    )
    assert any(row["text"] == "" for row in nbest["1"])
    again = squad_task(
        SQUAD_2,
        dev=file,
        null_threshold=task.null_threshold,
        null_odds=str(tmp_path / "null_odds.json"),
    )
    read = again.read_predictions(tmp_path / "predictions.json", examples)
    scores = again.score(examples, read)
    expected = task.score(examples, predictions)
    for key in ("exact_match", "f1", "answerable_f1", "unanswerable_f1"):
        assert scores[key] == expected[key]
    again.null_odds = None
    read = again.read_predictions(tmp_path / "predictions.json", examples)
    assert again.score(examples, read)["f1"] == expected["f1"]
    again.write(examples, [None, *read[1:]], tmp_path)  # "1" has no prediction
    written = json.loads((tmp_path / "predictions.json").read_text())
    assert written.keys() == {"2", "3"}


def test_halves_of_surrogate_pairs_are_replaced(tmp_path):
    asked = {"id": "1", "question": "Who\ud800?", "answers": []}
    asked["answers"] = [{"text": "A\udfffda", "answer_start": 4}]
    paragraph = {"context": "Was \ud800Ada.", "qas": [asked]}
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    (question,) = read_questions(path)
    assert (question.question, question.context) == (
        "Who\ufffd?",
        "Was \ufffdAda.",
    )
    assert question.answers == ("A\ufffdda",)


def test_an_answer_start_in_utf_16_units_is_read_so(tmp_path):
    context = "😀😀 Anna, then Bo, then Anna, then Bo."
    units = context.encode("utf-16-le")
    second = units.rindex("Anna".encode("utf-16-le")) // 2
    qas = [
        {"id": str(start), "question": "Who?", "answers": [answer]}
        for start in (second, context.rindex("Anna"), 4)
        for answer in [{"text": "Anna", "answer_start": start}]
    ]
    path = tmp_path / "train.json"
    paragraphs = [{"context": context, "qas": qas}]
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    kept = squad_task(SQUAD_1, train=str(path)).read("train")
    last = context.rindex("Anna")
    assert [answer_span(q) for q in kept] == [(last, last + 4)] * 2
    assert any("start of 1 answer counts UTF-16" in note for note in kept.notes)
    assert any("ambiguous; the first is '4'" in note for note in kept.notes)


def test_an_answer_may_be_a_number_in_the_file(tmp_path):
    start = CONTEXT.index("1815")
    file = squad_file(tmp_path / "train.json", ("year", [(1815, start)]))
    (question,) = squad_task(SQUAD_1, train=file).read("train")
    assert answer_span(question) == (start, start + 4)


def test_files_of_the_wrong_task_are_refused(tmp_path):
    two = squad_file(tmp_path / "2.json", ("1", []), ("2", [("Ada", 0)]))
    test = squad_file(tmp_path / "test.json", ("1", None))
    task = squad_task(SQUAD_1, test=test)
    assert task.read("test")[0].answers is None
    with pytest.raises(InputError, match="can only be used to predict"):
        task.score(task.read("test"), [None])
    task = squad_task(SQUAD_1, test=two)
    with pytest.raises(InputError, match="no answer, such as '1', .*=squad2"):
        task.score(task.read("test"), [Answer("Ada"), Answer("Ada")])
    task = squad_task(SQUAD_2, dev=two)
    other = tmp_path / "predictions.json"
    other.write_text('{"x": "y"}')
    with pytest.raises(InputError, match="a file of another data set"):
        task.read_predictions(other, task.read("dev"))
    other.write_text("[1]")
    with pytest.raises(InputError, match="got other JSON"):
        task.read_predictions(other, task.read("dev"))


def test_an_id_occurs_once_in_all_files_of_dev(tmp_path):
    first = squad_file(tmp_path / "1.json", ("1", []), ("2", []))
    second = squad_file(tmp_path / "2.json", ("3", []), ("2", []))
    twice = squad_file(tmp_path / "3.json", ("4", []), ("4", []))
    assert len(squad_task(SQUAD_2, dev=second).read("dev")) == 2
    for files, key in ((f"{first},{second}", 2), (twice, 4)):
        with pytest.raises(InputError, match=f"once, got the id '{key}' again"):
            squad_task(SQUAD_2, dev=files).read("dev")
    # In training, ids may repeat.
    task = squad_task(SQUAD_2, train=f"{first},{second}")
    assert len(task.read("train")) == 4


def test_white_space_at_the_end_of_an_answer_does_not_count():
    question = Question("1", "who?", "Anna and Bo.", ("Bo \n",), 9)
    assert answer_span(question) == (9, 11)
    assert answer_span(question._replace(start=None)) == (9, 11)
    assert answer_span(question._replace(answers=(" ",))) == "not found"
