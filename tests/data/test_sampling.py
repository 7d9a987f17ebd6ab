import random

import numpy as np
import pytest
from scipy import stats

from bert_keras.data.batches import pretraining_dataset
from bert_keras.data.examples import DrawnExamples, block_sizes
from bert_keras.data.sampling import (
    Pairs,
    SamplingRules,
    draw_pairs,
    gather,
    truncate,
)
from bert_keras.data.shards import write_records
from bert_keras.text.masking import choose_words, generator, mask_rows
from tests.support.data_samples import numbers, write_store
from tests.support.published_rules import (
    masked,
    masked_words,
    pairs_of_document,
    shortened,
)

pytestmark = pytest.mark.fast

# If two samples follow the same rule, 1 of 10,000 tests has a p-value below
# this number.
CHANCE = 1e-4


@pytest.fixture(scope="module")
def documents():
    return numbers()


@pytest.fixture(scope="module")
def store(documents, tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("store"), documents)


def drawn(store, rules, times):
    """Draw bert_keras's pairs in `times` passes over all documents."""
    found = [
        draw_pairs(store, 0, store.num_documents, rules, generator(7, turn))
        for turn in range(times)
    ]
    return Pairs(*map(np.concatenate, zip(*found, strict=True)))


def published(documents, rules, times):
    """Yield the original's [(A length, B length, is random)] per document."""
    random_ = random.Random(3)
    room = rules.sequence_length - 3
    for _ in range(times):
        for own in range(len(documents)):
            found = pairs_of_document(
                documents, own, room, rules.short_probability, random_
            )
            yield [(len(a), len(b), label) for a, b, label in found]


