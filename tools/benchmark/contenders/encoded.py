"""Rows of ids of a task's training texts, the same for every contender."""

import glob
import os

import numpy as np

from bert_keras.errors import InputError
from bert_keras.files import write_json
from official_tasks.tasks.glue import MRPC, SST_2, GlueTask
from official_tasks.tasks.squad import SQUAD_1, SquadTask


def _glue(row):
    return lambda path: GlueTask(row, data_dir=path)


def _squad(pattern):
    found = sorted(glob.glob(pattern))
    if not found:
        raise InputError(f"No file of SQuAD's training texts: {pattern}")
    return SquadTask(SQUAD_1, train=found[0])


# Task -> where its training texts lie under --data, tokens of a row, and what
# reads them.
TASKS = {
    "SST-2": ("glue/SST-2", 128, _glue(SST_2)),
    "MRPC": ("glue/MRPC", 128, _glue(MRPC)),
    "SQuAD": ("squad/train-v1.1*.json", 384, _squad),
}


def write_rows(name, data, init, count, path, seed=0):
    """Encodes `count` rows, drawn at random by the seed, into a JSON file.

    Args:
        name: key of `TASKS`.
        data: folder of the official files.
        init: weights, whose vocabulary is used.

    Returns:
        str, `path`: a dict of "token_ids" and "segment_ids", lists of R rows,
        and "labels", or "start" and "end".
    """
    import bert_keras

    if data is None or init is None:
        raise InputError(
            f"The row of {name} needs --data, the folder of its official "
            "files, and --init, weights."
        )
    place, length, make = TASKS[name]
    preprocess = bert_keras.BertPreprocessor.from_preset(
        init, sequence_length=length, pad_to_longest=True
    )
    task, random = make(os.path.join(data, place)), np.random.default_rng(seed)
    examples = task.read("train")
    drawn = random.permutation(len(examples))[:count]
    encoded = task.encode([examples[i] for i in drawn], preprocess)
    targets = encoded.targets
    if not isinstance(targets, dict):
        targets = {"labels": targets}
    rows = {
        name: encoded.inputs[name].to_list()
        for name in ("token_ids", "segment_ids")
    }
    rows |= {name: np.asarray(v).tolist() for name, v in targets.items()}
    # A question may have several windows.
    drawn = random.permutation(len(rows["token_ids"]))[:count]
    rows = {name: [values[i] for i in drawn] for name, values in rows.items()}
    write_json(rows, path)
    return str(path)
