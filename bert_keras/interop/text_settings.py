"""What weights say of the text they were trained on: pieces, case, settings."""

import dataclasses
import os

from bert_keras.errors import InputError
from bert_keras.interop.tensors import WeightsError
from bert_keras.text import vocabulary
from bert_keras.text.vocabulary import cased_words


@dataclasses.dataclass
class TextSide:
    """The text side of a checkpoint.

    Args:
        pieces: the vocabulary, in the order of the ids.
        tokenizer: arguments of `WordPieceTokenizer`, without pieces and case.
        cases: dict of who says it -> whether the text is lower-cased.
        sequence_length: the tokens that rows are cut to, or None.
        settled: whether this package wrote `cases`: the pieces have no say.
    """

    pieces: list
    tokenizer: dict = dataclasses.field(default_factory=dict)
    cases: dict = dataclasses.field(default_factory=dict)
    sequence_length: int | None = None
    settled: bool = False


def text_reader(path, settings=dict):
    """What reads the text side, or None where there is no vocabulary.

    Args:
        path: of the vocabulary file, which must be in its folder.
        settings: returns the other arguments of `TextSide`.
    """
    if not os.path.lexists(path):
        return None
    return lambda: TextSide(read_pieces(path), **settings())


def check_fits(model, preprocessor):
    """Refuses the preprocessor of a model with a smaller table than it makes
    ids for, or fewer positions than its rows have."""
    # The class itself would need TensorFlow, which weights alone do not.
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
        ("pieces in the vocabulary", "tokens in a row"),
        made,
        taken,
        strict=True,
    ):
        if needed > most:
            raise InputError(
                f"The preprocessor makes {needed} {what}; {model.name} takes "
                f"at most {most}. Give the model's own preprocessor."
            )


def settings_of(preprocessor):
    """What the library writes of a text side, next to the pieces."""
    tokenizer = preprocessor.tokenizer
    return {
        "sequence_length": preprocessor.sequence_length,
        "tokenizer": {
            "lowercase": tokenizer.lowercase,
            "strip_accents": tokenizer.strip_accents,
            "max_word_length": tokenizer.max_word_length,
            "keep_special_tokens": tokenizer.keep_special_tokens,
        },
    }


def read_settings(config):
    """The arguments of `TextSide` that `settings_of` wrote, or defaults."""
    tokenizer = config.object("tokenizer", {})
    cases = {}
    if "lowercase" in tokenizer:
        cases[config.path] = tokenizer.boolean("lowercase")
    strip = tokenizer.raw("strip_accents")
    if strip not in (None, True, False):
        tokenizer.refuse("strip_accents", "true, false or null", strip)
    stated = "sequence_length" in config
    return {
        "tokenizer": {
            "strip_accents": strip,
            "max_word_length": tokenizer.integer("max_word_length", 200),
            "keep_special_tokens": tokenizer.boolean(
                "keep_special_tokens", False
            ),
        },
        "cases": cases,
        "settled": bool(cases),
        "sequence_length": config.integer("sequence_length", 1)
        if stated
        else None,
    }


def read_pieces(path):
    """The pieces of a published vocabulary file, one a line."""
    pieces = vocabulary.read_pieces(path, inside=os.path.dirname(path))
    return checked_pieces(pieces, path)


def checked_pieces(pieces, path):
    """The pieces, fit for a tokenizer, or an error that names the file.

    An empty line keeps its id under a name that no text makes; of a piece
    that is there twice the last counts, as in the original.
    """
    last = {piece: index for index, piece in enumerate(pieces)}
    pieces = [
        piece if piece and last[piece] == index else f"[line{index + 1}]"
        for index, piece in enumerate(pieces)
    ]
    vocabulary.check_vocabulary(pieces, str(path))
    return pieces


def write_pieces(preprocessor, path):
    """Writes the vocabulary file of the preprocessor's tokenizer."""
    vocabulary.write_vocabulary(preprocessor.tokenizer.vocabulary, path)


# Whether text is lower-cased: what the folder and the caller say, what the
# pieces show.

# Of a language with capitals, a lower-cased vocabulary holds none at all, a
# cased one thousands. Below these the pieces prove nothing.
FEW_PIECES = 1000
CASED_SHARE = 0.01


def settle_case(source, cases, vocabulary, lowercase=None):
    """Returns whether to lower-case, or raises on a contradiction.

    Args:
        source: the folder, for messages.
        cases: dict of who says it -> whether to lower-case.
        vocabulary: the pieces; their capitals speak too.
        lowercase: what the caller says; settles what the folder leaves open
            or contradicts itself about, never what it is sure of.
    """
    shown = shown_case(vocabulary)
    answers = dict(cases)
    if shown is not None:
        answers["its vocabulary"] = shown
    said = set(answers.values())
    if lowercase is None and len(said) < 2:
        return said.pop() if said else True
    if lowercase is None or said == {not lowercase}:
        _refuse(source, answers, lowercase)
    return lowercase


def shown_case(vocabulary):
    """True for pieces of lower-cased text, False for cased, None unsure."""
    words = cased_words(vocabulary)
    capitals = sum(piece != piece.lower() for piece in words)
    if len(words) < FEW_PIECES:
        return None
    if capitals == 0:
        return True
    return False if capitals > CASED_SHARE * len(words) else None


def _refuse(source, answers, lowercase):
    speak = {True: "lower-cased", False: "cased"}
    found = " and ".join(
        f"{speak[value]} by {who}" for who, value in sorted(answers.items())
    )
    if lowercase is None:
        expected = "one answer"
        way_out = (
            "Pass lowercase=True or =False, or convert it once with python -m "
            "official_tasks.tools.convert_checkpoint --lowercase or "
            "--nolowercase"
        )
    else:
        expected = f"lowercase={not lowercase}"
        way_out = f"Leave lowercase= out, or pass {expected}"
    raise WeightsError(
        source,
        "what is said about the case of the text contradicts itself",
        way_out,
        expected=expected,
        found=found if lowercase is None else f"{found}; lowercase={lowercase}",
    )
