"""Calls at the same time: their order, number and errors."""

import threading
import time

import pytest

from bert_keras.parallel import AT_ONCE, answer_at_once

pytestmark = pytest.mark.fast


def test_two_calls_run_at_once_and_answers_keep_their_order():
    both = threading.Barrier(AT_ONCE, timeout=20)
    running, most, taken = set(), [], []

    def answer(number):
        running.add(number)
        most.append(len(running))
        both.wait()  # fails unless another call runs
        time.sleep(0.01 * (number % 2 == 0))  # the second ends first
        running.discard(number)
        return -number

    def numbers():
        for number in range(8):
            taken.append(number)
            yield number

    found = []
    for value in answer_at_once(answer, numbers()):
        found.append(value)
        assert len(taken) <= len(found) + AT_ONCE
    assert found == [-number for number in range(8)]
    assert max(most) == AT_ONCE
    assert list(answer_at_once(answer, [])) == []


def test_an_error_ends_the_calls():
    called = []

    def fail(number):
        called.append(number)
        raise ValueError(f"no {number}")

    with pytest.raises(ValueError, match="no 0"):
        list(answer_at_once(fail, range(100)))
    assert len(called) <= AT_ONCE + 1
