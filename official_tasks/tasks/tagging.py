"""Named entities: CoNLL-2003, WNUT-17, WikiANN, and any file of columns."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks.base import (
    FILE_OPTIONS,
    Defaults,
    Encoded,
    Option,
    Splits,
    Task,
    tfds_info,
    tfds_rows,
)
from official_tasks.tasks.encoding import windowed_rows
from official_tasks.tasks.metrics import OUTSIDE, entity_scores, probabilities
from official_tasks.tasks.recipes import LSTM_DIM, find_recipe
from official_tasks.tasks.table import told_plainly

# The column files that are known by name, and what a tagger reads at once.


class NerRow(NamedTuple):
    """All about one of the data sets: `names`, split -> names of its file."""

    name: str
    names: dict


NER = NerRow("ner", {})  # any other, from --train, --dev and --test
CONLL_2003 = NerRow(
    "conll2003",
    {
        "train": ("eng.train", "train.txt"),
        "dev": ("eng.testa", "valid.txt"),
        "test": ("eng.testb", "test.txt"),
    },
)
WNUT_17 = NerRow(
    "wnut17",
    {
        "train": ("wnut17train.conll",),
        "dev": ("emerging.dev.conll",),
        "test": ("emerging.test.annotated",),
    },
)
WIKI_ANN = NerRow(
    "wikiann", {"train": ("train",), "dev": ("dev",), "test": ("test",)}
)


class TaggedText(NamedTuple):
    """What is read at once: a sentence, or all sentences of a document.

    Attributes:
        words: of all its sentences.
        labels: one a word; None where unknown.
        starts: the first word of each sentence.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    starts: tuple[int, ...]

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


def joined(sentences) -> TaggedText:
    """The sentences of a document as one text."""
    starts, count = [], 0
    for sentence in sentences:
        starts.append(count)
        count += len(sentence.words)
    labels = None
    if all(sentence.labels is not None for sentence in sentences):
        labels = tuple(x for s in sentences for x in s.labels)
    words = tuple(word for s in sentences for word in s.words)
    return TaggedText(words, labels, tuple(starts))


# Words with labels in columns: CoNLL-2003, WNUT-17, WikiANN, and others. One
# word a line, an empty line (or one of white space) after each sentence, and
# `-DOCSTART-` in front of each document where documents are told apart.

DOCUMENT = "-DOCSTART-"
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*:")


class Sentence(NamedTuple):
    """Words, and a label of each; None where the file has no labels.

    `document` is the number of the sentence's document in its file.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    document: int = 0


def read_columns(path, labelled: bool | None = True) -> list[Sentence]:
    """The sentences of a file: words in the first column, labels in the last.

    Columns are split at tabs where the first line of words has one, else at
    blanks. A prefix such as WikiANN's `en:` is taken off where every word
    has the same one.

    Args:
        labelled: whether each word has a label; None: see for yourself.

    Raises:
        InputError: no such file, not UTF-8, a line of another number of
            columns, a label of no scheme, no sentence at all.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with told_plainly(path):
        text = path.read_bytes().decode("utf-8-sig")
    if labelled is None:
        labelled = _has_labels(text)
    sentences = list(_sentences(path, text.split("\n"), labelled))
    if not sentences:
        raise InputError(f"{path}: expected at least one sentence, got none")
    return _without_language(sentences)


def _has_labels(text):
    rows = [line.split() for line in text.split("\n")]
    return all(
        len(row) > 1 and is_label(row[-1])
        for row in rows
        if row and row[0] != DOCUMENT
    )


def _sentences(path, lines, labelled):
    rows: list[list[str]] = []
    split = width = None
    document = 0
    for number, line in enumerate([*lines, ""], 1):
        line = line.rstrip("\r")
        if not line.strip():
            if rows:
                yield _sentence(rows, labelled, document)
            rows = []
            continue
        if line.split()[0] == DOCUMENT:
            document += 1
            continue
        if split is None:
            split = re.compile("\t" if "\t" in line else "[ \t]+").split
        row = split(line.rstrip(" \t"))
        width = width or len(row)
        _check(path, number, row, width, labelled)
        rows.append(row)


