"""Answers by Apache Beam, on its own runner and on Dask."""

import json
import os
import random
import signal
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from bert_keras.serving.load import load_saved_model
from official_tasks.engine import beam_answers
from official_tasks.engine.beam_answers import list_shards
from tests.support.damages import flip
from tests.support.run_script import call_script

REASON = "needs pip install 'bert_keras[beam]'"
pytest.importorskip("apache_beam", reason=REASON)

# Without this location, Beam would download its runner Prism.
DIRECT = "--runner=DirectRunner --prism_location=none"
# By default, a Dask task gets at least 128 items, so one task would get all.
DASK = (
    "--runner=apache_beam.runners.dask.dask_runner.DaskRunner "
    "--dask_partition_size=1"
)
WORDS = "an hour well spent dull and bad good dog".split()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Folder of three files, of 70, 0 and 9 rows."""
    folder, draw = tmp_path_factory.mktemp("inputs"), random.Random(0)
    for name, count in (("a", 70), ("b", 0), ("c", 9)):
        with open(folder / f"{name}.jsonl", "w") as file:
            for number in range(count):
                text = " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))
                row = {"text": text, "id": f"{name}{number}", "year": number}
                file.write(json.dumps(row) + "\n")
    return folder


def predict(model, source, output, *more, beam=None):
    flags = [f"--model={model}", f"--input={source}", f"--output={output}"]
    flags += ["--batch_size=2", "--keep=year", *more]
    if beam:
        flags.append(f"--beam={beam}")
    folder = os.path.dirname(output)
    return call_script("-m", "official_tasks.predict", *flags, folder=folder)


def contents(paths):
    return [open(path, "rb").read() for path in paths]


@pytest.fixture(scope="module")
def alone(classifier_export, inputs, tmp_path_factory):
    """Bytes of the answers of one process to each input file."""
    folder = tmp_path_factory.mktemp("alone")
    paths = [str(folder / f"{name}.jsonl") for name in "abc"]
    for path in paths:
        source = inputs / os.path.basename(path)
        assert predict(classifier_export, source, path).returncode == 0
    return contents(paths)


def test_each_file_gets_the_answers_of_one_process(
    classifier_export, inputs, alone, tmp_path
):
    output = str(tmp_path / "out.jsonl")
    done = predict(classifier_export, inputs / "*", output, beam=DIRECT)
    assert done.returncode == 0, done.stderr
    shards = list_shards(output, 3)
    assert shards[2] == str(tmp_path / "out-00002-of-00003.jsonl")
    assert contents(shards) == alone
    assert alone[1] == b"" and alone[0].count(b"\n") == 70
    assert shards[0] in done.stderr.replace("\n", "")


def test_tables_have_a_column_of_ids(classifier_export, inputs, tmp_path):
    output = str(tmp_path / "out.csv")
    done = predict(classifier_export, inputs / "c*", output, beam=DIRECT)
    assert done.returncode == 0, done.stderr
    [shard] = contents(list_shards(output, 1))
    header, first, *_ = shard.decode().splitlines()
    assert header.startswith("id,year,text,label,")
    assert first.startswith("c0,0,")


def test_the_same_call_answers_only_what_is_missing(
    classifier_export, inputs, alone, tmp_path
):
    output = str(tmp_path / "out.jsonl")
    shards = list_shards(output, 3)
    with open(shards[0], "w") as file:
        file.write("mine")
    arguments = classifier_export, inputs / "*", output
    done = predict(*arguments, beam=DIRECT)
    assert done.returncode == 2 and f"{shards[0]} exists" in done.stderr
    os.remove(shards[0])
    assert predict(*arguments, beam=DIRECT).returncode == 0
    os.remove(shards[0])
    before = os.stat(shards[2])
    assert predict(*arguments, beam=DIRECT).returncode == 0
    assert contents(shards) == alone
    assert os.stat(shards[2]).st_mtime_ns == before.st_mtime_ns
    done = predict(*arguments, "--signature=tokenize", beam=DIRECT)
    assert done.returncode == 2 and contents(shards) == alone
    flip(tmp_path / os.path.basename(shards[2]), None)
    assert predict(*arguments, "--overwrite", beam=DIRECT).returncode == 0
    assert contents(shards) == alone


def test_a_runner_that_loses_rows_is_named(
    classifier_export, inputs, tmp_path, monkeypatch
):
    count = beam_answers._CountRows.__call__

    def one_more(task, item):
        file, (number, rows, has_id) = count(task, item)
        return file, (number, rows + 1, has_id)

    monkeypatch.setattr(beam_answers._CountRows, "__call__", one_more)
    output = str(tmp_path / "out.jsonl")
    done = predict(classifier_export, inputs / "c*", output, beam=DIRECT)
    assert done.returncode == 2
    assert "expected the answers to 10 rows, got 9" in done.stderr
    assert not os.path.exists(list_shards(output, 1)[0])


@pytest.mark.parametrize(
    "flag", ["--input=-", "--input=tfds:imdb_reviews", "--output=-"]
)
def test_a_pipe_or_a_data_set_is_refused(
    classifier_export, inputs, tmp_path, flag
):
    output = str(tmp_path / "out.jsonl")
    done = predict(
        classifier_export,
        inputs / "c.jsonl",
        output,
        *(flag, "--format=jsonl"),
        beam=DIRECT,
    )
    assert done.returncode == 2
    assert f"{flag.replace('=', ' is ')}, but --beam" in done.stderr


def test_run_inference_answers_as_the_model(classifier_export):
    import apache_beam as beam
    from apache_beam.ml.inference.base import RunInference
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.testing.util import assert_that

    from bert_keras import SavedModelHandler

    texts = ["an hour well spent", "a dog", "bad " * 30] * 5
    expected = load_saved_model(classifier_export).classify(texts)
    loaded = []

    class Handler(SavedModelHandler):
        def load_model(self):
            loaded.append(self)
            return super().load_model()

    def check(results):
        assert len(results) == len(texts)
        by_text = {result.example: result.inference for result in results}
        for text, label, row in zip(
            texts, expected["label"], expected["probabilities"], strict=True
        ):
            assert by_text[text]["label"] == label
            np.testing.assert_allclose(
                by_text[text]["probabilities"], row, atol=1e-6
            )

    handler = SavedModelHandler(classifier_export, batch_size=4)
    options = PipelineOptions(DIRECT.split())
    with beam.Pipeline(options=options) as pipeline:
        results = pipeline | beam.Create(texts) | RunInference(handler)
        assert_that(results, check)
    # Rows of one length share a batch.
    batches = []
    handler.run_inference(
        ["a" * n for n in (9, 1, 8, 2)] * 2, lambda x: batches.append(x) or {}
    )
    assert [sorted(map(len, batch)) for batch in batches] == [
        [1, 1, 2, 2],
        [8, 8, 9, 9],
    ]


@pytest.mark.long
def test_two_workers_of_dask_answer_though_one_is_killed(
    classifier_export, inputs, alone, tmp_path
):
    dask = pytest.importorskip(
        "distributed", reason="needs pip install 'bert_keras[dask]'"
    )
    output = str(tmp_path / "out.jsonl")
    shards = list_shards(output, 3)
    killed = []

    def kill_one(workers):
        while not any(map(os.path.exists, shards)):
            time.sleep(0.01)
        killed.append(workers[0])
        os.kill(workers[0], signal.SIGKILL)

    with dask.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        client = dask.Client(cluster)
        pids = list(client.run(os.getpid).values())
        threading.Thread(target=kill_one, args=[pids], daemon=True).start()
        address = f"--dask_client_address={cluster.scheduler_address}"
        done = predict(
            classifier_export, inputs / "*", output, beam=f"{DASK} {address}"
        )
        # Beam leaves clients open. Without any, `default_client` raises.
        with suppress(ValueError):
            for _ in range(10):
                dask.default_client().close()
    assert done.returncode == 0, done.stderr
    assert killed and contents(shards) == alone
