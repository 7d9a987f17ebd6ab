"""The proof that the tokenizer is exact.

tools/maintenance/prove_tokenizer.py runs it.

Each part compares two makers of words or of ids on many strings, and yields
how many it has compared so far.
"""

import collections
import itertools
import unicodedata

import numpy as np
import original_wordpiece
import tokenizers
from strange_strings import strange_strings

from bert_keras.errors import InputError
from bert_keras.text.tokenizer import WordPieceTokenizer
from bert_keras.text.vocabulary import read_vocabulary
from bert_keras.text.wordpiece import WordPiece

CODE_POINTS = 0x110000
BATCH = 20_000
# A code point alone, inside a word, beside punctuation, near a final sigma.
FORMS = ("_", "un_able", "x_. (_Ab", "ΑΣ_ _Σ")
KEPT = 20
MEGABYTES = [b"un" * 500_000, "…é".encode() * 200_000]  # one word, many


class Tally:
    """How many strings were compared, and those that differed."""

    def __init__(self):
        self.compared = 0
        self.differing = 0
        self.examples = []
        self.notes = {}

    def add(self, text, is_equal):
        self.compared += 1
        if not is_equal:
            self.differing += 1
            if len(self.examples) < KEPT:
                self.examples.append(ascii(text))

    def report(self):
        return {
            "compared": self.compared,
            "mismatches": self.differing,
            "examples": self.examples,
            **self.notes,
        }


def parts_of_proof(paths, texts, count, step=1):
    """Name, tally, steps and number of comparisons of each part.

    Args:
        paths: of vocabularies.
        texts: bytes, in many languages.
        count: strange strings to generate.
        step: try every so many code points.
    """
    if unicodedata.unidata_version != "14.0.0":
        raise InputError(
            "The proof needs the Unicode 14.0 of Python 3.11; this one has "
            f"{unicodedata.unidata_version}. Run it with Python 3.11."
        )

    def strings():
        return all_strings(count, texts, step)

    number, characters = 0, set()
    for text in strings():
        number += 1
        characters.update(text.decode("utf-8", "ignore"))
    vocabularies = [read_vocabulary(path) for path in paths]
    tally = Tally()
    yield (
        "reference = original",
        tally,
        law_equals_original(strings, tally),
        4 * number,
    )
    tally = Tally()
    steps = graph_equals_reference(strings, vocabularies, tally)
    yield "graph = reference", tally, steps, 4 * number * len(vocabularies)
    for lowercase in (True, False):
        tally = Tally()
        differing = differing_characters(paths[0], lowercase, characters)
        steps = tokenizers_agree(strings(), paths, lowercase, differing, tally)
        case = "uncased" if lowercase else "cased"
        yield f"tokenizers, {case}", tally, steps, number * len(paths)


def all_strings(count, texts, step):
    """Code points, `count` strange strings, some texts, the lines of all."""
    return itertools.chain(
        code_point_strings(step),
        strange_strings(count, seed=0),
        texts[:20],
        (line for text in texts for line in text.split(b"\n")),
    )


def code_point_strings(step):
    """Each code point in each form; surrogates as the bytes they would be."""
    for code in range(0, CODE_POINTS, step):
        for form in FORMS:
            text = form.replace("_", chr(code))
            yield text.encode("utf-8", "surrogatepass")


def law_equals_original(strings, tally):
    """Words by the reference and by the original's rules, four settings."""
    for lowercase, strip in itertools.product((True, False), repeat=2):
        reference = WordPiece(["[UNK]"], lowercase, strip)
        for number, text in enumerate(strings()):
            expected = original_wordpiece.words(text, lowercase, strip)
            tally.add(text, reference.words(text) == expected)
            if number % BATCH == 0:
                yield tally.compared


