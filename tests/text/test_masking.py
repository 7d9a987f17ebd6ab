"""The masking rule holds within binomial bounds, for every unit and mix."""

import math

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.text.masking import TokenMasker

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)
WORDS, PARTS = 300, 200  # "##" pieces are from 5 + WORDS on
VOCABULARY = [
    *SPECIAL,
    *(f"w{i}" for i in range(WORDS)),
    *(f"##p{i}" for i in range(PARTS)),
]
SIZE = len(VOCABULARY)


def rows(count, width, seed=0):
    """Framed pairs of random pieces with padding, `(count, width)`."""
    drawn = np.random.default_rng(seed)
    ids = drawn.integers(5, SIZE, (count, width))
    lengths = drawn.integers(width // 2, width + 1, count)
    columns = np.arange(width)
    ids[:, 0] = CLS
    ids[:, 1] = drawn.integers(5, 5 + WORDS, count)  # a word begins with one
    ids[columns == (lengths // 2)[:, None]] = SEP
    ids[columns == (lengths - 1)[:, None]] = SEP
    ids[columns >= lengths[:, None]] = PAD
    return ids.astype("int32")


def masked(ids, seed=(3, 4), length=80, **arguments):
    masker = TokenMasker(VOCABULARY, length, **arguments)
    return {k: v.numpy() for k, v in masker(tf.constant(ids), seed).items()}


def selected(ids, found):
    """Which tokens are selected, `bool (B, T)`."""
    marks = np.zeros(ids.shape, bool)
    row, place = np.nonzero(found["mask_weights"])
    marks[row, found["mask_positions"][row, place]] = True
    return marks


def assert_share(count, total, share):
    """Within five standard deviations of a binomial distribution."""
    spread = math.sqrt(total * share * (1 - share))
    assert abs(count - total * share) <= 5 * spread


def test_the_rule_holds_over_a_million_tokens():
    ids = rows(2700, 512)
    assert (ids != PAD).sum() > 1_000_000
    found = masked(ids)
    marks = selected(ids, found)
    lengths = (ids != PAD).sum(1)
    expected = [min(80, max(1, round(n * 0.15))) for n in lengths.tolist()]
    assert marks.sum(1).tolist() == expected
    assert not np.isin(ids[marks], [PAD, CLS, SEP, MASK]).any()
    total, after = marks.sum(), found["token_ids"][marks]
    assert (found["token_ids"][~marks] == ids[~marks]).all()
    assert_share((after == MASK).sum(), total, 0.8 + 0.1 / SIZE)
    assert_share((after == ids[marks]).sum(), total, 0.1 + 0.1 / SIZE)
    changed = after[(after != MASK) & (after != ids[marks])]
    assert_share(len(changed), total, 0.1 * (1 - 2 / SIZE))
    for half in (changed < SIZE // 2, changed % 2 == 0):
        assert_share(half.sum(), len(changed), 0.5)
    # Each place is as likely as any other.
    for columns in (slice(1, 65), slice(150, 214)):
        free = np.isin(ids[:, columns], [PAD, CLS, SEP], invert=True)
        share = total / np.isin(ids, [PAD, CLS, SEP], invert=True).sum()
        assert abs(marks[:, columns][free].mean() - share) < 0.004


def test_true_ids_and_weights_stand_at_the_positions():
    ids = rows(50, 64)
    found = masked(ids, length=12)
    places, weights = found["mask_positions"], found["mask_weights"]
    real = np.arange(12) < weights.sum(1)[:, None]
    np.testing.assert_array_equal(weights, real)
    np.testing.assert_array_equal(places[~real], 0)
    assert (np.diff(places, axis=1)[real[:, 1:]] > 0).all()
    true_ids = np.take_along_axis(ids, places, 1) * real
    np.testing.assert_array_equal(found["mask_ids"], true_ids)


@pytest.mark.parametrize("mix", [(1.0, 0.0), (0.0, 0.0), (0.4, 0.5)])
def test_any_mix_of_replacements_is_kept(mix):
    ids = rows(400, 128)
    mask, random = mix
    found = masked(ids, mask_token_rate=mask, random_token_rate=random)
    marks = selected(ids, found)
    total, after = marks.sum(), found["token_ids"][marks]
    assert_share((after == MASK).sum(), total, mask + random / SIZE)
    keeps = 1 - mask - random
    assert_share((after == ids[marks]).sum(), total, keeps + random / SIZE)


def test_rates_and_places_bound_what_is_selected():
    ids = rows(200, 100)
    lengths = (ids != PAD).sum(1)
    for rate, places in ((0.3, 100), (0.0, 5), (0.5, 20), (0.001, 3)):
        marks = selected(
            ids, masked(ids, length=places, mask_selection_rate=rate)
        )
        expected = np.clip(np.rint(lengths * rate), 1, places)
        assert (marks.sum(1) == expected).all()


def words_of(row):
    """The word each token belongs to; None at special ones."""
    words, word = [], -1
    for index, token in enumerate(row):
        if token in (PAD, CLS, SEP, MASK):
            words.append(None)
            continue
        goes_on = token >= 5 + WORDS and index and words[-1] is not None
        word += 0 if goes_on else 1
        words.append(word)
    return words


# Runs may stop at the end of a word for want of places: no bound was promised.
@pytest.mark.parametrize(("max_ngram", "least"), [(1, 0.97), (3, 0.95)])
def test_whole_words_are_selected_together(max_ngram, least):
    ids = rows(300, 128)
    marks = selected(ids, masked(ids, whole_words=True, max_ngram=max_ngram))
    budget = np.clip(np.rint((ids != PAD).sum(1) * 0.15), 1, 80)
    assert (marks.sum(1) >= 1).all() and (marks.sum(1) <= budget).all()
    assert marks.sum() > least * budget.sum()
    for row, row_marks in zip(ids, marks, strict=True):
        words = words_of(row)
        taken = {w for w, m in zip(words, row_marks, strict=True) if m}
        whole = [w is not None and w in taken for w in words]
        assert row_marks.tolist() == whole


def test_a_word_too_long_to_fit_is_still_taken_where_nothing_else_is():
    first, part = 5, 5 + WORDS
    ids = np.array([[CLS, first, part, part, part, SEP]], "int32")
    marks = selected(ids, masked(ids, whole_words=True))
    assert marks.tolist() == [[False, True, True, True, True, False]]
    marks = selected(ids, masked(ids, length=2, whole_words=True))
    assert marks.tolist() == [[False, True, True, False, False, False]]


def test_the_rest_of_a_word_whose_start_was_cut_off_is_a_word():
    part = 5 + WORDS
    ids = np.array([[CLS, part, part, SEP, part, SEP]], "int32")
    for seed in range(20):
        marks = selected(ids, masked(ids, seed=(seed, 0), whole_words=True))
        assert marks.tolist() in (
            [[False, True, True, False, False, False]],
            [[False, False, False, False, True, False]],
        )


def test_runs_of_neighbours_are_as_long_as_their_chances_say():
    ids = rows(1500, 512)
    marks = selected(ids, masked(ids, max_ngram=3, mask_selection_rate=0.04))
    edges = np.diff(np.pad(marks, [(0, 0), (1, 1)]).astype(int), axis=1)
    starts, ends = np.nonzero(edges == 1)[1], np.nonzero(edges == -1)[1]
    lengths = np.bincount(ends - starts, minlength=7)
    # Chances are as 1, 1/2 and 1/3; what is longer is runs side by side.
    assert abs(lengths[2] / lengths[1] - 1 / 2) < 0.1
    assert abs(lengths[3] / lengths[1] - 1 / 3) < 0.1
    assert lengths[4:].sum() < 0.1 * lengths.sum()


@pytest.mark.parametrize("unit", [{}, {"whole_words": True, "max_ngram": 3}])
def test_masks_are_a_function_of_seed_and_row(unit):
    ids = rows(8, 64)
    together = masked(ids, seed=(5, 6), **unit)
    again = masked(ids, seed=(5, 6), **unit)
    other = masked(ids, seed=(5, 7), **unit)
    assert all((together[k] == again[k]).all() for k in together)
    assert (together["mask_positions"] != other["mask_positions"]).any()
    seeds = np.array([[5, 6 + row] for row in range(8)])
    for part in (slice(0, 3), slice(3, 8)):
        alone = masked(ids[part], seed=seeds[part], **unit)
        assert all((together[k][part] == alone[k]).all() for k in together)
    one = masked(ids[2], seed=seeds[2:3], **unit)
    assert all((together[k][2] == one[k]).all() for k in together)


def test_eager_function_and_dataset_agree():
    ids = rows(6, 32)
    masker = TokenMasker(VOCABULARY, 8)
    eager = masker(ids, (1, 2))
    graph = tf.function(masker)(tf.constant(ids), tf.constant([1, 2]))
    dataset = tf.data.Dataset.from_tensors(ids)
    (mapped,) = dataset.map(lambda x: masker(x, (1, 2)))
    for name in eager:
        assert (eager[name].numpy() == graph[name].numpy()).all()
        assert (eager[name].numpy() == mapped[name].numpy()).all()


def test_rows_of_special_tokens_and_short_rows_have_what_they_can():
    ids = np.array([[CLS, SEP, SEP, PAD], [CLS, 7, SEP, PAD]], "int32")
    found = masked(ids, length=6)
    assert found["mask_weights"].sum(1).tolist() == [0, 1]
    assert found["mask_positions"].shape == (2, 6)
    assert found["token_ids"][0].tolist() == ids[0].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_selection_rate": 1.5}, "mask_selection_rate is 1.5"),
        ({"random_token_rate": -0.1}, "random_token_rate is -0.1"),
        ({"random_token_rate": 0.5}, r"\+ random_token_rate is 1.3"),
        ({"mask_selection_length": 0}, "mask_selection_length is 0"),
        ({"max_ngram": 0}, "max_ngram is 0"),
        ({"vocabulary": "vocab.txt"}, "expected a list of pieces"),
    ],
)
def test_what_no_mask_can_be_drawn_with_is_refused(arguments, message):
    usual = {"vocabulary": VOCABULARY, "mask_selection_length": 5}
    with pytest.raises(InputError, match=message):
        TokenMasker(**{**usual, **arguments})
