"""Read words with labels: CoNLL-2003, WNUT-17, WikiANN and a user's files."""

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from bert_keras.data.data_sets import is_data_set
from bert_keras.errors import InputError
from bert_keras.text.labels import OUTSIDE, PREFIXES, is_full_label, split_label
from official_tasks.tasks.base import Examples
from official_tasks.tasks.forms.cells import to_text
from official_tasks.tasks.forms.table import read_rows
from official_tasks.tasks.forms.text_files import read_text, refuse_annotations


class TaggedText(NamedTuple):
    """The words and labels of one sentence, or of all sentences of a document.

    Attributes:
        words: words of all sentences.
        labels: one label per word; None if unknown.
        starts: index of the first word of each sentence.
        document: (path, number) of the document, or only the number.
        text: the string that contains the words, or None.
        offsets: (start, end) of each word in `text`, end exclusive; or None.
        num_inexact: number of spans that begin or end inside a word.
        is_utf16: True if the file's spans count UTF-16 units of `text`.
        row_id: see `Example`.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    starts: tuple[int, ...] = (0,)
    document: int | tuple[str, int] = 0
    text: str | None = None
    offsets: tuple[tuple[int, int], ...] | None = None
    num_inexact: int = 0
    is_utf16: bool = False
    row_id: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All words as one string; see `Example`."""
        return (" ".join(self.words),)

    @property
    def label(self):
        """The labels; see `Example`."""
        return self.labels

    @property
    def group(self):
        """The words. Rows with equal groups go to the same split."""
        return self.words

    def split_sentences(self, values) -> list[list]:
        """Split a list with one value per word into one list per sentence."""
        ends = [*self.starts[1:], len(self.words)]
        return [
            list(values[start:end])
            for start, end in zip(self.starts, ends, strict=True)
        ]


def read_tags(row, path, split, notes):
    """Return the `TaggedText`s of a file or of a data set; see `Official`."""
    if is_data_set(path):
        return _read_data_set(path, split)
    labelled = None if split == "test" else True
    return [
        sentence._replace(document=(path, sentence.document))
        for sentence in read_columns(path, labelled, row.columns)
    ]


def _read_data_set(source, split):
    """Return a `TaggedText` for each row of a data set."""
    from bert_keras.data.data_sets import data_set_features

    features = data_set_features(source, split)
    fields = [f for f in ("ner", "ner_tags", "tags") if f in features]
    if not fields or "tokens" not in features:
        raise InputError(
            f"{source} has the fields {', '.join(features)}: expected a field "
            "'tokens', and a field 'ner', 'ner_tags' or 'tags'"
        )
    columns, texts = ["tokens", fields[0]], []
    for number, (words, labels) in read_rows(
        source, columns, columns, split=split
    ):
        where = f"{source}, row {number}"
        words = [to_text(where, "tokens", word) for word in words]
        # A hidden test label is -1. It has no name, so its text is "".
        labels = [to_text(where, fields[0], label) for label in labels]
        is_known = split != "test" or "" not in labels
        if is_known:
            check_tags(where, labels)
        if words:
            texts.append(
                TaggedText(tuple(words), tuple(labels) if is_known else None)
            )
    return texts


# A file of columns has a word on each line and an empty line after each
# sentence. A line `-DOCSTART-` may precede each document. A line of blanks and
# tabs counts as empty. A line of other white space, such as U+00A0, counts as
# empty in a file with labels, and as a word in a file without labels.

DOCUMENT = "-DOCSTART-"
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*:")


def split_words(text: str) -> list[str]:
    """Split a text at blanks, tabs and line ends, but not at U+00A0."""
    return re.findall(r"[^ \t\r\n]+", text)


