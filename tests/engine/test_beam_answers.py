"""Answers by Apache Beam, on its own runner and on Dask."""

import json
import os
import random
import signal
import sys
import threading
import time
import types

import numpy as np
import pytest

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.serving import load
from bert_keras.serving.load import load_saved_model
from official_tasks.engine import beam_answers, beam_shards
from official_tasks.engine.beam_shards import list_shards
from tests.support.beam_runners import DIRECT, dask_workers
from tests.support.damages import flip
from tests.support.run_script import call_script

pytestmark = pytest.mark.heavy

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


def test_what_stands_there_is_kept_or_replaced_as_a_whole(
    classifier_export, inputs, alone, tmp_path, monkeypatch
):
    output = str(tmp_path / "out.jsonl")
    shards, others = list_shards(output, 3), list_shards(output, 2)
    for path in (shards[0], others[1]):
        with open(path, "w") as file:
            file.write("mine")
    arguments = classifier_export, inputs / "*", output
    done = predict(*arguments, beam=DIRECT)
    assert done.returncode == 2 and "exists. Name" in done.stderr
    done = predict(*arguments, "--overwrite", beam="--runner=Nope")
    assert done.returncode == 2 and "Beam refuses its flags" in done.stderr
    assert contents([shards[0], others[1]]) == [b"mine"] * 2
    assert predict(*arguments, "--overwrite", beam=DIRECT).returncode == 0
    assert contents(shards) == alone and not os.path.exists(others[1])
    # A finished call repeated answers nothing.
    monkeypatch.setattr(beam_answers, "_answer", None)
    assert predict(*arguments, beam=DIRECT).returncode == 0
    done = predict(*arguments, "--signature=tokenize", beam=DIRECT)
    assert done.returncode == 2 and "--overwrite" in done.stderr
    assert contents(shards) == alone
    flip(tmp_path / os.path.basename(shards[2]), None)
    done = predict(*arguments, beam=DIRECT)
    assert done.returncode == 2 and "was changed or removed" in done.stderr


def test_an_interrupted_call_is_resumed_with_what_is_missing(
    classifier_export, inputs, alone, tmp_path, monkeypatch
):
    output = str(tmp_path / "out.jsonl")
    shards, written = list_shards(output, 3), []
    arguments = classifier_export, inputs / "*", output
    write = beam_shards._WriteShard.__call__
    count = beam_answers._CountRows.__call__

    def record(task, result):
        written.append(result[0])
        return write(task, result)

    def one_more(task, item):
        file, (number, rows, has_id) = count(task, item)
        return file, (number, rows + (file == 2), has_id)

    def stop(*_):
        raise OSError(5, "stopped")

    monkeypatch.setattr(beam_shards._WriteShard, "__call__", record)
    with monkeypatch.context() as patched:
        patched.setattr(beam_answers._CountRows, "__call__", one_more)
        done = predict(*arguments, beam=DIRECT)
    assert done.returncode == 2
    assert "Expected 10 answers of input file 3, got 9" in (
        done.stderr.replace("\n", " ")
    )
    assert not any(map(os.path.exists, shards))
    made = {int(p.name[:6]) for p in (tmp_path / "out.jsonl.parts").glob("0*")}
    written.clear()
    with monkeypatch.context() as patched:  # the call ends among the shards
        patched.setattr(files, "copy", stop)
        assert predict(*arguments, beam=DIRECT).returncode
    assert {*written} == {0, 1, 2} - made
    written.clear()
    assert predict(*arguments, beam=DIRECT).returncode == 0
    assert not written and contents(shards) == alone


def test_an_input_is_never_replaced(classifier_export, inputs, tmp_path):
    source = tmp_path / "out-00000-of-00001.jsonl"
    content = (inputs / "c.jsonl").read_bytes()
    source.write_bytes(content)
    output = str(tmp_path / "out.jsonl")
    done = predict(
        classifier_export, source, output, "--overwrite", beam=DIRECT
    )
    assert done.returncode == 2 and "is an input" in done.stderr
    assert source.read_bytes() == content


