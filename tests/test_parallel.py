"""Calls at the same time: their order, number and errors."""

import threading
import time

import pytest
import tensorflow as tf

from bert_keras import parallel
from tests.support.run_script import ROOT, run_script


@pytest.fixture(autouse=True)
def one_cpu(monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: ["CPU:0"])


def test_two_calls_run_at_once_and_answers_keep_their_order():
    both = threading.Barrier(2, timeout=20)
    running, most = set(), []

    def answer(number):
        running.add(number)
        most.append(len(running))
        both.wait()  # fails unless another call runs
        time.sleep(0.01 * (number % 2 == 0))  # the second ends first
        running.discard(number)
        return -number

    found = parallel.answer_at_once(answer, iter(range(8)))
    assert list(found) == [-number for number in range(8)]
    assert max(most) == 2


@pytest.mark.parametrize(
    ("devices", "count"), [(["CPU:0", "GPU:0"], 5), (["CPU:0"], 1), ([], 0)]
)
def test_another_device_and_one_batch_use_the_thread_of_the_caller(
    devices, count, monkeypatch
):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: devices)
    found = parallel.answer_at_once(
        lambda _: threading.current_thread(), range(count)
    )
    assert list(found) == [threading.current_thread()] * count


def test_an_error_of_a_call_or_of_the_batches_is_raised_and_ends_the_calls():
    called = []

    def fail(number):
        called.append(number)
        time.sleep(0.01)
        raise ValueError(f"no {number}")

    with pytest.raises(ValueError, match="no 0"):
        list(parallel.answer_at_once(fail, range(100)))
    assert len(called) < 50

    def batches():
        yield from range(3)
        raise OSError("no file")

    found = parallel.answer_at_once(abs, batches())
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="no file"):
        next(found)


ENDS = """
import threading, time
from bert_keras import parallel
parallel.count_at_once = lambda: 2

def work():
    time.sleep(0.5)  # the main thread has ended
    print(list(parallel.answer_at_once(abs, [-1, -2, -3])))

threading.Thread(target=work).start()
"""


def test_a_thread_that_outlives_the_main_thread_gets_answers():
    done = run_script("-c", ENDS, folder=ROOT)
    assert done.stdout == "[1, 2, 3]\n", done.stderr
