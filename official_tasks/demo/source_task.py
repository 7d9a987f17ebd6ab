"""A task with natural labels out of any corpus: which source says this?

Rows are sentences; the label is the document's group (its library, its
folder) or, where the corpus has no groups, the document itself. Written as
the CSV files that the task "custom" reads.
"""

import math
import os
from collections import defaultdict

import numpy as np

from bert_keras.data.sentences import document_sentences
from bert_keras.errors import InputError
from official_tasks.tasks.table import write_csv

MAX_CLASSES = 8
LENGTHS = range(30, 301)  # characters: shorter says little, longer is cut


def write_source_task(
    train, held_out, folder, labels=1000, dev_rows=3000, seed=0
) -> dict:
    """Writes `train.csv` and `dev.csv`, their classes balanced by sampling.

    Where two or more groups have enough held-out sentences, the rows of
    train.csv come from the documents that pre-training sees, those of dev.csv
    from held-out ones. Without groups the classes are the largest held-out
    documents, each sentence of which goes to one of the two files.

    Args:
        train: list of `Document`, those that pre-training sees.
        held_out: list of `Document`, those that it does not.
        folder: an existing folder for the two files.
        labels: rows of train.csv, about.
        dev_rows: rows of dev.csv at least; half of that and more in a corpus
            that is too small for it.
        seed: of the sampling.

    Returns:
        dict with "classes", "train_rows" and "dev_rows".
    """
    generator = np.random.default_rng(seed)
    groups = {document.group for document in held_out}
    if len(groups) > 1:
        here = _by_class(held_out, lambda document: document.group)
        there = _by_class(train, lambda document: document.group)
        here = {name: rows for name, rows in here.items() if name in there}
    else:
        both = _by_class(held_out, lambda document: document.name)
        there = {name: rows[0::4] for name, rows in both.items()}
        here = {
            name: [row for i, row in enumerate(rows) if i % 4]
            for name, rows in both.items()
        }
    classes = _choose_classes(here, there, dev_rows, labels)
    sizes = {}
    for file, rows, wanted in (
        ("train.csv", there, labels),
        ("dev.csv", here, dev_rows),
    ):
        sizes[file] = _write(
            os.path.join(folder, file), rows, classes, wanted, generator
        )
    return {
        "classes": classes,
        "train_rows": sizes["train.csv"],
        "dev_rows": sizes["dev.csv"],
    }


def _by_class(documents, name_of):
    """Class -> its sentences of a fitting length, each once."""
    rows = defaultdict(dict)
    for document in documents:
        rows[name_of(document)].update(
            (sentence, None)
            for sentence in document_sentences(document)
            if len(sentence) in LENGTHS
        )
    return {name: list(sentences) for name, sentences in rows.items()}


def _choose_classes(here, there, dev_rows, labels):
    """As many of the largest classes as fill both files in equal parts."""
    by_size = sorted(here, key=lambda name: (-len(here[name]), name))
    for wanted in (dev_rows, dev_rows // 2, dev_rows // 10):
        for count in range(min(MAX_CLASSES, len(by_size)), 1, -1):
            classes = by_size[:count]
            if all(
                len(here[name]) >= math.ceil(wanted / count)
                and len(there[name]) >= math.ceil(labels / count)
                for name in classes
            ):
                return sorted(classes)
    raise InputError(
        f"The corpus is too small for the classification task: expected two "
        f"sources with {dev_rows // 20} held-out sentences each and "
        f"{labels // 2} others, got {len(by_size)} sources, the largest with "
        f"{len(here[by_size[0]]) if by_size else 0}: give a larger corpus"
    )


def _write(path, rows, classes, wanted, generator):
    each = min(
        math.ceil(wanted / len(classes)),
        min(len(rows[name]) for name in classes),
    )
    drawn = [
        (rows[name][index], name)
        for name in classes
        for index in generator.permutation(len(rows[name]))[:each]
    ]
    write_csv(path, [("text", "label"), *drawn])
    return len(drawn)
