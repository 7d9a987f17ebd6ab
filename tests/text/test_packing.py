"""Segments are truncated and padded, and get [CLS], [SEP] and segment ids."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.text.packing import SegmentPacker, longest_first

pytestmark = pytest.mark.fast

A = tf.ragged.constant([[10, 11, 12], [13]])
B = tf.ragged.constant([[20, 21], [22, 23, 24, 25]])


@functools.cache
def packer(sequence_length=8, **arguments):
    return SegmentPacker(sequence_length, cls_id=2, sep_id=3, **arguments)


def lists(rows):
    return {name: values.numpy().tolist() for name, values in rows.items()}


def test_it_is_traced_for_rows_of_any_length_and_then_of_any_number():
    pack, counts = packer.__wrapped__(6), []  # a new packer
    for rows in (A, B, *map(tf.ragged.constant, ([[7]], [[]], [[8]] * 9))):
        pack(tf.cast(rows, "int32"))
        counts.append(pack._graphs.rows.experimental_get_tracing_count())
    assert counts == [1, 1, 2, 2, 2]


def test_one_segment_is_framed_and_padded():
    assert lists(packer(6)(A)) == {
        "token_ids": [[2, 10, 11, 12, 3, 0], [2, 13, 3, 0, 0, 0]],
        "segment_ids": [[0] * 6, [0] * 6],
        "padding_mask": [[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]],
    }
    row = packer(6)(tf.constant([10, 11]))  # without the batch axis
    assert lists(row)["token_ids"] == [2, 10, 11, 3, 0, 0]


def test_each_further_segment_has_its_number():
    rows = lists(packer(10)((A, B, A)))
    assert rows["token_ids"][0] == [2, 10, 11, 3, 20, 21, 3, 10, 11, 3]
    assert rows["segment_ids"][0] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert rows["token_ids"][1] == [2, 13, 3, 22, 23, 24, 25, 3, 13, 3]


def test_the_longest_is_cut_first_the_later_of_equals():
    rows = lists(packer(7)((A, B)))
    assert rows["token_ids"][0] == [2, 10, 11, 3, 20, 21, 3]
    assert rows["token_ids"][1] == [2, 13, 3, 22, 23, 24, 3]
    assert lists(packer(6)((A, B)))["token_ids"][0] == [2, 10, 11, 3, 20, 3]
    assert packer(7).count_cut((A, B)).numpy().tolist() == [1, 1]
    assert packer(20).count_cut(A).numpy().tolist() == [0, 0]


def one_by_one(lengths, room):
    """Truncate as the original BERT does, for any number of segments."""
    lengths = list(lengths)
    while sum(lengths) > room:
        longest = max(reversed(range(len(lengths))), key=lengths.__getitem__)
        lengths[longest] -= 1
    return lengths


@pytest.mark.parametrize("segments", [1, 2, 5])
def test_cutting_equals_taking_one_token_at_a_time(segments):
    lengths = np.random.default_rng(0).integers(0, 14, (200, segments))
    for room in (0, 1, 7, 12, 40):
        expected = [one_by_one(row, room) for row in lengths]
        assert longest_first(lengths, room).numpy().tolist() == expected


def test_a_graph_and_wide_ids_give_the_same_rows():
    rows = lists(packer(7)((A, B)))
    assert lists(tf.function(packer(7), autograph=False)((A, B))) == rows
    wide = packer(7)((tf.cast(A, "int64"), tf.cast(B, "int64")))
    assert wide["token_ids"].dtype == "int64" and lists(wide) == rows


def test_rows_are_as_long_as_asked_or_as_the_longest():
    rows = packer(100, pad_to_longest=True)((A, B))
    assert rows["token_ids"].shape == (2, 8)
    assert packer(7, pad_to_longest=True)((A, B))["token_ids"].shape == (2, 7)
    dataset = tf.data.Dataset.from_tensors((A, B))
    spec = dataset.map(lambda a, b: packer(9)((a, b))).element_spec
    assert {tensor.shape[1] for tensor in spec.values()} == {9}


def test_symbolic_segments_have_a_spec():
    segment = keras.KerasTensor((2, None), "int32")
    for segments in (segment, (segment, segment)):
        spec = packer(9).compute_output_spec(segments)
        assert spec["token_ids"].shape == (2, 9)


def test_the_packer_survives_its_configuration():
    original = packer(7, pad_to_longest=True, pad_id=1)
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(original)
    )
    assert lists(again((A, B))) == lists(original((A, B)))
