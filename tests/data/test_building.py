import dataclasses
import errno
import itertools
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from bert_keras.data import building, workers
from bert_keras.data.building import build_stores
from bert_keras.data.corpus import Document, held_out
from bert_keras.data.pretraining_data import (
    BuildOptions,
    create_pretraining_data,
)
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.shards import WriteShard, write_records
from bert_keras.data.token_store import check_store
from bert_keras.errors import InputError
from bert_keras.text.tokenizer import WordPieceTokenizer
from tests.support.damages import cut, double, empty, flip, remove
from tests.support.data_samples import (
    contents,
    corpus,
    corpus_hash,
    in_small_parts,
)
from tests.support.remote_folder import Killed
from tests.support.run_script import ROOT, waiting_process

pytestmark = pytest.mark.heavy


@pytest.fixture
def small_parts(monkeypatch):
    in_small_parts(monkeypatch)


def test_a_store_holds_the_ids_of_each_sentence(tokenizer, tmp_path):
    documents = [
        Document("a", ["Word1 word2. Word3?", "word4 word5."]),
        Document("b", [" "]),
        Document("c", ["word6.", "", "word7. word8."], True),
    ]
    store = build_stores(documents, tokenizer, str(tmp_path))["train"]
    texts = [
        [store.vocabulary[i] for i in store.tokens[start:stop]]
        for start, stop in zip(
            store.sentences[:-1], store.sentences[1:], strict=True
        )
    ]
    assert texts == [
        ["word1", "word2", "."],
        ["word3", "?"],
        ["word4", "word5", "."],
        ["word6", "."],
        ["word7", ".", "word8", "."],
    ]
    assert store.documents.tolist() == [0, 3, 5]
    assert store.tokens.dtype == np.uint16
    said = {"strip_accents": True, "max_word_length": 200}
    said |= {"keep_special_tokens": False}
    assert said.items() <= store.manifest.items()
    assert store.tokenizer == {"lowercase": True, **said}
    assert store.manifest["documents"] == store.num_documents == 2
    assert store.manifest["sentences"] == 5
    assert store.manifest["corpus_hash"] == corpus_hash(documents)
    check_store(str(tmp_path / "train"))


def test_lines_are_taken_for_sentences(tokenizer, tmp_path):
    documents = corpus(4)
    folder = str(tmp_path / "lines")
    stores = build_stores(documents, tokenizer, folder, sentences="lines")
    paragraphs = [text for d in documents for text in d.paragraphs]
    assert stores["train"].manifest["sentences"] == len(paragraphs)


def test_held_out_documents_are_in_the_other_store(tokenizer, tmp_path):
    documents = corpus()
    stores = build_stores(documents, tokenizer, str(tmp_path), 0.3)
    held = [held_out(document, 0.3) for document in documents]
    assert stores["held_out"].num_documents == sum(held) > 5
    assert stores["train"].num_documents == 60 - sum(held)


def test_named_documents_are_held_out_and_not_trained_on(tokenizer, tmp_path):
    documents = corpus(20)
    kept = [documents[3], documents[7], Document("z", ["Word1 word2."])]
    stores = build_stores(
        documents, tokenizer, str(tmp_path), held_out=iter(kept)
    )
    others = [d for d in documents if d not in kept]
    manifests = {side: store.manifest for side, store in stores.items()}
    assert manifests["held_out"]["corpus_hash"] == corpus_hash(kept)
    assert manifests["train"]["corpus_hash"] == corpus_hash(others)


def test_the_bytes_are_the_same_for_any_number_of_workers(
    tokenizer, tmp_path, small_parts, monkeypatch
):
    monkeypatch.setattr(building, "MIN_ITEMS", 2)
    for number in (1, 2):
        folder = str(tmp_path / str(number))
        build_stores(corpus(), tokenizer, folder, 0.2, workers=number)
    one, two = contents(tmp_path / "1"), contents(tmp_path / "2")
    assert len(one) == 12 and one == two


