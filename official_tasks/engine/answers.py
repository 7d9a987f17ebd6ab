"""Writes a file with a served model's answer to each row, in row order.

The model answers rows in batches bucketed by length. Only the rows of 16
batches are in memory at a time; their answers are a part, see `parts.py`.
"""

import contextlib
import dataclasses
import json
import os
import sys
from itertools import islice

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.serving.many_rows import BATCHES_AT_ONCE, answer_in_batches
from official_tasks.engine.answer_formats import (
    MAX_LABELS,
    VECTOR,
    Table,
    encode_vector,
    find_writer,
    write_npy,
)
from official_tasks.engine.parts import open_parts
from official_tasks.tasks.forms.cells import ID

BEST_LABELS = 10  # labels to write if a model has more than `MAX_LABELS`


class Answers:
    """The answers of a served model to rows.

    JSONL has a line for each row: `{"row", "model", "signature", "inputs",
    "keep", "answer"}`. If no columns are kept, "keep" is missing.
    `bert-keras compare` reads such lines. If a model has more than 100 labels,
    `probabilities` holds only the ten best, with their labels.

    Args:
        served: a `ServedModel`.
        signature: name of the signature.
        keep: columns of the input to write next to the answers. A row may have
            one value more, its id, which is also kept.
        batch_size: rows of a batch.

    Attributes:
        rows: number of rows so far.
        new_rows: number of rows that were answered, not found in parts.
        truncated: number of the new rows that were truncated.
    """

    def __init__(self, served, signature, keep=(), batch_size=32):
        self.served, self.signature = served, signature
        self.entry = served.card["signatures"][signature]
        self.keep, self.batch_size = list(keep), batch_size
        self.format = LineFormat(
            served.card["fingerprint"][:12],
            signature,
            self.entry["input_order"],
            self.keep,
            self.entry.get("labels", ()),
        )
        self.rows = self.new_rows = self.truncated = 0
        self._has_ids = False

    def write(self, rows, path, overwrite=False, separator=None):
        """Write the answers to all rows; yield the number of rows so far.

        The last bits of a value depend on the other rows of its batch, so each
        call must make the same batches. Rows are sorted by length within a
        part, which has the rows of `BATCHES_AT_ONCE` batches.

        Args:
            rows: iterable of rows. A row is a list of its inputs, then its
                values of the columns `keep`.
            path: a file with an ending of `WRITERS`; or a pipe, a device, or
                "-" for standard output, which get JSONL lines.
            overwrite: see `open_parts`.
            separator: character between the columns of CSV; None for a comma.
                With a separator, CSV begins with a byte order mark, as Excel
                expects.

        Raises:
            InputError: the format is unknown or cannot hold the answers; see
                also `open_parts`.
        """
        groups = self._split(iter(rows))
        if path == "-" or os.path.exists(path) and not os.path.isfile(path):
            yield from self._print(groups, path)
            return
        write = self.choose_writer(path)
        settings = self.describe(separator)
        with open_parts(path, settings, overwrite) as parts:
            yield from parts.make(groups, self._make_part)
            self.rows = parts.rows

            def lines():
                for content in parts.contents():
                    yield from content.splitlines(keepends=True)

            has_column = self._has_ids and ID not in self.keep
            keep = [ID] * has_column + self.keep
            table = Table(keep, self.entry, separator)
            parts.join(lambda partial: write(lines, partial, table))

    def choose_writer(self, path):
        """Return the function that writes the format of `path`.

        Raises:
            InputError: see `write`.
        """
        write = find_writer(path, self.entry)
        if write is write_npy:
            self.format = dataclasses.replace(self.format, packs_vectors=True)
        if files.exists(f"{path}.unfinished"):
            raise InputError(
                f"{path}.unfinished has answers of an earlier version, which "
                "cannot be continued. Remove it, or name another --output."
            )
        return write

    def describe(self, separator=None):
        """Return all that the answers depend on, except the rows, as JSON."""
        return {
            "model": self.format.model,
            "signature": self.signature,
            "keep": self.keep,
            "separator": separator,
            "batch_size": self.batch_size,
        }

    def _split(self, rows):
        while group := list(islice(rows, BATCHES_AT_ONCE * self.batch_size)):
            # An output has a column of ids if a row has an id.
            self._has_ids |= any(map(self.format.has_id, group))
            yield group

    def _print(self, groups, path):
        files.refuse_folder(path)
        with contextlib.ExitStack() as stack:
            if path != "-":
                file = stack.enter_context(open(path, "w", encoding="utf-8"))
            elif hasattr(file := sys.stdout, "reconfigure"):
                file.reconfigure(encoding="utf-8")
            for group in groups:
                file.write(self._make_part(group, self.rows).decode())
                file.flush()
                self.rows += len(group)
                yield self.rows

    def _make_part(self, rows, before):
        """Return the JSONL lines of a group of rows as bytes."""
        answers = answer_in_batches(
            getattr(self.served, self.signature),
            [row[: len(self.format.inputs)] for row in rows],
            self.batch_size,
        )
        self.new_rows += len(rows)
        self.truncated += sum(bool(x.get("truncated")) for x in answers)
        pairs = zip(rows, answers, strict=True)
        lines = (self.format(n, *pair) for n, pair in enumerate(pairs, before))
        return "".join(lines).encode()


