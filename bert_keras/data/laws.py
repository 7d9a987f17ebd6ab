"""The numbers of the pair law and the masking law, and the pieces they use."""

import dataclasses
import hashlib
import math
import numbers

import numpy as np

from bert_keras.errors import InputError

# Of a default's type: what else may be given, and how that is called.
_KINDS = {
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    bool: (bool, "True or False"),
    tuple: ((tuple, list), "three percentages"),
}
SHORTEST = 8  # [CLS] and two [SEP], and a few pieces to tell apart


@dataclasses.dataclass(frozen=True)
class Laws:
    """How pairs and masks are drawn; the defaults are the paper's.

    Args:
        sequence_length: pieces of an example, [CLS] and [SEP] included.
        max_predictions: masked pieces of an example, at most.
        short_probability: share of documents whose examples aim at a shorter
            length, so that a model also sees short sequences.
        mask_rate: share of an example's pieces to predict.
        mask_mix: percent of these replaced by [MASK], by any piece of the
            vocabulary, and left as they are.
        whole_word: masks all pieces of a word or none.
        max_ngram: masks runs of 1 to this many words, a run of n with a
            probability proportional to 1/n; implies `whole_word`.
        packed: puts several examples into a row of `sequence_length`, up to
            one for each 16 pieces of it, so that little is padding.
    """

    sequence_length: int = 128
    max_predictions: int = 20
    short_probability: float = 0.1
    mask_rate: float = 0.15
    mask_mix: tuple[float, float, float] = (80, 10, 10)
    whole_word: bool = False
    max_ngram: int = 1
    packed: bool = False

    @property
    def examples_per_row(self) -> int | None:
        """Most examples in a packed row; None where rows are not packed."""
        return max(2, self.sequence_length // 16) if self.packed else None

    @property
    def masks_per_row(self) -> int:
        """Masked pieces that a row has places for.

        Those of packed examples always find one: an example has at least 5
        pieces, and rounding adds half a piece to its share, or what it lacks
        to the one piece that is always masked.
        """
        if not self.packed:
            return self.max_predictions
        share = self.mask_rate * self.sequence_length
        rounding = self.examples_per_row * max(0.5, 1 - 5 * self.mask_rate)
        return min(self.sequence_length, math.ceil(share + rounding))

    def _check_kinds(self):
        """Refuses what is not of the kind of the default: "128", None."""
        for field in dataclasses.fields(self):
            value, usual = getattr(self, field.name), type(field.default)
            kind, expected = _KINDS[usual]
            if isinstance(value, bool) and usual is not bool:
                kind = ()
            if not isinstance(value, kind):
                raise InputError(
                    f"{field.name} must be {expected}; got {value!r}."
                )

    def __post_init__(self):
        self._check_kinds()
        object.__setattr__(self, "mask_mix", tuple(self.mask_mix))
        if self.sequence_length < SHORTEST:
            raise InputError(
                f"sequence_length must be at least {SHORTEST}, so that two "
                f"sentences fit; got {self.sequence_length}."
            )
        if not 1 <= self.max_predictions <= self.sequence_length:
            raise InputError(
                "max_predictions must be 1 to sequence_length "
                f"({self.sequence_length}); got {self.max_predictions}."
            )
        _check_share("short_probability", self.short_probability)
        _check_share("mask_rate", self.mask_rate)
        mix = self.mask_mix
        shares = len(mix) == 3 and all(
            isinstance(percent, numbers.Real) and 0 <= percent <= 100
            for percent in mix
        )
        if not shares or abs(sum(mix) - 100) > 1e-6:
            raise InputError(
                "mask_mix must be three percentages (masked, replaced, kept) "
                f"that sum to 100, such as 80,10,10; got {mix}."
            )
        if self.max_ngram < 1:
            raise InputError(
                f"max_ngram must be at least 1; got {self.max_ngram}."
            )


def _check_share(name: str, value: float):
    if not 0 <= value <= 1:
        raise InputError(f"{name} must be between 0 and 1; got {value}.")


class Pieces:
    """What the laws need to know of a vocabulary.

    Args:
        vocabulary: list of str, with [PAD], [CLS], [SEP] and [MASK].
    """

    def __init__(self, vocabulary: list[str]):
        self.size = len(vocabulary)
        self.pad_id = vocabulary.index("[PAD]")
        self.cls_id = vocabulary.index("[CLS]")
        self.sep_id = vocabulary.index("[SEP]")
        self.mask_id = vocabulary.index("[MASK]")
        # Whether a piece goes on with a word that an earlier piece began.
        self.continues = np.array([piece[:2] == "##" for piece in vocabulary])


def vocabulary_hash(vocabulary: list[str]) -> str:
    """SHA-256, in hex, of the pieces in their order."""
    return hashlib.sha256("\n".join(vocabulary).encode()).hexdigest()


def generator(*key: int) -> np.random.Generator:
    """Random numbers that depend on the key alone."""
    if min(key) < 0:
        raise InputError(f"A seed must not be negative; got {min(key)}.")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
