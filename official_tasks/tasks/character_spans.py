"""Convert entities between character spans and labels of words.

Annotation tools write spans as follows: Prodigy `{"start", "end", "label"}`,
Label Studio `{"start", "end", "labels": [label]}`, doccano
`{"start_offset", "end_offset", "label"}` or `[start, end, label]`, Argilla 1
`[label, start, end]`, LightTag `{"start", "end", "tag"}`. Positions
count characters (Unicode code points). Those of Label Studio, and of other
tools in a browser, count UTF-16 units; the "text" of a span shows which. All
rows of a file count alike.
"""

import itertools
import json
import re
from typing import NamedTuple

from bert_keras.errors import InputError
from bert_keras.text.labels import OUTSIDE
from bert_keras.text.unicode_tables import (
    DROPPED,
    IDEOGRAPH,
    MARK,
    OTHER,
    PUNCTUATION,
    kinds,
)
from bert_keras.text.wordpiece import encodable
from official_tasks.tasks.conll import TaggedText
from official_tasks.tasks.metrics import entities

# `tag_words` turns a text into a string of digits: the type of each character.
# In this string, _WORD matches a punctuation character, an ideograph, or a run
# of other characters except white space.
_MARKED = f"[{OTHER}{MARK}]"
_WORD = re.compile(
    f"[{PUNCTUATION}{IDEOGRAPH}]|{_MARKED}({DROPPED}*{_MARKED})*"
)


class Span(NamedTuple):
    """A span of a text; `text` is None if the tool did not write its text."""

    start: int
    end: int
    label: str
    text: str | None = None


class SpannedText(NamedTuple):
    """A text with spans, or with None if they are unknown.

    Attributes:
        where: file and line, for messages.
        row_id: see `Example`.
    """

    text: str
    spans: list[Span] | None
    where: str
    row_id: str = ""


def tag_words(text, spans, where) -> TaggedText:
    """Split a text into words, and label the words of spans with B- and I-.

    See `read_spans` and `label_words`; only this text decides what the
    positions count.
    """
    row = read_spans(text, spans, where)
    return label_words(row, counts_utf16([row]))


def counts_utf16(rows) -> bool:
    """Return True if the positions in `SpannedText`s count UTF-16 units.

    This is so if it agrees with the texts of the spans of a row, and counting
    characters does not. Spans without a text must be inside their row's text.

    Raises:
        InputError: rows count in different ways.
    """
    first: dict[bool, str] = {}
    for row in rows:
        if row.spans and max(row.text, default="") > "\uffff":
            shifted = _shift(row)
            is_utf16 = shifted is not None and not _find_other_text(
                row.text, shifted
            )
            is_outside = max(x.end for x in row.spans) > len(row.text)
            is_wrong = is_outside or bool(_find_other_text(row.text, row.spans))
            if is_utf16 == is_wrong:
                first.setdefault(is_utf16, row.where)
    if len(first) > 1:
        raise InputError(
            f"{first[True]}: the spans count UTF-16 units, and those of "
            f"{first[False]} count characters. Count alike in all rows"
        )
    return True in first


def label_words(row: SpannedText, is_utf16: bool) -> TaggedText:
    """Split a text into words, and label the words of spans with B- and I-.

    A span that begins or ends inside a word labels the entire word.

    Args:
        row: `SpannedText`.
        is_utf16: True if positions count UTF-16 units.

    Raises:
        InputError: the text has no word; or a span has another text, lies
            outside the text, covers no word, or shares a word with another
            span.
    """
    text, spans, where, row_id = row
    types = "".join(str(kinds()[ord(character)]) for character in text)
    offsets = tuple(match.span() for match in _WORD.finditer(types))
    words = tuple(text[start:end] for start, end in offsets)
    if not words:
        raise InputError(f"{where}: expected at least one word, got none")
    if spans is None:
        return TaggedText(
            words, None, text=text, offsets=offsets, row_id=row_id
        )
    labels, inside = [OUTSIDE] * len(words), 0
    counted = _count_characters(row, is_utf16)
    for start, end, label, _ in counted:
        if not 0 <= start < end <= len(text):
            raise InputError(
                f"{where}: expected a span inside the text, which has "
                f"{len(text)} characters, got {start} to {end}"
            )
        covered = [
            i for i, (a, b) in enumerate(offsets) if a < end and start < b
        ]
        if not covered or any(labels[i] != OUTSIDE for i in covered):
            problem = (
                "shares a word with another span" if covered else "has no word"
            )
            raise InputError(
                f"{where}: the span {start} to {end} {problem}: "
                f"{text[start:end]!r}. Correct or remove it"
            )
        for index in covered:
            labels[index] = f"I-{label}"
        labels[covered[0]] = f"B-{label}"
        first, last = offsets[covered[0]][0], offsets[covered[-1]][1]
        inside += first < start or end < last
    return TaggedText(
        words,
        tuple(labels),
        text=text,
        offsets=offsets,
        num_inexact=inside,
        is_utf16=counted != spans,
        row_id=row_id,
    )


