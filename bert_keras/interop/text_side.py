"""What weights say of the text they were trained on, read when asked for."""

import dataclasses
import os

from bert_keras.interop.checkpoint import WeightsError
from bert_keras.interop.json_file import shortened
from bert_keras.text.vocabulary import check_vocabulary, write_vocabulary

FETCH = "Put the vocab.txt that the model was trained with in its place"
# What tensorflow-text's tokenizer takes; published pieces have up to 60.
LONGEST_PIECE = 256


@dataclasses.dataclass
class TextSide:
    """The text side of a checkpoint.

    Args:
        pieces: the vocabulary, in the order of the ids.
        tokenizer: arguments of `WordPieceTokenizer`, without pieces and case.
        cases: dict of who says it -> whether the text is lower-cased.
        sequence_length: the tokens that rows are cut to, or None.
    """

    pieces: list
    tokenizer: dict = dataclasses.field(default_factory=dict)
    cases: dict = dataclasses.field(default_factory=dict)
    sequence_length: int | None = None


def text_reader(path, settings=dict):
    """What reads the text side, or None where there is no vocabulary.

    Args:
        path: of the vocabulary file.
        settings: returns the other arguments of `TextSide`.
    """
    if not os.path.isfile(path):
        return None
    return lambda: TextSide(read_pieces(path), **settings())


def read_pieces(path):
    """The pieces of a published vocabulary file, one a line.

    A line of white space, such as the Chinese model has, keeps its id under
    a name that no text makes; of a piece that is there twice the last counts,
    as in the original.
    """
    try:
        with open(path, "rb") as file:
            lines = file.read().decode("utf-8").split("\n")
    except OSError as error:
        raise WeightsError(
            path, f"the file cannot be read ({error.strerror})", FETCH
        ) from None
    except UnicodeDecodeError as error:
        raise WeightsError(
            path, f"byte {error.start} is not UTF-8", FETCH
        ) from None
    if lines[-1] == "":
        lines.pop()
    return checked_pieces([line.strip() for line in lines], path)


def checked_pieces(pieces, path):
    """The pieces, fit for a tokenizer, or an error that names the file."""
    last = {piece: index for index, piece in enumerate(pieces)}
    pieces = [
        piece if piece and last[piece] == index else f"[line{index + 1}]"
        for index, piece in enumerate(pieces)
    ]
    check_vocabulary(pieces, str(path))
    words = [p for p in pieces if p != "##" and not p.startswith("[")]
    damaged = [p for p in pieces if not _is_sound(p)]
    if damaged or not words:
        raise WeightsError(
            path,
            "this is no vocabulary of word pieces",
            FETCH,
            expected=f"pieces of text, of up to {LONGEST_PIECE} bytes",
            found=repr(shortened(damaged[0])) if damaged else "no words",
        )
    return pieces


def _is_sound(piece):
    """Whether it is text: not too long, no NUL, no half of a pair."""
    data = piece.encode(errors="replace")
    return (
        len(data) <= LONGEST_PIECE
        and "\0" not in piece
        and data.decode() == piece
    )


def write_pieces(preprocessor, path):
    """Writes the vocabulary file of the preprocessor's tokenizer."""
    write_vocabulary(preprocessor.tokenizer.vocabulary, path)