def _sentence(rows, labelled, document):
    words = tuple(row[0] for row in rows)
    labels = tuple(row[-1] for row in rows) if labelled else None
    return Sentence(words, labels, document)


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
    if labelled and not is_label(row[-1]):
        raise InputError(
            f"{where}: expected a label, O or B-TYPE, I-TYPE, E-TYPE, S-TYPE, "
            f"got {row[-1]!r}"
        )


def is_label(label: str) -> bool:
    """Whether it is `O`, a prefix of a known scheme and a type, or a type."""
    prefix, dash, kind = label.partition("-")
    return bool(label) and (
        len(prefix) > 1
        or label == "O"
        or bool(dash and kind)
        and prefix in "BIESLU"
    )


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
    seen = "IOB2"
    for sentence in sentences:
        before = "O"
        for label in sentence.labels:
            if label[:2] in ("E-", "S-", "L-", "U-"):
                return "BIOES"
            kind = label if label[1:2] != "-" else label[2:]
            inside = label != "O" and label[:2] != "B-"
            if inside and (before == "O" or kind != before):
                seen = "IOB1"
            before = kind
    return seen


def sentences_from_tfds(name, info, rows) -> list[Sentence]:
    """The sentences of a TFDS data set such as "conll2003", "wikiann/en"."""
    fields = [field for field in ("ner", "ner_tags") if field in info.features]
    if not fields or "tokens" not in info.features:
        raise InputError(
            f"tfds:{name} has the fields {', '.join(info.features)}: expected "
            "tokens, and ner or ner_tags"
        )
    names = info.features[fields[0]].feature.names
    return [
        Sentence(tuple(row["tokens"]), tuple(names[i] for i in row[fields[0]]))
        for row in rows
        if len(row["tokens"])
    ]


# Words and labels as rows of numbers, and labels out of logits.

CHUNK = 2048  # texts that are framed at a time


class TagRows(NamedTuple):
    """The rows of texts, and where each word's first piece counts.

    Attributes:
        inputs: dict of ragged `int32 (R, None)`.
        targets: ragged int32 like them, the label at each word's first
            piece; None where labels are unknown.
        weights: ragged float32, 1 there and 0 elsewhere.
        example: int `(R,)`, the text of each row.
        row, place: int `(W,)`, of each word of all texts its row, and its
            place in that.
    """

    inputs: dict
    targets: Any
    weights: Any
    example: np.ndarray
    row: np.ndarray
    place: np.ndarray


def tag_rows(texts, text_labels, labels, preprocess) -> TagRows:
    """Texts of any length as rows; every word counts in exactly one.

    Args:
        texts: the words of each text.
        text_labels: the label of each word, for each text, or None.
        labels: names of the classes; another label has no weight.
    """
    import tensorflow as tf

    known = all(one is not None for one in text_labels)
    index = {label: i for i, label in enumerate(labels or ())}
    parts, rows = [], 0
    for begin in range(0, len(texts), CHUNK):
        chunk = texts[begin : begin + CHUNK]
        numbers = None
        if known:
            own = text_labels[begin : begin + CHUNK]
            numbers = [index.get(label, -1) for one in own for label in one]
        part = _some_rows(chunk, numbers, preprocess)
        parts.append(
            part._replace(example=part.example + begin, row=part.row + rows)
        )
        rows += len(part.example)
    columns = TagRows(*zip(*parts, strict=True))

    def joined(ragged):
        return tf.concat(list(ragged), axis=0)

    return TagRows(
        {name: joined(p[name] for p in columns.inputs) for name in parts[0][0]},
        joined(columns.targets) if known else None,
        joined(columns.weights) if known else None,
        *(np.concatenate(column) for column in columns[3:]),
    )


