"""Documents from text files, JSONL, TensorFlow Datasets or installed docs.

A source is a string: a path, a folder, a glob, `tfds:NAME[/CONFIG][:SPLIT]`,
or `documentation:` for what is installed. Documents come one at a time, in a
fixed order (files by name), so that a corpus of any size needs the memory of
one.
"""

import os
from collections.abc import Iterator

from bert_keras import files
from bert_keras.data import sources
from bert_keras.data.documentation import installed_documentation
from bert_keras.data.sources import (
    Document,
    content_hash,
    corpus_hash,
    held_out,
    paragraphs,
)
from bert_keras.errors import InputError

__all__ = [
    "DOCUMENTATION",
    "Document",
    "content_hash",
    "corpus_hash",
    "held_out",
    "installed_documentation",
    "paragraphs",
    "read_documents",
]

DOCUMENTATION = "documentation:"


def read_documents(
    source: str, layout: str = "auto", text_field: str = "text"
) -> Iterator[Document]:
    """Yields the documents of a source.

    Args:
        source: a text file, a folder (every `.txt`, `.text`, `.md`, `.jsonl`,
            `.json` and each of these with `.gz`, also in folders below), a
            glob, `tfds:NAME[/CONFIG][:SPLIT]`, or `documentation:` (what is
            installed beside Python).
        layout: what a text file holds: "document" (one document), "sentences"
            (one sentence a line, a blank line between documents: the
            original BERT's format), or "auto" (told from each file's
            beginning). `.jsonl` files hold one JSON object a line, one
            document each.
        text_field: the field that holds the text in JSONL and in TFDS.

    Returns:
        An iterator over documents with text; `group` is the file's folder
        below `source`, or for TFDS the data set's name.

    Raises:
        InputError: nothing there, no text in it, not UTF-8 (with the file
            and the byte offset), an unknown layout, or TFDS is not installed.
    """
    if layout not in sources.LAYOUTS:
        raise InputError(
            f"Unknown layout {layout!r}; expected one of "
            f"{', '.join(sources.LAYOUTS)}."
        )
    if source == DOCUMENTATION:
        documents = installed_documentation()
    elif source.startswith("tfds:"):
        documents = sources.read_tfds(source, text_field)
    else:
        documents = _read_files(*find_files(source), layout, text_field)
    return _not_empty(documents, source)


def find_files(source: str) -> tuple[str, list[str]]:
    """The folder that names are given relative to, and the files, sorted."""
    if files.is_file(source):
        return os.path.dirname(source), [source]
    if files.is_folder(source):
        root, found = source, files.walk(source)
        found = [path for path in found if _is_text(path, source)]
    else:
        root = os.path.dirname(source.partition("*")[0])
        found = [path for path in files.find(source) if files.is_file(path)]
    if not found:
        raise InputError(
            f"No text found at {source!r}. Expected a text file, a folder "
            f"with files that end in {', '.join(sources.SUFFIXES)}, a "
            "glob in quotes, or tfds:NAME[/CONFIG][:SPLIT]."
        )
    return root, found


def _is_text(path: str, root: str) -> bool:
    """Whether a file below `root` is text, and neither it nor a folder on
    the way to it is hidden."""
    hidden = "/." in "/" + os.path.relpath(path, root).replace(os.sep, "/")
    return path.endswith(sources.SUFFIXES) and not hidden


def _read_files(
    root: str, paths: list[str], layout: str, text_field: str
) -> Iterator[Document]:
    for path in paths:
        name = os.path.relpath(path, root or ".")
        group = os.path.dirname(name).replace(os.sep, "/")
        yield from sources.read_file(path, name, group, layout, text_field)


def _not_empty(documents: Iterator[Document], source: str):
    empty = True
    for document in documents:
        empty = False
        yield document
    if empty:
        raise InputError(
            f"{source!r} holds no text: expected at least one line that is "
            "not blank."
        )