def read_columns(
    path, labelled: bool | None = True, columns=(None, None)
) -> list[TaggedText]:
    """Return the sentences of a file of columns.

    The first column has the words, the last column the labels. Columns are
    split at tabs if the first line of words has a tab, else at blanks. A
    language prefix of all words, such as WikiANN's `en:`, is removed. A comment
    before a sentence begins with "#" and is skipped; see `_drop_comments`.

    Args:
        path: the file.
        labelled: True if the file has labels. None: the file has labels if
            all lines end in a label.
        columns: the columns of words and labels: a number, from 1; a name in
            the first line, which then is no word; or None.

    Raises:
        InputError: the file is missing, empty, not UTF-8 or without labels; the
            number of columns changes; or a label follows no tagging scheme.
    """
    text = read_text(path)
    refuse_annotations(path, text)
    if _JSON.match(text):
        raise InputError(
            f"{path} is JSON, but expected a word and its label on each line. "
            "For a table of words and labels, give --task=tags"
        )
    if columns == (None, None) and _CONLL_U.match(text):
        raise InputError(
            f"{path} is CoNLL-U. Name the columns of words and labels, as in "
            "--words=2 --tags=4"
        )
    lines = _drop_comments(text.split("\n"))
    _refuse_pairs(path, lines)
    numbered = list(enumerate(lines, 1))
    if columns != (None, None):
        numbered = _select_columns(path, numbered, columns, labelled)
        lines = [line for _, line in numbered]
    if labelled is None:
        rows = [split_words(line) for line in lines if line.strip()]
        rows = [row for row in rows if row[0] != DOCUMENT]
        labelled = bool(rows) and all(
            len(row) > 1 and is_label(row[-1]) for row in rows
        )
        if not labelled:
            _refuse_sentences(path, numbered)
    sentences = list(_sentences(path, numbered, labelled))
    if not sentences:
        raise InputError(f"{path}: expected at least one sentence, got none")
    if labelled:
        _refuse_other_columns(path, sentences)
    return _without_language(sentences)


def _drop_comments(lines):
    """Return the lines with "" in place of comments before a sentence.

    A line that begins with "#" is a comment if it has another number of columns
    than the lines of words, or if only its last column is no label. Without
    prefixes, labels may be any text: then, lines that begin with "# " are
    comments if the last column of each occurs once in the file.
    """
    if not any(line.startswith("#") for line in lines):
        return lines
    words = [
        line.rstrip()
        for line in lines
        if line.strip() and not line.startswith(("#", DOCUMENT))
    ]
    has_tabs = bool(words) and "\t" in words[0]
    rows = [x.split("\t") if has_tabs else split_words(x) for x in words]
    widths = {len(row) for row in rows}
    has_labels = all(is_full_label(row[-1]) for row in rows)
    asides = [split_words(x)[-1] for x in lines if x.startswith("# ")]
    counts = Counter([*asides, *(row[-1] for row in rows)])
    has_ids = len(asides) > 1 and all(counts[x] == 1 for x in asides)
    kept, is_start = [], True
    for line in lines:
        if is_start and line.startswith("#"):
            row = line.rstrip().split("\t") if has_tabs else split_words(line)
            is_word = len(row) in widths and (
                is_full_label(row[-1]) if has_labels else not has_ids
            )
            line = line if is_word else ""
        is_start = not line.strip() or line.startswith(DOCUMENT)
        kept.append(line)
    return kept


def _refuse_other_columns(path, sentences):
    """Raise if the first line has names, or the columns other content."""
    words = [word for text in sentences for word in text.words]
    labels = [label for text in sentences for label in text.labels]
    first, *others = map(_is_prefixed, labels)
    if not first and all(others) and {*labels[1:]} - {OUTSIDE}:
        raise InputError(
            f"{path}: the first line looks like names of columns. Give "
            f"--words={words[0]} --tags={labels[0]}, or remove the line"
        )
    if all(map(is_full_label, words)) and {*words} - {OUTSIDE}:
        raise InputError(
            f"{path}: the labels, such as {words[0]!r}, are in the column of "
            "words. Name both columns, as in --words=2 --tags=1"
        )
    for label in labels:
        parts = label.split()
        if len(parts) > 1 and all(map(is_full_label, parts)):
            raise InputError(
                f"{path}: a line has several labels, {label[:60]!r}; "
                f"{WORD_A_LINE}"
            )
    if len(words) > 1 and all(word.endswith(",") for word in words):
        raise InputError(
            f"{path}: every word ends in a comma, such as {words[0]!r}. "
            "Separate words and labels by a tab or a blank only"
        )


# A word and its label, such as Ada/NNP, ran|VBD, home_NN and ./.
_PAIR = re.compile(r".+([/|_])(?:[A-Z][A-Z0-9$-]*|\W+)")


def _refuse_pairs(path, lines):
    """Raise if each line has several words, each joined to its label."""
    rows = [row for line in lines if (row := split_words(line))]
    rows = [row for row in rows if row[0] != DOCUMENT]
    has_tabs = all("\t" in line for line in lines if line.strip())
    if has_tabs:  # a word and its label
        return
    if any(len(row) > 1 for row in rows) and all(
        _PAIR.fullmatch(cell) for row in rows for cell in row
    ):
        first = " ".join(rows[0])[:60]
        raise InputError(
            f"{path}: a line has several words that are joined to their "
            f"labels, {first!r}. Write a tab in place of the last "
            f"{_PAIR.fullmatch(rows[0][0])[1]!r} of each; {WORD_A_LINE}"
        )


