"""Random byte strings that tokenizers often split wrongly."""

import random

SIGMA_NEIGHBOURS = "Σσς.'’aÄ1 \u00ad\u0301\u0345ʰ·-"
MARKS = [
    *map(chr, range(0x300, 0x370)),
    *"\u0591\u05b0\u064b\u0651\u093c\u094d\u0e38\u0f71\u0f72\u302a\u302e\u302f",
    *map(chr, (0x1D165, 0x1D166, 0x1D16D, 0x1D172, 0x16FF0, 0x1133C, 0x34F)),
]
EMOJI = "👩\u200d👩\u200d👧🏽\ufe0f🇨🇭❤1\u20e3"
RIGHT_TO_LEFT = "שָׁלוֹם עוֹלָם مَرْحَبًا\u200f\u202e ١٢٣ـ،؟"
SPACES = " \t\n\r\u00a0\u1680\u2003\u2028\u2029\u3000\u0085\u000b\u001c\ufeff"
ODD_LATIN = "ßẞİıſﬁŉǅÅÅｅｘ½…™ªº²ΐΰ᾿ᾳŐ"
BROKEN = [
    *(b"\x80", b"\xbf", b"\xc0\x80", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80"),
    *(b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xff"),
]
SPECIAL = ["[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[mask]", "[MASK"]
WORDS = "the of and in Mask mask unaffable un aff able café naïve 2,500 e.g. "


def strange_strings(count, seed):
    """Return `count` byte strings, always the same for a seed."""
    drawn = random.Random(seed)
    return [drawn.choice(KINDS)(drawn) for _ in range(count)]


def any_planes(drawn):
    planes = (0x80, 0x250, 0x3000, 0x10000, 0x20000, 0x110000)
    top = drawn.choice(planes)
    size = drawn.randint(0, 40)
    return _bytes(chr(drawn.randrange(top)) for _ in range(size))


def from_alphabets(drawn):
    alphabets = (SIGMA_NEIGHBOURS, EMOJI, RIGHT_TO_LEFT, SPACES, ODD_LATIN)
    letters = drawn.choice(alphabets) + drawn.choice(alphabets) + "abc E"
    size = drawn.randint(0, 40)
    return _bytes(drawn.choice(letters) for _ in range(size))


def marks_out_of_order(drawn):
    letters = "aeoIÄçαΣשก한글 \u0000\u00ad"
    return _bytes(
        drawn.choice(letters)
        + "".join(drawn.choices(MARKS, k=drawn.randint(0, 5)))
        for _ in range(drawn.randint(1, 12))
    )


def long_word(drawn):
    letters = drawn.choice(
        ("a", "un", "é", "あ", "ไทย", "Ω", "😀", "한", "ab1")
    )
    size = drawn.choice((drawn.randint(1, 300), drawn.randint(98, 102)))
    size = drawn.choice((size, drawn.randint(198, 202)))
    word = "".join(drawn.choice(letters) for _ in range(size))
    return _bytes(["in ", word, drawn.choice(("", ".", " the"))])


def broken_bytes(drawn):
    text = from_alphabets(drawn)
    for _ in range(drawn.randint(1, 4)):
        place = drawn.randint(0, len(text))
        piece = drawn.choice([*BROKEN, bytes([drawn.randrange(256)])])
        text = text[:place] + piece + text[place:]
    return text


def nothings(drawn):
    letters = "\0\ufffd\u200b\u0007ab "
    size = drawn.randint(0, 12)
    return _bytes(drawn.choice(letters) for _ in range(size))


def near_words(drawn):
    """Return plain words with one odd string among them."""
    words = drawn.choices(WORDS.split(), k=drawn.randint(0, 12))
    odd = drawn.choice([*SPECIAL, "…", "Σ", "x\u0301", "ﬁ", "\u200b", ""])
    words.insert(drawn.randint(0, len(words)), odd)
    return _bytes(drawn.choice((" ", "", "-")).join(words))


KINDS = (
    any_planes,
    from_alphabets,
    marks_out_of_order,
    long_word,
    broken_bytes,
    nothings,
    near_words,
)


def _bytes(parts):
    """Encode as UTF-8; a surrogate becomes three invalid bytes."""
    return "".join(parts).encode("utf-8", errors="surrogatepass")
