"""Pre-training data made by Apache Beam, on its own runner and on Dask."""

import collections
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from bert_keras.data import beam, building
from bert_keras.data.corpus import Reading, read_documents
from bert_keras.data.pretraining_data import (
    BuildOptions,
    create_from_files,
    create_pretraining_data,
)
from bert_keras.data.sampling import SamplingRules
from bert_keras.errors import InputError
from tests.support.damages import flip
from tests.support.data_samples import (
    contents,
    corpus,
    in_small_parts,
    write_texts,
)
from tests.support.run_script import call_script
from tests.support.script_flags import parse_flags
from tests.support.tfds_samples import write
from tools import create_pretraining_data as script
from tools import train_vocabulary

RULES = SamplingRules(16, 3)
# Without this location, Beam would download its runner Prism.
DIRECT = ["--runner=DirectRunner", "--prism_location=none"]
# By default, a Dask task gets at least 128 items, so one task would get all.
DASK = [
    "--runner=apache_beam.runners.dask.dask_runner.DaskRunner",
    "--dask_partition_size=1",
]
SETTINGS = {"seed": 5, "copies": 2, "held_out_share": 0.3, "records": True}
SETTINGS["rules"] = RULES
OPTIONS = BuildOptions(**SETTINGS)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Folder with text files and a file of JSON lines."""
    folder = tmp_path_factory.mktemp("text")
    documents = corpus(50)
    write_texts(folder, documents[:30])
    (folder / "empty.txt").write_text("\n")
    with open(folder / "more.jsonl", "w", encoding="utf-8") as file:
        for document in documents[30:]:
            file.write(json.dumps({"text": "\n".join(document.paragraphs)}))
            file.write("\n")
    return str(folder)


@pytest.fixture(scope="module")
def local(text, tokenizer, tmp_path_factory):
    """Folder and manifests of a local build."""
    folder = tmp_path_factory.mktemp("local")
    with pytest.MonkeyPatch.context() as patch:
        in_small_parts(patch)
        manifests = create_pretraining_data(
            read_documents(text), tokenizer, str(folder), OPTIONS
        )
    assert len(manifests["train"]["shards"]) > 4
    return folder, manifests


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    in_small_parts(monkeypatch)


def in_a_loop(task, items):
    task = pickle.loads(pickle.dumps(task))  # as if sent to another machine
    for item in reversed(items):
        task(item)
    return ()


def stop_at(limit, made, monkeypatch):
    """Interrupt builds when `made` has `limit` items; None never interrupts."""

    def run(task, items):
        for item in items:
            if len(made) == limit:
                raise KeyboardInterrupt
            made.append(str(task(item)))
        return ()

    monkeypatch.setattr(beam, "make_runner", lambda _: run)


def create(text, tokenizer, folder, beam_flags=DIRECT, **settings):
    return create_from_files(
        text,
        tokenizer,
        str(folder),
        BuildOptions(**SETTINGS | settings),
        Reading(),
        beam.make_runner(beam_flags),
    )


def test_a_build_by_beam_has_the_bytes_of_a_local_one(
    local, text, tokenizer, tmp_path
):
    folder, manifests = local
    assert create(text, tokenizer, tmp_path / "beam") == manifests
    assert contents(tmp_path / "beam") == contents(folder)


# Ends its own process, as kill -9 does, at a call of a function.
KILLED = """
import os, signal, sys
import pytest
from tests.support.data_samples import in_small_parts, toy_tokenizer
from bert_keras.data import beam, building, corpus, pretraining_data, sampling
from bert_keras.data.shards import WriteShard

source, folder, owner, name, number = sys.argv[1:]
owner = {"building": building, "shard": WriteShard}[owner]
function, calls = getattr(owner, name), []

def call(*arguments):
    calls.append(arguments)
    if len(calls) == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments)