WORD_A_LINE = (
    "expected a word on each line, and an empty line after each sentence. If "
    "you have a sentence a line, make it a table with a column 'words', and "
    "give --task=tags"
)


def _refuse_sentences(path, numbered):
    """Raise if a line of a file without labels is a sentence."""
    for number, line in numbered:
        words = split_words(line)
        # Columns after the word may be separated by tabs, or be fillers.
        others = {*words[1:]} - {"_", "-", "-X-"}
        if others and words[0] != DOCUMENT and "\t" not in line:
            line = line.strip()[:60]
            raise InputError(
                f"{path}, line {number}: {WORD_A_LINE}. Got {line!r}"
            )


_JSON = re.compile(r'\s*(?:\[\s*)?\{\s*"')  # a list of objects, or JSONL
# Comments, then the index of a word and nine columns.
_CONLL_U = re.compile(r"\s*(?:#.*\n)*1(?:-2)?(?:\t[^\t\n]+){9}\r?\n")
# CoNLL-U has a line 1-2 for "don't" before the lines of "do" and "n't", and a
# line 1.1 for a word that is not in the text.
_NOT_A_WORD = re.compile("[0-9]+[-.][0-9]+")


def _select_columns(path, numbered, columns, labelled):
    """Return (number, line) of the columns of words and labels.

    If it is unknown whether there are labels, their column may be missing.
    """
    word, label = columns
    split, selected = None, []
    for number, line in numbered:
        words = split_words(line)
        if not words or words[0] == DOCUMENT:
            selected.append((number, line))
            continue
        is_first = split is None
        split = split or (
            (lambda x: x.split("\t")) if "\t" in line else split_words
        )
        row = split(line.rstrip("\r \t"))
        if is_first and any(isinstance(column, str) for column in columns):
            word, label = _find_columns(path, row, columns, labelled)
            continue
        if word not in (None, 1) and _NOT_A_WORD.fullmatch(row[0]):
            continue
        wanted = [word or 1, label or len(row)]
        if max(wanted) > len(row) and labelled is None:
            wanted = wanted[:1]
        if max(wanted) > len(row):
            raise InputError(
                f"{path}, line {number}: expected {max(wanted)} columns or "
                f"more for --words and --tags, got {len(row)}"
            )
        line = "\t".join(row[i - 1] for i in wanted)
        selected.append((number, line))
    return selected


def _find_columns(path, header, columns, labelled):
    """Return the numbers of columns, which may be names in the first line."""
    numbers = [
        header.index(column) + 1 if column in header else column
        for column in columns
    ]
    if labelled is None and isinstance(numbers[1], str):
        numbers[1] = len(header) + 1  # a test file may lack it
    for flag, number in zip(("words", "tags"), numbers, strict=True):
        if isinstance(number, str):
            raise InputError(
                f"{path}: --{flag}={number} is no number of a column, from 1, "
                f"and no name in the first line: {', '.join(header)[:60]!r}"
            )
    return numbers


def _sentences(path, numbered, labelled):
    rows: list[list[str]] = []
    split = width = None
    document = 0
    for number, line in [*numbered, (0, "")]:
        line = line.rstrip("\r")
        words = split_words(line)
        is_document = bool(words) and words[0] == DOCUMENT
        if is_document or not words or (labelled and not line.strip()):
            if rows:
                labels = tuple(row[-1] for row in rows) if labelled else None
                yield TaggedText(
                    tuple(row[0] for row in rows), labels, document=document
                )
            rows = []
            document += is_document
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
            f"{where}: expected a word and its label, separated by a tab or "
            f"a blank, got only {row[0]!r}. A file without labels can only be "
            "used to predict"
        )
    if len(row) != width:
        raise InputError(
            f"{where}: expected {width} columns as in the lines before, got "
            f"{len(row)}"
        )
    if labelled:
        check_tags(where, row[-1:])


# A field of CoNLL-U's last column: SpaceAfter=No|name=B-PER.
_FIELD = re.compile(
    rf"(?:.*\|)?[^=|]+=(?P<label>O|[{PREFIXES}]-[^|]+)(?:\|.*)?"
)


def check_tags(where, labels):
    """Raise InputError if a label does not follow a tagging scheme."""
    for label in labels:
        if field := _FIELD.fullmatch(label):
            raise InputError(
                f"{where}: expected a label alone, such as "
                f"{field['label']!r}, got the field {label[:60]!r}. Write a "
                "file with a word and its label on each line"
            )
        if not is_label(label):
            raise InputError(
                f"{where}: expected labels O, B, I, a TYPE of 2 characters or "
                "more, "
                f"or B-, I-, E-, S-, L- or U- before a TYPE, got {label!r}"
            )


