import numpy as np
import pytest

from bert_keras import InputError
from bert_keras.text.labels import split_label
from official_tasks.engine.notes import note_data
from official_tasks.tasks.conll import (
    NER,
    WIKI_ANN,
    WNUT_17,
    TaggedText,
    read_columns,
)
from official_tasks.tasks.own_tasks import tags_task
from official_tasks.tasks.tagging import Tags, tag_task
from tests.support.shared_data import shared
from tests.support.toy_words import PIECES, pieces_of, preprocessor

pytestmark = pytest.mark.fast

CONLL = """\
-DOCSTART- -X- -X- O

Ada NNP I-NP I-PER
Lovelace NNP I-NP I-PER
lived VBD I-VP O

in IN I-PP O
Bern NNP I-NP I-LOC
London NNP I-NP B-LOC

-DOCSTART- -X- -X- O

and CC O O
Bern NNP I-NP I-LOC
"""


def file(path, text=CONLL):
    path.write_text(text, encoding="utf-8")
    return str(path)


def certain(encoded, labels):
    """Return logits that predict the targets, and O at other positions."""
    outputs = []
    for row in encoded.targets.to_list():
        logits = np.zeros((len(row), len(labels)), np.float32)
        logits[np.arange(len(row)), row] = 5
        outputs.append(logits)
    return outputs


def test_columns_are_read_with_their_documents(tmp_path):
    sentences = read_columns(file(tmp_path / "a.txt"))
    assert [s.document for s in sentences] == [1, 1, 2]
    assert sentences[1] == TaggedText(
        ("in", "Bern", "London"), ("O", "I-LOC", "B-LOC"), document=1
    )
    dense = CONLL.replace("\n\n-DOC", "\n-DOC")
    assert read_columns(file(tmp_path / "d.txt", dense)) == sentences
    path = str(tmp_path / "a.txt")
    assert read_columns(path, labelled=False)[0].labels is None
    assert read_columns(path, labelled=None)[0].labels == sentences[0].labels
    bare = file(tmp_path / "c.txt", "-DOCSTART-\n\nNew York\tI-LOC\n")
    (sentence,) = read_columns(bare, labelled=None)
    assert sentence == TaggedText(("New York",), ("I-LOC",), document=1)
    words = file(tmp_path / "b.txt", "Ada\nI-PER\n")
    assert read_columns(words, labelled=None)[0].labels is None
    task = tag_task(NER, test=words)
    with pytest.raises(InputError, match="can only be used to predict"):
        task.score(task.read("test"), [])


def test_tabs_lone_tabs_language_prefixes_and_strange_words_are_read(tmp_path):
    text = "\ufeffen:New York\tB-LOC\r\nen:\u00a0\tO\r\n\t\r\nen:a\u2028b\tO"
    first, second = read_columns(file(tmp_path / "a.txt", text))
    assert first.words == ("New York", "\u00a0")
    assert second.words == ("a\u2028b",)
    blank = file(tmp_path / "d.txt", "a\tO\n\u00a0\nb\tO\n\u2003 \n")
    assert [s.words for s in read_columns(blank)] == [("a",), ("b",)]
    assert len(read_columns(blank, labelled=None)) == 2
    mixed = read_columns(file(tmp_path / "b.txt", "en:a O\nde:b O\n"))
    assert mixed[0].words == ("en:a", "de:b")


SPACES = ["\u3000", "\u00a0", "\u2028", "\u0085", "\u2003\u2003", "\x0c"]


@pytest.mark.parametrize("word", SPACES)
@pytest.mark.parametrize("label", ["", " O"])
def test_white_space_may_be_a_word(tmp_path, word, label):
    """Without labels, a line of white space must not end the sentence."""
    lines = [f"a{label}", f"{word}{label}", f"b{label}", "", f"c{label}", ""]
    path = file(tmp_path / "a.txt", "\n".join(lines))
    for labelled in (bool(label), None):
        words = [s.words for s in read_columns(path, labelled)]
        assert words == [("a", word, "b"), ("c",)]
    table = tmp_path / "a.tsv"
    table.write_text(f"words\na {word} b\n\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 3: expected at least one word"):
        tags_task(test=str(table)).read("test")
    table.write_text(f"words\na {word} b\nc\n", encoding="utf-8")
    texts = tags_task(test=str(table)).read("test")
    assert [text.words for text in texts] == [("a", word, "b"), ("c",)]


def test_only_first_pieces_have_a_label(tmp_path):
    task = tag_task(NER, train=file(tmp_path / "train.txt"))
    examples = task.read("train")
    assert task.labels == ["O", "B-LOC", "I-LOC", "I-PER"]
    encoded = task.encode(examples, preprocessor())
    assert pieces_of(encoded)[0] == "[CLS] ada love ##lace lived [SEP]".split()
    assert encoded.targets.to_list()[0] == [0, 3, 3, 0, 0, 0]
    assert encoded.weights.to_list()[0] == [0, 1, 1, 0, 1, 0]
    predictions = task.decode(examples, encoded, certain(encoded, task.labels))
    assert [f.labels for f in predictions] == [list(e.labels) for e in examples]
    assert predictions[0].probabilities[0] == pytest.approx(1, abs=0.03)


