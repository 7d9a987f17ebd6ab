"""Entities as character spans: reading, training, serving and writing."""

import json

import pytest
from seqeval.metrics.sequence_labeling import get_entities

from bert_keras import BertPreprocessor, BertTagger, InputError
from official_tasks.engine import finetuning
from official_tasks.tasks.character_spans import find_spans, tag_words
from official_tasks.tasks.own_tasks import tags_task
from official_tasks.tasks.tagging import Tags
from tests.support import original_wordpiece
from tests.support.served_samples import live_answer
from tests.support.task_samples import QUICK, save_toy_model

TEXT = "Ada King, of St. John's, lived in 東京."
SPANS = [(0, 8, "PER"), (13, 23, "LOC"), (34, 36, "LOC")]
FORMS = [
    [{"start": a, "end": b, "label": c, "token_end": 1} for a, b, c in SPANS],
    [{"start": a, "end": b, "labels": [c]} for a, b, c in SPANS],
    [{"start_offset": a, "end_offset": b, "label": c} for a, b, c in SPANS],
    [list(span) for span in SPANS],
    json.dumps(SPANS),  # as in a CSV file
]


@pytest.mark.parametrize("spans", FORMS)
def test_spans_of_every_tool_become_labels_of_words_and_spans_again(spans):
    text = tag_words(TEXT, spans, "a.jsonl, line 1")
    assert [text.text[a:b] for a, b in text.offsets] == list(text.words)
    found = [
        (text.offsets[first][0], text.offsets[last][1], kind)
        for kind, first, last in get_entities(list(text.labels))
    ]
    assert found == SPANS and text.num_inexact == 0
    again = [tuple(span.values()) for span in find_spans(text, text.labels)]
    assert again == SPANS


@pytest.mark.parametrize(
    "text",
    [
        "يسكن مُحَمَّد علي في القاهرة.",  # vowel signs
        "मुझे हिन्दी, नमस्ते।",  # vowel signs, which are not letters
        "สวัสดีครับ ที่กรุงเทพฯ",
        "Zu\u0308rich ist 5€ und 20 °C, ©_x+y",  # accents, symbols
        "می\u200cخواهم\u200d bo\u0000th \ufffd \u200b",  # dropped characters
        "東京a\u0301\U00020000 ｘ、ㄅ 한국어",
    ],
)
def test_words_are_those_of_the_original_tokenizer(text):
    found = tag_words(text, None, "a.jsonl, line 1")
    assert [text[a:b] for a, b in found.offsets] == list(found.words)
    words = ["".join(original_wordpiece.words(w, False)) for w in found.words]
    assert words == original_wordpiece.words(text, lowercase=False)


def test_a_span_inside_a_word_labels_the_entire_word():
    text = tag_words("in Berlins", [[3, 9, "LOC"]], "a.jsonl, line 1")
    assert text.labels == ("O", "B-LOC") and text.num_inexact == 1


def test_half_of_a_surrogate_pair_shifts_no_span(tmp_path):
    path = tmp_path / "dev.jsonl"
    row = {"text": "\ud83d Anna lives in Oslo", "spans": [[16, 20, "LOC"]]}
    path.write_text(json.dumps(row))
    (text,) = tags_task(dev=str(path), spans="spans").read("dev")
    assert text.words[-1] == "Oslo" and text.labels[-1] == "B-LOC"


EMOJI = "😀😀😀😀😀 Anna Carl won"