def is_label(label: str) -> bool:
    """Return True for O, PREFIX, PREFIX-TYPE, or a type of 2 characters."""
    prefix, dash, kind = label.partition("-")
    if len(prefix) > 1 or label == OUTSIDE or label in {*PREFIXES}:
        return True
    return bool(prefix and dash and kind) and prefix in PREFIXES


# B_PER, and PER-B or PER_B, in place of B-PER.
_OTHER_FORMS = (
    re.compile(rf"(?P<prefix>[{PREFIXES}])_(?P<type>.+)"),
    re.compile(rf"(?P<type>.+)[-_](?P<prefix>[{PREFIXES}])"),
)


def _is_prefixed(label):
    """Return True for O, PREFIX-TYPE, PREFIX_TYPE and TYPE-PREFIX."""
    others = (form.fullmatch(label) for form in _OTHER_FORMS)
    return label in {*PREFIXES} or is_full_label(label) or any(others)


ONLY_TYPE = "ENTITY"  # of labels B and I without a type


def spell_tags(texts, split, known=None) -> Examples:
    """Return the texts with labels such as B-PER in place of B_PER or PER-B.

    B and I, if no other label has a type, are read as B-ENTITY and I-ENTITY.

    Args:
        texts: `Examples` of `TaggedText`.
        split: name of the split, for the note.
        known: the labels of the model. Only labels that it lacks are changed,
            into labels that it has. None: labels are changed if all of them
            have one other form, with two prefixes or more; and B_PER if
            another label has the type PER.
    """
    names = {label for text in texts for label in text.labels or ()}
    names -= {OUTSIDE, *(known or ())}
    new = _add_type(names, split, known)
    new |= {} if known else _join_types(names)
    for form in _OTHER_FORMS:
        found = {name: form.fullmatch(name) for name in names}
        spelled = {
            name: f"{match['prefix']}-{match['type']}"
            for name, match in found.items()
            if match
            and (not known or f"{match['prefix']}-{match['type']}" in known)
        }
        prefixes = {name[0] for name in spelled.values()}
        if known or (len(spelled) == len(names) and len(prefixes) > 1):
            new = new or spelled
    if new:
        old, name = min(new.items())
        note = (
            f"labels of the {split} file such as {old!r} are read as {name!r}"
        )
    elif names and not known and all(x.startswith("B_") for x in names):
        note = (
            f"labels of the {split} file such as {min(names)!r} are read as "
            f"types. If B_ is a prefix, write {min(names).replace('_', '-', 1)}"
        )
    else:
        return texts
    spelled = (
        text._replace(labels=tuple(new.get(x, x) for x in text.labels))
        if text.labels is not None
        else text
        for text in texts
    )
    return Examples(spelled, [*getattr(texts, "notes", ()), note])


def _join_types(names) -> dict:
    """Return B_PER -> B-PER for each label whose type another label has."""
    types = {split_label(name)[1] for name in names} - names
    found = filter(None, map(_OTHER_FORMS[0].fullmatch, names))
    return {
        match[0]: f"{match['prefix']}-{match['type']}"
        for match in found
        if match["type"] in types
    }


def _add_type(names, split, known) -> dict:
    """Return a dict of labels that are prefixes -> labels with a type."""
    new = {x: f"{x}-{ONLY_TYPE}" for x in names & {*PREFIXES}}
    if new and not known and len(new) < len(names):
        raise InputError(
            f"The {split} file has the label {min(new)!r} without a type, and "
            f"{min(names - new.keys())!r} with one. Give all labels a type, as "
            "in B-PER, or none"
        )
    return {x: y for x, y in new.items() if not known or y in known}


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


class TagRow(NamedTuple):
    """Description of a tagging task's files; see `Official`."""

    name: str
    files: dict = {}
    tfds: str | None = None
    read: Callable = read_tags
    columns: tuple = (None, None)  # see `read_columns`


NER = TagRow("ner")  # reads any files that --train, --dev and --test name
CONLL_2003 = TagRow(
    "conll2003",
    {
        "train": ("eng.train", "train.txt"),
        "dev": ("eng.testa", "valid.txt"),
        "test": ("eng.testb", "test.txt"),
    },
    "tfds:conll2003",
)
WNUT_17 = TagRow(
    "wnut17",
    {
        "train": ("wnut17train.conll",),
        "dev": ("emerging.dev.conll",),
        "test": ("emerging.test.annotated",),
    },
)
WIKI_ANN = TagRow(
    "wikiann",
    {"train": ("train",), "dev": ("dev",), "test": ("test",)},
    "tfds:wikiann/en",
)
ROWS = (NER, CONLL_2003, WNUT_17, WIKI_ANN)
