"""Answer many rows with an exported model, in batches of similar length."""

from typing import Any

import numpy as np

from bert_keras.parallel import answer_at_once

BATCHES_AT_ONCE = 16  # the rows of this many batches are sorted by length


def answer_in_batches(signature, rows, batch_size):
    """Return a dict of output name -> value for each row.

    Args:
        signature: function of a list for each input; see `ServedModel`.
        rows: list of rows, which are lists with a value for each input.
        batch_size: rows of a batch. A batch has rows of similar length.
    """
    lengths = [sum(len(str(value)) for value in row) for row in rows]
    order = np.argsort(lengths, kind="stable")
    batches = [
        order[first : first + batch_size]
        for first in range(0, len(rows), batch_size)
    ]

    def answer(batch):
        columns = zip(*[rows[i] for i in batch], strict=True)
        return signature(*map(list, columns))

    answers: list[dict[str, Any]] = [{} for _ in rows]
    found = answer_at_once(answer, batches)
    for batch, outputs in zip(batches, found, strict=True):
        for index, i in enumerate(batch):
            answers[i] = {name: x[index] for name, x in outputs.items()}
    return answers
