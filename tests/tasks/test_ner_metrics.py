import numpy as np
import pytest

from official_tasks.tasks.metrics import Entity, entities, entity_scores

LABELS = "O B-PER I-PER B-LOC I-LOC".split()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("O I-PER I-PER O", [("PER", 1, 3)]),  # I- after O begins
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),  # so a type change
        ("I-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("I-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),  # IOB1's B-
        ("B-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("S-PER B-PER I-PER E-PER", [("PER", 0, 1), ("PER", 1, 4)]),
        ("B-PER E-PER I-PER", [("PER", 0, 2), ("PER", 2, 3)]),
        ("U-PER B-LOC L-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("PER PER LOC", [("PER", 0, 2), ("LOC", 2, 3)]),  # bare types
        ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
        ("O O", []),
        ("", []),
    ],
)
def test_entities_are_those_that_conlleval_sees(labels, expected):
    assert entities(labels.split()) == [Entity(*e) for e in expected]


def conlleval(truth, predicted):
    """conlleval's own loop, which never builds an entity, restated.

    It walks both columns at once and asks at each word whether a chunk ends
    before it and whether one starts at it.
    """

    def ends(tag, kind, before, old):
        return before != "O" and (
            tag == "O" or tag in "BS" or before in "ES" or kind != old
        )

    def starts(tag, kind, before, old):
        return tag != "O" and (
            before == "O" or tag in "BS" or before in "ES" or kind != old
        )

    right = found = wanted = 0
    outside = ("O", "")
    for gold, guess in zip(truth, predicted, strict=True):
        inside = False
        last = [outside, outside]
        columns = [
            [*(tuple((*x.split("-", 1), "")[:2]) for x in column), outside]
            for column in (gold, guess)
        ]
        for now in zip(*columns, strict=True):
            over = [ends(*n, *o) for n, o in zip(now, last, strict=True)]
            begun = [starts(*n, *o) for n, o in zip(now, last, strict=True)]
            if inside:
                if all(over) and last[0][1] == last[1][1]:
                    inside, right = False, right + 1
                elif over[0] != over[1] or now[0][1] != now[1][1]:
                    inside = False
            if all(begun) and now[0][1] == now[1][1]:
                inside = True
            wanted, found = wanted + begun[0], found + begun[1]
            last = now
    precision, recall = right / max(found, 1), right / max(wanted, 1)
    f1 = 2 * precision * recall / max(precision + recall, 1e-12)
    return {"precision": precision, "recall": recall, "f1": f1}


def random_labels(seed, labels, sentences=40):
    random = np.random.default_rng(seed)
    truth, guess = [], []
    for _ in range(sentences):
        gold = random.choice(labels, random.integers(1, 9))
        keep = random.random(gold.size) < 0.7
        other = random.choice(labels, gold.size)
        truth.append(gold.tolist())
        guess.append(np.where(keep, gold, other).tolist())
    return truth, guess


@pytest.mark.parametrize("scheme", ["IOB", "BIOES"])
def test_scores_equal_conlleval_restated_on_random_ill_formed_labels(scheme):
    labels = LABELS + ("E-PER S-PER E-LOC S-LOC".split() * (scheme != "IOB"))
    for seed in range(30):
        truth, guess = random_labels(seed, labels)
        found, expected = entity_scores(truth, guess), conlleval(truth, guess)
        for name, value in expected.items():
            assert found[name] == pytest.approx(value), (seed, name)


def test_scores_equal_seqeval():
    seqeval = pytest.importorskip("seqeval.metrics")
    labels = LABELS + "E-PER S-PER E-LOC S-LOC".split()
    for seed in range(10):
        truth, guess = random_labels(seed, labels)
        found = entity_scores(truth, guess)
        assert found["f1"] == pytest.approx(seqeval.f1_score(truth, guess))
        table = seqeval.classification_report(truth, guess, output_dict=True)
        for kind, own in found["classes"].items():
            assert own["precision"] == pytest.approx(table[kind]["precision"])
            assert own["recall"] == pytest.approx(table[kind]["recall"])
            assert own["f1"] == pytest.approx(table[kind]["f1-score"])
            assert own["support"] == table[kind]["support"]


def test_token_scores_equal_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    truth, guess = random_labels(3, LABELS)
    found = entity_scores(truth, guess)
    flat = [[x for row in rows for x in row] for rows in (truth, guess)]
    *rates, _ = sklearn.precision_recall_fscore_support(
        *flat, labels=LABELS[1:], average="micro"
    )
    assert [
        found["token_precision"],
        found["token_recall"],
        found["token_f1"],
    ] == pytest.approx(rates)
    assert found["accuracy"] == sklearn.accuracy_score(*flat)


def test_no_entity_crosses_the_end_of_a_sentence():
    together = entity_scores([["B-PER", "I-PER"]], [["B-PER", "I-PER"]])
    apart = entity_scores([["B-PER"], ["I-PER"]], [["B-PER"], ["I-PER"]])
    assert (together["entities"], apart["entities"]) == (1, 2)


def test_nothing_true_or_predicted_scores_0():
    nothing, one = [["O", "O"]], [["B-PER", "O"]]
    for truth, guess in ((nothing, nothing), (nothing, one), (one, nothing)):
        found = entity_scores(truth, guess)
        assert found["f1"] == found["precision"] == found["recall"] == 0
    assert entity_scores(nothing, one)["classes"]["PER"]["support"] == 0
