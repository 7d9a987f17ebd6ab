"""Rows are framed, cut, slid over and packed as they should be."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.text.dropped import pack_examples, sliding_windows
from bert_keras.text.packing import SegmentPacker, cut_one, longest_first

CLS, SEP = 2, 3
A = tf.ragged.constant([[10, 11, 12], [13]])
B = tf.ragged.constant([[20, 21], [22, 23, 24, 25]])


def packer(sequence_length=8, **arguments):
    return SegmentPacker(sequence_length, CLS, SEP, **arguments)


def lists(rows):
    return {name: values.numpy().tolist() for name, values in rows.items()}


def test_one_segment_is_framed_and_padded():
    assert lists(packer(6)(A)) == {
        "token_ids": [[2, 10, 11, 12, 3, 0], [2, 13, 3, 0, 0, 0]],
        "segment_ids": [[0] * 6, [0] * 6],
        "padding_mask": [[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]],
    }


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


def one_by_one(lengths, room):
    """The original's truncation, for any number of segments."""
    lengths = list(lengths)
    while sum(lengths) > room:
        longest = max(reversed(range(len(lengths))), key=lengths.__getitem__)
        lengths[longest] -= 1
    return lengths


@pytest.mark.parametrize("segments", [1, 2, 3, 5])
def test_cutting_equals_taking_one_token_at_a_time(segments):
    lengths = np.random.default_rng(0).integers(0, 14, (400, segments))
    for room in (0, 1, 2, 7, 12, 40):
        expected = [one_by_one(row, room) for row in lengths]
        assert longest_first(lengths, room).numpy().tolist() == expected


def test_one_segment_alone_is_cut_on_request():
    lengths = np.array([[5, 5], [2, 9], [9, 2], [1, 1]])
    assert cut_one(lengths, 8, 0).numpy().tolist() == [
        *([3, 5], [0, 8], [6, 2], [1, 1])
    ]
    rows = lists(packer(7, truncate=1)((A, B)))
    assert rows["token_ids"][0] == [2, 10, 11, 12, 3, 20, 3]


def test_what_is_cut_can_be_counted():
    assert packer(7).count_cut((A, B)).numpy().tolist() == [1, 1]
    assert packer(20).count_cut(A).numpy().tolist() == [0, 0]


def test_a_batch_may_be_as_long_as_its_longest_row():
    rows = packer(100, pad_to_longest=True)((A, B))
    assert rows["token_ids"].shape == (2, 8)
    assert packer(7, pad_to_longest=True)((A, B))["token_ids"].shape == (2, 7)


def test_one_example_needs_no_batch_axis():
    row = packer(6)(tf.constant([10, 11]))
    assert lists(row)["token_ids"] == [2, 10, 11, 3, 0, 0]


def test_the_shape_is_static_in_a_dataset():
    dataset = tf.data.Dataset.from_tensors((A, B))
    spec = dataset.map(lambda a, b: packer(9)((a, b))).element_spec
    assert {tensor.shape[1] for tensor in spec.values()} == {9}


def test_the_packer_survives_its_configuration():
    original = packer(7, truncate=1, pad_to_longest=True, pad_id=1)
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(original)
    )
    assert lists(again((A, B))) == lists(original((A, B)))


def test_a_row_without_room_is_refused():
    with pytest.raises(InputError, match="at least 3"):
        packer(2)
    with pytest.raises(InputError, match="at least 5"):
        packer(4)((A, B))
    with pytest.raises(InputError, match="16.5; expected a whole number"):
        SegmentPacker(16.5, cls_id=2, sep_id=3)
    with pytest.raises(InputError, match="truncate is 'first'"):
        packer(truncate="first")
    with pytest.raises(InputError, match="truncate is -1"):
        packer(truncate=-1)


def windows_of(length, width, stride):
    """The original SQuAD script's document spans: start, length."""
    spans, start = [], 0
    while start < length:
        size = min(length - start, width)
        spans.append((start, size))
        if start + size == length:
            break
        start += min(size, stride)
    return spans


def test_windows_are_those_of_the_original():
    drawn = random.Random(0)
    texts = [list(range(100, 100 + drawn.randint(1, 40))) for _ in range(50)]
    questions = [[7] * drawn.randint(0, 9) for _ in texts]
    segments = (tf.ragged.constant(questions), tf.ragged.constant(texts))
    for stride in (1, 3, 8, 30):
        rows = lists(
            sliding_windows(packer(16), segments, stride, fixed_length=5)
        )
        expected = [
            (number, question[:5], text[start : start + size], start)
            for number, (question, text) in enumerate(
                zip(questions, texts, strict=True)
            )
            for start, size in windows_of(
                len(text), 13 - min(len(question), 5), stride
            )
        ]
        assert len(rows["token_ids"]) == len(expected)
        for row, (number, question, window, start) in enumerate(expected):
            tokens = [CLS, *question, SEP, *window, SEP]
            padding = 16 - len(tokens)
            assert rows["token_ids"][row] == tokens + [0] * padding
            assert rows["window_examples"][row] == number
            assert rows["window_starts"][row] == start
            places = [-1, *range(len(question)), -1]
            places += [*range(start, start + len(window)), -1]
            assert rows["token_places"][row] == places + [-1] * padding