def test_a_shard_is_the_same_from_any_process_in_any_order(
    tokenizer, tmp_path, small_parts
):
    store = build_stores(corpus(), tokenizer, str(tmp_path))["train"]
    folder = str(tmp_path / "one")
    manifest = write_records(store, folder, SamplingRules(16, 3), 7, copies=2)
    assert len(manifest["shards"]) > 5
    other = str(tmp_path / "two")
    os.mkdir(other)
    write = WriteShard(store, other, SamplingRules(16, 3), 7, 2)
    shards = [
        pickle.loads(pickle.dumps(write))(number)
        for number in reversed(range(len(write.names)))
    ]
    assert shards[::-1] == manifest["shards"]
    numbers = range(len(write.names))
    assert list(map(write.describe, numbers)) == manifest["shards"]


def end(number):
    os._exit(1)


def test_workers_give_results_in_order_and_take_items_as_needed():
    taken = []

    def items():
        for number in range(40):
            taken.append(number)
            yield -number

    found = []
    for result in workers.in_order(abs, items(), 2, 4):
        found.append(result)
        assert len(taken) <= len(found) + 4
    assert found == list(range(40))
    with pytest.raises(TypeError):  # an error in a worker is raised here
        list(workers.in_order(abs, ["x"] * 9, 2, 4))
    with pytest.raises(InputError, match="Use fewer workers"):
        list(workers.in_order(end, itertools.count(), 2, 4))


def test_without_forks_one_process_does_all_the_work(monkeypatch):
    monkeypatch.setattr(
        "multiprocessing.get_all_start_methods", lambda: ["spawn"]
    )
    found = workers.in_order(lambda _: os.getpid(), range(9), 2, 4)
    assert {*found} == {os.getpid()}


