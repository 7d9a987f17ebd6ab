"""Read words with labels from a user's tables.

A row has a sentence, a word, or a text with character spans.
"""

import itertools

from bert_keras.errors import InputError, collect_faults, raise_all
from bert_keras.text.labels import OUTSIDE
from official_tasks.tasks.base import Examples
from official_tasks.tasks.character_spans import (
    counts_utf16,
    label_words,
    read_spans,
)
from official_tasks.tasks.conll import TaggedText, check_tags, split_words
from official_tasks.tasks.data_notes import format_lines
from official_tasks.tasks.own_data import Columns, Table


class WordTable(Table):
    """Table of words and labels, with a sentence or a word in each row.

    Args:
        options: `TagsOptions`.
    """

    def __init__(self, options):
        self.options = options
        words, sentence = options.words, options.sentence
        required = [words, sentence] if sentence else [words]
        lists = () if sentence else (words, options.tags)
        columns = Columns(
            "tags", required, [options.tags], self._parse, lists=lists
        )
        super().__init__(columns, options)
        if sentence:
            self.drop_unlabelled = None  # a sentence needs all of its words

    def _parse(self, where, number, cells):
        words = self._split(cells[self.options.words])
        if not words:
            raise InputError(f"{where}: expected at least one word, got none")
        labels = None
        if self.options.tags in cells:
            labels = tuple(self._split(cells[self.options.tags]))
            _refuse_list(where, cells[self.options.tags])
            _check(where, words, labels)
        return TaggedText(
            tuple(words), labels, document=cells.get(self.options.sentence, 0)
        )

    def _split(self, cell):
        if self.options.sentence:
            return [cell.strip()] if cell.strip() else []
        return cell if isinstance(cell, list) else split_words(cell)

    def read_files(self, split):
        rows = super().read_files(split)
        if self.options.sentence:
            return self._join_words(rows)
        if len(rows) > 1 and all(len(text.words) == 1 for _, text in rows):
            raise InputError(
                f"{format_lines([rows[0][0]])}: each row has one word. Name "
                "the column that numbers the sentences, as in "
                "--sentence=COLUMN. If empty lines separate the sentences, "
                "write a tab between word and label, and give --task=ner"
            )
        return rows

    def _join_words(self, rows):
        """Return a row for each run of words of the same sentence."""
        sentences: list = []
        name = file = None
        for location, text in rows:
            new = text.document.strip() or name
            if not sentences or (new, location[0]) != (name, file):
                sentences.append([])
            name, file = new, location[0]
            sentences[-1].append((location, text))
        joined = Examples(notes=rows.notes)
        for sentence in sentences:
            texts = [text for _, text in sentence]
            labels = None
            if texts[0].labels is not None:
                labels = tuple(text.labels[0] for text in texts)
            words = tuple(text.words[0] for text in texts)
            whole = TaggedText(words, labels, row_id=texts[0].row_id)
            joined.append((sentence[0][0], whole))
        return joined


class SpanTable(Table):
    """Table of texts with character spans.

    Args:
        options: `TagsOptions`.
    """

    def __init__(self, options):
        text, spans = options.text, options.spans

        def parse(where, number, cells):
            return read_spans(cells[text], cells.get(spans), where)

        columns = Columns(
            "tags",
            [text],
            [spans],
            parse,
            lists=(spans,),
            objects=(spans,),
            has_label=lambda cell: cell != "",  # "[]" means no entities
        )
        super().__init__(columns, options)

    def read_files(self, split):
        """Return the rows of `Table.read_files`, with words and labels."""
        rows = super().read_files(split)
        labelled, faults = Examples(notes=rows.notes), []
        for _, group in itertools.groupby(rows, lambda row: row[0][0]):
            group = list(group)  # the rows of a file
            is_utf16 = counts_utf16(row for _, row in group)
            for location, row in group:
                with collect_faults(faults):
                    labelled.append((location, label_words(row, is_utf16)))
        raise_all(faults)
        _refuse_prefixes(rows)
        return labelled


def _refuse_prefixes(rows):
    """Raise if spans have labels of words: O, or both B-TYPE and I-TYPE."""
    first: dict = {}
    for location, row in rows:
        for span in row.spans or ():
            first.setdefault(span.label, location)
    if OUTSIDE in first:
        raise InputError(
            f"{format_lines([first[OUTSIDE]])}: expected spans of entities, "
            f"got a span with the label {OUTSIDE!r}, which means no entity. "
            "Remove such spans, or rename the label"
        )
    for label in first:
        if label.startswith("B-") and f"I-{label[2:]}" in first:
            raise InputError(
                f"{format_lines([first[label]])}: expected spans of whole "
                f"entities with a type, such as {label[2:]!r}, got spans of "
                f"words with {label!r} and 'I-{label[2:]}'"
            )


def _refuse_list(where, cell):
    """Raise if a cell of labels is a list in another form than JSON."""
    if isinstance(cell, str) and (cell.strip()[:1] in [*"[({"] or "," in cell):
        raise InputError(
            f"{where}: expected labels with blanks between them, or a list as "
            f'JSON, such as ["B-PER", "O"], got {cell[:60]!r}. Write the words '
            "in the same form"
        )


def _check(where, words, labels):
    for tag in labels:
        if not {*"\t\r\n"}.isdisjoint(tag):
            raise InputError(
                f"{where}: expected labels without tabs and line breaks, got "
                f"{tag!r}"
            )
    if len(labels) != len(words):
        raise InputError(
            f"{where}: expected a label for each of the {len(words)} words, "
            f"got {len(labels)}"
        )
    check_tags(where, labels)
