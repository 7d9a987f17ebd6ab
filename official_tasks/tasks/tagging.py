"""Task that labels words, for example with named entities."""

import dataclasses
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.errors import InputError, format_count
from bert_keras.text.labels import OUTSIDE
from official_tasks.options import option
from official_tasks.tasks.base import (
    Defaults,
    Encoded,
    Examples,
    list_metrics,
    require_labels,
)
from official_tasks.tasks.character_spans import find_spans
from official_tasks.tasks.conll import (
    DOCUMENT,
    NER,
    WORD_A_LINE,
    TaggedText,
    read_columns,
    spell_tags,
)
from official_tasks.tasks.encoding import windowed_rows
from official_tasks.tasks.forms.cells import read_index
from official_tasks.tasks.metrics import entity_scores, probabilities
from official_tasks.tasks.source import FileOptions, Official, Problem

LSTM_DIM = 768  # width in each direction; the paper, section 5.3
AROUND = 12  # words on each side of a mistake in the report


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """A tagger on the features of a frozen encoder."""

    recipe: str | None = option(
        None,
        "Freeze the encoder; two bidirectional LSTMs read the features of "
        "these layers: last, concat_last_four, sum_last_four, concat:-1,-2, "
        "...",
    )
    lstm_dim: int = option(
        LSTM_DIM, "Width of each LSTM of --recipe, in each direction."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagOptions(FileOptions, FeatureOptions):
    """Options of an official tagging task."""

    document_context: bool = option(
        False, "Let each word see the other sentences of its document."
    )
    words: str | None = option(
        None,
        "Column of words: its number, from 1, or its name in the first line. "
        "By default the first.",
    )
    tags: str | None = option(
        None,
        "Column of labels: its number, from 1, or its name in the first line. "
        "By default the last.",
    )


def tag_task(
    row=NER,
    data_dir=None,
    train=None,
    dev=None,
    test=None,
    words=None,
    tags=None,
    **options,
):
    """Return the task of a `TagRow`; see `Official` and `TagTask`."""
    columns = _read_column(words), _read_column(tags)
    row = row._replace(columns=columns)
    return TagTask(Official(row, data_dir, train, dev, test), **options)


def _read_column(value) -> int | str | None:
    name = value and str(value).strip()
    return (name and read_index(name, 10**6)) or name


class Tags(NamedTuple):
    """A label for each word of a text, and its probability."""

    labels: list[str]
    probabilities: list[float] | None = None  # None if read from a file


class TagTask(Problem):
    """Task that labels each word, from the vector of its first word piece.

    The training file defines the labels, in any tagging scheme. Long texts are
    read in windows that overlap by half. A word counts in the window with the
    most context for the word. A word without word pieces is read as `[UNK]`.

    Args:
        source: `Source` that reads `TaggedText`s.
        document_context: True to join the sentences of each document into one
            text, so that a word sees the other sentences in its row.
        recipe: see `Problem`; two bidirectional LSTMs read the features.
        lstm_dim: width of an LSTM in each direction. None takes the width of
            the trained model, or 768 for a new model.
    """

    # New LSTMs need a higher learning rate than a trained encoder.
    on_features = Defaults(32, 10.0, 1e-3, 128)
    metrics = list_metrics(
        *("f1", "precision", "recall", "accuracy"),
        *("token_f1", "token_precision", "token_recall"),
    )
    per_token = True

    def __init__(
        self, source, *, document_context=False, recipe=None, lstm_dim=None
    ):
        if lstm_dim is not None and lstm_dim < 1:
            raise InputError(f"`lstm_dim` is {lstm_dim}: expected 1 or more")
        super().__init__(source, recipe=recipe)
        self.document_context = document_context
        self.lstm_dim = lstm_dim

    @Problem.labels.getter
    def labels(self):
        """Labels of the training file, O first; None without this file."""
        if self.source.labels is None and self.source.has("train"):
            self.read("train")
        return self.source.labels

    def _collect_labels(self, texts):
        names = {label for text in texts for label in text.labels}
        if len(names - {OUTSIDE}) < 1:
            raise InputError(
                f"The train file of {self.name} has only the label O: "
                "expected labels of entities"
            )
        return [OUTSIDE, *sorted(names - {OUTSIDE})]

    def take_arguments(self, arguments):
        super().take_arguments(arguments)
        self.lstm_dim = self.lstm_dim or arguments.get("lstm_dim")

    def read(self, split):
        texts = self.source.read(split)
        texts = spell_tags(texts, split, self.source.labels)
        if split == "train" and self.source.labels is None:
            self.labels = self._collect_labels(texts)
        labels = self.source.labels
        notes = list(texts.notes)
        found = {x for s in texts for x in s.labels or ()}
        if split == "test" and labels and found and found.isdisjoint(labels):
            raise InputError(
                f"The last column of the test file of {self.name} has no "
                f"label of the model; it has {min(found)!r}: {WORD_A_LINE}"
            )
        if split == "dev" and labels:
            unknown = found - {*labels}
            if unknown:
                notes.append(
                    "the dev file has labels that the train file lacks, so "
                    "the model cannot predict them: "
                    f"{', '.join(sorted(unknown))}"
                )
        texts = Examples(texts, notes + _note_texts(texts, split))
        return (
            self._join_documents(split, texts)
            if self.document_context
            else texts
        )

    def _join_documents(self, split, sentences):
        documents: dict = {}
        for sentence in sentences:
            documents.setdefault(sentence.document, []).append(sentence)
        # The document number is 0 before the first line `-DOCSTART-`. If all
        # numbers are 0, the file has no such line.
        numbers = [d[1] if isinstance(d, tuple) else d for d in documents]
        if not any(numbers):
            raise InputError(
                f"The {split} file of {self.name} has no lines of {DOCUMENT} "
                "between documents: leave --document_context out"
            )
        texts = []
        for document, parts in documents.items():
            labels = None
            if all(sentence.labels is not None for sentence in parts):
                labels = tuple(x for s in parts for x in s.labels)
            words = tuple(word for s in parts for word in s.words)
            lengths = [len(sentence.words) for sentence in parts[:-1]]
            starts = np.cumsum([0, *lengths]).tolist()
            texts.append(TaggedText(words, labels, tuple(starts), document))
        return Examples(texts, sentences.notes)

    def encode(self, examples, preprocess):
        """Return texts of any length as rows; each word counts in one row.

        The target of a word is its label, at the word's first word piece, with
        weight 1. Other positions, and unknown labels, have weight 0.
        """
        from bert_keras.text.words import word_pieces

        words = [example.words for example in examples]
        pieces, word_of_piece, is_first = word_pieces(
            words, preprocess.tokenizer
        )
        room = preprocess.packer.room(1)
        rows = windowed_rows(preprocess, pieces, max(room // 2, 1))
        # Each array has one value per word piece of each window. `piece` has
        # indices into `is_first`. A word may be in several windows. `counts` is
        # True once for each word, at its first word piece.
        piece = rows.indices.values.numpy()
        counts = rows.counts.values.numpy() & is_first[piece]
        row = rows.indices.value_rowids().numpy()
        first = rows.indices.row_starts().numpy()[row]
        position = np.arange(len(row)) - first + rows.before.numpy()[row]
        targets = weights = None
        if all(example.labels is not None for example in examples):
            index = {label: i for i, label in enumerate(self.labels or ())}
            numbers = [index.get(x, -1) for e in examples for x in e.labels]
            label = np.asarray(numbers, np.int32)[word_of_piece[piece]]
            known = counts & (label >= 0)
            targets = _frame(rows.indices, np.where(known, label, 0))
            weights = _frame(rows.indices, known.astype(np.float32))
        # `counts` selects each word once. Sort the words as in the texts.
        order = np.argsort(word_of_piece[piece[counts]], kind="stable")
        notes = {"row": row[counts][order], "position": position[counts][order]}
        return Encoded(rows.inputs, targets, weights, notes=notes)

    def build(self, encoder):
        if self.recipe:
            from official_tasks.tasks.feature_tagger import FeatureTagger

            return FeatureTagger(
                encoder, self.labels, self.recipe, self.lstm_dim or LSTM_DIM
            )
        from bert_keras import BertTagger

        return BertTagger(encoder, labels=self.labels)

    def decode(self, examples, encoded, outputs):
        """Return `Tags` for each text: each word's label and probability."""
        notes = encoded.notes
        words = zip(notes["row"], notes["position"], strict=True)
        logits = np.stack([outputs[row][position] for row, position in words])
        best = probabilities(logits).max(axis=-1).tolist()
        labels = [self.labels[i] for i in logits.argmax(axis=-1)]
        predictions, first = [], 0
        for example in examples:
            words = slice(first, first + len(example.words))
            predictions.append(Tags(labels[words], best[words]))
            first = words.stop
        return predictions

    def check_labels(self, examples):
        require_labels(self, [e.labels for e in examples], "word")

    def score(self, examples, predictions):
        self.check_labels(examples)
        truth = [s for e in examples for s in e.split_sentences(e.labels)]
        predicted = [
            sentence
            for example, tags in zip(examples, predictions, strict=True)
            for sentence in example.split_sentences(tags.labels)
        ]
        # The most frequent label is O, so the baseline finds no entity.
        return {**entity_scores(truth, predicted), "majority_baseline": 0.0}

    def mistakes(self, examples, predictions):
        wrong = [
            {
                "text": " ".join(
                    example.words[max(index - AROUND, 0) : index + AROUND + 1]
                ),
                "word": example.words[index],
                "truth": true,
                "predicted": tag,
                "probability": tags.probabilities[index],
            }
            for example, tags in zip(examples, predictions, strict=True)
            for index, (true, tag) in enumerate(
                zip(example.labels, tags.labels, strict=True)
            )
            if true != tag and tags.probabilities
        ]
        return sorted(wrong, key=lambda mistake: -mistake["probability"])

    def write(self, examples, predictions, folder):
        """Write predictions.txt for conlleval: word, truth, prediction.

        Columns are separated by blanks, or by tabs if a word or label has a
        blank. A tab or line break in a word becomes "_". Without labels, the
        column of truth is left out. For texts with character spans, also write
        predictions.jsonl, with each text and its predicted spans, in characters
        (Unicode code points). For rows with ids, this file has the ids, and the
        words and predicted labels of texts without character spans.
        """
        if any(example.offsets or example.row_id for example in examples):
            with open(
                Path(folder) / "predictions.jsonl", "w", encoding="utf-8"
            ) as file:
                for example, tags in zip(examples, predictions, strict=True):
                    row = {"id": example.row_id} if example.row_id else {}
                    row |= _describe_row(example, tags.labels)
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        tables = []
        for example, tags in zip(examples, predictions, strict=True):
            words = [_as_cell(word) for word in example.words]
            columns = filter(None, (words, example.labels, tags.labels))
            tables.append(list(zip(*columns, strict=True)))
        cells = (cell for rows in tables for row in rows for cell in row)
        between = "\t" if any(" " in cell for cell in cells) else " "
        with open(
            Path(folder) / "predictions.txt", "w", encoding="utf-8", newline=""
        ) as file:
            for example, rows in zip(examples, tables, strict=True):
                for sentence in example.split_sentences(rows):
                    lines = [between.join(row) + "\n" for row in sentence]
                    file.write("".join(lines) + "\n")

    def read_predictions(self, path, examples):
        """Return the `Tags` of each text from a file; see `read_columns`."""
        sentences = spell_tags(
            read_columns(path), "predictions", self.source.labels
        )
        expected = [s for e in examples for s in e.split_sentences(e.words)]
        if len(sentences) != len(expected):
            raise InputError(
                f"{path}: expected the {len(expected)} sentences of the split, "
                f"got {len(sentences)}"
            )
        for number, (sentence, words) in enumerate(
            zip(sentences, expected, strict=True), 1
        ):
            if list(sentence.words) != [_as_cell(word) for word in words]:
                raise InputError(
                    f"{path}: expected the words of the split; sentence "
                    f"{number} is {' '.join(sentence.words)[:60]!r}, not "
                    f"{' '.join(words)[:60]!r}"
                )
        labels = (sentence.labels for sentence in sentences)
        return [
            Tags([x for _ in e.starts for x in next(labels)]) for e in examples
        ]


def _note_texts(texts, split) -> list[str]:
    """Return notes on words that are numbers, and on the positions of spans."""
    notes = []
    words = [word for text in texts for word in text.words]
    # The column of a document's name has the same text in each line.
    is_same = all(len({*text.words}) == 1 for text in texts)
    is_same = is_same and len(words) > len(texts)
    if is_same or (len(words) > 1 and all(map(str.isdecimal, words))):
        found = "equal to the others of its sentence" if is_same else "a number"
        notes.append(
            f"every word of the {split} file is {found}, such as "
            f"{words[0]!r}. If other columns have the words and the labels, "
            "name them, as in --words=2 --tags=3"
        )
    if inexact := sum(text.num_inexact for text in texts):
        notes.append(
            f"the {split} file has {format_count(inexact, 'span')} with "
            "an end inside a word, so the entire word is learned and "
            "predicted"
        )
    if shifted := sum(text.is_utf16 for text in texts):
        notes.append(
            f"the spans of {format_count(shifted, 'text')} of the {split} "
            "file count UTF-16 units, and are converted to characters"
        )
    return notes


def _describe_row(example, labels) -> dict:
    if example.offsets is None:
        return {"words": example.words, "tags": labels}
    return {"text": example.text, "spans": find_spans(example, labels)}


def _as_cell(word):
    """Return a word without the characters that would end its cell."""
    return re.sub("[\t\r\n]", "_", word)


def _frame(like, values):
    """Split flat values into the rows of `like`; add 0 for [CLS] and [SEP]."""
    import tensorflow as tf

    inner = like.with_values(tf.constant(values))
    column = tf.zeros([inner.nrows(), 1], inner.dtype)
    return tf.concat([column, inner, column], axis=1)