def read_gpus(_):
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_workers_leave_gpus_alone_and_other_forks_keep_theirs(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert list(workers.in_order(read_gpus, range(4), 2, 4)) == ["-1"] * 4
    with workers.forks().Pool(1) as pool:
        assert pool.map(read_gpus, [0]) == [None]


# A worker that evaluates this imports no module for it.
HAS_TENSORFLOW = "'tensorflow' in __import__('sys').modules"
ASKS = f"""
from bert_keras.data.workers import in_order

if __name__ == "__main__":
    print(list(in_order(eval, [{HAS_TENSORFLOW!r}] * 2, 2, 1)))
"""


def test_workers_import_tensorflow_only_if_their_parent_has_done_so(tmp_path):
    found = workers.in_order(eval, [HAS_TENSORFLOW] * 2, 2, 1)
    assert list(found) == [True, True]
    path = tmp_path / "asks.py"
    path.write_text(ASKS)
    done = subprocess.run(
        [sys.executable, path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[False, False]\n", done.stderr


WORKERS = """
import itertools, multiprocessing, time
from bert_keras.data.workers import in_order

print("begins", flush=True)
for _ in in_order(time.sleep, itertools.repeat(0.05), 2, 1):
    if len(multiprocessing.active_children()) == 2:
        print("working", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGKILL, "begins"),
        (signal.SIGTERM, "begins"),
        (signal.SIGTERM, "working"),
        pytest.param(*(signal.SIGKILL, "working"), marks=pytest.mark.long),
    ],
)
def test_workers_end_with_their_parent(number, line, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", WORKERS], stdout=subprocess.PIPE, text=True
    )
    assert any(read == f"{line}\n" for read in process.stdout)
    process.send_signal(number)
    # The pipe closes when the last process that holds it ends.
    process.communicate(timeout=60)
    assert process.returncode == -number


@pytest.mark.parametrize(("stage", "call"), [("tokens", 3), ("train", 2)])
def test_a_build_that_was_interrupted_resumes(
    tokenizer, tmp_path, small_parts, stage, call
):
    whole = create(tmp_path / "whole", tokenizer, copies=2)
    calls = []

    def stop(name, *done):
        calls.append(name)
        if name == stage and calls.count(name) == call:
            raise Killed

    with pytest.raises(Killed):
        create(tmp_path / "broken", tokenizer, stop, copies=2)
    again = []
    resumed = create(
        tmp_path / "broken",
        tokenizer,
        lambda *n: again.append(n),
        copies=2,
    )
    assert resumed == whole
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    if stage != "tokens":  # finished shards are not written again
        first = next(done for name, done, _ in again if name == stage)
        assert first == 1


@pytest.mark.parametrize(
    ("stage", "change", "word"),
    [
        ("tokens", {"held_out_share": 0.3}, "held_out_share was 0.2"),
        ("tokens", {"sentences": "lines"}, "sentence_rule"),
        ("train", {"sentences": "lines"}, "sentence_rule"),
        ("train", {"rules": SamplingRules(8, 3)}, "sequence_length was 16"),
        ("train", {"seed": 1}, "seed was 0 and is now 1"),
    ],
)
def test_an_interrupted_build_refuses_other_settings_and_keeps_its_files(
    tokenizer, tmp_path, small_parts, stage, change, word
):
    calls = []

    def stop(name, *_):
        calls.append(name)
        if calls.count(stage) == 3:
            raise Killed

    with pytest.raises(Killed):
        create(tmp_path, tokenizer, stop)
    before = contents(tmp_path)
    assert sum(name.endswith((".npz", ".tfrecord")) for name in before) >= 2
    with pytest.raises(InputError, match=word):
        create(tmp_path, tokenizer, **change)
    assert contents(tmp_path) == before
    create(tmp_path, tokenizer)
    assert not list(tmp_path.rglob("run.json"))


def create(folder, tokenizer, progress=None, documents=None, **options):
    """Create train and held-out data, as token stores and as records."""
    settings = {"rules": SamplingRules(16, 3), "held_out_share": 0.2}
    settings["records"] = True
    return create_pretraining_data(
        documents or corpus(),
        tokenizer,
        str(folder),
        BuildOptions(**settings | options),
        progress=progress,
    )


@pytest.fixture(scope="module")
def built(tokenizer, tmp_path_factory):
    """Folder with finished data, and with data of a killed build."""
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        in_small_parts(patch)
        create(folder / "finished", tokenizer)

        def stop(name, done, _):
            if name == "train" and done == 2:
                raise Killed

        with pytest.raises(Killed):
            create(folder / "killed", tokenizer, stop)
    return folder


def test_a_part_that_cannot_be_read_now_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "part.npz"
    np.savez(path, tokens=np.arange(3))

    def fail(file):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(np, "load", fail)
        with pytest.raises(OSError, match="Input/output"):
            building._read_tokens(str(path))
    assert building._read_tokens(str(path))["tokens"].tolist() == [0, 1, 2]
    path.write_bytes(b"PK")
    with pytest.raises(InputError, match="was damaged"):
        building._read_tokens(str(path))
    assert not path.exists()


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        *(pytest.param(d, marks=pytest.mark.long) for d in (cut, empty)),
        *(pytest.param(d, marks=pytest.mark.long) for d in (remove, double)),
    ],
)
@pytest.mark.parametrize("kind", ["finished", "killed"])
def test_the_same_command_mends_any_damaged_file(
    tokenizer, built, tmp_path, small_parts, kind, damage
):
    whole = contents(built / "finished")
    paths = sorted(p for p in (built / kind).rglob("*.*") if p.is_file())
    kinds = {(p.parent, p.suffix if p.suffix != ".bin" else p) for p in paths}
    assert len(kinds) >= 12
    for path in paths:
        if path.suffix == ".tfrecord" and "00001-of" not in path.name:
            continue  # it is enough to damage one shard
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        shutil.copytree(built / kind, tmp_path / "data")
        other = next(p for p in paths if p.name != path.name)
        place = tmp_path / "data" / path.relative_to(built / kind)
        damage(place, other)
        create(tmp_path / "data", tokenizer)
        assert contents(tmp_path / "data") == whole, place


def test_shards_of_unknown_settings_are_written_again(
    tokenizer, built, tmp_path, small_parts
):
    """Without run.json, the shards may be of another seed."""
    shutil.copytree(built / "killed", tmp_path / "data")
    os.remove(tmp_path / "data" / "train" / "run.json")
    for path in (tmp_path / "data" / "train").glob("examples-*"):
        path.write_bytes(b"of another seed")
    create(tmp_path / "data", tokenizer)
    assert contents(tmp_path / "data") == contents(built / "finished")


def test_shards_of_another_build_are_neither_removed_nor_mixed(
    tokenizer, tmp_path, small_parts
):
    other = tmp_path / "data" / "train" / "examples-00000-of-00099.tfrecord"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"another build")
    with pytest.raises(InputError, match="00099.*Name another folder"):
        create(tmp_path / "data", tokenizer)
    assert other.read_bytes() == b"another build"


@pytest.mark.parametrize("kind", ["finished", "killed"])
def test_damaged_data_is_not_replaced_by_other_documents(
    tokenizer, built, tmp_path, small_parts, kind
):
    whole = contents(built / "finished")
    path = tmp_path / "tokens" / "train" / "tokens.bin"
    shutil.copytree(built / kind, tmp_path, dirs_exist_ok=True)
    os.remove(tmp_path / "tokens" / "held_out" / "store.json")
    flip(path, None)
    before = contents(tmp_path)
    for documents in (corpus(seed=1), corpus()[:-9], corpus(70)):
        with pytest.raises(InputError, match="holds the tokens of other"):
            create(tmp_path, tokenizer, documents=documents)
        assert contents(tmp_path) == before

    def stop(name, done, _):
        if done > 30:
            raise Killed

    with pytest.raises(Killed):
        create(tmp_path, tokenizer, stop)
    create(tmp_path, tokenizer)
    assert contents(tmp_path) == whole


def test_a_folder_of_another_corpus_or_tokenizer_is_refused(
    tokenizer, tmp_path
):
    folder = str(tmp_path)
    build_stores(corpus(), tokenizer, folder)
    before = contents(folder)
    with pytest.raises(InputError, match="of other documents"):
        build_stores(corpus(seed=1), tokenizer, folder)
    with pytest.raises(InputError, match="of other documents"):
        build_stores(corpus()[:-1], tokenizer, folder)
    lines = [dataclasses.replace(d, sentences_given=True) for d in corpus()]
    with pytest.raises(InputError, match="of other documents"):
        build_stores(lines, tokenizer, folder)
    with pytest.raises(
        InputError, match="held_out_share was 0.0 and is now 0.5"
    ):
        build_stores(corpus(), tokenizer, folder, 0.5)
    other = WordPieceTokenizer(tokenizer.vocabulary, lowercase=False)
    with pytest.raises(InputError, match="lowercase was true and is now false"):
        build_stores(corpus(), other, folder)
    assert contents(folder) == before
    again = build_stores(corpus(), tokenizer, folder)
    assert contents(folder) == before
    assert again["train"].num_documents == 60


WRITER = """
import sys
from tests.support.data_samples import corpus, toy_tokenizer
from bert_keras.data.pretraining_data import create_pretraining_data

def wait(*_):
    print("writing", flush=True)
    sys.stdin.read()

create_pretraining_data(
    corpus(), toy_tokenizer(), sys.argv[1], progress=wait
)
"""


def test_a_second_writer_is_refused(tokenizer, tmp_path):
    with waiting_process(WRITER, tmp_path, "writing") as writer:
        named = f"process {writer.pid} on host {socket.gethostname()}"
        with pytest.raises(InputError, match=named):
            create_pretraining_data(corpus(), tokenizer, str(tmp_path))
    # A dead process holds no lock, so the next one resumes its work.
    create_pretraining_data(corpus(), tokenizer, str(tmp_path))


def test_a_second_writer_is_refused_in_each_stage(
    tokenizer, tmp_path, small_parts
):
    stages = set()

    def second(stage, *_):
        stages.add(stage)
        with pytest.raises(InputError, match="process"):
            create(tmp_path, tokenizer)

    create(tmp_path, tokenizer, second)
    assert stages == {"tokens", "train", "held_out"}
    assert not list(tmp_path.rglob("run.json"))


def test_an_unfinished_build_of_an_earlier_version_is_named(
    tokenizer, tmp_path, small_parts
):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "build.json").write_text("{}")
    with pytest.raises(InputError, match="an earlier version"):
        create(tmp_path, tokenizer)


@pytest.mark.parametrize("folder", ["tokens", "train"])
def test_a_writer_that_was_taken_over_stops(
    tokenizer, tmp_path, small_parts, folder
):
    def taken_over(stage, *_):
        (tmp_path / folder / ".lock").unlink(missing_ok=True)

    with pytest.raises(InputError, match="may have been taken over by"):
        create(tmp_path, tokenizer, taken_over)
