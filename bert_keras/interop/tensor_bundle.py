"""Reader of the index and the tensors of TensorFlow checkpoints.

In this file, `prefix` is the path of a checkpoint without `.index`.
"""

import dataclasses
import math
import os
import re

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.tensor_files import shorten
from bert_keras.interop.tensors import Tensor, WeightsError

# `tf.train.load_checkpoint` does not check the shapes in an index: it ended the
# process (SIGABRT) for 169 of 300 indexes with random entries and right
# checksums. So this file reads the index first and compares each entry with the
# sizes of the data files.

FETCH = "Fetch the checkpoint again"
# Maximum bytes of an index. BERT-large with optimizer slots has 100 KB.
MAX_INDEX = 64 * 1024 * 1024
FOOTER = 48
MAGIC = bytes.fromhex("57fb808b247547db")
STRING = 7
# TensorFlow's enum value of a dtype -> bytes of one element.
SIZES = {1: 4, 2: 8, 3: 4, 9: 8, 10: 1, 14: 2, 19: 2}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One variable in the index: its dtype, shape and position in a data file.

    `dtype` is TensorFlow's enum value. The variable has `size` bytes. The first
    byte is at `offset` in `file`.
    """

    dtype: int
    shape: tuple[int, ...]
    file: str
    offset: int
    size: int


def read_index(prefix):
    """Return dict of variable name -> `Entry`."""
    path = f"{prefix}.index"
    try:
        data = files.read_bytes(path, MAX_INDEX)
        return _read_entries(prefix, _read_table(data))
    except OSError as error:
        raise WeightsError(
            error.filename or path,
            f"the file cannot be read ({error.strerror})",
            FETCH,
        ) from None
    except (IndexError, ValueError, UnicodeDecodeError) as error:
        if isinstance(error, InputError):
            raise
        raise WeightsError(
            path, "the index is damaged or was cut", FETCH
        ) from error


def _read_table(data):
    """Return the (key, value) pairs of an index, a sorted string table."""
    if data[-8:] != MAGIC or len(data) < FOOTER:
        raise ValueError("no footer")
    footer = data[-FOOTER:]
    _, at = _handle(footer, 0)
    (start, size), _ = _handle(footer, at)
    pairs = []
    for _, value in _block(data, start, size):
        (start, size), _ = _handle(value, 0)
        pairs += _block(data, start, size)
    keys = [key for key, _ in pairs]
    if any(a >= b for a, b in zip(keys, keys[1:], strict=False)):
        raise ValueError("the keys are not sorted")
    return pairs


def _block(data, start, size):
    """Return the (key, value) pairs of a block.

    The stored form of a key lacks the prefix shared with the previous key.
    """
    block = data[start : start + size]
    if len(block) < size or start + size > len(data) - FOOTER:
        raise ValueError("a block does not end before the footer")
    if data[start + size] != 0:
        raise ValueError("a block is compressed")
    restarts = int.from_bytes(block[-4:], "little")
    end = size - 4 - 4 * restarts
    if end < 0:
        raise ValueError("the restart points exceed the block")
    key, at, pairs = b"", 0, []
    while at < end:
        shared, at = _read_varint(block, at)
        added, at = _read_varint(block, at)
        length, at = _read_varint(block, at)
        if shared > len(key) or at + added + length > end:
            raise ValueError("an entry exceeds the block")
        key = key[:shared] + block[at : at + added]
        at += added + length
        pairs.append((key, block[at - length : at]))
    return pairs


def _handle(data, at):
    offset, at = _read_varint(data, at)
    size, at = _read_varint(data, at)
    return (offset, size), at


def _read_varint(data, at):
    value = shift = 0
    while shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("a varint has more than 10 bytes")


def _read_entries(prefix, pairs):
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import tensor_bundle_pb2

    try:
        if not pairs or pairs[0][0] != b"":
            raise ValueError("no header")
        header = tensor_bundle_pb2.BundleHeaderProto.FromString(pairs[0][1])
        if header.endianness != header.LITTLE or header.num_shards > 10_000:
            raise ValueError("an unknown header")
        found, sizes = {}, {}
        for key, value in pairs[1:]:
            proto = tensor_bundle_pb2.BundleEntryProto.FromString(value)
            name = key.decode()
            found[name] = _read_entry(
                prefix, header.num_shards, name, proto, sizes
            )
        return found
    except DecodeError as error:
        raise ValueError("a damaged entry") from error


def _read_entry(prefix, shards, name, proto, sizes):
    """Check one entry and return it; `sizes` caches the sizes of files."""
    file = f"{prefix}.data-{proto.shard_id:05d}-of-{shards:05d}"
    shape = tuple(dim.size for dim in proto.shape.dim)
    problem = None
    if not 0 <= proto.shard_id < shards or proto.slices:
        problem = "the tensor is split, or its shard number is invalid"
    elif (
        proto.shape.unknown_rank or len(shape) > 8 or min(shape, default=0) < 0
    ):
        problem = "the shape is damaged"
    elif min(proto.offset, proto.size) < 0 or (
        proto.offset + proto.size > _size(file, sizes)
    ):
        problem = "the values exceed the file, which may have been cut"
    elif proto.dtype in SIZES:
        expected = math.prod(shape) * SIZES[proto.dtype]
        if proto.size != expected:
            problem = f"the shape {shape} does not fit {proto.size} bytes"
    elif proto.dtype != STRING or math.prod(shape) > proto.size:
        problem = "unknown dtype"
    if problem:
        raise WeightsError(file, problem, FETCH, tensor=shorten(name))
    return Entry(proto.dtype, shape, file, proto.offset, proto.size)


def _size(file, sizes):
    if file not in sizes:
        sizes[file] = files.check_file(file)
    return sizes[file]


def read_bytes(entry):
    """Return the stored bytes of an entry's value."""
    with files.open_file(entry.file) as file:
        file.seek(entry.offset)
        return file.read(entry.size)


