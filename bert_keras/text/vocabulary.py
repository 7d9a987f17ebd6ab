"""Vocabularies: files read and written, pieces checked, and the fit to a text.

One piece a line, ids from 0. `check_vocabulary` raises at the first fault;
`examine_vocabulary` and `examine_fit` list all of them, for tools/doctor.py.
"""

import codecs
import collections
import os
import re
import string

from bert_keras.errors import InputError
from bert_keras.files import read_bytes, written_beside
from bert_keras.text import unicode_tables as unicode
from bert_keras.text.wordpiece import (
    LONGEST_PIECE,
    SPECIAL_TOKENS,
    UNKNOWN,
    WordPiece,
    utf8_length,
)

# LaBSE has the largest published one: 501,153 pieces, 5 MB.
MOST_PIECES, MOST_BYTES = 1_000_000, 16 * 1024 * 1024


def read_vocabulary(path):
    """Pieces of a `vocab.txt`, in the order of their ids.

    Raises:
        InputError: naming the line that is empty, not UTF-8 or there twice,
            or the special token that is missing.
    """
    return check_vocabulary(read_pieces(path), str(path))


def read_pieces(path, inside=None):
    """The lines of a vocabulary, sound or not.

    Args:
        path: the file.
        inside: the folder that it must be in, links resolved; None for any.

    Raises:
        InputError: for a file that cannot be read or is too large, or a line
            not in UTF-8.
    """
    try:
        data = read_bytes(path, MOST_BYTES, inside)
    except OSError as error:
        raise InputError(
            f"The vocabulary {path} cannot be read ({error.strerror}). "
            "Name a text file with one piece a line."
        ) from None
    count = data.count(b"\n")
    if count > MOST_PIECES:
        raise InputError(
            f"{path} has {count:,} lines; expected a vocabulary of "
            f"at most {MOST_PIECES:,} pieces, one a line. Name the file of "
            "pieces."
        )
    lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return [_decode(line, number, path) for number, line in enumerate(lines, 1)]


def _decode(line, number, path):
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"Line {number} of {path} is not UTF-8 (byte {error.start} is "
            f"0x{line[error.start]:02x}). Save the file as UTF-8."
        ) from None
    return text.strip() or text.strip(string.whitespace)


def write_vocabulary(tokens, path):
    """Writes the pieces, one a line; the file is there whole or not at all."""
    tokens = check_vocabulary(tokens)
    with (
        written_beside(path) as partial,
        open(partial, "w", encoding="utf-8", newline="\n") as file,
    ):
        file.writelines(f"{token}\n" for token in tokens)


def check_vocabulary(vocabulary, source="the vocabulary"):
    """The pieces as a list, every one usable and there once.

    Args:
        vocabulary: iterable of pieces, in the order of their ids.
        source: what errors call it.

    Raises:
        InputError: naming the line at fault or the special token that is
            missing; for the name of a file too, whose letters would be taken
            for pieces.
    """
    if isinstance(vocabulary, str | os.PathLike):
        raise InputError(
            f"vocabulary is {vocabulary!r}; expected a list of pieces. "
            "bert_keras.text.vocabulary.read_vocabulary reads a file."
        )
    lines = {}
    for number, token in enumerate(vocabulary, 1):
        fault = _fault(token)
        if fault:
            raise InputError(
                f"Line {number} of {source} is {_shortened(token)}; expected "
                f"one piece {fault}. {_advice(number)}"
            )
        if token in lines:
            raise InputError(
                f"Line {number} of {source} repeats {token!r} of line "
                f"{lines[token]}; each piece has one id. {_advice(number)}"
            )
        lines[token] = number
    missing = [token for token in SPECIAL_TOKENS if token not in lines]
    if missing:
        raise InputError(
            f"No line of {source} is {' or '.join(missing)}; BERT needs "
            f"{', '.join(SPECIAL_TOKENS)}. Add what is missing."
        )
    if not any(map(_is_text, lines)):
        raise InputError(
            f"No line of {source} is a piece of a word; all text would be "
            "[UNK]. Name the vocabulary that belongs to the model, or learn "
            "one from text."
        )
    return list(lines)


def _advice(number):
    return (
        f"Write [line{number}] there, which no text has: without the line, all "
        "later ids would change."
    )


def _is_text(token):
    """Whether a piece is of words, not a name in brackets or "##"."""
    return token != "##" and not (len(token) > 1 and token.startswith("["))


# Of printable ASCII, as nearly all pieces are.
_USUAL = re.compile(f"[!-~]{{1,{LONGEST_PIECE}}}")


def _fault(token):
    """What a piece should be that this one is not, or None."""
    if not isinstance(token, str):
        return "of text"
    if _USUAL.fullmatch(token):
        return None
    if utf8_length(token) > LONGEST_PIECE:
        return f"of at most {LONGEST_PIECE} bytes"
    if not token or re.search("[\0\ud800-\udfff]", token):
        return "of at least one character, none of them NUL or half of a pair"
    # The Chinese vocabulary has a line separator for a piece; no text has it.
    if re.search(r"\s", token) and (token.isascii() or len(token) > 1):
        return "without white space"
    return None


def _shortened(token):
    text = repr(token)
    return text if len(text) <= 60 else f"{text[:60]}..."


