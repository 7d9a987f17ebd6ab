"""Documents from TensorFlow Datasets, which is imported only when asked."""

import re
from collections.abc import Iterator

from bert_keras.data.documents import Document
from bert_keras.data.sentences import ends_sentence, split_sentences
from bert_keras.errors import InputError

_SOURCE = re.compile(r"tfds:(?P<name>[^:]+)(?::(?P<split>.+))?")
# wiki40b marks titles, sections and paragraphs in the text.
_PARAGRAPH = re.compile(r"_START_PARAGRAPH_(.*?)(?=_START_[A-Z]+_|\Z)", re.S)
_NEWLINE = re.compile(r"_NEWLINE_|\n")
_MARKUP = tuple("*#;:|{!=")  # of lists, tables and headings
_LONG = 200  # characters; no heading is so long, and Thai ends no sentence


def read(source: str, text_field: str) -> Iterator[Document]:
    """The documents of `tfds:NAME[/CONFIG][:SPLIT]`; the split is "train"."""
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise InputError(
            f"{source!r} names no data set; expected "
            "tfds:NAME[/CONFIG][:SPLIT], for instance "
            "tfds:wikipedia/20230601.en:train."
        )
    return _documents(match["name"], match["split"] or "train", text_field)


def _documents(name: str, split: str, text_field: str):
    tfds = _import(name)
    try:
        records = tfds.load(name, split=split, shuffle_files=False)
    except ValueError as error:  # no such data set, configuration or split
        told = str(error).strip().splitlines()[0][:300]
        raise InputError(f"tfds:{name} cannot be read ({told}).") from None
    for number, record in enumerate(tfds.as_numpy(records)):
        if text_field not in record:
            raise InputError(
                f"tfds:{name} has no field {text_field!r}, but "
                f"{', '.join(sorted(record))}; name one with text_field."
            )
        text = record[text_field].decode("utf-8")
        parts = map(str.strip, _passages(text, name, text_field))
        paragraphs = [part for part in parts if part]
        if paragraphs:
            yield Document(f"{name}:{split}#{number}", name, paragraphs)


def _passages(text: str, name: str, text_field: str) -> list[str]:
    """The lines of a text; of Wikipedia, as in the paper (section 3.1), the
    text passages without headings, lists and tables."""
    data_set = name.partition("/")[0]
    if data_set == "wiki40b":
        found = _PARAGRAPH.findall(text)
        return [line for part in found for line in _NEWLINE.split(part)]
    lines = text.split("\n")
    if data_set == "wikipedia" and text_field == "text":
        lines = list(filter(_is_passage, lines))
    return lines


def _is_passage(line: str) -> bool:
    """Whether a line of an article is sentences: it ends one, holds two, or
    is longer than any heading or item of a list.

    A line that begins with a blank was an item: its asterisk is gone. It may
    have been a passage behind a picture, so that two sentences are kept.
    """
    text = line.strip()
    if text.startswith(_MARKUP):
        return False
    ends = ends_sentence(text) and not line[:1].isspace()
    return ends or len(text) > _LONG or len(split_sentences(text)) > 1


def _import(name: str):
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise InputError(
            f"tfds:{name} needs tensorflow-datasets, which is not installed: "
            "pip install 'bert-keras[tfds]'."
        ) from error
    return tensorflow_datasets