def test_spans_in_utf_16_units_are_recognized_by_their_text(tmp_path):
    spans = [
        {"start": 11, "end": 15, "text": "Anna", "labels": ["PER"]},
        {"start": 16, "end": 20, "labels": ["PER"]},  # in the unit of the first
    ]
    assert EMOJI.encode("utf-16-le")[22:30].decode("utf-16-le") == "Anna"
    rows = [
        {"text": EMOJI, "spans": spans[:1]},
        {"text": EMOJI, "spans": spans},
        {"text": EMOJI, "spans": [[16, 20, "PER"]]},  # as in the rows before
        {"text": "Anna  ran\n", "spans": [{**spans[0], "start": 0, "end": 6}]},
    ]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = tags_task(dev=str(path), spans="spans").read("dev")
    assert [text.labels[-3:] for text in read] == [
        ("B-PER", "O", "O"),
        ("B-PER", "B-PER", "O"),
        ("O", "B-PER", "O"),
        ("B-PER", "O"),
    ]
    assert [text.is_utf16 for text in read] == [True, True, True, False]
    assert any(
        "spans of 3 texts of the dev file count" in x for x in read.notes
    )
    # Each file counts in its own way.
    other = tmp_path / "other.jsonl"
    by_character = {**spans[0], "start": 6, "end": 10}
    other.write_text(json.dumps({"text": EMOJI, "spans": [by_character]}))
    read = tags_task(dev=f"{path},{other}", spans="spans").read("dev")
    assert [text.is_utf16 for text in read] == [True, True, True, False, False]
    assert read[4].labels == read[0].labels
    rows.append({"text": EMOJI, "spans": [by_character]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="line 1: .*UTF-16.*line 5 count"):
        tags_task(dev=str(path), spans="spans").read("dev")
    # A span that only UTF-16 units put inside the text.
    path.write_text(json.dumps({"text": EMOJI, "spans": [[21, 24, "PER"]]}))
    (text,) = tags_task(dev=str(path), spans="spans").read("dev")
    assert text.labels[-3:] == ("O", "O", "B-PER")


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [(12, 16, "Anna"), (1, 5, "Anna"), (11, 99, "Anna"), (6, 10, "Carl")],
)
def test_a_span_that_is_not_its_text_is_refused(start, end, text):
    span = {"start": start, "end": end, "text": text, "label": "PER"}
    with pytest.raises(InputError, match=f"line 1: the span .* text '{text}'"):
        tag_words(EMOJI, [span], "a.jsonl, line 1")


@pytest.mark.parametrize(
    ("spans", "word"),
    [
        ([[0, 99, "PER"]], "has 37 characters"),
        ([[3, 3, "PER"]], "has 37 characters"),
        ([[3, 4, "PER"]], "has no word"),
        (
            [[0, 8, "PER"], [4, 8, "PER"]],
            "shares a word with another span: 'King'",
        ),
        ([[0, 8]], "expected a list of spans"),
        ([[0, 8, ""]], "expected a list of spans"),
        ([{"start": "0", "end": 8, "label": "PER"}], "expected a list of"),
        ([{"start": 0, "end": 8, "labels": ["A", "B"]}], "expected a list"),
        ("Ada", "expected a list of spans"),
        (7, "expected a list of spans"),
    ],
)
def test_spans_that_cannot_be_are_refused(spans, word):
    with pytest.raises(InputError, match=f"a.jsonl, line 1: .*{word}"):
        tag_words(TEXT, spans, "a.jsonl, line 1")


def test_a_model_of_spans_answers_as_its_predictions_are_written(tmp_path):
    rows = [
        {"text": f"{name} sat, the cat ran {word}", "spans": spans}
        for word in ("red", "blue", "one", "two")
        for name, spans in (
            ("film", [{"start": 0, "end": 4, "label": "PER"}]),
            ("book", [[0, 4, "PER"], [10, 17, "ANIMAL"]]),
            ("dog", []),
        )
    ]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tags_task(train=str(path), dev=str(path), spans="spans")
    assert task.labels == ["O", "B-ANIMAL", "B-PER", "I-ANIMAL"]
    init = save_toy_model(tmp_path / "init")
    run = tmp_path / "run"
    results = finetuning.run(task, init, run, epochs=12, **QUICK)
    assert results["f1"] > 0.5
    lines = (run / "predictions" / "predictions.jsonl").read_text()
    written = [json.loads(line) for line in lines.splitlines()]
    assert [row["text"] for row in written] == [row["text"] for row in rows]
    model = BertTagger.from_preset(run / "model")
    preprocess = BertPreprocessor.from_preset(run / "model")
    answers = live_answer(model, preprocess, [row["text"] for row in rows])
    for index, row in enumerate(written):
        count = int(answers["count"][index])
        spans = [
            {
                "start": int(answers["start"][index][i]),
                "end": int(answers["end"][index][i]),
                "label": answers["type"][index][i].decode(),
            }
            for i in range(count)
        ]
        assert spans == row["spans"]


def test_true_labels_are_written_as_the_spans_that_were_read(tmp_path):
    rows = [{"text": TEXT, "spans": FORMS[0]}, {"text": "of it", "spans": []}]
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tags_task(dev=str(path), spans="spans")
    dev = task.read("dev")
    task.write(dev, [Tags(list(text.labels)) for text in dev], tmp_path)
    lines = (tmp_path / "predictions.jsonl").read_text(encoding="utf-8")
    first, second = map(json.loads, lines.splitlines())
    assert [tuple(span.values()) for span in first["spans"]] == SPANS
    assert second == {"text": "of it", "spans": []}
    path.write_text(json.dumps({"text": "a", "spans": None}))
    with pytest.raises(InputError, match="1 row without a label in column"):
        tags_task(dev=str(path), spans="spans").read("dev")
