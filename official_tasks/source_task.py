"""A classification task from any corpus: which source does a sentence have?

Rows are sentences; the label is the document's group (its library, its folder)
or, if the corpus has no groups, the document. The task "custom" reads the CSV
files.
"""

import math
import os
from collections import defaultdict

import numpy as np

from bert_keras.data.sentences import document_sentences
from bert_keras.errors import InputError
from official_tasks.tasks.table import write_csv

MAX_CLASSES = 8
LENGTHS = range(30, 301)  # characters: long enough to recognise, not cut


def write_source_task(
    train, held_out, folder, labels=1000, dev_rows=3000, seed=0
) -> dict:
    """Write `train.csv` and `dev.csv` with classes balanced by sampling.

    With two or more groups, the rows of train.csv come from the documents of
    pre-training, those of dev.csv from held-out ones. Without groups the
    classes are the largest held-out documents; a quarter of the sentences of
    each goes to train.csv.

    Args:
        train: list of `Document`, those of pre-training.
        held_out: list of `Document`, those that pre-training does not see.
        folder: an existing folder for the two files.
        labels: approximate number of rows of train.csv.
        dev_rows: rows of dev.csv; a half or a tenth of them in a corpus that
            is too small.
        seed: seed of the sampling.

    Returns:
        dict with "classes", "train_rows" and "dev_rows".
    """
    generator = np.random.default_rng(seed)
    groups = {document.group for document in held_out}
    if len(groups) > 1:
        dev = _group_sentences(held_out, lambda document: document.group)
        learned = _group_sentences(train, lambda document: document.group)
        dev = {name: rows for name, rows in dev.items() if name in learned}
    else:
        both = _group_sentences(held_out, lambda document: document.name)
        learned = {name: rows[0::4] for name, rows in both.items()}
        dev = {
            name: [row for i, row in enumerate(rows) if i % 4]
            for name, rows in both.items()
        }
    classes = _choose_classes(dev, learned, dev_rows, labels)
    counts = {
        file: _write(
            os.path.join(folder, f"{file}.csv"), rows, classes, count, generator
        )
        for file, rows, count in (
            ("train", learned, labels),
            ("dev", dev, dev_rows),
        )
    }
    return {
        "classes": classes,
        "train_rows": counts["train"],
        "dev_rows": counts["dev"],
    }


def _group_sentences(documents, get_class):
    """Return class -> its distinct sentences with a length of `LENGTHS`."""
    rows = defaultdict(dict)
    for document in documents:
        rows[get_class(document)].update(
            (sentence, None)
            for sentence in document_sentences(document)
            if len(sentence) in LENGTHS
        )
    return {name: list(sentences) for name, sentences in rows.items()}


def _choose_classes(dev, learned, dev_rows, labels):
    """Return the largest classes: the most that fill both files equally."""
    by_size = sorted(dev, key=lambda name: (-len(dev[name]), name))
    for rows in (dev_rows, dev_rows // 2, dev_rows // 10):
        for count in range(min(MAX_CLASSES, len(by_size)), 1, -1):
            classes = by_size[:count]
            if all(
                len(dev[name]) >= math.ceil(rows / count)
                and len(learned[name]) >= math.ceil(labels / count)
                for name in classes
            ):
                return sorted(classes)
    raise InputError(
        f"The corpus is too small for the classification task: expected two "
        f"sources with {dev_rows // 20} held-out sentences each and "
        f"{labels // 2} others, got {len(by_size)} sources, the largest with "
        f"{len(dev[by_size[0]]) if by_size else 0}. Take a larger corpus."
    )


def _write(path, rows, classes, count, generator):
    """Write about `count` rows, of each class alike; return their number."""
    each = min(
        math.ceil(count / len(classes)),
        min(len(rows[name]) for name in classes),
    )
    drawn = [
        (rows[name][index], name)
        for name in classes
        for index in generator.permutation(len(rows[name]))[:each]
    ]
    write_csv(path, [("text", "label"), *drawn])
    return len(drawn)
