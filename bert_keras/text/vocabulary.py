"""Vocabulary files: read, write, check. One piece a line, ids from 0."""

import re

from bert_keras.errors import InputError
from bert_keras.files import written_beside
from bert_keras.text.learning import learn_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS

__all__ = [
    "check_vocabulary",
    "learn_vocabulary",
    "read_pieces",
    "read_vocabulary",
    "write_vocabulary",
]


def read_vocabulary(path):
    """Pieces of a `vocab.txt`, in the order of their ids.

    Raises:
        InputError: naming the line that is empty, not UTF-8 or there twice,
            or the special token that is missing.
    """
    tokens = read_pieces(path)
    check_vocabulary(tokens, str(path))
    return tokens


def read_pieces(path):
    """The lines of a vocabulary, sound or not, for who examines it.

    Raises:
        InputError: for a file that cannot be read, or a line not in UTF-8.
    """
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError as error:
        raise InputError(
            f"The vocabulary {path} cannot be read ({error.strerror}). "
            "Name a text file with one piece a line."
        ) from None
    if lines[-1] == b"":
        lines.pop()
    return [
        _decoded(line, number, path) for number, line in enumerate(lines, 1)
    ]


def write_vocabulary(tokens, path):
    """Writes the pieces, one a line; the file is there whole or not at all."""
    check_vocabulary(tokens)
    with (
        written_beside(path) as partial,
        open(partial, "w", encoding="utf-8", newline="\n") as file,
    ):
        file.writelines(f"{token}\n" for token in tokens)


def check_vocabulary(tokens, source="the vocabulary", required=SPECIAL_TOKENS):
    """Raises `InputError` unless every piece is usable and there once."""
    lines = {}
    for number, token in enumerate(tokens, 1):
        if not isinstance(token, str) or not token or re.search(r"\s", token):
            raise InputError(
                f"Line {number} of {source} is {token!r}; expected one piece "
                "without white space. Remove the line or mend it."
            )
        if token in lines:
            raise InputError(
                f"Line {number} of {source} repeats {token!r} of line "
                f"{lines[token]}; each piece has one id. Remove one of them."
            )
        lines[token] = number
    missing = [token for token in required if token not in lines]
    if missing:
        raise InputError(
            f"No line of {source} is {' or '.join(missing)}; BERT needs "
            f"{', '.join(required)}. Add what is missing."
        )


def _decoded(line, number, path):
    try:
        return line.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise InputError(
            f"Line {number} of {path} is not UTF-8 (byte {error.start} is "
            f"0x{line[error.start]:02x}). Save the file as UTF-8."
        ) from None
