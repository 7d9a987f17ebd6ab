"""What memory loading a model of base size takes."""

import json
import os
import struct
import subprocess
import sys

import pytest
import tiny

from bert_keras.interop.huggingface import names
from bert_keras.interop.tensors import encoder_shapes, map_name
from bert_keras.manifest import describe_file
from bert_keras.modeling.sizes import SIZES

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
open("/proc/self/clear_refs", "w").write("5")  # begin the peak anew
BertEncoder.from_preset(sys.argv[1])
print(megabytes("VmHWM") - before)
"""


def base_folder(folder):
    """A folder of base size whose numbers are all zero: it takes no disk."""
    size = {**SIZES["uncased_L-12_H-768_A-12"], "num_segments": 2}
    size["max_sequence_length"] = 512
    header, end = {}, 0
    for ours, shape in encoder_shapes(size).items():
        name = map_name(ours, names("BertEncoder"))
        shape = shape[::-1] if ours.endswith("/kernel") else shape
        start, end = end, end + 4 * shape[0] * (shape[1:] or (1,))[0]
        header[name] = {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + end)
    block = {"version": 1, "class": "BertEncoder"}
    block |= {"attention": "bidirectional", "sha256": ""}
    block["files"] = {"model.safetensors": describe_file(path)}
    config = {"bert_keras": block}  # of base size by default
    (folder / "config.json").write_text(json.dumps(config))
    tiny.edit_config(folder)  # the hash
    return os.path.getsize(path) / 2**20


@pytest.mark.skipif(
    not os.path.exists("/proc/self/clear_refs"),
    reason="the peak of a process's memory is read as Linux tells it",
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
