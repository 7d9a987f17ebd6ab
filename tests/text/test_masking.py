"""`TokenMasker` follows pre-training's rule, which test_sampling.py tests."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import TokenMasker
from bert_keras.data.sampling import SamplingRules
from bert_keras.text.masking import MaskingVocabulary, generator, mask_rows

pytestmark = pytest.mark.fast

PAD, UNK, CLS, SEP, MASK = range(5)
WORDS = 300  # the "##" tokens come after them
VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *(f"w{i}" for i in range(WORDS)),
    *(f"##p{i}" for i in range(200)),
]
IDS = np.random.default_rng(0).integers(5, len(VOCABULARY), (60, 64), "int32")
IDS[:, 0], IDS[:, [30, -1]], IDS[::2, 50:] = CLS, SEP, PAD
SETTINGS = {"max_predictions": 7, "mask_rate": 0.3, "mask_mix": (60, 30, 10)}


@pytest.mark.parametrize("whole_word", [False, True])
def test_masks_are_those_of_pre_training(whole_word):
    settings = {**SETTINGS, "whole_word": whole_word}
    expected = mask_rows(
        {"token_ids": IDS, "padding_mask": (IDS != PAD).astype("int32")},
        SamplingRules(64, **settings),
        MaskingVocabulary(VOCABULARY),
        generator(3, 4),
    )
    masker = TokenMasker(VOCABULARY, **settings)
    dataset = tf.data.Dataset.from_tensors(IDS)
    (mapped,) = dataset.map(lambda ids: masker(ids, (3, 4)))
    graph = tf.function(masker)(tf.constant(IDS), tf.constant([3, 4]))
    for masked in (masker(IDS, (3, 4)), mapped, graph):
        assert len(masked) == 4
        for name, value in masked.items():
            assert value.dtype == expected[name].dtype
            np.testing.assert_array_equal(value, expected[name])
    again = masker(IDS, (3, 5))["mask_positions"].numpy()
    assert (again != expected["mask_positions"]).any()


def test_defaults_are_those_of_pre_training():
    masker, rules = TokenMasker(VOCABULARY), SamplingRules()
    for name in ("mask_rate", "mask_mix", "whole_word"):
        assert getattr(masker, name) == getattr(rules, name)
    ids = np.full((2, 128), 7)
    assert masker(ids, (0, 0))["mask_ids"].shape == (2, rules.max_predictions)
    # The default of `max_predictions` grows with `mask_rate`.
    often = TokenMasker(VOCABULARY, mask_rate=0.3)(ids, (0, 0))
    drawn = np.count_nonzero(often["mask_weights"], axis=1)
    assert drawn.tolist() == [round(0.3 * 128)] * 2


def test_special_tokens_stay_and_short_rows_have_what_they_can():
    ids = [[CLS, SEP, MASK, SEP, PAD], [CLS, 7, MASK, SEP, PAD]]
    masked = TokenMasker(VOCABULARY, 6, mask_rate=1.0)(ids, (0, 0))
    assert masked["mask_weights"].numpy().sum(1).tolist() == [0, 1]
    assert masked["mask_positions"][1].numpy().tolist() == [1, 0, 0, 0, 0, 0]
    assert masked["token_ids"][0].numpy().tolist() == ids[0]


def test_a_row_that_begins_within_a_word_is_masked_by_words():
    within = len(VOCABULARY) - 1  # a "##" token
    ids = [[within, within, 7, within, 8]] * 50
    masker = TokenMasker(VOCABULARY, 2, 0.4, (100, 0, 0), whole_word=True)
    masked = masker(ids, (0, 0))["token_ids"].numpy() == MASK
    # The words have 2, 2 and 1 tokens; at most two tokens are masked.
    assert {tuple(row) for row in masked} <= {
        (True, True, False, False, False),
        (False, False, True, True, False),
        (False, False, False, False, True),
    }
    assert masked.any(0).all()


def test_one_row_and_static_shapes():
    masker = TokenMasker(VOCABULARY, 6)
    row = masker(IDS[0], (1, 2))
    for name, value in masker(IDS[:1], (1, 2)).items():
        np.testing.assert_array_equal(row[name], value[0])
    spec = tf.data.Dataset.from_tensors(IDS).map(lambda x: masker(x, (1, 2)))
    shapes = {k: v.shape.as_list() for k, v in spec.element_spec.items()}
    assert shapes.pop("token_ids") == [60, 64]
    assert all(shape == [60, 6] for shape in shapes.values())


def test_a_seed_is_one_number_several_or_drawn():
    masker = TokenMasker(VOCABULARY, 6)
    one, same = (masker(IDS, 1)["token_ids"].numpy() for _ in range(2))
    np.testing.assert_array_equal(one, same)
    np.testing.assert_array_equal(one, masker(IDS, (1,))["token_ids"])
    assert (one != masker(IDS, 2)["token_ids"].numpy()).any()
    one, other = (masker(IDS)["token_ids"].numpy() for _ in range(2))
    assert (one != other).any()
    data = tf.data.Dataset.from_tensors(IDS).repeat(2).map(masker)
    first, second = (masked["token_ids"].numpy() for masked in data)
    assert (first != second).any()
    tf.random.set_seed(5)
    drawn = masker(IDS)["token_ids"].numpy()
    tf.random.set_seed(5)
    np.testing.assert_array_equal(drawn, masker(IDS)["token_ids"])


def test_ragged_rows_are_masked_as_padded_ones():
    masker = TokenMasker(VOCABULARY)
    ragged = tf.RaggedTensor.from_tensor(IDS, padding=PAD)
    expected = masker(IDS, 3)
    data = tf.data.Dataset.from_tensors(ragged)
    (mapped,) = data.map(lambda ids: masker(ids, 3))
    for masked in (masker(ragged, 3), mapped):
        assert masked["token_ids"].row_lengths().numpy().tolist()[:2] == [
            50,
            64,
        ]
        padded = {**masked, "token_ids": masked["token_ids"].to_tensor(PAD)}
        for name, value in padded.items():
            np.testing.assert_array_equal(value, expected[name])
