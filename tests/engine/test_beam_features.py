"""Features by Apache Beam, against those of one process."""

import sys

import numpy as np
import pytest

from bert_keras.errors import InputError
from official_tasks.engine import beam_features
from official_tasks.engine.beam_shards import list_shards
from tests.support.beam_runners import DIRECT, dask_workers
from tests.support.run_script import ROOT, call_script
from tests.support.task_samples import sentences


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Folder of two files: of 300 texts, which are two parts, and of 7."""
    folder = tmp_path_factory.mktemp("inputs")
    for name, count in (("a", 300), ("b", 7)):
        lines = [text for text, _ in sentences(count)]
        (folder / f"{name}.txt").write_text("\n".join(lines))
    return folder


def extract(folder, model, source, output, *more):
    return call_script(
        ROOT / "tools" / "extract_features.py",
        *(f"--model={model}", f"--input={source}", f"--output={output}"),
        *("--recipe=embeddings", "--per=word_mean", *more),
        folder=folder,
    )


@pytest.fixture(scope="module")
def alone(toy_model, inputs, tmp_path_factory):
    """Ending -> bytes of the features of each file by one process."""
    folder = tmp_path_factory.mktemp("alone")
    found = {}
    for ending in ("npz", "tfrecord"):
        found[ending] = []
        for name in "ab":
            output, source = folder / f"{name}.{ending}", inputs / f"{name}.txt"
            done = extract(folder, toy_model, source, output)
            assert done.returncode == 0, done.stderr
            found[ending].append(output.read_bytes())
    return found


def contents(paths):
    return [open(path, "rb").read() for path in paths]


@pytest.mark.parametrize("ending", ["npz", "tfrecord"])
def test_each_file_gets_the_features_of_one_process(
    toy_model, inputs, alone, tmp_path, ending
):
    output = tmp_path / f"out.{ending}"
    arguments = tmp_path, toy_model, inputs / "*.txt", output
    done = extract(*arguments, f"--beam={DIRECT}")
    assert done.returncode == 0, done.stderr
    shards = list_shards(str(output), 2)
    assert contents(shards) == alone[ending]
    assert shards[0] in done.stdout + done.stderr
    if ending == "npz":
        with np.load(shards[0]) as arrays:
            assert len(arrays["row_splits"]) == 301
    # The same command is finished, and another one is refused.
    assert extract(*arguments, f"--beam={DIRECT}").returncode == 0
    done = extract(*arguments, f"--beam={DIRECT}", "--vectors_dtype=float16")
    assert done.returncode == 2 and "--overwrite" in done.stderr
    assert contents(shards) == alone[ending]


def test_an_interrupted_call_makes_only_the_missing_parts(
    toy_model, inputs, alone, tmp_path, monkeypatch
):
    output = tmp_path / "out.npz"
    arguments = tmp_path, toy_model, inputs / "*.txt", output
    handler, made = beam_features._ExtractorHandler, []
    run_inference = handler.run_inference

    def stop(*_):
        raise InputError("stopped")

    def watch(self, batch, model, inference_args=None):
        make = model.make_part
        with monkeypatch.context() as patch:
            patch.setattr(
                model, "make_part", lambda *x: made.append(x) or make(*x)
            )
            return run_inference(self, batch, model)

    monkeypatch.setattr(handler, "run_inference", watch)
    with monkeypatch.context() as patch:
        patch.setattr(beam_features, "write_features", stop)
        done = extract(*arguments, f"--beam={DIRECT}")
    assert done.returncode == 2 and "stopped" in done.stderr
    parts = [*(tmp_path / "out.npz.parts").glob("0*-part-*")]
    assert made and len(parts) == len(made)
    before = len(made)
    assert extract(*arguments, f"--beam={DIRECT}").returncode == 0
    assert len(made) == 3  # each part once
    assert before <= 3
    assert contents(list_shards(str(output), 2)) == alone["npz"]
    assert not [*(tmp_path / "out.npz.parts").glob("0*")]


def test_words_and_texts_are_other_features(toy_model, tmp_path):
    (tmp_path / "x.conll").write_text("good O\nfilm O\n\nbad O\nbook O\n")
    arguments = tmp_path, toy_model, tmp_path / "x.conll", tmp_path / "out.npz"
    flags = f"--beam={DIRECT}", "--is_split_into_words"
    assert extract(*arguments, flags[0]).returncode == 0
    done = extract(*arguments, *flags)
    assert done.returncode == 2
    assert "is_split_into_words was false" in done.stderr.lower()


def test_a_part_of_other_settings_or_a_damaged_one_is_not_joined(
    toy_model, inputs, alone, tmp_path, monkeypatch
):
    """Workers of a call that was killed may write parts of other settings."""
    output = tmp_path / "out.npz"
    arguments = (
        tmp_path,
        toy_model,
        inputs / "*.txt",
        output,
        f"--beam={DIRECT}",
    )
    folder = tmp_path / "out.npz.parts"

    def stop(*_):
        raise InputError("stopped")

    def stop_before_joining(*more):
        with monkeypatch.context() as patch:
            patch.setattr(beam_features, "write_features", stop)
            assert extract(*arguments, *more).returncode == 2

    stop_before_joining("--recipe=last")
    [old, *_] = folder.glob("000000-part-000000-*")
    content = old.read_bytes()
    stop_before_joining("--overwrite")
    assert not old.exists()
    old.write_bytes(content)
    [part, *_] = folder.glob("000001-part-*")
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    done = extract(*arguments)
    assert done.returncode == 2
    assert f"{part} was changed after" in done.stderr.replace("\n", "")
    part.unlink()
    assert extract(*arguments).returncode == 0
    assert contents(list_shards(str(output), 2)) == alone["npz"]
    assert not [*folder.glob("0*")]


def test_an_input_that_changes_is_named(toy_model, tmp_path, monkeypatch):
    source = tmp_path / "a.txt"
    source.write_text("good film\n")
    read = beam_features._ReadParts.__call__

    def change(task, item):
        yield from read(task, item)
        source.write_text("another film\n")

    arguments = tmp_path, toy_model, source, tmp_path / "out.npz"
    monkeypatch.setattr(beam_features._ReadParts, "__call__", change)
    done = extract(*arguments, f"--beam={DIRECT}")
    assert done.returncode == 2
    assert "a.txt changed while it was read" in done.stderr.replace("\n", " ")
    assert not [*tmp_path.glob("*.npz")]


def test_a_mistake_is_an_error_before_the_pipeline(toy_model, inputs, tmp_path):
    for flag, words in (
        ("--recipe=concat:-30", "-30"),
        ("--model=/none/x", "/none/x"),
        ("--text=x", "only applies to a data set"),
        ("--beam=--runner='x", "No closing quotation"),
    ):
        done = extract(
            *(tmp_path, toy_model, inputs / "a.txt", tmp_path / "out.npz"),
            *(f"--beam={DIRECT}", flag),
        )
        assert done.returncode == 2 and words in done.stderr
        assert "Traceback" not in done.stderr


def test_an_output_may_stand_beside_its_inputs(toy_model, tmp_path):
    """A pattern also matches the folder of the parts."""
    (tmp_path / "a.txt").write_text("good")
    arguments = tmp_path, toy_model, tmp_path / "*", tmp_path / "out.npz"
    (tmp_path / "out.npz.parts").mkdir()
    assert extract(*arguments, f"--beam={DIRECT}").returncode == 0


def test_what_beam_cannot_read_is_refused(
    toy_model, inputs, tmp_path, monkeypatch
):
    (tmp_path / "empty.txt").write_text("\n\n")
    for source, words in (
        ("tfds:imdb_reviews", "--input is tfds:imdb_reviews, but --beam reads"),
        ("-", "--input is -, but --beam reads"),
        (tmp_path / "empty.txt", "empty.txt has no text"),
        (inputs / "c*", "no such file"),
    ):
        output = tmp_path / "out.npz"
        done = extract(tmp_path, toy_model, source, output, f"--beam={DIRECT}")
        assert done.returncode == 2
        assert words in done.stderr.replace("\n", " ")
        assert not [*tmp_path.glob("*.npz")]
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, beam_features.__name__)
    done = extract(
        tmp_path, toy_model, inputs / "a.txt", output, f"--beam={DIRECT}"
    )
    assert done.returncode == 2 and "Beam is not installed" in done.stderr


@pytest.mark.long
def test_two_workers_of_dask_extract(toy_model, inputs, alone, tmp_path):
    output = tmp_path / "out.npz"
    with dask_workers() as (flags, _):
        done = extract(
            *(tmp_path, toy_model, inputs / "*.txt", output), f"--beam={flags}"
        )
    assert done.returncode == 0, done.stderr
    assert contents(list_shards(str(output), 2)) == alone["npz"]