FLOATS = (1, 2, 14, 19)
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def read_tf_checkpoint(prefix):
    """Return dict of variable name -> `Tensor` for all float variables."""
    entries = read_index(prefix)
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, ValueError) as error:
        raise _damage_error(f"{prefix}.index", None, error) from None
    return {
        name: _tensor(reader, name, entry)
        for name, entry in entries.items()
        if entry.dtype in FLOATS
    }


def _damage_error(file, name, error):
    reason = str(error).splitlines()[0][:200]
    return WeightsError(
        file, f"TensorFlow cannot read the data ({reason})", FETCH, tensor=name
    )


def _tensor(reader, name, entry):
    def read():
        import tensorflow as tf

        try:
            return reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, IndexError) as error:
            raise _damage_error(entry.file, name, error) from None

    # No `check` is needed: TensorFlow verifies checksums when it reads values.
    return Tensor(entry.file, name, entry.shape, read)


def read_object_graph(prefix):
    """Return the object graph, a protocol buffer; empty if there is none."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    entries = read_index(prefix)
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    if OBJECT_GRAPH not in entries:
        return graph
    entry = entries[OBJECT_GRAPH]
    try:
        # The graph comes after its length and a checksum of 4 bytes.
        data = read_bytes(entry)
        length, at = _read_varint(data, 0)
        graph.ParseFromString(data[at + 4 : at + 4 + length])
    except (DecodeError, IndexError, ValueError) as error:
        raise _damage_error(entry.file, OBJECT_GRAPH, error) from None
    return graph


def variable_names(graph):
    """Return dict of checkpoint key -> variable name, from an object graph."""
    return {
        attribute.checkpoint_key: attribute.full_name
        for node in graph.nodes
        for attribute in node.attributes
    }


def find_prefix(folder):
    """Return the prefix of the checkpoint in a folder, or None.

    A path that is no folder is a prefix already. If the folder has several
    checkpoints, return the one that the file `checkpoint` names. Only the last
    part of the path in that file is used.

    Raises:
        WeightsError: the folder has several checkpoints, and `checkpoint` is
            missing or names none of them.
    """
    if not os.path.isdir(folder):
        return folder
    found = sorted(
        name.removesuffix(".index")
        for name in os.listdir(folder)
        if name.endswith(".index")
    )
    state = os.path.join(folder, "checkpoint")
    if len(found) > 1 and os.path.isfile(state):
        with files.open_file(state) as file:
            text = file.read(100_000).decode("utf-8", "replace")
        newest = re.match(r'\s*model_checkpoint_path:\s*"([^"]*)"', text)
        name = os.path.basename(newest[1]) if newest else ""
        found = [name] if name in found else found
    if len(found) > 1:
        raise WeightsError(
            folder,
            "the folder holds several checkpoints",
            "Pass the path of one checkpoint, without .index",
            found=", ".join(found),
        )
    return os.path.join(folder, found[0]) if found else None
