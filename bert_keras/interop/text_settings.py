"""Vocabulary, case and tokenizer settings of a checkpoint."""

import dataclasses
import os

from bert_keras.errors import InputError
from bert_keras.interop.tensors import WeightsError
from bert_keras.text import vocabulary


@dataclasses.dataclass(frozen=True)
class TextSettings:
    """Vocabulary, case, tokenizer settings and prompts of a checkpoint.

    Attributes:
        pieces: the vocabulary, in the order of the ids.
        tokenizer: arguments of `WordPieceTokenizer`, without pieces and case.
        cases: dict of source -> True for lower-cased text, False for cased
            text. A source is, for example, a file's path or the checkpoint's
            name.
        sequence_length: number of tokens in a row, or None if not stated.
        prompts: dict of name -> prompt, which is put before a text to embed.
        prompt: name of the default prompt, or None.
        include_prompt: True if the pooling includes the tokens of a prompt.
        keys: `text_keys` and `label_key` of the preprocessor, if it has them.
        is_resolved: True if `cases` is certain; the case of `pieces` is then
            ignored.
    """

    pieces: list
    tokenizer: dict = dataclasses.field(default_factory=dict)
    cases: dict = dataclasses.field(default_factory=dict)
    sequence_length: int | None = None
    is_resolved: bool = False
    prompts: dict = dataclasses.field(default_factory=dict)
    prompt: str | None = None
    include_prompt: bool = True
    keys: dict = dataclasses.field(default_factory=dict)


def read_vocabulary(path, **settings):
    """Return `TextSettings` with the pieces in a file; None without the file.

    `settings` are the other arguments of `TextSettings`.
    """
    if not os.path.lexists(path):
        return None
    pieces = check_pieces(vocabulary.read_pieces(path), path)
    return TextSettings(pieces, **settings)


def check_fits(model, preprocessor):
    """Raise `InputError` unless the preprocessor fits the model's sizes."""
    # `isinstance` would need the class, whose import loads TensorFlow.
    parts = ("tokenizer", "sequence_length")
    if not all(hasattr(preprocessor, name) for name in parts):
        raise InputError(
            f"preprocessor is a {type(preprocessor).__name__}. Expected the "
            "BertPreprocessor of the model."
        )
    encoder = getattr(model, "encoder", model)
    made = preprocessor.tokenizer.vocabulary_size, preprocessor.sequence_length
    taken = encoder.vocabulary_size, encoder.max_sequence_length
    for what, needed, most in zip(
        ("tokens in the vocabulary", "tokens per row"),
        made,
        taken,
        strict=True,
    ):
        if needed > most:
            raise InputError(
                f"The preprocessor has {needed} {what}; {model.name} allows at "
                f"most {most}. Pass the model's preprocessor."
            )


def check_pieces(pieces, path):
    """Replace empty and repeated pieces; check and return the vocabulary.

    An empty line becomes the piece "[lineN]", which matches no text. If several
    lines have the same piece, the last line keeps the piece, as in the original
    BERT. The other lines become "[lineN]" too.
    """
    last = {piece: index for index, piece in enumerate(pieces)}
    pieces = [
        piece if piece and last[piece] == index else f"[line{index + 1}]"
        for index, piece in enumerate(pieces)
    ]
    vocabulary.check_vocabulary(pieces, str(path))
    return pieces


# `find_case` returns None for a vocabulary with fewer words than FEW_PIECES. A
# vocabulary is lower-cased if no word has capitals, and cased if more than
# CASED_FRACTION of the words have some. Between the two, `find_case` returns
# None. Cased vocabularies usually have thousands of words with capitals.
FEW_PIECES = 1000
CASED_FRACTION = 0.01


def resolve_case(source, text, lowercase=None):
    """Return True for lower-cased text, False for cased text.

    Args:
        source: the folder, for messages.
        text: `TextSettings`; its `cases` count as sources, and so does the case
            of its pieces (`find_case`), unless `is_resolved` is True.
        lowercase: the value to return; None for the case that the sources
            state, or True if they state none.

    Raises:
        WeightsError: `lowercase` is None and the sources contradict each other,
            or the sources state only the opposite of `lowercase`.
    """
    shown = None if text.is_resolved else find_case(text.pieces)
    answers = dict(text.cases)
    if shown is not None:
        answers["its vocabulary"] = shown
    said = set(answers.values())
    if lowercase is None and len(said) < 2:
        return said.pop() if said else True
    if lowercase is None or said == {not lowercase}:
        _refuse(source, answers, lowercase)
    return lowercase


def find_case(pieces):
    """Return True for lower-cased pieces, False for cased, None if unclear."""
    words = vocabulary.cased_words(pieces)
    capitals = sum(piece != piece.lower() for piece in words)
    if len(words) < FEW_PIECES:
        return None
    if capitals == 0:
        return True
    return False if capitals > CASED_FRACTION * len(words) else None


def _refuse(source, answers, lowercase):
    case = {True: "lower-cased", False: "cased"}
    found = ", ".join(
        f"{case[value]} in {who}" for who, value in sorted(answers.items())
    )
    if lowercase is None:
        problem = "the checkpoint's files contradict each other about case"
        expected = "one case"
        fix = (
            "Pass `lowercase=True` or `lowercase=False`, or convert the "
            "checkpoint once with bert-keras convert_checkpoint --lowercase or "
            "--nolowercase"
        )
    else:
        problem = "the argument lowercase contradicts the checkpoint"
        expected = f"lowercase={not lowercase}"
        fix = f"Leave lowercase= out, or pass {expected}"
    raise WeightsError(
        source,
        problem,
        fix,
        expected=expected,
        found=found if lowercase is None else f"{found}; lowercase={lowercase}",
    )
