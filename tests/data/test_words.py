import numpy as np
import pytest
from scipy import stats

from bert_keras.data.sampling import choose_pieces, choose_words, generator

# Two segments of words of 1 to 3 pieces: starts (1), goes on (2), none (0).
LINE = [0, 1, 1, 2, 1, 2, 2, 1, 0, 1, 2, 1, 1, 0, 0, 0]
ROWS = 20_000


def rows(line=LINE, count=ROWS):
    kind = np.tile(line, (count, 1))
    return kind > 0, kind == 1


def runs_of(chosen, starts):
    """The lengths in words of the runs that a row's choice is made of."""
    words = np.flatnonzero(starts & chosen)
    numbers = (np.cumsum(starts) - 1)[words]
    return np.diff(np.flatnonzero(np.diff(numbers, prepend=-9, append=99) > 1))


def test_pieces_are_chosen_evenly_and_as_many_as_asked():
    word, _ = rows()
    count = np.arange(ROWS) % 12 + 1
    chosen = choose_pieces(word, count, generator(0))
    assert not (chosen & ~word).any()
    assert (chosen.sum(1) == np.minimum(count, 11)).all()
    each = chosen.sum(0)[word[0]]
    assert stats.chisquare(each).pvalue > 1e-4


@pytest.mark.parametrize("max_ngram", [1, 3])
def test_words_are_whole_and_fill_what_is_allowed(max_ngram):
    word, starts = rows()
    count = np.arange(ROWS) % 11 + 1
    chosen = choose_words(word, starts, count, max_ngram, generator(1))
    assert not (chosen & ~word).any()
    assert (chosen.sum(1) <= count).all() and chosen.any(1).all()
    number = np.cumsum(starts, axis=1)
    for index in range(1, number.max() + 1):
        own = word & (number == index)
        taken = (own & chosen).sum(1)
        assert set(np.unique(taken)) <= {0, own[0].sum()}
    # Short words are there to fill up nearly to the last.
    assert (chosen.sum(1) == count).mean() > 0.9


def test_single_words_are_as_likely_as_the_published_law_makes_them():
    word, starts = rows()
    count = np.full(ROWS, 4)
    chosen = choose_words(word, starts, count, 1, generator(2))
    first = np.flatnonzero(starts[0])
    ours = chosen[:, first].sum(0)
    stops = [*first[1:], 13]
    sizes = [word[0, a:b].sum() for a, b in zip(first, stops, strict=True)]
    rng = np.random.default_rng(3)
    theirs = np.zeros(len(first))
    for _ in range(ROWS):  # in random order, those that still fit
        used = 0
        for index in rng.permutation(len(first)):
            if used + sizes[index] <= 4:
                used += sizes[index]
                theirs[index] += 1
    table = [[*ours], [*theirs]]
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_runs_stay_in_their_segment_and_have_lengths_as_one_over_n():
    # One run fills the allowance: 30 single-piece words, six at most.
    line = [0] + [1] * 30 + [0] + [1] * 30 + [0]
    word, starts = rows(line, 4_000)
    for size in (1, 2, 3):
        count = np.full(len(word), size)
        chosen = choose_words(word, starts, count, 3, generator(size))
        assert (chosen.sum(1) == size).all()
    lengths = [len(runs_of(c, s)) for c, s in zip(chosen, starts, strict=True)]
    # Of 3 words: one run of 3 first (2/11), else 2 + 1 or 1 + 1 + 1 ..., of
    # which a few lie side by side.
    assert 0.15 < np.mean(np.array(lengths) == 1) < 0.35


def test_where_no_word_is_short_enough_pieces_are_chosen():
    word, starts = rows([0, 1, 2, 2, 0, 1, 2, 0], 100)
    chosen = choose_words(word, starts, np.ones(100, int), 1, generator(0))
    assert (chosen.sum(1) == 1).all()