# What is wrong with a vocabulary, alone and on a user's text.

# Published vocabularies on English prose: 1.1 to 1.3 pieces a word and, with
# clean text, fewer than one "[UNK]" in a thousand.
MANY_PIECES, MANY_UNKNOWN = 1.6, 0.001

Finding = collections.namedtuple("Finding", "problem evidence advice")
Fit = collections.namedtuple(
    "Fit", "words pieces_per_word unknown_share unknown_words split_words"
)
Fit.__doc__ = """How a vocabulary fits a text.

    words: how many there are.
    pieces_per_word, unknown_share: means over them.
    unknown_words, split_words: the commonest that become "[UNK]", and that
        need the most pieces, each with its count.
    """


def examine_vocabulary(vocabulary, lowercase):
    """`Finding`s about the pieces themselves; none where all is well."""
    counts = collections.Counter(vocabulary)
    faults = [
        f"line {number} is {piece!r}"
        for number, piece in enumerate(vocabulary, 1)
        if _fault(piece)
    ]
    doubled = [piece for piece, count in counts.items() if count > 1]
    missing = [token for token in SPECIAL_TOKENS if token not in counts]
    rows = [
        (
            "Some lines are no pieces.",
            faults,
            "Write names such as [line7] there; without their lines all later "
            "ids would change.",
        ),
        (
            "Some pieces are there more than once.",
            doubled,
            "Write names such as [line7] for all but one: a piece has one id, "
            "and without their lines all later ids would change.",
        ),
        (
            "Special tokens are missing.",
            missing,
            "Write them in the places of [unusedN] or at the end; BERT frames, "
            "pads and masks with them.",
        ),
    ]
    findings = [
        Finding(problem, _some(pieces), advice)
        for problem, pieces, advice in rows
        if pieces
    ]
    return findings + _case_findings(counts, lowercase)


def _case_findings(pieces, lowercase):
    """Whether the case of the pieces and the setting contradict."""
    letters = [p for p in pieces if p.removeprefix("##").isalpha()]
    lower_case = unicode.lower_case()
    capital = [p for p in letters if any(ord(c) in lower_case for c in p)]
    if lowercase and capital:
        return [
            Finding(
                "Text is lower-cased, but pieces have capital letters.",
                f"{len(capital):,} pieces: {_some(capital)}",
                "Set lowercase to False, unless the vocabulary was learned "
                "from lower-cased text; these pieces are never used.",
            )
        ]
    words = cased_words(pieces)
    if not lowercase and words and not capital:
        return [
            Finding(
                "Text keeps its case, but no piece has a capital letter.",
                f"{len(words):,} pieces: {_some(words)}",
                "Set lowercase to True: words with capitals become [UNK].",
            )
        ]
    return []


def cased_words(pieces):
    """The words that might begin with a capital, where most words might.

    Otherwise none: Hebrew or Chinese pieces with a few Latin ones do not show
    whether text is lower-cased. Georgian has capitals, but not at beginnings.
    """
    words = [p for p in pieces if p.removeprefix("##").isalpha()]
    cased = [word for word in words if word.title() != word.lower()]
    return cased if 2 * len(cased) >= len(words) else []


def fit_vocabulary(vocabulary, texts, lowercase=True, strip_accents=None):
    """`Fit` of a vocabulary to a stream of texts.

    Args:
        vocabulary: pieces in the order of their ids.
        texts: iterable of strings.
        lowercase, strip_accents: as the tokenizer.
    """
    from bert_keras.text.learning import count_words

    wordpiece = WordPiece(vocabulary, lowercase, strip_accents)
    counts = count_words(texts, lowercase, strip_accents)
    total = sum(counts.values())
    pieces = {word: wordpiece.cover(word) for word in counts}
    unknown = collections.Counter(
        {w: n for w, n in counts.items() if pieces[w] == [UNKNOWN]}
    )
    lost = collections.Counter(
        {w: n * (len(pieces[w]) - 1) for w, n in counts.items()}
    )
    split = [word for word, cost in lost.most_common(10) if cost]
    made = sum(n * len(pieces[word]) for word, n in counts.items())
    return Fit(
        total,
        made / max(1, total),
        sum(unknown.values()) / max(1, total),
        unknown.most_common(10),
        [(word, counts[word]) for word in split],
    )


def examine_fit(fit):
    """`Finding`s about how a vocabulary fits a text."""
    findings = []
    if fit.unknown_share > MANY_UNKNOWN:
        findings.append(
            Finding(
                "Many words become [UNK].",
                f"{fit.unknown_share:.2%} of {fit.words:,} words: "
                f"{_some(word for word, _ in fit.unknown_words)}",
                "Check that the settings are those that the vocabulary was "
                "learned with; if so, learn one from this text.",
            )
        )
    if fit.pieces_per_word > MANY_PIECES:
        findings.append(
            Finding(
                "Words fall into many pieces.",
                f"{fit.pieces_per_word:.2f} a word: "
                f"{_some(word for word, _ in fit.split_words)}",
                "Extend the vocabulary by the commonest of these words, or "
                "learn one from this text: rows are longer than they need be.",
            )
        )
    return findings


def _some(words):
    """The first few, and that there are more."""
    words = list(words)
    more = ", ..." if len(words) > 5 else ""
    return ", ".join(words[:5]) + more
