"""Inputs that `bert_keras.data` refuses, with a word of each message."""

import dataclasses
import gzip
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.data.batches import pretraining_dataset
from bert_keras.data.building import build_stores
from bert_keras.data.corpus import Document, Reading, read_documents
from bert_keras.data.examples import DrawnExamples
from bert_keras.data.pretraining_data import (
    BuildOptions,
    create_pretraining_data,
)
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.shards import write_records
from bert_keras.data.token_store import TokenStore
from bert_keras.errors import InputError
from bert_keras.text.masking import generator
from tests.support.data_samples import corpus, numbers, write_store

pytestmark = pytest.mark.fast

EMPTY = [Document("a", [" "])] * 5


def test_rules_may_have_integers_of_numpy():
    rules = SamplingRules(np.int64(128))
    assert rules == SamplingRules(128) and rules.max_predictions == 20
    json.dumps(dataclasses.asdict(rules))


@pytest.mark.parametrize(
    ("rules", "word"),
    [
        ({"sequence_length": 7}, "sequence_length"),
        ({"max_predictions": 0}, "max_predictions"),
        ({"max_predictions": 129}, "max_predictions"),
        ({"mask_mix": (80, 10)}, "sum to 100"),
        ({"mask_mix": (80, 10, 20)}, "sum to 100"),
        ({"mask_mix": (float("nan"), 50, 50)}, "sum to 100"),
        ({"mask_rate": 1.5}, "mask_rate"),
        ({"short_probability": -1}, "short_probability"),
    ],
)
def test_rules_that_cannot_be(rules, word):
    with pytest.raises(InputError, match=word):
        SamplingRules(**rules)


def test_a_negative_seed():
    with pytest.raises(InputError, match="negative; got -3"):
        generator(-3, 1)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("", None, "No text found"),
        ("none.txt", None, "No text found at .*none.txt"),
        ("a.png", b"x", "No text found"),
        ("a.txt", b"\n \n", "holds no text"),
        ("a.jsonl", b"{}\n", "line 1: expected .* under 'text'"),
        ("a.jsonl", b'{"text": 5}\n', "line 1: expected text in .* 5"),
        ("a.jsonl", b'{"text": "x"}\n{\n', "line 2 is not JSON"),
        ("a.jsonl", b"[1]\n", "row 1: expected an object"),
        ("a.txt.gz", b"plain", "gzip"),
        ("a.txt.gz", gzip.compress(b"x" * 99, mtime=0)[:20], "gzip"),
    ],
)
def test_text_that_cannot_be_read(tmp_path, name, content, word):
    source = tmp_path / name
    if content is not None:
        source.write_bytes(content)
        source = tmp_path
    with pytest.raises(InputError, match=word):
        list(read_documents(str(source)))


def test_an_unknown_layout(tmp_path):
    with pytest.raises(InputError, match="Unknown layout 'pages'"):
        list(read_documents(str(tmp_path), Reading(layout="pages")))


@pytest.mark.parametrize(
    ("documents", "settings", "word"),
    [
        (corpus(1), {"held_out_share": 0}, "two documents with text; got 1"),
        (EMPTY, {"held_out_share": 0}, "with text; got 0"),
        (corpus(3), {"held_out_share": 1e-9}, "has 0 documents.*larger"),
        (corpus(3), {"held_out_share": 1.0}, "below 1; got 1.0"),
        (corpus(3), {"held_out_share": -0.1}, "below 1; got -0.1"),
        (corpus(3), {"held_out": corpus(2)}, "Set `held_out_share` to 0"),
        (corpus(3), {"sentences": "words"}, "'split' or 'lines'"),
        (corpus(3), {"copies": 0}, "copies"),
        (
            corpus(9),
            {"held_out_share": 0, "held_out": corpus(1, seed=1)},
            "has 1 documents",
        ),
    ],
)
def test_builds_that_cannot_be(tokenizer, tmp_path, documents, settings, word):
    folder = str(tmp_path / "new" / "data")
    with pytest.raises(InputError, match=word):
        held_out = settings.get("held_out", ())
        named = {k: v for k, v in settings.items() if k != "held_out"}
        options = BuildOptions(**named)
        create_pretraining_data(
            documents, tokenizer, folder, options, held_out=held_out
        )
    assert os.listdir(tmp_path) == []  # not even `new`
    assert create_pretraining_data(corpus(), tokenizer, folder)


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("", "No finished records"),
        ("none", "No finished records"),
        ("packed", "other rows than expected"),
        ("empty", "has no example"),
    ],
)
def test_sources_of_batches_that_are_none(tmp_path, source, word):
    if source in ("packed", "empty"):
        store = write_store(tmp_path / "store", numbers(9))
        rules = SamplingRules(64, 9, packed=source == "packed")
        write_records(store, str(tmp_path / source), rules, 1)
        for path in (tmp_path / source).glob("*.tfrecord"):
            with tf.io.TFRecordWriter(str(path)) as writer:
                if source == "packed":
                    writer.write(b"")
    with pytest.raises(InputError, match=word):
        pretraining_dataset(str(tmp_path / source), 8, 0)


def test_blocks_of_a_store_that_are_garbled(tokenizer, tmp_path):
    store = build_stores(corpus(), tokenizer, str(tmp_path))["train"]
    path = tmp_path / "train" / "blocks.bin"
    for garbage in (b"\xff", b"\x11", b"\x00"):
        path.write_bytes(garbage * path.stat().st_size)
        with pytest.raises(InputError, match="is damaged"):
            DrawnExamples(TokenStore(store.folder), SamplingRules(16, 3), 0)
