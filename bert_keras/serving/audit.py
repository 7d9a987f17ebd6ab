"""What operations an export is made of, and that none does harm."""

import collections
import os

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from bert_keras.errors import InputError

# They run Python, or read and write files, when the model is called.
FORBIDDEN = {
    "EagerPyFunc",
    "FixedLengthRecordReaderV2",
    "InitializeTableFromTextFile",
    "InitializeTableFromTextFileV2",
    "MatchingFiles",
    "PyFunc",
    "PyFuncStateless",
    "ReadFile",
    "TFRecordReaderV2",
    "TextLineReaderV2",
    "WholeFileReaderV2",
    "WriteFile",
}


def operations(folder):
    """Operation -> how often it stands in the SavedModel's graphs."""
    proto = saved_model_pb2.SavedModel()
    with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
        proto.ParseFromString(file.read())
    counts = collections.Counter()
    for meta_graph in proto.meta_graphs:
        graph = meta_graph.graph_def
        counts.update(node.op for node in graph.node)
        for function in graph.library.function:
            counts.update(node.op for node in function.node_def)
    return dict(counts)


def outside_core(counts):
    """Of these, the operations that TensorFlow alone does not have."""
    return {
        name: count
        for name, count in sorted(counts.items())
        if not hasattr(tf.raw_ops, name)
    }


def audit(folder, portable):
    """Refuses an export that a server could not or should not run.

    Returns:
        Operation -> count, of those outside TensorFlow's core.

    Raises:
        InputError: it runs Python or touches files when called, or is
            `portable` and needs more than TensorFlow's core.
    """
    counts = operations(folder)
    foreign = outside_core(counts)
    harmful = sorted(FORBIDDEN & counts.keys())
    if harmful:
        raise InputError(
            f"The export holds operations that no server should run: "
            f"{', '.join(harmful)}. Take what makes them out of the model."
        )
    if portable and foreign:
        raise InputError(
            "The portable export needs operations outside TensorFlow's core: "
            f"{', '.join(foreign)}. Take what makes them out of the model, or "
            "export it with portable=False."
        )
    return foreign
