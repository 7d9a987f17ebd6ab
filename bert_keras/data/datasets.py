"""Documents from TensorFlow Datasets, which is imported only when asked."""

import re
from collections.abc import Iterator

from bert_keras.data.documents import Document
from bert_keras.errors import InputError

_SOURCE = re.compile(r"tfds:(?P<name>[^:]+)(?::(?P<split>.+))?")
# wiki40b marks its structure in the text.
_MARKERS = re.compile(r"_START_[A-Z]+_|_NEWLINE_|\n")


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
        parts = (part.strip() for part in _MARKERS.split(text))
        paragraphs = [part for part in parts if part]
        if paragraphs:
            yield Document(f"{name}:{split}#{number}", name, paragraphs)


def _import(name: str):
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise InputError(
            f"tfds:{name} needs tensorflow-datasets, which is not installed: "
            "pip install 'bert-keras[tfds]'."
        ) from error
    return tensorflow_datasets
