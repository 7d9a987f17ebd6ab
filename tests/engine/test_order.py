import itertools

import numpy as np

from official_tasks.engine.batches import shuffled


def steps(count, batch_size, seed, first_step, number):
    data = shuffled(count, batch_size, seed, first_step)
    return [rows.numpy().tolist() for rows in data.take(number)]


def test_each_pass_holds_each_row_once_in_another_order():
    rows = list(itertools.chain(*steps(30, 5, 1, 0, 18)))
    passes = [rows[:30], rows[30:60], rows[60:]]
    assert all(sorted(one) == list(range(30)) for one in passes)
    assert passes[0] != passes[1] != passes[2] != list(range(30))


def test_a_batch_that_spans_two_passes_loses_no_row():
    rows = list(itertools.chain(*steps(10, 4, 3, 0, 5)))
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))


def test_the_order_is_a_function_of_seed_and_step():
    whole = steps(100, 7, 5, 0, 20)
    assert steps(100, 7, 5, 13, 7) == whole[13:]
    assert steps(100, 7, 6, 0, 20) != whole


def test_each_row_is_as_likely_at_each_place():
    # The place of row 0 over 400 passes: uniform, by a chi-squared bound.
    rows = np.array(steps(10, 10, 2, 0, 400))  # (pass, place)
    places = np.bincount(np.argwhere(rows == 0)[:, 1], minlength=10)
    assert ((places - 40) ** 2 / 40).sum() < 27.9  # p = 0.001 at 9 degrees
