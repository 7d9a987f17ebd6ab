"""Precision, recall and F1 of entities, by conlleval's conventions.

Sentence by sentence: no entity goes on into the next one. Scores are shares
of 1, where conlleval prints percent. The Perl script knows the labels B-, I-,
E- and O alone: S-, L- and U-, of BIOES and BILOU, mean here what these schemes
say, and it scores them otherwise.
"""

from collections import Counter
from typing import NamedTuple

OUTSIDE = "O"
PREFIXES = "BIESLU"
BEGIN, END = "BSU", "ELSU"  # those that begin, that end an entity


class Entity(NamedTuple):
    """Words `start` to `end` (the one after its last) of a sentence."""

    type: str
    start: int
    end: int


def parts(label: str) -> tuple[str, str]:
    """Prefix and type of a label; a bare type counts as I-."""
    if label[1:2] == "-" and label[0] in PREFIXES:
        return label[0], label[2:]
    return ("O", "") if label == OUTSIDE else ("I", label)


def entities(labels) -> list[Entity]:
    """The entities of a sentence, whatever scheme its labels follow.

    Ill-formed labels mean what conlleval takes them for: I- after O or after
    another type begins an entity.
    """
    found: list[Entity] = []
    before, kind = "O", ""
    for place, label in enumerate(labels):
        prefix, own = parts(label)
        if prefix != "O":
            if before == "O" or own != kind or prefix in BEGIN or before in END:
                found.append(Entity(own, place, place + 1))
            else:
                found[-1] = found[-1]._replace(end=place + 1)
        before, kind = prefix, own
    return found


def entity_scores(truth, predicted) -> dict:
    """What conlleval prints, and the F1 of tokens.

    Args:
        truth, predicted: the labels of each sentence, a list of lists.

    Returns:
        dict of "f1", "precision", "recall" (over all entities), "accuracy"
        (of all labels, O too), "token_f1", "token_precision",
        "token_recall" (of labels that are not O, each token by itself, B-
        and I- told apart: what is often quoted in its place, and higher),
        "entities", and "classes", a dict of precision, recall, f1 and support
        by type.
    """
    true, guessed, right = Counter(), Counter(), Counter()
    for labels, own in zip(truth, predicted, strict=True):
        there, here = entities(labels), entities(own)
        true.update(entity.type for entity in there)
        guessed.update(entity.type for entity in here)
        right.update(entity.type for entity in {*there} & {*here})
    whole = _rates(right.total(), guessed.total(), true.total())
    types = {
        kind: {
            **_rates(right[kind], guessed[kind], true[kind]),
            "support": true[kind],
        }
        for kind in sorted(true.keys() | guessed.keys())
    }
    return {
        **whole,
        **_token_scores(truth, predicted),
        "entities": true.total(),
        "classes": types,
    }


def _token_scores(truth, predicted):
    pairs = Counter(
        pair
        for labels, own in zip(truth, predicted, strict=True)
        for pair in zip(labels, own, strict=True)
    )
    same = sum(n for (one, two), n in pairs.items() if one == two)
    right = same - pairs[OUTSIDE, OUTSIDE]
    guessed = sum(n for (_, two), n in pairs.items() if two != OUTSIDE)
    true = sum(n for (one, _), n in pairs.items() if one != OUTSIDE)
    rates = _rates(right, guessed, true)
    return {
        "accuracy": same / max(pairs.total(), 1),
        **{f"token_{name}": rate for name, rate in rates.items()},
    }


def _rates(right, guessed, true):
    """Precision, recall and their harmonic mean; 0 where there is nothing."""
    return {
        "f1": 2 * right / max(guessed + true, 1),
        "precision": right / max(guessed, 1),
        "recall": right / max(true, 1),
    }