def assert_same_rule(ours, theirs):
    """Compare two samples `(N, 3)`; columns: A length, B length, label."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    random_ours, random_theirs = ours[:, 2].sum(), theirs[:, 2].sum()
    table = [
        [random_ours, len(ours) - random_ours],
        [random_theirs, len(theirs) - random_theirs],
    ]
    assert stats.chi2_contingency(table).pvalue > CHANCE
    for label in (0, 1):
        mine = ours[ours[:, 2] == label]
        other = theirs[theirs[:, 2] == label]
        for measure in (
            lambda x: x[:, 0],
            lambda x: x[:, 1],
            lambda x: x.sum(1),
        ):
            pvalue = stats.ks_2samp(measure(mine), measure(other)).pvalue
            assert pvalue > CHANCE


@pytest.mark.parametrize("length", [16, 64])
def test_pairs_follow_the_published_rule(store, documents, length):
    rules = SamplingRules(length, max_predictions=3, short_probability=0)
    ours = drawn(store, rules, 20)
    theirs = sum(published(documents, rules, 20), [])
    assert len(ours.labels) == pytest.approx(len(theirs), rel=0.02)
    assert_same_rule(
        np.stack([ours.a_length, ours.b_length, ours.labels], 1), theirs
    )


def test_short_targets_follow_the_published_rule(store, documents):
    # Compare one pair per document, because all pairs of a document share one
    # target length.
    rules = SamplingRules(64, short_probability=0.5)
    starts = store.sentences[store.documents]
    ours = []
    for turn in range(60):
        rng = generator(8, turn)
        pairs = draw_pairs(store, 0, store.num_documents, rules, rng)
        own = np.searchsorted(starts, pairs.a_start, "right")
        first = pairs[np.unique(own, return_index=True)[1]]
        ours.append(np.stack([first.a_length, first.b_length, first.labels], 1))
    theirs = [found[0] for found in published(documents, rules, 60)]
    assert_same_rule(np.concatenate(ours), theirs)


def test_a_true_next_is_the_text_that_follows(store):
    rules = SamplingRules(64)
    pairs = drawn(store, rules, 1)
    true = pairs.labels == 0
    gap = pairs.b_start - pairs.a_start - pairs.a_length
    untouched = pairs.a_length + pairs.b_length < 61
    assert (gap[true] >= 0).all()
    assert (gap[true & untouched] == 0).all()


def test_a_random_next_is_from_another_document(store):
    pairs = drawn(store, SamplingRules(64), 5)
    starts = store.sentences[store.documents]
    own = np.searchsorted(starts, pairs.a_start, "right")
    other = np.searchsorted(starts, pairs.b_start, "right")
    last = np.searchsorted(starts, pairs.b_start + pairs.b_length - 1, "right")
    assert ((own != other) == (pairs.labels == 1)).all()
    assert (other == last).all()  # B is from one document


def test_every_other_document_is_as_likely(store):
    pairs = drawn(store, SamplingRules(64), 60)
    starts = store.sentences[store.documents]
    other = pairs.b_start[pairs.labels == 1]
    other = np.searchsorted(starts, other, "right") - 1
    own = pairs.a_start[pairs.labels == 1]
    own = np.searchsorted(starts, own, "right") - 1
    count = store.num_documents
    draws = np.bincount(own, minlength=count)
    expected = (draws.sum() - draws) / (count - 1)
    found = np.bincount(other, minlength=count)
    assert stats.chisquare(found, expected).pvalue > CHANCE


def test_truncation_takes_from_the_longer_segment_at_both_ends():
    random_ = random.Random(0)
    for room in (5, 60, 61):
        lengths = [
            (random_.randint(1, 130), random_.randint(1, 130))
            for _ in range(500)
        ]
        a, b = np.array(lengths).T
        zero = np.zeros_like(a)
        ours = truncate(Pairs(zero, a, zero, b, zero), room, generator(1))
        theirs = [
            shortened(list(range(x)), list(range(y)), room, random_)
            for x, y in lengths
        ]
        assert ours.a_length.tolist() == [len(x) for x, _ in theirs]
        assert ours.b_length.tolist() == [len(y) for _, y in theirs]
        assert ours.a_length.min() >= 1 and ours.b_length.min() >= 1
        mine = np.concatenate([ours.a_start, ours.b_start])
        other = [side[0] for pair in theirs for side in pair]
        assert stats.ks_2samp(mine, other).pvalue > CHANCE


def test_rows_are_cls_a_sep_b_sep_and_padding(store):
    rules = SamplingRules(16, max_predictions=3)
    field = np.array
    pairs = Pairs(field([3]), field([2]), field([9]), field([4]), field([1]))
    rows = gather(
        store.tokens, pairs, rules.sequence_length, store.masking_vocabulary
    )
    a, b = store.tokens[3:5].tolist(), store.tokens[9:13].tolist()
    ids = [2, *a, 3, *b, 3]
    assert rows["token_ids"].tolist() == [ids + [0] * 7]
    assert rows["segment_ids"].tolist() == [[0] * 4 + [1] * 5 + [0] * 7]
    assert rows["padding_mask"].tolist() == [[1] * 9 + [0] * 7]
    assert rows["next_sentence_labels"].tolist() == [1]


def sample_rows(store, rules, count=4_000):
    pairs = drawn(store, rules, 6)[slice(count)]
    return gather(
        store.tokens, pairs, rules.sequence_length, store.masking_vocabulary
    )


@pytest.mark.parametrize("most", [3, 9, 20])
def test_masks_follow_the_published_rule(store, most):
    rules = SamplingRules(64, max_predictions=most, short_probability=0.5)
    rows = sample_rows(store, rules)
    ours = mask_rows(rows, rules, store.masking_vocabulary, generator(5))
    random_ = random.Random(5)
    special = {0, 2, 3}
    kinds = np.zeros((2, 3), int)  # (ours, original) x (masked, kept, other)
    where = [[], []]
    for i, row in enumerate(rows["token_ids"].tolist()):
        row = row[: rows["padding_mask"][i].sum()]
        result, truth = masked(row, special, most, 0.15, 1_000, 4, random_)
        positions = ours["mask_positions"][i][ours["mask_weights"][i] == 1]
        assert len(truth) == len(positions)
        assert sorted(set(positions)) == positions.tolist()
        for side, (places, values) in enumerate(
            ((positions, ours["token_ids"][i]), (truth, result))
        ):
            where[side].extend(place / len(row) for place in places)
            for place in places:
                kept = values[place] == row[place]
                kinds[side, 0 if values[place] == 4 else 1 + (not kept)] += 1
    assert stats.chi2_contingency(kinds).pvalue > CHANCE
    assert stats.ks_2samp(*where).pvalue > CHANCE


def test_masks_touch_words_only_and_keep_the_truth(store):
    rules = SamplingRules(64)
    rows = sample_rows(store, rules, 500)
    ours = mask_rows(rows, rules, store.masking_vocabulary, generator(5))
    changed = ours["token_ids"] != rows["token_ids"]
    assert not changed[np.isin(rows["token_ids"], [0, 2, 3])].any()
    at = np.take_along_axis(rows["token_ids"], ours["mask_positions"], 1)
    real = ours["mask_weights"] == 1
    assert (ours["mask_ids"][real] == at[real]).all()
    assert not ours["mask_ids"][~real].any()
    assert not ours["mask_positions"][~real].any()
    whole, (row, place) = ours["token_ids"].copy(), np.nonzero(real)
    truth = ours["mask_ids"][row, place]
    whole[row, ours["mask_positions"][row, place]] = truth
    assert (whole == rows["token_ids"]).all()
    none = mask_rows(
        rows,
        SamplingRules(64, mask_rate=0),
        store.masking_vocabulary,
        generator(5),
    )
    assert (none["mask_weights"].sum(1) == 1).all()  # at least one


def test_words_are_masked_whole(store):
    rules = SamplingRules(64, mask_mix=(100, 0, 0), whole_word=True)
    rows = sample_rows(store, rules, 1_000)
    ours = mask_rows(rows, rules, store.masking_vocabulary, generator(5))
    single = mask_rows(
        rows, SamplingRules(64), store.masking_vocabulary, generator(5)
    )
    split = []
    for before, after in ((rows, ours), (rows, single)):
        ids, hidden = before["token_ids"], after["token_ids"] == 4
        goes_on = store.masking_vocabulary.continues[ids] & ~np.isin(
            ids, [0, 2, 3]
        )
        goes_on[:, 1:] &= ids[:, :-1] > 3  # [CLS] and [SEP] end a word
        split.append((hidden[:, 1:] != hidden[:, :-1])[goes_on[:, 1:]].mean())
    assert split[0] == 0 and split[1] > 0.1
    full = ours["mask_weights"].sum(1) == single["mask_weights"].sum(1)
    assert full.mean() > 0.95


def words_of(row, length, continues):
    """Return the words of each segment of a row, as lists of positions."""
    segments = [[]]
    for place in range(length):
        if row[place] in (2, 3):
            segments.append([])
        elif continues[row[place]] and segments[-1]:
            segments[-1][-1].append(place)
        else:
            segments[-1].append([place])
    return segments


def runs_of(places):
    """Return the lengths of the runs of consecutive positions."""
    places = np.sort(np.fromiter(places, int))
    ends = np.flatnonzero(np.diff(places, append=-9) != 1)
    return np.diff(ends, prepend=-1)


def test_whole_words_follow_the_published_rule(store):
    rules = SamplingRules(64, whole_word=True, short_probability=0.3)
    rows = sample_rows(store, rules, 3_000)
    ours = mask_rows(rows, rules, store.masking_vocabulary, generator(5))
    random_ = random.Random(6)
    runs = np.zeros((2, 12), int)
    counts, where = [[], []], [[], []]
    for i, row in enumerate(rows["token_ids"].tolist()):
        length = int(rows["padding_mask"][i].sum())
        count = min(20, max(1, round(length * 0.15)))
        segments = words_of(row, length, store.masking_vocabulary.continues)
        theirs = masked_words(segments, count, random_)
        if not theirs:  # no word fits: bert_keras masks single tokens
            continue
        mine = ours["mask_positions"][i][ours["mask_weights"][i] == 1]
        for side, places in enumerate((mine, theirs)):
            np.add.at(runs[side], np.minimum(runs_of(places), 12) - 1, 1)
            counts[side].append(len(places))
            where[side].extend(place / length for place in places)
    runs = runs[:, runs.min(0) > 5]
    assert runs.shape[1] > 4
    assert stats.chi2_contingency(runs).pvalue > CHANCE
    assert stats.ks_2samp(*where).pvalue > CHANCE
    assert np.mean(counts[0]) == pytest.approx(np.mean(counts[1]), abs=0.01)


@pytest.mark.parametrize("kind", ["store", "records"])
@pytest.mark.parametrize("mix", [(80, 10, 10), (0, 20, 80), (0, 100, 0)])
def test_a_mix_of_masks_holds_in_both_kinds_of_data(store, tmp_path, kind, mix):
    rules = SamplingRules(64, 9, mask_mix=mix)
    source = store.folder
    if kind == "records":
        source = str(tmp_path)
        write_records(store, source, rules, 1)
    counts = np.zeros(3, int)  # masked, random token, kept
    data = pretraining_dataset(source, 256, 3, rules=rules)
    for x, y, w in data.take(4):
        real = w["mlm"].numpy() == 1
        ids, places = x["token_ids"].numpy(), x["mask_positions"].numpy()
        found = np.take_along_axis(ids, places, 1)[real]
        truth = y["mlm"].numpy()[real]
        masked_ = found == 4
        kept = (found == truth) & ~masked_
        counts += [masked_.sum(), (~masked_ & ~kept).sum(), kept.sum()]
    for count, percent in zip(counts, mix, strict=True):
        # 1 in 1,000 random tokens is the true one, and 1 in 1,000 is [MASK].
        low = stats.binom.ppf(CHANCE, counts.sum(), percent / 100 * 0.998)
        most = min(1, percent / 100 + 1e-3)
        high = stats.binom.ppf(1 - CHANCE, counts.sum(), most)
        assert low <= count <= high


def test_an_epoch_is_what_fills_sequences_and_is_drawn_again(store):
    rules = SamplingRules(64)
    examples = DrawnExamples(store, rules, 3)
    size = examples.windows.epoch_size
    assert size == block_sizes(store, rules).sum()
    assert size * 61 == pytest.approx(len(store.tokens), rel=0.05)
    first, again = examples.load(0, 0), examples.load(0, 0)
    other = examples.load(1, 0)
    assert len(first.labels) == len(other.labels) == size
    assert (first.a_start == again.a_start).all()
    assert (first.a_start != other.a_start).mean() > 0.9


def test_a_window_that_lacks_pairs_draws_more(tmp_path):
    # Each sentence fills a sequence, so it gives one pair.
    store = write_store(tmp_path, [[[5] * 61] * 9, [[6] * 61] * 9])
    examples = DrawnExamples(store, SamplingRules(64), 0)
    examples.windows._sizes = examples.windows._sizes * 3
    examples.windows.epoch_size *= 3
    assert len(examples.load(0, 0).labels) == 54


def test_where_no_word_is_short_enough_tokens_are_chosen():
    word = np.array([[False, True, True, True, False]] * 100)
    starts = word & (np.arange(5) == 1)  # one word of three tokens
    chosen = choose_words(word, starts, np.ones(100, int), generator(0))
    assert (chosen.sum(1) == 1).all() and not (chosen & ~word).any()
    assert chosen.any(0).sum() == 3
