"""Memory use of loading BERT Base, and loading of weights over 2 GB."""

import json
import math
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from bert_keras.interop.huggingface import names
from bert_keras.interop.tensors import map_name
from bert_keras.manifest import describe_file
from bert_keras.modeling import modes
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.sizes import SIZES
from bert_keras.modeling.weights import published_weights
from tests.support import tiny

MEASURE = """
import sys
import tensorflow as tf
tf.zeros(3) + 1
from bert_keras.modeling.encoder import BertEncoder
import bert_keras.interop.presets

def megabytes(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) / 1024

before = megabytes("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # reset the peak
BertEncoder.from_preset(sys.argv[1])
print(megabytes("VmHWM") - before)
"""


def sparse_weights(path, size):
    """Write a sparse file of zero weights; return name -> end offset."""
    header, ends, end = {}, {}, 0
    with modes.use(draw_weights=False):
        weights = published_weights(BertEncoder(**size))
    for name, weight in weights.items():
        stored = map_name(name, names("BertEncoder"))
        shape = tuple(weight.shape)
        shape = shape[::-1] if name.endswith("/kernel") else shape
        start, end = end, end + 4 * math.prod(shape)
        entry = {"dtype": "F32", "shape": shape}
        header[stored] = entry | {"data_offsets": [start, end]}
        ends[stored] = end
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + end)
    return {name: 8 + len(text) + end for name, end in ends.items()}


def base_folder(folder):
    """Write a BERT Base folder of zeros; return the weights' size in MiB."""
    path = folder / "model.safetensors"
    base = SIZES["uncased_L-12_H-768_A-12"]
    sparse_weights(
        path, {**base, "num_segments": 2, "max_sequence_length": 512}
    )
    block = {"version": 1, "class": "BertEncoder"}
    block |= {"attention": "bidirectional", "sha256": ""}
    block["files"] = {"model.safetensors": describe_file(path)}
    config = {"bert_keras": block}  # the default sizes are BERT Base
    (folder / "config.json").write_text(json.dumps(config))
    tiny.edit_config(folder)  # to update the hash
    return os.path.getsize(path) / 2**20


@pytest.mark.long
def test_weights_over_two_gigabytes_are_loaded(tmp_path):
    """The token table has 2.25 GB; all other tensors are after it."""
    size = {**tiny.SIZES, "vocabulary_size": 2_200_000, "hidden_dim": 256}
    size |= {"num_segments": 2, "num_layers": 1}
    path = tmp_path / "model.safetensors"
    ends = sparse_weights(path, size)
    assert os.path.getsize(path) > 2**31 + 2**20
    values = np.arange(256, dtype="<f4")
    stored = "embeddings.word_embeddings.weight", "pooler.dense.bias"
    with open(path, "r+b") as file:
        for name in stored:
            file.seek(ends[name] - values.nbytes)
            file.write(values.tobytes())
    config = {"vocab_size": 2_200_000, "hidden_size": 256}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    config |= {"intermediate_size": 12, "max_position_embeddings": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = BertEncoder.from_preset(tmp_path)
    table = model.embeddings.token.embeddings
    np.testing.assert_array_equal(table[-1], values)
    np.testing.assert_array_equal(table[-2], 0 * values)
    np.testing.assert_array_equal(model.pooler.bias, values)


@pytest.mark.long
@pytest.mark.skipif(
    not os.path.exists("/proc/self/clear_refs"),
    reason="the peak memory of a process is read from Linux's /proc",
)
def test_base_loads_in_1_1_times_the_memory_of_its_file(tmp_path):
    size = base_folder(tmp_path)
    assert 415 < size < 420
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 1.1 * size