setattr(owner, name, call)
in_small_parts(pytest.MonkeyPatch())
options = pretraining_data.BuildOptions(
    seed=5, copies=2, held_out_share=0.3, records=True,
    rules=sampling.SamplingRules(16, 3),
)
run = beam.make_runner(["--runner=DirectRunner", "--prism_location=none"])
pretraining_data.create_from_files(
    source, toy_tokenizer(), folder, options, corpus.Reading(), run
)
"""


@pytest.mark.long
def test_a_killed_build_of_a_data_set_ends_with_the_same_bytes(
    tokenizer, tmp_path, monkeypatch
):
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path / "tfds"))
    rows = [
        {"title": d.name, "text": "\n\n".join(d.paragraphs)} for d in corpus(50)
    ]
    builder = write("wikipedia/20230601.en", {"train": enumerate(rows)})
    source = f"tfds:{builder.data_path}"
    local = tmp_path / "local"
    manifests = create_pretraining_data(
        read_documents(source), tokenizer, str(local), OPTIONS
    )
    assert create(source, tokenizer, tmp_path / "beam") == manifests
    assert contents(tmp_path / "beam") == contents(local)
    folder = tmp_path / "killed"
    for at in (("building", "write_tokens", "3"), ("shard", "__call__", "4")):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, source, str(folder), *at],
            capture_output=True,
            text=True,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
        assert contents(folder) and contents(folder) != contents(local)
    assert create(source, tokenizer, folder) == manifests
    assert contents(folder) == contents(local)


@pytest.mark.long
def test_two_workers_of_dask_write_the_bytes_of_a_local_build(
    local, text, tokenizer, tmp_path
):
    dask = pytest.importorskip(
        "distributed", reason="needs pip install 'bert_keras[dask]'"
    )
    folder, manifests = local
    with dask.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        client = dask.Client(cluster)
        client.run(in_small_parts, pytest.MonkeyPatch())
        flags = [*DASK, f"--dask_client_address={cluster.scheduler_address}"]
        with dask.get_task_stream(client) as stream:
            made = create(text, tokenizer, tmp_path / "beam", beam_flags=flags)
        # Beam leaves clients open. Without any, `default_client` raises.
        with suppress(ValueError):
            for _ in range(10):
                dask.default_client().close()
    assert made == manifests
    assert contents(tmp_path / "beam") == contents(folder)
    # Each file and each shard was a task. Both workers ran tasks.
    tasks = collections.Counter(task["worker"] for task in stream.data)
    shards = sum(len(manifest["shards"]) for manifest in made.values())
    assert tasks.total() >= len(os.listdir(text)) + shards
    assert len(tasks) == 2


def test_a_build_by_beam_resumes_with_what_is_missing(
    local, text, tokenizer, tmp_path, monkeypatch
):
    folder, manifests = local
    made = []
    for limit in (10, 34):
        stop_at(limit, made, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            create(text, tokenizer, tmp_path / "beam")
        # A call that is refused keeps the finished parts.
        with pytest.raises(InputError):
            create(f"{text}/nothing", tokenizer, tmp_path / "beam")
        other = {"held_out_share": 0.2} if limit == 10 else {"copies": 1}
        with pytest.raises(InputError, match=f"{next(iter(other))} was"):
            create(text, tokenizer, tmp_path / "beam", **other)
    stop_at(None, made, monkeypatch)
    assert create(text, tokenizer, tmp_path / "beam") == manifests
    assert contents(tmp_path / "beam") == contents(folder)
    assert len(made) == len(set(made))  # nothing was made twice


def test_a_text_that_changed_after_an_interruption_is_read_again(
    text, tokenizer, tmp_path, monkeypatch
):
    folder = shutil.copytree(text, tmp_path / "text")
    made: list[str] = []
    stop_at(10, made, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        create(str(folder), tokenizer, tmp_path / "beam")
    # The size stays the same.
    changed = (folder / "00.txt").read_text().replace("1", "2")
    (folder / "00.txt").write_text(changed)
    stop_at(None, made, monkeypatch)
    manifests = create(str(folder), tokenizer, tmp_path / "beam")
    documents = read_documents(str(folder))
    local = tmp_path / "local"
    assert manifests == create_pretraining_data(
        documents, tokenizer, str(local), OPTIONS
    )


def test_a_line_of_wrapped_text_may_be_a_sentence(tokenizer, tmp_path):
    path = tmp_path / "poem.txt"
    path.write_text("one two\nthree\n\nfour\nfive six\n")
    for sentences, lengths in (("lines", 4), ("split", 2)):
        tokenise = building.Tokenise(tokenizer, sentences)
        reading = Reading(join_lines=sentences == "split")
        task = building.TokeniseFile(tokenise, reading, ["train"], 0.0)
        target = task((str(path), str(tmp_path / f"{sentences}.npz")))
        with np.load(target) as arrays:
            assert len(arrays["train lengths"]) == lengths


def test_finished_data_of_other_documents_is_refused_and_stays(
    text, tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setattr(beam, "make_runner", lambda _: in_a_loop)
    folder = tmp_path / "beam"
    manifests = create(text, tokenizer, folder)
    before = contents(folder)
    for source, change, named in (
        (f"{text}/*.txt", {}, "other documents"),
        (text, {"held_out_share": 0}, "held_out_share was 0.3 and is now 0"),
        (text, {"copies": 1}, "copies was 2 and is now 1"),
    ):
        with pytest.raises(InputError, match=named):
            create(source, tokenizer, folder, **change)
        assert contents(folder) == before
    # A local build accepts data by Beam. A build by Beam repairs damage.
    documents = read_documents(text)
    again = create_pretraining_data(documents, tokenizer, str(folder), OPTIONS)
    assert again == manifests and contents(folder) == before
    flip(folder / "tokens" / "train" / "tokens.bin", None)
    assert create(text, tokenizer, folder) == manifests
    assert contents(folder) == before


def test_too_few_documents_and_no_beam_are_named(
    text, tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setitem(__import__("sys").modules, "apache_beam", None)
    with pytest.raises(InputError, match=r"\[beam\]"):
        create(text, tokenizer, tmp_path / "out")
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(beam, "make_runner", lambda _: in_a_loop)
    one = os.path.join(text, "00.txt")
    with pytest.raises(InputError, match="at least two documents"):
        create(one, tokenizer, tmp_path / "out", held_out_share=0)
    assert os.listdir(tmp_path) == []


def test_a_vocabulary_by_beam_has_the_bytes_of_a_local_one(text, tmp_path):
    flags = "--min_count=1", "--vocabulary_size=80", f"--input={text}"
    for name, *more in (["local"], ["beam", f"--beam={' '.join(DIRECT)}"]):
        output = f"--output={tmp_path}/{name}/vocab.txt"
        call_script(
            train_vocabulary.__file__, *flags, output, *more, folder=tmp_path
        )
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")
    learned = (tmp_path / "beam" / "vocab.txt").read_text().split()
    assert len(learned) > 40 and any(len(t) > 3 for t in learned[5:])


def test_counts_by_beam_are_those_of_all_files(tmp_path):
    (tmp_path / "a.txt").write_text("Low low\nlower")
    (tmp_path / "b.txt").write_text("lower, Café")
    arguments = str(tmp_path / "*.txt"), Reading(), True, False
    work = tmp_path / "counts"
    counts = beam.count_words_of_files(*arguments, str(work), DIRECT)
    assert counts == {"low": 2, "lower": 2, ",": 1, "café": 1}
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt"]
    # A folder that is there is another one.
    stale = work / "000.json"
    stale.parent.mkdir()
    stale.write_text('{"stale": 9}')
    assert beam.count_words_of_files(*arguments, str(work), DIRECT) == counts
    assert stale.exists()
    (tmp_path / "b.txt").write_bytes(b"\xff")
    with pytest.raises(InputError, match="b.txt, line 1, is not UTF-8") as info:
        beam.count_words_of_files(*arguments, str(work), DIRECT)
    assert "running" not in str(info.value)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt", "counts"]
    with pytest.raises(InputError, match="tfds:x is a data set"):
        beam.count_words_of_files("tfds:x", *arguments[1:], str(work), DIRECT)


def test_workers_are_refused_with_beam():
    words = "--input=t --vocabulary=v --output=o --beam=".split()
    words.append(f"--workers={os.cpu_count() + 1}")
    with pytest.raises(InputError, match="--workers only applies without --be"):
        parse_flags(script.Options, words)
