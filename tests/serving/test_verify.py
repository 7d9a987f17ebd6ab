"""Differences between two answers to the same request."""

import numpy as np
import pytest

from bert_keras.serving import verify
from bert_keras.serving.signature import Output, Signature


def outputs(*axes, **named):
    """Return the outputs of a signature from their axes."""
    return {n: Output("float32", tuple(a), "", *axes) for n, a in named.items()}


TAG = Signature(
    "tag",
    {"text": ""},
    None,
    outputs(False, True, type="BN", score="BN") | outputs(count="B"),
)
TAGS = {
    "type": np.array([[b"LOC", b""], [b"PER", b"LOC"]]),
    "score": np.array([[0.5, -1], [0.25, 1]], "float32"),
    "count": np.array([1, 2]),
}
IDS = Signature("ids", {}, None, outputs(vectors="BTD", pooled="BD"))
VECTORS = {
    "vectors": np.ones([2, 3, 4], "float32"),
    "pooled": np.ones([2, 4], "float32"),
}
MASK = [[1, 1, 0], [1, 1, 1]]
REQUEST = {"token_ids": MASK, "padding_mask": MASK, "segment_ids": MASK}


def difference(monkeypatch, signature, answer, name, place, value):
    """Return the difference after the value at `place` is replaced."""
    there = {**answer, name: answer[name].copy()}
    there[name][place] = value
    monkeypatch.setattr(
        verify, "answer_in_fresh_process", lambda *arguments: [there]
    )
    return verify.measure_difference("served", [(signature, REQUEST, answer)])


@pytest.mark.parametrize(
    ("name", "place", "value", "expected"),
    [
        ("type", (0, 0), b"PER", np.inf),
        ("type", (0, 1), b"PER", 0),  # padding
        ("score", (1, 1), 0.75, 0.25),
        ("score", (0, 1), 9, 0),  # padding
        ("score", (0, 0), np.nan, np.inf),
        ("count", 0, 2, np.inf),
    ],
)
def test_texts_are_compared_exactly_and_padding_is_not(
    monkeypatch, name, place, value, expected
):
    found = difference(monkeypatch, TAG, TAGS, name, place, value)
    assert found == expected


@pytest.mark.parametrize(
    ("name", "place", "value", "expected"),
    [
        ("vectors", (1, 2, 0), 1.5, 0.5),
        ("vectors", (0, 2, 0), 1.5, 0),  # padding
        ("pooled", (0, 2), 1.5, 0.5),
    ],
)
def test_vectors_of_padding_do_not_count(
    monkeypatch, name, place, value, expected
):
    found = difference(monkeypatch, IDS, VECTORS, name, place, value)
    assert found == expected
