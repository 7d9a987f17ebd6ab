"""Named entities: CoNLL-2003, WNUT-17, WikiANN, and any file of columns."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.errors import InputError
from bert_keras.text.labels import OUTSIDE, PREFIXES, split_label
from official_tasks.tasks.base import Defaults, Encoded, Option, check_labelled
from official_tasks.tasks.encoding import windowed_rows
from official_tasks.tasks.file_task import DataRow, FileTask
from official_tasks.tasks.metrics import entity_scores, probabilities
from official_tasks.tasks.recipes import LSTM_DIM, find_recipe
from official_tasks.tasks.table import read_rows, read_text

NER = DataRow("ner", {})  # any other, from --train, --dev and --test
CONLL_2003 = DataRow(
    "conll2003",
    {
        "train": ("eng.train", "train.txt"),
        "dev": ("eng.testa", "valid.txt"),
        "test": ("eng.testb", "test.txt"),
    },
)
WNUT_17 = DataRow(
    "wnut17",
    {
        "train": ("wnut17train.conll",),
        "dev": ("emerging.dev.conll",),
        "test": ("emerging.test.annotated",),
    },
)
WIKI_ANN = DataRow(
    "wikiann", {"train": ("train",), "dev": ("dev",), "test": ("test",)}
)
ROWS = (NER, CONLL_2003, WNUT_17, WIKI_ANN)
AROUND = 12  # words on each side of a mistake that are shown with it
# LSTMs that begin at random want longer steps than a trained encoder.
ON_FEATURES = Defaults(32, 10.0, 1e-3, 128)


class TaggedText(NamedTuple):
    """What is read at once: a sentence, or all sentences of a document.

    Attributes:
        words: of all its sentences.
        labels: one a word; None where unknown.
        starts: the first word of each sentence.
        document: which one it is of.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    starts: tuple[int, ...] = (0,)
    document: int = 0

    def sentences(self, values) -> list[list]:
        """`values`, one a word, by sentence."""
        ends = [*self.starts[1:], len(self.words)]
        return [
            list(values[start:end])
            for start, end in zip(self.starts, ends, strict=True)
        ]


class Tags(NamedTuple):
    """A label for each word of a text, and how sure the model is of it."""

    labels: list[str]
    probabilities: list[float] | None = None


def read_tagged_file(row, path, split, notes):
    """Return the sentences of a column file, with their documents."""
    return [
        sentence._replace(document=(path, sentence.document))
        for sentence in read_columns(path, None if split == "test" else True)
    ]


def read_tagged_data_set(row, source, split, notes):
    """Return the texts of "tfds:conll2003", "hf:unimelb-nlp/wikiann/en"..."""
    from bert_keras.data.data_sets import data_set_features

    features = data_set_features(source, split)
    fields = [field for field in ("ner", "ner_tags") if field in features]
    if not fields or "tokens" not in features:
        raise InputError(
            f"{source} has the fields {', '.join(features)}: expected "
            "tokens, and ner or ner_tags"
        )
    columns, texts = ["tokens", fields[0]], []
    for number, (words, labels) in read_rows(
        source, columns, columns, split=split
    ):
        # Where they are not public, each is -1, which has no name.
        known = split != "test" or "" not in labels
        if known:
            check_tags(f"{source}, row {number}", labels)
        if words:
            texts.append(
                TaggedText(tuple(words), tuple(labels) if known else None)
            )
    return texts