def graph_equals_reference(strings, vocabularies, tally):
    """Ids by both paths and by the reference, cased and uncased."""
    for lowercase in (True, False):
        reference = WordPiece(["[UNK]"], lowercase)
        makers = [Makers(pieces, lowercase) for pieces in vocabularies]
        for batch in batches(strings(), BATCH):
            words = [reference.words(text) for text in batch]
            for maker in makers:
                maker.compare(batch, words, tally)
            yield tally.compared


class Makers:
    """Both paths of a vocabulary, and its reference."""

    def __init__(self, vocabulary, lowercase):
        self._paths = [
            WordPieceTokenizer(vocabulary, lowercase, portable=portable)
            for portable in (False, True)
        ]
        self._ids_of = IdsOfWords(WordPiece(vocabulary, lowercase))

    def compare(self, texts, words, tally):
        expected = list(map(self._ids_of, words))
        lengths = np.array([len(row) for row in expected])
        flat = np.array([i for row in expected for i in row], np.int32)
        for path in self._paths:
            ids = path(texts)
            same = np.array_equal(ids.row_lengths(), lengths)
            if same and np.array_equal(ids.values, flat):
                tally.compared += len(texts)
                continue
            rows = zip(texts, ids.to_list(), expected, strict=True)
            for text, found, row in rows:
                tally.add(text, found == row)


class IdsOfWords:
    """Ids of words by a reference; remembers those of each word."""

    def __init__(self, reference):
        self._reference = reference
        self._ids = {piece: i for i, piece in enumerate(reference.vocabulary)}
        self._known = {}

    def __call__(self, words):
        return [token_id for word in words for token_id in self._of(word)]

    def _of(self, word):
        if word not in self._known:
            if len(self._known) > 1_000_000:
                self._known.clear()
            pieces = self._reference.cover(word)
            self._known[word] = [self._ids[piece] for piece in pieces]
        return self._known[word]


def tokenizers_agree(strings, paths, lowercase, differing, tally):
    """Ids by `tokenizers` of Hugging Face and by the reference.

    Compared where they may agree.

    Left out are strings with characters of `differing`, and, where text is
    lower-cased, with capital sigmas.
    """
    differs = {c for characters in differing.values() for c in characters}
    differs |= {"Σ"} if lowercase else set()
    tally.notes["differing characters by category"] = {
        category: f"{len(characters)}, such as U+{ord(characters[0]):04X}"
        for category, characters in sorted(differing.items())
    }
    tally.notes["strings left out"] = 0
    peers = [peer_of(path, lowercase) for path in paths]
    # Its settings: 100 characters, and "[MASK]" in the text is a token.
    settings = {"max_word_length": 100, "keep_special_tokens": True}
    references = [
        WordPiece(read_vocabulary(path), lowercase, **settings)
        for path in paths
    ]
    makers = list(map(IdsOfWords, references))
    for batch in batches(strings, BATCH):
        texts = [text.decode("utf-8", "ignore") for text in batch]
        kept = [text for text in texts if differs.isdisjoint(text)]
        tally.notes["strings left out"] += len(texts) - len(kept)
        words = list(map(references[0].words, kept))
        for peer, ids_of in zip(peers, makers, strict=True):
            encodings = peer.encode_batch(kept, add_special_tokens=False)
            for text, row, encoding in zip(kept, words, encodings, strict=True):
                tally.add(text, encoding.ids == ids_of(row))
        yield tally.compared


def peer_of(path, lowercase):
    return tokenizers.BertWordPieceTokenizer(str(path), lowercase=lowercase)


def differing_characters(path, lowercase, characters):
    """Characters that `tokenizers` makes other words of, by category."""
    peer = peer_of(path, lowercase)._tokenizer
    reference = WordPiece(["[UNK]"], lowercase)
    found = collections.defaultdict(list)
    for character in sorted(characters):
        text = f"a{character}b"
        normal = peer.normalizer.normalize_str(text)
        split = peer.pre_tokenizer.pre_tokenize_str(normal)
        if [word for word, _ in split] != reference.words(text):
            found[unicodedata.category(character)].append(character)
    return found


def batches(items, size):
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch
