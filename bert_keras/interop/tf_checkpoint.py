"""Variables of a TensorFlow checkpoint as tensors, and a writer of them."""

import dataclasses
import os
import re

import numpy as np

from bert_keras import files
from bert_keras.interop.checkpoint import Tensor, WeightsError
from bert_keras.interop.stored_array import stored_tensor
from bert_keras.interop.tensor_bundle import FETCH, read_index, read_text

FLOAT32, FLOATS = 1, (1, 2, 14, 19)
LARGE = 16 * 1024 * 1024  # bytes
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def read_tf_checkpoint(prefix):
    """Returns dict of variable name -> `Tensor`, of those that hold floats.

    Args:
        prefix: path of the checkpoint without `.index`.
    """
    entries = read_index(prefix)
    reader = _reader(prefix)
    return {
        name: _tensor(prefix, reader, name, entry)
        for name, entry in entries.items()
        if entry.dtype in FLOATS
    }


def _reader(prefix):
    import tensorflow as tf

    try:
        return tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, ValueError) as error:
        raise _damaged(f"{prefix}.index", None, error) from None


def _damaged(file, name, error):
    reason = str(error).splitlines()[0][:200]
    return WeightsError(
        file, f"TensorFlow cannot read it ({reason})", FETCH, tensor=name
    )


def _tensor(prefix, reader, name, entry):
    def read():
        import tensorflow as tf

        try:
            return reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, IndexError) as error:
            raise _damaged(entry.file, name, error) from None

    if entry.size < LARGE or entry.dtype != FLOAT32:
        return Tensor(entry.file, name, entry.shape, read)
    # TensorFlow reads it whole, once, for the checksum; it keeps the memory,
    # which the model takes next. The rows come from the file itself.
    float32 = np.dtype("<f4")
    stored = stored_tensor(entry.file, name, float32, entry.shape, entry.offset)
    return dataclasses.replace(stored, check=lambda: read() is None)


def variable_names(prefix):
    """Dict of an object checkpoint's key -> the variable's own name."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    entries = read_index(prefix)
    if OBJECT_GRAPH not in entries:
        return {}
    try:
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
            read_text(entries[OBJECT_GRAPH])
        )
    except (DecodeError, IndexError, ValueError) as error:
        raise _damaged(
            entries[OBJECT_GRAPH].file, OBJECT_GRAPH, error
        ) from None
    return {
        attribute.checkpoint_key: attribute.full_name
        for node in graph.nodes
        for attribute in node.attributes
    }


def find_prefix(folder):
    """The checkpoint of a folder, or None where it holds none.

    A file `checkpoint` names the newest of several, by name only.
    """
    found = sorted(
        name.removesuffix(".index")
        for name in os.listdir(folder)
        if name.endswith(".index")
    )
    state = os.path.join(folder, "checkpoint")
    if len(found) > 1 and os.path.isfile(state):
        with files.open_file(state, inside=folder) as file:
            text = file.read(100_000).decode("utf-8", "replace")
        newest = re.match(r'\s*model_checkpoint_path:\s*"([^"]*)"', text)
        name = os.path.basename(newest[1]) if newest else ""
        found = [name] if name in found else found
    if len(found) > 1:
        raise WeightsError(
            folder,
            "the folder holds several checkpoints",
            "Name one by its path without .index",
            found=", ".join(found),
        )
    return os.path.join(folder, found[0]) if found else None


def write_tf_checkpoint(prefix, tensors):
    """Writes exactly these variables, without an object graph.

    Args:
        prefix: path of the checkpoint without `.index`.
        tensors: dict of variable name -> function that returns the numbers.
    """
    import tensorflow as tf

    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(tensors[name](), tf.float32) for name in names],
    )
