"""What is wrong with a vocabulary, alone and on a user's text."""

import collections

from bert_keras.text import unicode_tables as unicode
from bert_keras.text.learning import count_words
from bert_keras.text.vocabulary import cased_words, fault_of
from bert_keras.text.wordpiece import SPECIAL_TOKENS, UNKNOWN, WordPiece

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
        if fault_of(piece)
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
        Finding(problem, _some(found), advice)
        for problem, found, advice in rows
        if found
    ]
    return findings + _case_findings(counts, lowercase)


def _case_findings(pieces, lowercase):
    """Whether the case of the pieces and the setting contradict."""
    letters = [p for p in pieces if p.removeprefix("##").isalpha()]
    capital = [p for p in letters if any(map(_is_capital, p))]
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


def fit_vocabulary(vocabulary, texts, **settings):
    """`Fit` of a vocabulary to a stream of texts.

    Args:
        vocabulary: pieces in the order of their ids.
        texts: iterable of strings.
        **settings: `lowercase`, `strip_accents`, `max_word_length`.
    """
    law = WordPiece(vocabulary, **settings)
    counts = count_words(texts, law.lowercase, law.strip_accents)
    total = sum(counts.values())
    pieces = {word: law.cover(word) for word in counts}
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


def _is_capital(character):
    return ord(character) in unicode.lower_case()


def _some(words):
    """The first few, and that there are more."""
    words = list(words)
    more = ", ..." if len(words) > 5 else ""
    return ", ".join(words[:5]) + more