class NerTask(FileTask):
    """A label for each word, from the vector of its first piece.

    The labels are those of the training file, in its own scheme; entities
    are counted as `entity_scores` says. A text that is longer than a row
    is read in windows that overlap by half, and each word counts where it
    has most context; a word without pieces is read as `[UNK]`.

    Args:
        row: `DataRow`.
        document_context: a word sees the sentences of its document, as far
            as a row goes.
        recipe: the feature-based way: the encoder is frozen, and two LSTMs
            read the features of these layers; see `find_recipe`.
        lstm_dim: their width, one way; that of the paper's where None.
        files: `data_dir`, `train`, `dev` and `test`; see `FileTask`.
    """

    read_file, read_data_set = read_tagged_file, read_tagged_data_set
    metric = "f1"
    per_token = True
    options = {
        **FileTask.options,
        "document_context": Option(
            False, "Let a word see the other sentences of its document."
        ),
        "recipe": Option(
            None,
            "Freeze the encoder and tag by features of these layers: last, ...",
        ),
        "lstm_dim": Option(LSTM_DIM, "Width of the LSTMs on the features."),
    }

    def __init__(
        self,
        row=NER,
        *,
        document_context=False,
        recipe=None,
        lstm_dim=None,
        **files,
    ):
        if lstm_dim is not None and lstm_dim < 1:
            raise InputError(f"lstm_dim is {lstm_dim}: expected 1 or more")
        super().__init__(row, **files)
        if recipe:
            find_recipe(recipe)  # refuses an unknown one
            self.defaults = ON_FEATURES
        self.document_context = document_context
        self.recipe, self.lstm_dim = recipe, lstm_dim

    def read(self, split):
        sentences = self.read_split(split)
        if split == "train":
            self._learn_labels(sentences)
        elif split == "dev" and self.labels:
            unknown = {x for s in sentences for x in s.labels} - {*self.labels}
            if unknown:
                self.advice.append(
                    "labels of the dev file that the train file has not, and "
                    "that no prediction can meet: "
                    f"{', '.join(sorted(unknown))}"
                )
        if self.document_context:
            return self._documents(split, sentences)
        return sentences

    def _learn_labels(self, sentences):
        seen = {label for s in sentences for label in s.labels}
        self.labels = [OUTSIDE, *sorted(seen - {OUTSIDE})]
        if len(self.labels) < 2:
            raise InputError(
                f"The train file of {self.name} has no label but O: expected "
                "entities"
            )
        self.advice.append(f"the labels follow {scheme_of(sentences)}")

    def _documents(self, split, sentences):
        """The sentences of each document as one text."""
        documents: dict = {}
        for sentence in sentences:
            documents.setdefault(sentence.document, []).append(sentence)
        if len(documents) == 1:
            raise InputError(
                f"The {split} file of {self.name} has no lines of {DOCUMENT} "
                "between documents: leave --document_context out"
            )
        texts = []
        for document, own in documents.items():
            labels = None
            if all(sentence.labels is not None for sentence in own):
                labels = tuple(x for s in own for x in s.labels)
            words = tuple(word for s in own for word in s.words)
            starts = np.cumsum([0, *(len(s.words) for s in own[:-1])]).tolist()
            texts.append(TaggedText(words, labels, tuple(starts), document))
        return texts

    def encode(self, examples, preprocess):
        """Texts of any length as rows; every word counts in one of them.

        The targets have a word's label at its first piece, with weight 1;
        everything else has weight 0, as has a label that is unknown.
        """
        from bert_keras.text.words import word_pieces

        words = [example.words for example in examples]
        pieces, word_of_piece, is_first = word_pieces(
            words, preprocess.tokenizer
        )
        room = preprocess.packer.room(1)
        rows = windowed_rows(preprocess, pieces, max(room // 2, 1))
        # The pieces of all windows, flat: which one it is among those of all
        # texts, whether its word counts here, its row and its place in that.
        piece = rows.places.values.numpy()
        counts = rows.counts.values.numpy() & is_first[piece]
        row = rows.places.value_rowids().numpy()
        first = rows.places.row_starts().numpy()[row]
        place = np.arange(len(row)) - first + rows.before.numpy()[row]
        targets = weights = None
        if all(example.labels is not None for example in examples):
            index = {label: i for i, label in enumerate(self.labels or ())}
            numbers = [index.get(x, -1) for e in examples for x in e.labels]
            label = np.asarray(numbers, np.int32)[word_of_piece[piece]]
            known = counts & (label >= 0)
            targets = _framed(rows.places, np.where(known, label, 0))
            weights = _framed(rows.places, known.astype(np.float32))
        # Each word counts once; put them in the order of the texts.
        order = np.argsort(word_of_piece[piece[counts]], kind="stable")
        notes = {"row": row[counts][order], "place": place[counts][order]}
        return Encoded(rows.inputs, targets, weights, notes=notes)

    def take_arguments(self, arguments):
        super().take_arguments(arguments)
        self.recipe = self.recipe or arguments.get("recipe")
        self.lstm_dim = self.lstm_dim or arguments.get("lstm_dim")

    def build(self, encoder):
        if self.recipe:
            from official_tasks.tasks.feature_tagger import FeatureTagger

            return FeatureTagger(
                encoder, self.labels, self.recipe, self.lstm_dim or LSTM_DIM
            )
        from bert_keras import BertTagger

        return BertTagger(encoder, labels=self.labels)

    def decode(self, examples, encoded, outputs):
        """The best label of each word, and its probability."""
        words = zip(encoded.notes["row"], encoded.notes["place"], strict=True)
        logits = np.stack([outputs[row][place] for row, place in words])
        shares = probabilities(logits)  # (words, C)
        labels = [self.labels[i] for i in logits.argmax(axis=-1)]
        sure = shares.max(axis=-1).tolist()
        predictions, first = [], 0
        for example in examples:
            own = slice(first, first + len(example.words))
            predictions.append(Tags(labels[own], sure[own]))
            first = own.stop
        return predictions

    def score(self, examples, predictions):
        check_labelled(self, [example.labels for example in examples], "word")
        truth = [s for e in examples for s in e.sentences(e.labels)]
        predicted = [
            sentence
            for example, tags in zip(examples, predictions, strict=True)
            for sentence in example.sentences(tags.labels)
        ]
        # The commonest label is O, and gives no entity.
        return {**entity_scores(truth, predicted), "majority_baseline": 0.0}

    def mistakes(self, examples, predictions):
        wrong = [
            {
                "text": " ".join(
                    example.words[max(place - AROUND, 0) : place + AROUND + 1]
                ),
                "word": example.words[place],
                "truth": true,
                "predicted": tag,
                "probability": tags.probabilities[place],
            }
            for example, tags in zip(examples, predictions, strict=True)
            for place, (true, tag) in enumerate(
                zip(example.labels, tags.labels, strict=True)
            )
            if true != tag and tags.probabilities
        ]
        return sorted(wrong, key=lambda mistake: -mistake["probability"])

    def write(self, examples, predictions, folder):
        """predictions.txt, as conlleval reads it: word, truth, prediction.

        The columns have blanks between, or tabs where a word has a blank;
        without the truth, where it is not known.
        """
        words = (word for example in examples for word in example.words)
        between = "\t" if any(" " in word for word in words) else " "
        with open(
            Path(folder) / "predictions.txt", "w", encoding="utf-8", newline=""
        ) as file:
            for example, tags in zip(examples, predictions, strict=True):
                columns = [example.words, example.labels, tags.labels]
                rows = list(zip(*filter(None, columns), strict=True))
                for sentence in example.sentences(rows):
                    lines = [between.join(row) + "\n" for row in sentence]
                    file.write("".join(lines) + "\n")

    def read_predictions(self, path, examples):
        """The last column of a file with the same words in the first."""
        sentences = read_columns(path)
        expected = [s for e in examples for s in e.sentences(e.words)]
        if len(sentences) != len(expected):
            raise InputError(
                f"{path}: expected the {len(expected)} sentences of the split, "
                f"got {len(sentences)}"
            )
        for number, (own, words) in enumerate(
            zip(sentences, expected, strict=True), 1
        ):
            if list(own.words) != words:
                raise InputError(
                    f"{path}: expected the words of the split; sentence "
                    f"{number} is {' '.join(own.words)[:60]!r}, not "
                    f"{' '.join(words)[:60]!r}"
                )
        own_labels = iter(sentences)
        return [
            Tags([x for _ in e.starts for x in next(own_labels).labels])
            for e in examples
        ]


def _framed(like, values):
    """Flat values as ragged rows, with a 0 for [CLS] and one for [SEP]."""
    import tensorflow as tf

    inner = like.with_values(tf.constant(values))
    column = tf.zeros([inner.nrows(), 1], inner.dtype)
    return tf.concat([column, inner, column], axis=1)


# Files of columns: one word a line, an empty line after each sentence, and
# `-DOCSTART-` in front of each document where the file has documents. A line of
# blanks and tabs is empty; with labels, so is one of any other white space.

DOCUMENT = "-DOCSTART-"
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*:")


def split_words(text: str) -> list[str]:
    """Split at blanks, tabs and line ends of ASCII.

    Other white space, such as U+3000 or U+00A0, may be a word of its own.
    """
    return re.findall(r"[^ \t\r\n]+", text)


def read_columns(path, labelled: bool | None = True) -> list[TaggedText]:
    """The sentences of a file: words in the first column, labels in the last.

    Columns are split at tabs where the first line of words has one, else at
    blanks. A prefix such as WikiANN's `en:` is taken off where every word
    has the same one.

    Args:
        labelled: whether each word has a label; None: as the file looks.

    Raises:
        InputError: no such file, not UTF-8, a line of another number of
            columns, a label of no scheme, no sentence at all.
    """
    lines = read_text(path).split("\n")
    if labelled is None:
        rows = [split_words(line) for line in lines if line.strip()]
        labelled = bool(rows) and all(
            len(row) > 1 and is_label(row[-1])
            for row in rows
            if row[0] != DOCUMENT
        )
    sentences = list(_sentences(path, lines, labelled))
    if not sentences:
        raise InputError(f"{path}: expected at least one sentence, got none")
    return _without_language(sentences)


def _sentences(path, lines, labelled):
    rows: list[list[str]] = []
    split = width = None
    document = 0
    for number, line in enumerate([*lines, ""], 1):
        line = line.rstrip("\r")
        words = split_words(line)
        if not words or labelled and not line.strip():
            if rows:
                labels = tuple(row[-1] for row in rows) if labelled else None
                yield TaggedText(
                    tuple(row[0] for row in rows), labels, document=document
                )
            rows = []
            continue
        if words[0] == DOCUMENT:
            document += 1
            continue
        if split is None:
            split = re.compile("\t" if "\t" in line else "[ \t]+").split
        row = split(line.rstrip(" \t"))
        width = width or len(row)
        _check(path, number, row, width, labelled)
        rows.append(row)


def _check(path, number, row, width, labelled):
    where = f"{path}, line {number}"
    if labelled and width < 2:
        raise InputError(
            f"{where}: expected a word and its label, with a tab or a blank "
            f"between, got {row[0]!r} alone (a test file without labels can "
            "only be predicted)"
        )
    if len(row) != width:
        raise InputError(
            f"{where}: expected {width} columns as in the lines before, got "
            f"{len(row)}"
        )
    if labelled:
        check_tags(where, row[-1:])


def check_tags(place, labels):
    """Refuses what is a label of no scheme."""
    for label in labels:
        if not is_label(label):
            raise InputError(
                f"{place}: expected labels O, B-TYPE, I-TYPE, E-TYPE, S-TYPE, "
                f"got {label!r}"
            )


def is_label(label: str) -> bool:
    """Whether it is `O`, a prefix of a known scheme and a type, or a type."""
    prefix, dash, kind = label.partition("-")
    if len(prefix) > 1 or label == OUTSIDE:
        return True
    return bool(dash and kind) and prefix in PREFIXES


def _without_language(sentences):
    first = _LANGUAGE.match(sentences[0].words[0])
    if not first or not all(
        word.startswith(first[0]) for s in sentences for word in s.words
    ):
        return sentences
    cut = len(first[0])
    return [
        sentence._replace(words=tuple(word[cut:] for word in sentence.words))
        for sentence in sentences
    ]


def scheme_of(sentences) -> str:
    """The scheme that the labels follow: "IOB1", "IOB2" or "BIOES".

    IOB1 begins an entity with I- unless it follows one of its type; IOB2
    always with B-. Bare types (no prefix) count as IOB1.
    """
    scheme = "IOB2"
    for sentence in sentences:
        before = ""
        for label in sentence.labels:
            prefix, kind = split_label(label)
            if prefix in "ESLU":
                return "BIOES"
            if prefix == "I" and kind != before:
                scheme = "IOB1"
            before = kind
    return scheme
