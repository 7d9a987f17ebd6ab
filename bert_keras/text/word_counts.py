"""How often each word occurs in a stream of text, in bounded memory."""

import collections
import re

from bert_keras.text.wordpiece import UNKNOWN, WordPiece

MOST_WORDS = 4_000_000  # distinct ones in memory, about 500 MB
CHARACTERS = 1_000_000  # of text that are counted at once

_SPACE = re.compile(r"[\t\n\r]")
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]")


def count_words(
    texts, lowercase=True, strip_accents=None, in_order=map, most=MOST_WORDS
):
    """`Counter` of the words of `texts`.

    Where there are more than `most` distinct words, the rarest go, until
    half as many are left; what is given up does not depend on `in_order`.
    """
    counts = collections.Counter()
    counter = _CountWords(lowercase, strip_accents)
    for counted in in_order(counter, _stretches(texts)):
        counts.update(counted)
        if len(counts) > most:
            counts = _commonest(counts, most // 2)
    return counts


class _CountWords:
    """Counts the words of a list of texts, here or in another process.

    What stands between blanks is counted first, so that the law, which is
    slow, sees each of these stretches once.
    """

    def __init__(self, lowercase, strip_accents):
        self._lowercase = lowercase
        self._law = WordPiece([UNKNOWN], lowercase, strip_accents)

    def __call__(self, texts):
        stretches = collections.Counter()
        for text in texts:
            stretches.update(_SPACE.sub(" ", text).split(" "))
        counts = collections.Counter()
        for stretch, count in stretches.items():
            for word in self._words(stretch):
                if len(word) <= self._law.max_word_length:
                    counts[word] += count
        return counts

    def _words(self, stretch):
        if stretch.isascii() and stretch.isprintable():
            # What the law comes to for these, and most text is of them.
            stretch = stretch.lower() if self._lowercase else stretch
            return _ASCII_WORD.findall(stretch)
        return self._law.words(stretch)


def _stretches(texts):
    """Lists of texts that have about `CHARACTERS` together."""
    found, size = [], 0
    for text in texts:
        found.append(text)
        size += len(text)
        if size >= CHARACTERS:
            yield found
            found, size = [], 0
    if found:
        yield found


def _commonest(counts, most):
    """The words that are commoner than the one in place `most`."""
    bound = sorted(counts.values(), reverse=True)[most]
    kept = {word: n for word, n in counts.items() if n > bound}
    return collections.Counter(kept)
