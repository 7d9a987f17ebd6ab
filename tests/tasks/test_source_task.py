import csv

import pytest

from bert_keras import InputError
from bert_keras.data.corpus import Document
from official_tasks.source_task import write_source_task


def documents(group, first, count, sentences=20):
    """Documents of one group whose sentences all differ."""
    return [
        Document(
            f"{group}.{number}",
            group,
            [
                f"This is sentence {line} of document {number} on {group}."
                for line in range(sentences)
            ],
            sentences_given=True,
        )
        for number in range(first, first + count)
    ]


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


def test_classes_are_balanced_and_no_held_out_document_is_trained_on(tmp_path):
    train = documents("a", 0, 9) + documents("b", 0, 5)
    held_out = documents("a", 9, 3) + documents("b", 5, 6)
    figures = write_source_task(train, held_out, tmp_path, 40, 60)
    rows, dev = read(tmp_path / "train.csv"), read(tmp_path / "dev.csv")
    assert figures == {"classes": ["a", "b"], "train_rows": 40, "dev_rows": 60}
    assert [sum(label == "a" for _, label in r) for r in (rows, dev)] == [
        20,
        30,
    ]
    known = {text for document in train for text in document.paragraphs}
    assert {text for text, _ in rows} <= known
    assert not {text for text, _ in dev} & known


def test_groups_with_too_few_held_out_sentences_are_left_out(tmp_path):
    train = [d for g in "abc" for d in documents(g, 0, 9)]
    held_out = documents("a", 9, 3) + documents("b", 9, 3)
    held_out += documents("c", 9, 1, sentences=3)
    figures = write_source_task(train, held_out, tmp_path, 40, 60)
    assert figures["classes"] == ["a", "b"]


def test_without_groups_the_largest_held_out_documents_are_the_classes(
    tmp_path,
):
    train = documents("", 0, 3)
    held_out = documents("", 3, 2, sentences=80)
    figures = write_source_task(train, held_out, tmp_path, 20, 60)
    assert figures["classes"] == [".3", ".4"]
    rows, dev = read(tmp_path / "train.csv"), read(tmp_path / "dev.csv")
    assert not {text for text, _ in rows} & {text for text, _ in dev}


def test_the_same_seed_draws_the_same_rows(tmp_path):
    train, held_out = documents("", 0, 3), documents("", 3, 2, sentences=200)
    drawn = []
    for number, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_source_task(train, held_out, folder, 20, 60, seed)
        drawn.append(read(folder / "dev.csv"))
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_corpus_that_is_too_small_is_refused(tmp_path):
    with pytest.raises(InputError, match="too small"):
        write_source_task(documents("", 0, 3), documents("", 3, 1), tmp_path)
