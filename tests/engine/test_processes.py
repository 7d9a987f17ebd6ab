"""Several jobs at once, each in a process of its own; the bars of all."""

import os
import signal
import sys
import threading
import time

import forks
import pytest

from bert_keras.errors import InputError
from official_tasks import progress, stopping
from official_tasks.engine.processes import (
    THREADS,
    in_a_process,
    workers,
)


def refuse():
    raise InputError(f"refused by {os.getpid()}")


def test_every_job_has_a_process_of_its_own():
    first = in_a_process(os.getpid)
    with pytest.raises(InputError, match="refused by") as error:
        in_a_process(refuse)
    second = int(str(error.value).split()[-1])
    assert len({first, second, os.getpid()}) == 3


def test_so_many_jobs_run_at_once_and_begin_in_order():
    begun, both = [], threading.Barrier(2, timeout=60)

    def job(number):
        begun.append(number)
        if number < 2:
            both.wait()  # passes only while the other one runs too
        return number

    with workers(2) as start:
        made = [start(job, number) for number in range(4)]
        assert [each.result() for each in made] == [0, 1, 2, 3]
    assert sorted(begun[:2]) == [0, 1] and begun[2:] == [2, 3]


def test_one_job_at_a_time_runs_where_it_is_started():
    with workers(1) as start:
        made = start(threading.get_ident)
        assert made.done() and made.result() == threading.get_ident()
        with pytest.raises(InputError):
            start(refuse)


def test_after_an_error_no_other_job_begins():
    begun, wait = [], threading.Event()

    def job(number):
        begun.append(number)
        if number == 0:
            refuse()
        wait.wait(60)

    with pytest.raises(InputError), workers(2) as start:
        made = [start(job, number) for number in range(9)]
        threading.Timer(1, wait.set).start()
        made[0].result()
    assert len(begun) < 5


def environment():
    return dict(os.environ)


def test_jobs_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    before = environment()
    assert set(map(in_a_process(environment, jobs=3).get, THREADS)) == {"2"}
    alone = in_a_process(environment)
    assert [alone.get(n) for n in THREADS] == [before.get(n) for n in THREADS]
    assert os.environ == before


def wait_for_end(marks):
    def save(*_):
        open(os.path.join(marks, f"saved-{os.getpid()}"), "w").close()
        sys.exit(75)

    signal.signal(signal.SIGTERM, save)
    open(os.path.join(marks, f"begun-{os.getpid()}"), "w").close()
    time.sleep(60)


def two_waiting(marks):
    stopping.install()
    with stopping.work(), workers(2) as start:
        made = [start(in_a_process, wait_for_end, marks) for _ in range(3)]
        for each in made:
            each.result()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_to_the_jobs(tmp_path, number):
    parent = forks.CONTEXT.Process(target=two_waiting, args=(str(tmp_path),))
    parent.start()
    limit = time.monotonic() + 60
    while len(os.listdir(tmp_path)) < 2 and time.monotonic() < limit:
        time.sleep(0.1)
    os.kill(parent.pid, number)
    parent.join(60)
    assert parent.exitcode == 75
    marks = sorted(name.split("-")[0] for name in os.listdir(tmp_path))
    assert marks == ["begun", "begun", "saved", "saved"]


def test_text_of_the_user_is_shown_as_it_is(capsys):
    progress.console.print("note: [/b] and [red]")
    with progress.bar("Reading [/b]") as update:
        update(1, 2, note="[red]")
    shown = capsys.readouterr().out
    assert "note: [/b] and [red]" in shown
    assert "Reading [/b]" in shown and shown.rstrip().endswith("[red]")