def test_a_text_longer_than_a_row_is_read_in_windows_and_loses_no_word(
    tmp_path,
):
    labels = ["B-PER", "O", "B-LOC", "I-LOC", "O"] * 9
    words = ["Lovelace", "\u200b", "Bern", "London", "lived"] * 9
    text = "\n".join(map("\t".join, zip(words, labels, strict=True)))
    task = tag_task(NER, train=file(tmp_path / "train.txt", text))
    examples = task.read("train")
    encoded = task.encode(examples, preprocessor(9))
    tokens = encoded.inputs["token_ids"].to_list()
    assert len(tokens) > 6
    assert max(map(len, tokens)) == 9
    # A word without tokens is [UNK]; each word counts in one window only.
    assert encoded.weights.values.numpy().sum() == len(words)
    assert PIECES.index("[UNK]") in tokens[0]
    (tags,) = task.decode(examples, encoded, certain(encoded, task.labels))
    assert tags.labels == labels
    # Words at a window's edge do not count, except at the text's edges.
    own = [np.flatnonzero(row) for row in encoded.weights.to_list()]
    assert all(row.min() > 2 for row in own[1:])
    assert all(row.max() < 7 for row in own[:-1])


def test_a_document_is_read_at_once_and_scored_by_sentence(tmp_path):
    task = tag_task(
        NER, train=file(tmp_path / "train.txt"), document_context=True
    )
    examples = task.read("train")
    assert [len(e.words) for e in examples] == [6, 2]
    assert examples[0].split_sentences(examples[0].words)[1][0] == "in"
    encoded = task.encode(examples, preprocessor())
    assert len(encoded.inputs["token_ids"].to_list()[0]) == 9
    predictions = task.decode(examples, encoded, certain(encoded, task.labels))
    scores = task.score(examples, predictions)
    assert (scores["f1"], scores["entities"]) == (1, 4)
    flat = file(tmp_path / "flat.txt", "a O\n\nb B-PER\n")
    single = file(tmp_path / "single.txt", "-DOCSTART- O\n\na O\n\nb B-PER\n")
    with pytest.raises(InputError, match="no lines of -DOCSTART-"):
        tag_task(NER, train=flat, document_context=True).read("train")
    path = tmp_path / "train.txt"
    one = tag_task(
        NER, train=path, dev=flat, test=single, document_context=True
    )
    with pytest.raises(InputError, match="dev file .* no lines"):
        one.read("dev")
    assert len(one.read("test")) == 1


def test_predictions_are_written_as_conlleval_reads_them_and_read_again(
    tmp_path,
):
    path = file(tmp_path / "train.txt")
    for together in (False, True):
        task = tag_task(NER, train=path, dev=path, document_context=together)
        examples = task.read("train")
        encoded = task.encode(examples, preprocessor())
        outputs = certain(encoded, task.labels)
        outputs[0][1] = [9, 0, 0, 0]  # predicts O for "Ada"
        predictions = task.decode(examples, encoded, outputs)
        task.write(examples, predictions, tmp_path)
        text = (tmp_path / "predictions.txt").read_text()
        assert text.startswith(
            "Ada I-PER O\nLovelace I-PER I-PER\nlived O O\n\n"
        )
        read = task.read_predictions(tmp_path / "predictions.txt", examples)
        assert [r.labels for r in read] == [f.labels for f in predictions]
        scores = task.score(examples, read)
        # All 4 entities are found, but one lacks a word.
        assert scores["precision"] == scores["recall"] == 3 / 4
        assert scores["token_recall"] == 4 / 5
        shown = task.mistakes(examples, predictions)
        assert [(m["word"], m["predicted"]) for m in shown] == [("Ada", "O")]
        assert task.mistakes(examples, read) == []
    other = file(tmp_path / "other.txt", "Ada O\n\n")
    with pytest.raises(InputError, match="expected the 3 sentences"):
        task.read_predictions(other, examples)
    other = file(tmp_path / "other.txt", text.replace("Ada", "Eve"))
    with pytest.raises(InputError, match="sentence 1 is 'Eve Lovelace"):
        task.read_predictions(other, examples)


@pytest.mark.parametrize(
    ("true", "predicted"), [("B-JOB TITLE", "O"), ("O", "B-JOB TITLE")]
)
def test_words_and_labels_with_white_space_are_written_and_read_again(
    tmp_path, true, predicted
):
    text = TaggedText(("Ada", "leads", "\n\n", "a\tb"), (true, *"OOO"))
    labels = [predicted, *"OOO"]
    task = tag_task(NER)
    task.write([text], [Tags(labels)], tmp_path)
    (read,) = task.read_predictions(tmp_path / "predictions.txt", [text])
    assert read.labels == labels


def test_labels_that_training_has_not_seen_weigh_nothing_and_are_noted(
    tmp_path,
):
    task = tag_task(
        NER,
        train=file(tmp_path / "train.txt"),
        dev=file(tmp_path / "dev.txt", "Bern I-ORG\nand O\n"),
    )
    splits = {split: task.read(split) for split in ("train", "dev")}
    encoded = task.encode(splits["dev"], preprocessor())
    notes = note_data(splits, encoded, preprocessor())
    assert "cannot predict them: I-ORG" in notes[0]
    assert encoded.weights.to_list() == [[0, 0, 1, 0]]


def test_the_real_files_have_the_published_counts():
    task = tag_task(WNUT_17, data_dir=str(shared("wnut17")))
    assert [len(task.read(s)) for s in ("train", "dev", "test")] == [
        3394,
        1009,
        1287,
    ]
    assert len(task.labels) == 13
    task = tag_task(WIKI_ANN, data_dir=str(shared("wikiann_en")))
    dev = task.read("dev")
    assert len(dev) == 10000
    assert not any(word.startswith("en:") for e in dev for word in e.words)
    types = {split_label(label)[1] for e in dev for label in e.labels}
    assert types == {"", "LOC", "ORG", "PER"}
