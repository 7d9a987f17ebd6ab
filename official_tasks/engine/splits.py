"""Read and encode the train and dev splits of a run, or of several runs."""

from typing import Any, NamedTuple

import numpy as np

import bert_keras
from bert_keras import files
from bert_keras.errors import InputError, collect_faults
from official_tasks.engine import batches, models
from official_tasks.tasks import registry
from official_tasks.tasks.base import Examples


class Data(NamedTuple):
    """The rows of a run, and how texts are encoded.

    preprocess: `BertPreprocessor` of the run.
    examples: dict: "train" and "dev" -> examples.
    encoded: dict: "train" and "dev" -> `Encoded` rows.
    versions: see `read_versions`.
    """

    preprocess: Any
    examples: dict
    encoded: dict
    versions: dict


def load(task, init, length, max_rows=None) -> Data:
    """Return the `Data` of a run.

    The runs of a set share the result, so that the rows are read and encoded
    once.
    """
    preprocess = load_preprocessor(init, length)
    examples, encoded = encode_splits(task, preprocess, max_rows)
    return Data(preprocess, examples, encoded, read_versions(task, init))


def read_versions(task, init=None) -> dict:
    """Return the versions of the files of a run that were just read.

    A `Table` and the file of a user's own task have been read before; their
    version is that of then. With `init`, the weights' files are included.
    """
    paths = list(task.data_files())
    if init:
        paths += models.list_model_files(init)
    versions = {
        files.absolute(path): files.describe_version(path)
        for path in paths
        if files.is_file(path)
    }
    versions |= getattr(getattr(task, "source", None), "versions", {})
    return {**versions, **registry.find_task_file(task)}


def load_preprocessor(init, sequence_length):
    return bert_keras.BertPreprocessor.from_preset(
        init,
        sequence_length=sequence_length,
        pad_to_longest=True,
        prompt=None,  # tasks encode texts without a prompt
    )


def draw_rows(examples, most, split) -> list:
    """Return at most `most` examples, in their order, with a note.

    Groups, such as the questions on one context, are drawn at random; only the
    last one may be cut. A larger `most` keeps the examples of a smaller one.
    The draw has its own seed, so that runs with other seeds are comparable.

    Args:
        examples: examples of a split; see `Example` for `group`.
        most: maximum number of examples.
        split: name of the split, for the note.
    """
    if len(examples) <= most:
        return examples
    groups: dict = {}
    for row, example in enumerate(examples):
        groups.setdefault(getattr(example, "group", row), []).append(row)
    each = list(groups.values())
    order = np.random.default_rng(0).permutation(len(each))
    rows = sorted([row for number in order for row in each[number]][:most])
    note = (
        f"`max_rows` leaves out {len(examples) - most:,} of the "
        f"{len(examples):,} rows of {split}"
    )
    notes = [*getattr(examples, "notes", ()), note]
    return Examples((examples[row] for row in rows), notes)


def encode_splits(task, preprocess, max_rows=None) -> tuple[dict, dict]:
    """Return the examples and their `Encoded` rows.

    `max_rows` is the maximum number of examples of a split, or None.

    Returns:
        Two dicts with the keys "train" and "dev".

    Raises:
        InputError: a split has invalid rows, no examples or no labels.
    """
    examples, faults = {}, []
    for split in ("train", "dev"):
        with collect_faults(faults):
            examples[split] = task.read(split)
            if max_rows is not None:
                rows = draw_rows(examples[split], max_rows, split)
                examples[split] = rows
    if faults:
        raise InputError("\n".join(dict.fromkeys(faults)))
    return examples, {
        split: encode_rows(task, rows, preprocess, split)
        for split, rows in examples.items()
    }


def encode_rows(task, examples, preprocess, split):
    """Return a split's `Encoded` rows; raise if it lacks rows or labels."""
    rows = task.encode(examples, preprocess)
    if not len(batches.row_lengths(rows.inputs)):
        raise InputError(
            f"The {split} split of {task.name} has no examples; expected "
            "at least one. Check the file."
        )
    if rows.targets is None:
        raise InputError(
            f"The {split} split of {task.name} has no labels: expected "
            "one for each example. A test file without labels can only be "
            "used to predict."
        )
    return rows