@dataclasses.dataclass(frozen=True)
class LineFormat:
    """Function that makes a JSONL line from a row and the model's outputs.

    Args:
        model: start of the model's fingerprint.
        signature: name of the signature.
        inputs: names of the signature's inputs.
        keep: see `Answers`.
        labels: the model's labels.
        packs_vectors: True for the lines of an .npy output.
    """

    model: str
    signature: str
    inputs: list[str]
    keep: list[str]
    labels: list[str]
    packs_vectors: bool = False

    def __call__(self, number, row, outputs):
        inputs, keep = self._name_values(row)
        record = {
            "row": number,
            "model": self.model,
            "signature": self.signature,
            "inputs": inputs,
            **({"keep": keep} if keep else {}),
            "answer": {k: self._encode(k, outputs[k]) for k in sorted(outputs)},
        }
        try:
            line = json.dumps(record, ensure_ascii=False, allow_nan=False)
        except ValueError:
            raise InputError(
                f"The model answers row {number + 1} of the input with NaN "
                "or infinity. Use earlier weights, or train again with a lower "
                f"learning rate. The inputs are {str(inputs)[:60]}"
            ) from None
        return line + "\n"

    def has_id(self, row):
        """Return True if a row has an id."""
        return ID in self._name_values(row)[1]

    def _name_values(self, row):
        """Return a row as two dicts: input -> value, kept column -> value."""
        count, end = len(self.inputs), len(self.inputs) + len(self.keep)
        inputs = dict(zip(self.inputs, row[:count], strict=True))
        keep = dict(zip(self.keep, row[count:end], strict=True))
        return inputs, {ID: row[end], **keep} if any(row[end:]) else keep

    def _encode(self, name, value):
        """Return an output as a JSON value."""
        if name == VECTOR and self.packs_vectors:
            return encode_vector(value)
        if name == "probabilities" and len(self.labels) > MAX_LABELS:
            return _find_best(value, self.labels)
        return _as_json(value)


def _find_best(probabilities, labels):
    """Return the best labels with their probabilities, without a full sort."""
    least = -np.partition(-probabilities, BEST_LABELS - 1)[BEST_LABELS - 1]
    best = np.flatnonzero(~(probabilities < least))  # also NaN, and all ties
    best = best[np.argsort(-probabilities[best], kind="stable")][:BEST_LABELS]
    return [
        {"label": labels[i], "probability": value}
        for i, value in zip(best, _as_json(probabilities[best]), strict=True)
    ]


def _as_json(value):
    """Return an output as a JSON value, with float32 in its shortest form."""
    if isinstance(value, list):  # an output without its padding
        if not value or type(value[0]) is not float:
            return [_as_json(item) for item in value]
        value = np.array(value, np.float32)
    if not hasattr(value, "tolist"):
        return value
    if value.dtype.kind == "f" and value.dtype.itemsize < 8:
        # Through text, float32 0.1 becomes 0.1, not 0.10000000149011612.
        value = value.astype(str).astype(np.float64)
    return value.tolist()
