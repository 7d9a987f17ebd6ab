"""Split paragraphs of any script into sentences by rules, without a model.

A sentence ends at a terminator. Terminators are most characters with Unicode's
property `Sentence_Terminal`, and a few others. `.`, `!`, `?`, the ellipsis and
similar terminators end a sentence only before white space, and not if a
lower-case word follows. A `.` after a list number or after an abbreviation of
`_TITLES`, such as "Dr." or "e.g.", does not end a sentence.
After any other abbreviation or an initial, a `.` ends a sentence only if a word
of `_FIRST_WORDS`, such as "The", follows. Most terminators of other scripts
(Chinese, Khmer, ...) need no white space. Closing quotation marks and brackets
after a terminator belong to the sentence.
"""

import re

# These terminators end a sentence only if white space follows.
_SPACED = r".!?\u2026\u203c\u203d\u2047-\u2049\u2e2e\u2e3c\u2e53\u2e54"

# These terminators need no white space. Three of them lack the property
# `Sentence_Terminal`: the two Tibetan shads and the Greek question mark. The
# Burmese mark U+104A is left out, because it may also separate phrases.
_UNSPACED = (
    r"\u037e\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d"
    r"\u083e\u0964\u0965\u0f0d\u0f0e\u104b\u1362\u1367\u1368\u166e\u1735"
    r"\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b5a\u1b5b"
    r"\u1b5e\u1b5f\u1b7d\u1b7e\u1c3b\u1c3c\u1c7e\u1c7f\u3002\ua4ff\ua60e\ua60f"
    r"\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f"
    r"\uaaf0\uaaf1\uabeb\ufe52\ufe56\ufe57\uff01\uff0e\uff1f\uff61"
)
_BEYOND = (  # terminators from U+10000 on
    r"\U00010a56\U00010a57\U00010f55-\U00010f59\U00011047\U00011048"
    r"\U000110be-\U000110c1\U00011141-\U00011143\U000111c5\U000111c6"
    r"\U000111cd\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c"
    r"\U000112a9\U0001144b\U0001144c\U000115c2\U000115c3"
    r"\U000115c9-\U000115d7\U00011641\U00011642\U0001173c-\U0001173e"
    r"\U00011944\U00011946\U00011a42\U00011a43\U00011a9b\U00011a9c"
    r"\U00011c41\U00011c42\U00011ef7\U00011ef8\U00016a6e\U00016a6f"
    r"\U00016af5\U00016b37\U00016b38\U00016b44\U00016e98\U0001bc9f\U0001da88"
)
_CLOSING = (
    "\"')\\]}\u2019\u201d\u203a\u00bb\u300d\u300f\u3009\u300b\u3011\uff09\uff63"
)
_OPENING = (
    "\"'(\\[{\u2018\u201c\u201e\u201a\u2039\u00ab\u00bf\u00a1\u2014\u2013*_\\-"
)


def _make_boundary_pattern(terminators: str) -> re.Pattern:
    # Ethiopic script separates words by U+1361 instead of a space.
    return re.compile(rf"[{terminators}]+[{_CLOSING}]*(?P<space>[\s\u1361]*)")