def test_windows_of_one_segment_and_of_nothing():
    texts = tf.ragged.constant([[5, 6, 7, 8], []], dtype=tf.int32)
    rows = lists(sliding_windows(packer(5), texts, stride=2))
    assert rows["token_ids"] == [
        *([2, 5, 6, 7, 3], [2, 7, 8, 3, 0], [2, 3, 0, 0, 0])
    ]
    assert rows["window_examples"] == [0, 0, 1]


def test_windows_without_room_are_refused():
    with pytest.raises(InputError, match="stride is 0"):
        sliding_windows(packer(), A, stride=0)
    with pytest.raises(InputError, match="from 0 to 4"):
        sliding_windows(packer(), (A, B), stride=1, fixed_length=5)


def examples(lengths):
    """Padded examples with these lengths, each token its own number."""
    width = max(lengths)
    mask = np.arange(width) < np.array(lengths)[:, None]
    numbers = 1000 * np.arange(len(lengths))[:, None] + np.arange(width)
    return {
        "token_ids": tf.constant((numbers + 5) * mask, tf.int32),
        "segment_ids": tf.constant((numbers % 2) * mask, tf.int32),
        "padding_mask": tf.constant(mask, tf.int32),
        "mask_positions": tf.constant([[1, 2, 0]] * len(lengths)),
        "mask_ids": tf.constant([[8, 9, 0]] * len(lengths)),
        "mask_weights": tf.constant([[1.0, 1.0, 0.0]] * len(lengths)),
        "next_sentence_labels": tf.range(len(lengths)) + 50,
    }


def test_packed_rows_hold_every_example_once_and_whole():
    lengths = np.random.default_rng(1).integers(3, 30, 60).tolist()
    given = examples(lengths)
    packed = tf.function(pack_examples)(given, 32, 5, masks_per_row=7)
    packed = {name: values.numpy() for name, values in packed.items()}
    seen = []
    for row, ids in enumerate(packed["example_ids"]):
        assert (ids == 0).tolist() == (
            packed["padding_mask"][row] == 0
        ).tolist()
        for number in range(1, ids.max() + 1):
            (columns,) = np.nonzero(ids == number)
            label = packed["next_sentence_labels"][row, number - 1]
            example = label - 50
            seen.append(example)
            assert packed["example_weights"][row, number - 1] == 1
            places = packed["position_ids"][row, columns]
            assert places.tolist() == list(range(lengths[example]))
            for name in ("token_ids", "segment_ids"):
                own = given[name][example, : lengths[example]].numpy()
                assert (packed[name][row, columns] == own).all()
        masked = packed["mask_positions"][row][packed["mask_weights"][row] > 0]
        assert packed["position_ids"][row, masked].tolist() == (
            [1, 2] * ids.max()
        )
    assert sorted(seen) == list(range(60))


def test_little_of_packed_rows_is_padding():
    drawn = np.random.default_rng(2)
    lengths = np.clip(drawn.lognormal(3.6, 0.6, 512), 6, 128).astype(int)
    given = examples(lengths.tolist())
    packed = pack_examples(given, 256, 16, masks_per_row=40)
    assert packed["token_ids"].shape[1] == 256
    assert 1 - packed["padding_mask"].numpy().mean() <= 0.02


def test_a_model_says_the_same_of_packed_and_of_single_examples():
    encoder = BertEncoder(
        vocabulary_size=3000,
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=32,
    )
    given = examples([7, 12, 5, 9])
    given["token_ids"] %= 3000
    single = BertPretrainer(encoder)
    several = BertPretrainer(encoder, examples_per_row=3)
    several.set_weights(single.get_weights())
    names = [*("token_ids", "segment_ids", "padding_mask", "mask_positions")]
    packed = pack_examples(given, 24, 3, masks_per_row=6)
    alone = single({name: given[name] for name in names})
    names += ["position_ids", "example_ids"]
    together = several({name: packed[name] for name in names})
    is_real = packed["example_weights"].numpy() > 0
    labels = packed["next_sentence_labels"].numpy()[is_real] - 50
    nsp = together["nsp"].numpy()[is_real]
    np.testing.assert_allclose(nsp, alone["nsp"].numpy()[labels], atol=1e-5)
    # Masks of a row are in the order of its examples, two of each.
    mlm = together["mlm"].numpy()[packed["mask_weights"].numpy() > 0]
    expected = alone["mlm"].numpy()[labels, :2].reshape(mlm.shape)
    np.testing.assert_allclose(mlm, expected, atol=1e-5)


def test_packing_needs_to_know_the_masks_and_refuses_what_is_too_long():
    with pytest.raises(InputError, match="masks_per_row"):
        pack_examples(examples([4]), 8, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="more tokens"):
        pack_examples(examples([9]), 8, 2, masks_per_row=4)
