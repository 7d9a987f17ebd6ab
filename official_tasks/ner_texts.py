"""The column files that are known by name, and what a tagger reads at once."""

from typing import NamedTuple


class NerRow(NamedTuple):
    """All about one of the data sets: `names`, split -> names of its file."""

    name: str
    names: dict


NER = NerRow("ner", {})  # any other, from --train, --dev and --test
CONLL_2003 = NerRow(
    "conll2003",
    {
        "train": ("eng.train", "train.txt"),
        "dev": ("eng.testa", "valid.txt"),
        "test": ("eng.testb", "test.txt"),
    },
)
WNUT_17 = NerRow(
    "wnut17",
    {
        "train": ("wnut17train.conll",),
        "dev": ("emerging.dev.conll",),
        "test": ("emerging.test.annotated",),
    },
)
WIKI_ANN = NerRow(
    "wikiann", {"train": ("train",), "dev": ("dev",), "test": ("test",)}
)


class TaggedText(NamedTuple):
    """What is read at once: a sentence, or all sentences of a document.

    Attributes:
        words: of all its sentences.
        labels: one a word; None where unknown.
        starts: the first word of each sentence.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    starts: tuple[int, ...]

    def sentences(self, values) -> list[list]:
        """`values`, one a word, by sentence."""
        ends = [*self.starts[1:], len(self.words)]
        return [
            list(values[start:end])
            for start, end in zip(self.starts, ends, strict=True)
        ]


class Tags(NamedTuple):
    """A label for each word of a text, and how sure the model is of it."""

    labels: list[str]
    probabilities: list[float] | None = None


def joined(sentences) -> TaggedText:
    """The sentences of a document as one text."""
    starts, count = [], 0
    for sentence in sentences:
        starts.append(count)
        count += len(sentence.words)
    labels = None
    if all(sentence.labels is not None for sentence in sentences):
        labels = tuple(x for s in sentences for x in s.labels)
    words = tuple(word for s in sentences for word in s.words)
    return TaggedText(words, labels, tuple(starts))