def _count_characters(row, is_utf16) -> list[Span]:
    """Return the spans with positions in characters; check their texts."""
    text = row.text
    spans = _shift(row) if is_utf16 else row.spans
    if spans is None:
        raise InputError(
            f"{row.where}: a span begins or ends within a character, or "
            "outside the text. The positions of this file count UTF-16 units"
        )
    if wrong := _find_other_text(text, spans):
        start, end, _, stated = wrong[0]
        unit = "UTF-16 units" if is_utf16 else "characters"
        raise InputError(
            f"{row.where}: the span {start} to {end} has the text "
            f"{stated[:60]!r}, but the characters there are "
            f"{text[max(start, 0) : end][:60]!r}. Correct the positions, which "
            f"count {unit} from 0"
        )
    return spans


def _shift(row) -> list[Span] | None:
    """Return spans in UTF-16 units as characters; None if one has no index."""
    index = from_utf16(row.text)
    spans = [
        span._replace(start=index.get(span.start), end=index.get(span.end))
        for span in row.spans
    ]
    return None if any(None in span[:2] for span in spans) else spans


def _find_other_text(text, spans) -> list[Span]:
    """Return the spans that state another text; white space may differ."""
    return [
        span
        for span in spans
        if span.text is not None
        and _squeeze(span.text) != _squeeze(text[max(span.start, 0) : span.end])
    ]


def _squeeze(text):
    # Label Studio may write a line break in a span's text as "\\n".
    return "".join(text.replace("\\n", " ").split())


def from_utf16(text) -> dict[int, int]:
    """Return a dict of index in UTF-16 units -> index in characters."""
    units = [1 + (character > "\uffff") for character in text]
    starts = itertools.accumulate(units, initial=0)
    return {start: index for index, start in enumerate(starts)}


def read_spans(text, spans, where) -> SpannedText:
    """Return a text with its spans.

    Args:
        text: str.
        spans: list of spans in a form that the module's docstring shows, or
            the list as JSON. None if unknown.
        where: file and line, for messages.

    Raises:
        InputError: a span has another form.
    """
    return SpannedText(
        text, None if spans is None else _parse_spans(spans, where), where
    )


def _parse_spans(spans, where) -> list[Span]:
    try:
        if isinstance(spans, str):
            spans = json.loads(spans)
        rows = [
            (
                span.get("start", span.get("start_offset")),
                span.get("end", span.get("end_offset")),
                span.get("label", span.get("labels", span.get("tag"))),
                span.get("text"),
            )
            if isinstance(span, dict)
            else (*span[1:3], span[0], None)
            if isinstance(span[0], str)
            else (*span, None)
            for span in spans
        ]
        rows = [
            (start, end, *label, text)
            if isinstance(label, list)
            else (start, end, label, text)
            for start, end, label, text in rows
        ]
        for start, end, label, _ in rows:
            if not (type(start) is type(end) is int and label.strip()):
                raise ValueError
        return [
            Span(a, b, label, encodable(text) if type(text) is str else None)
            for a, b, label, text in rows
        ]
    except (
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ):
        raise InputError(
            f'{where}: expected a list of spans {{"start": 0, "end": 3, '
            f'"label": "PER"}} or [0, 3, "PER"], got '
            f"{json.dumps(spans, default=str)[:60]}"
        ) from None


def find_spans(text: TaggedText, labels) -> list[dict]:
    """Return a dict of start, end and label for each entity.

    Start and end (exclusive) are indices of characters of `text.text`.
    """
    return [
        {
            "start": text.offsets[entity.start][0],
            "end": text.offsets[entity.end - 1][1],
            "label": entity.type,
        }
        for entity in entities(labels)
    ]