# Two patterns, because the one without `_BEYOND` is much faster. Few texts have
# characters from U+10000 on.
_BOUNDARY = _make_boundary_pattern(_SPACED + _UNSPACED)
_BOUNDARY_BEYOND = _make_boundary_pattern(_SPACED + _UNSPACED + _BEYOND)
_AT_END = re.compile(rf"[{_SPACED}{_UNSPACED}{_BEYOND}][{_CLOSING}]*$")
_NEEDS_NO_SPACE = re.compile(rf"[{_UNSPACED}{_BEYOND}]")
_NEXT_LETTER = re.compile(rf"[{_OPENING}\s]*(\w?)")
# Unicode calls Georgian letters lower case, even at the start of a sentence.
# So a lower-case Georgian letter does not show that the sentence goes on.
_ONE_CASE = frozenset(map(chr, range(0x10D0, 0x1100)))
_LAST_WORD = re.compile(r"[\w.&'\u2019-]*$")
_DOTTED = re.compile(r"(\w\.)+\w")
_FIRST_WORD = re.compile(rf"[{_OPENING}]*(\w*)")


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# These abbreviations do not end a sentence. Most of them stand before a name or
# a number. Exception: "no." ends a sentence unless a number follows.
_TITLES = _split_words(
    "mr mrs ms mx dr prof rev hon st messrs mme mlle gen col maj capt lt sgt "
    "cpl adm cmdr gov sen rep pres sec supt fr sr sra srta dra don hr fig figs "
    "eq eqs sec secs ch chap vol vols no nos nr art arts pp p cf vs viz e.g "
    "i.e eg ie al ed eds trans approx ca resp wrt def thm lem prop ex exs "
    "z.b d.h bzw u.a s.o s.u m.m"
)
# These abbreviations end a sentence only if a word of `_FIRST_WORDS` follows.
_ABBREVIATIONS = _split_words(
    "etc inc ltd co corp bros jr jan feb mar apr jun jul aug sep sept oct nov "
    "dec mon tue tues wed thu thur thurs fri sat sun a.m p.m u.s u.k u.n e.u "
    "d.c b.c a.d b.c.e c.e ph.d m.d b.a m.a u.s.a ave blvd rd mt ft dept univ "
    "assn max min avg"
)
_FIRST_WORDS = _split_words(
    "the a an he she it they we you i this that these those there here his "
    "her its their our my your in on at by for from with to of and but or if "
    "when while as after before since because although however then thus "
    "what who how why where not no yes all some most many each"
)
_MAX_SHORT = 12  # maximum number of characters of an abbreviation
_MAX_LENGTH = 1_000  # maximum characters of a sentence, about 250 tokens
_CLAUSE = re.compile(r".*[;:,\u2014\u060c\u061b\u3001\uff0c\uff1b]\s*", re.S)
_SPACE = re.compile(r".*\s", re.S)


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into its sentences.

    The sentences are in order, stripped and not empty. Only white space between
    them is dropped. A sentence of more than 1,000 characters is cut within the
    first 1,000: after the last comma or other clause mark, else after the last
    space, else at the end.

    >>> split_sentences("Dr. Ito left at 3.15 p.m. It rained. “Go!” he said.")
    ['Dr. Ito left at 3.15 p.m.', 'It rained.', '“Go!” he said.']
    """
    sentences = []
    start = 0
    simple = paragraph.isascii() or _is_basic(paragraph)
    boundary = _BOUNDARY if simple else _BOUNDARY_BEYOND
    for match in boundary.finditer(paragraph):
        if _is_end(paragraph, start, match):
            sentences.append(paragraph[start : match.end()].strip())
            start = match.end()
    sentences.append(paragraph[start:].strip())
    if len(paragraph) > _MAX_LENGTH:
        sentences = [piece for long in sentences for piece in _cut(long)]
    return [sentence for sentence in sentences if sentence]


def ends_sentence(text: str) -> bool:
    """Return True if a text ends with a terminator, ignoring closing marks."""
    return _AT_END.search(text) is not None


def document_sentences(document) -> list[str]:
    """Return a `Document`'s sentences; split its paragraphs if necessary."""
    if document.sentences_given:
        return document.paragraphs
    return [
        one for text in document.paragraphs for one in split_sentences(text)
    ]


def _is_basic(text: str) -> bool:
    """Return True if all characters are below U+10000."""
    return len(text.encode("utf-16-le", "surrogatepass")) == 2 * len(text)


def _is_end(text: str, start: int, match: re.Match) -> bool:
    if not match["space"] or not match[0].isascii():
        if _NEEDS_NO_SPACE.search(match[0]):
            return not _is_decimal(text, match)
        if not match["space"]:
            return False
    following = text[match.end() : match.end() + 1]
    if not following.isalnum():
        following = _NEXT_LETTER.match(text, match.end())[1]
    if following.islower() and following not in _ONE_CASE:
        return False
    if match[0][0] != "." or not match[0][1].isspace():
        return True
    tail = text[max(start, match.start() - _MAX_SHORT) : match.start()]
    word = _LAST_WORD.search(tail)[0].strip("'\u2019")
    return not word or not _is_abbreviation(word, text, start, match)


def _is_decimal(text: str, match: re.Match) -> bool:
    """Return True if the match is a full-width point within a number."""
    around = text[match.start() - 1 : match.start() + 2]
    return around[1:2] == "\uff0e" and around[::2].isdigit()


def _is_abbreviation(word: str, text: str, start: int, match) -> bool:
    if word.isdigit():  # a list number that opens the sentence: "1. First item"
        return text[start : match.start()].strip() == word and len(word) <= 3
    lower = word.lower()
    if lower in _TITLES:
        return (
            lower != "no" or _FIRST_WORD.match(text, match.end())[1].isdigit()
        )
    initial = len(word) == 1 and word.isupper() and word != "I"
    if initial or lower in _ABBREVIATIONS or _DOTTED.fullmatch(word):
        first = _FIRST_WORD.match(text, match.end())[1].lower()
        return first not in _FIRST_WORDS
    return False


def _cut(sentence: str) -> list[str]:
    parts = []
    start = 0
    while len(sentence) - start > _MAX_LENGTH:
        window = sentence[start : start + _MAX_LENGTH]
        match = _CLAUSE.match(window) or _SPACE.match(window)
        end = len(match[0]) if match else _MAX_LENGTH
        parts.append(window[:end].strip())
        start += end
    return [*parts, sentence[start:].strip()]