def _some_rows(texts, numbers, preprocess):
    pieces, word_of_piece, is_first = word_pieces(texts, preprocess.tokenizer)
    room = preprocess.packer.room(1)
    rows = windowed_rows(preprocess, pieces, max(room // 2, 1))
    places = rows.places.values.numpy()
    counts = rows.counts.values.numpy() & is_first[places]
    words = word_of_piece[places]
    row = rows.places.value_rowids().numpy()
    place = (
        places
        - rows.places.values.numpy()[rows.places.row_starts().numpy()[row]]
        + rows.before.numpy()[row]
    )
    targets = weights = None
    if numbers is not None:
        label = np.asarray(numbers, np.int32)[words]
        own = counts & (label >= 0)
        targets = _framed(rows.places, np.where(own, label, 0))
        weights = _framed(rows.places, own.astype(np.float32))
    # Each word counts once, and words come in order.
    order = np.argsort(words[counts], kind="stable")
    return TagRows(
        rows.inputs,
        targets,
        weights,
        rows.text.numpy(),
        row[counts][order],
        place[counts][order],
    )


def _framed(like, values):
    """Flat values as ragged rows, with a 0 for [CLS] and one for [SEP]."""
    import tensorflow as tf

    inner = like.with_values(tf.constant(values))
    column = tf.zeros([inner.nrows(), 1], inner.dtype)
    return tf.concat([column, inner, column], axis=1)


def word_pieces(texts, tokenizer):
    """Pieces of texts that come as words.

    Args:
        texts: the words of each text.

    Returns:
        Ragged ids `(B, None)`; and for each of their flat values the number
        of its word among the words of all texts, and whether it is the
        word's first. A word that has no pieces is one `[UNK]`.
    """
    import tensorflow as tf

    words = [word for text in texts for word in text]
    distinct = {word: i for i, word in enumerate(dict.fromkeys(words))}
    ids = tokenizer(tf.constant(list(distinct), tf.string))
    is_empty = tf.cast(ids.row_lengths() == 0, tf.int64)
    unknown = tf.fill([tf.reduce_sum(is_empty)], tokenizer.unk_id)
    filled = tf.RaggedTensor.from_row_lengths(unknown, is_empty)
    ids = tf.concat([ids, tf.cast(filled, ids.dtype)], axis=1)
    of_word = tf.gather(ids, [distinct[word] for word in words])
    word = of_word.value_rowids().numpy()
    pieces = tf.RaggedTensor.from_row_lengths(
        of_word, [len(text) for text in texts]
    ).merge_dims(1, 2)
    return pieces, word, np.diff(word, prepend=-1) != 0


def best_labels(outputs, row, place, labels) -> tuple[list, list]:
    """The best label of each word and its probability.

    Args:
        outputs: logits `(T, C)` of each row.
        row, place: see `TagRows`.
    """
    logits = np.stack(
        [outputs[r][p] for r, p in zip(row, place, strict=True)]
    ).astype(np.float64)
    best = logits.argmax(axis=-1)
    sure = probabilities(logits).max(axis=-1)
    return [labels[i] for i in best], sure.tolist()


# Named entities: CoNLL-2003, WNUT-17, WikiANN, and any file of columns.

CONTEXTS = ("sentence", "document")
AROUND = 12  # words on each side of a mistake that are shown with it
# LSTMs that begin at random want longer steps than a trained encoder.
ON_FEATURES = Defaults(32, 10.0, 1e-3, 128)


class NerTask(Task):
    """A label for each word, from the vector of its first piece.

    The labels are those of the training file, in its own scheme; entities
    are counted as `ner_metrics` says. A text that is longer than a row
    is read in windows that overlap by half, and each word counts where it
    has most context; a word without pieces is read as `[UNK]`.

    Args:
        row: `NerRow`.
        data_dir, train, dev, test: where the files are.
        context: "sentence", or "document": a word sees the sentences of its
            document, as far as a row goes.
        recipe: the feature-based way: the encoder is frozen, and two LSTMs
            read the features of these layers; see `find_recipe`.
        lstm_dim: their width, one way; that of the paper's where None.
    """

    metric = "f1"
    per_token = True
    options = {
        **FILE_OPTIONS,
        "context": Option("sentence", f"One of {', '.join(CONTEXTS)}."),
        "recipe": Option(
            None, "Features of these layers, the encoder frozen: last, ..."
        ),
        "lstm_dim": Option(LSTM_DIM, "Width of the LSTMs on the features."),
    }

    def __init__(
        self,
        row=NER,
        data_dir=None,
        train=None,
        dev=None,
        test=None,
        context="sentence",
        recipe=None,
        lstm_dim=None,
    ):
        if context not in CONTEXTS:
            raise InputError(
                f"context is {context!r}: expected one of {', '.join(CONTEXTS)}"
            )
        if lstm_dim is not None and lstm_dim < 1:
            raise InputError(f"lstm_dim is {lstm_dim}: expected 1 or more")
        if recipe:
            find_recipe(recipe)
            self.defaults = ON_FEATURES
        self.recipe, self.lstm_dim = recipe, lstm_dim
        self.name = row.name
        files = {"train": train, "dev": dev, "test": test}
        self.splits = Splits(row.name, row.names, data_dir, files)
        self.context = context
        self.labels = None
        self.advice = []

    def read(self, split):
        sentences = self._sentences(split)
        if split == "train":
            self._learn_labels(sentences)
        elif split == "dev" and self.labels:
            self._tell_unknown(sentences)
        if self.context == "sentence":
            return [TaggedText(s.words, s.labels, (0,)) for s in sentences]
        return self._documents(split, sentences)

    def _sentences(self, split) -> list[Sentence]:
        name = self.splits.tfds(split)
        if name:
            info = tfds_info(name)
            return sentences_from_tfds(name, info, tfds_rows(name, split))
        labelled = None if split == "test" else True
        sentences: list[Sentence] = []
        for path in self.splits.paths(split):
            first = sentences[-1].document + 1 if sentences else 0
            sentences += [
                sentence._replace(document=sentence.document + first)
                for sentence in read_columns(path, labelled)
            ]
        return sentences

    def _learn_labels(self, sentences):
        seen = {label for s in sentences for label in s.labels}
        self.labels = [OUTSIDE, *sorted(seen - {OUTSIDE})]
        if len(self.labels) < 2:
            raise InputError(
                f"The train file of {self.name} has no label but O: expected "
                "entities"
            )
        scheme = scheme_of(sentences)
        self.advice.append(f"the labels follow {scheme}")

    def _tell_unknown(self, sentences):
        unknown = {x for s in sentences for x in s.labels} - {*self.labels}
        if unknown:
            self.advice.append(
                "labels of the dev file that the train file has not, and that "
                f"no prediction can meet: {', '.join(sorted(unknown))}"
            )

    def _documents(self, split, sentences):
        groups: dict[int, list[Sentence]] = {}
        for sentence in sentences:
            groups.setdefault(sentence.document, []).append(sentence)
        if len(groups) == 1:
            raise InputError(
                f"The {split} file of {self.name} tells no documents apart: "
                f"expected lines of {DOCUMENT}; leave --context=document out"
            )
        return [joined(group) for group in groups.values()]

    def data_files(self):
        return self.splits.found("train", "dev")

    def encode(self, examples, preprocess):
        rows = tag_rows(
            [example.words for example in examples],
            [example.labels for example in examples],
            self.labels,
            preprocess,
        )
        return Encoded(
            rows.inputs,
            rows.targets,
            rows.weights,
            rows.example,
            notes={"row": rows.row, "place": rows.place},
        )

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

    def loss(self):
        import keras

        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def decode(self, examples, encoded, outputs):
        labels, sure = best_labels(
            outputs, encoded.notes["row"], encoded.notes["place"], self.labels
        )
        predictions, first = [], 0
        for example in examples:
            own = slice(first, first + len(example.words))
            predictions.append(Tags(labels[own], sure[own]))
            first = own.stop
        return predictions

    def score(self, examples, predictions):
        if any(example.labels is None for example in examples):
            raise InputError(
                f"The file of {self.name} has no labels: expected one for "
                "each word; without, it can only be predicted" + self.to_score
            )
        truth = [s for e in examples for s in e.sentences(e.labels)]
        found = [
            sentence
            for example, tags in zip(examples, predictions, strict=True)
            for sentence in example.sentences(tags.labels)
        ]
        # The commonest label is O, and gives no entity.
        return {**entity_scores(truth, found), "majority_baseline": 0.0}

    def mistakes(self, examples, predictions):
        wrong = [
            {
                "text": _around(example.words, place),
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
        return sorted(wrong, key=lambda shown: -shown["probability"])

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
        wanted = [s for e in examples for s in e.sentences(e.words)]
        if len(sentences) != len(wanted):
            raise InputError(
                f"{path}: expected the {len(wanted)} sentences of the split, "
                f"got {len(sentences)}"
            )
        for number, (own, words) in enumerate(
            zip(sentences, wanted, strict=True), 1
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


def _around(words, place):
    first = max(place - AROUND, 0)
    return " ".join(words[first : place + AROUND + 1])