def test_nothing_is_removed_without_beam(
    classifier_export, inputs, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    output = str(tmp_path / "out.jsonl")
    [shard] = list_shards(output, 1)
    with open(shard, "w") as file:
        file.write("old")
    done = predict(
        classifier_export, inputs / "c*", output, "--overwrite", beam=DIRECT
    )
    assert done.returncode == 2 and "Beam is not installed" in done.stderr
    assert contents([shard]) == [b"old"]


def test_other_files_are_other_answers(classifier_export, inputs, tmp_path):
    source, output = tmp_path / "in.jsonl", str(tmp_path / "out.jsonl")
    source.write_bytes((inputs / "c.jsonl").read_bytes())
    assert predict(classifier_export, source, output, beam=DIRECT).stderr
    before = contents(list_shards(output, 1))
    with open(source, "a") as file:
        file.write('{"text": "more"}\n')
    done = predict(classifier_export, source, output, beam=DIRECT)
    assert done.returncode == 2
    assert 'input was "1 file, ' in done.stderr.replace("\n", " ")
    assert contents(list_shards(output, 1)) == before


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
        *(flag, "--input_format=jsonl"),
        beam=DIRECT,
    )
    assert done.returncode == 2
    assert f"{flag.replace('=', ' is ')}, but --beam" in done.stderr


def test_run_inference_answers_as_the_model(classifier_export, monkeypatch):
    import apache_beam as beam
    from apache_beam.ml.inference.base import RunInference
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.testing.util import assert_that

    from bert_keras import SavedModelHandler

    texts = ["an hour well spent", "a dog", "bad " * 30] * 5
    expected = load_saved_model(classifier_export).classify(texts)
    loaded = []
    monkeypatch.setattr(
        load,
        "load_saved_model",
        lambda path: loaded.append(path) or load_saved_model(path),
    )

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
    assert loaded == [classifier_export]  # once, though there are bundles
    # Rows of one length share a batch.
    batches = []
    texts = ["a" * n for n in (9, 1, 8, 2)] * 2
    served = types.SimpleNamespace(
        card={
            "default": "classify",
            "signatures": {"classify": {"input_order": ["text"]}},
        },
        classify=lambda x: batches.append(x) or {},
    )
    handler.run_inference(texts, served)
    assert [sorted(map(len, batch)) for batch in batches] == [
        [1, 1, 2, 2],
        [8, 8, 9, 9],
    ]


def test_rows_of_several_inputs_are_dicts():
    from bert_keras import SavedModelHandler

    entry, asked = {"input_order": ["text", "text_pair"]}, []
    served = types.SimpleNamespace(
        card={"default": "classify", "signatures": {"classify": entry}},
        classify=lambda *x: asked.append(x) or {"label": ["a"] * len(x[0])},
    )
    handler = SavedModelHandler("served")
    row = {"text_pair": "b", "text": "a"}
    (answer,) = handler.run_inference([row], served)
    assert asked == [(["a"], ["b"])]
    assert (answer.example, answer.inference) == (row, {"label": "a"})
    for wrong in ("a", ["a", "b"], {"text": "a"}, {"premise": "a"}):
        with pytest.raises(InputError, match="inputs text, text_pair"):
            handler.run_inference([wrong], served)
    entry["input_order"] = ["token_ids"]
    handler.run_inference([[5, 6]], served)  # one input, a list
    assert asked[-1] == ([[5, 6]],)


@pytest.mark.long
def test_two_workers_of_dask_answer_though_one_is_killed(
    classifier_export, inputs, alone, tmp_path
):
    output = str(tmp_path / "out.jsonl")
    shards = list_shards(output, 3)
    killed = []

    def kill_one(workers):
        parts = tmp_path / "out.jsonl.parts"
        while not any(parts.glob("0*-of-*")):
            time.sleep(0.01)
        killed.append(workers[0])
        os.kill(workers[0], signal.SIGKILL)

    with dask_workers() as (flags, pids):
        threading.Thread(target=kill_one, args=[pids], daemon=True).start()
        done = predict(classifier_export, inputs / "*", output, beam=flags)
    assert done.returncode == 0, done.stderr
    assert killed and contents(shards) == alone
