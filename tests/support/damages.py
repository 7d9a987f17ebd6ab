"""Damages to a file of pre-training data, one function for each type.

Arguments: paths of the file and of another file beside it.
"""

import tensorflow as tf


def cut(path, other):
    """Cut short."""
    path.write_bytes(path.read_bytes()[:-3])


def cut_at_an_entry(path, other):
    """Cut at the end of a record."""
    if path.suffix == ".bin":
        path.write_bytes(path.read_bytes()[:-8])
        return
    records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records[:-1]:
            writer.write(record)


def empty(path, other):
    """Empty."""
    path.write_bytes(b"")


def flip(path, other):
    """A flipped bit."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(bytes(content))


def remove(path, other):
    """Missing."""
    path.unlink()


def double(path, other):
    """Another file in its place."""
    path.write_bytes(other.read_bytes())


def swap(path, other):
    """Swapped with another."""
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


DAMAGES = (cut, cut_at_an_entry, empty, flip, remove, double, swap)
