"""A served model's answers to many rows, in their order, as lines of JSON.

Rows are answered in batches of like length; no more of the input is in memory
than some hundred rows. Rows that an output holds already are not written again.
"""

import contextlib
import gzip
import hashlib
import json
import os
import sys
import zlib
from itertools import islice

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks.table import (
    KINDS,
    Dialect,
    cells,
    columnar_rows,
    ending,
    is_columnar,
    line_or_row,
    plain_errors,
    rows_of,
)

# What reading a line raises that `predict` did not write.
FOREIGN = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
BATCHES_AT_ONCE = 16  # are sorted by length together


def asked(served, name, columns):
    """The signature to ask, its entry in the card, and a column an input."""
    name = name or served.card["default"]
    if name not in served.signatures:
        raise InputError(
            f"The model answers {', '.join(served.signatures)}; got {name!r}."
        )
    entry = served.card["signatures"][name]
    columns = columns or entry["input_order"]
    if len(columns) != len(entry["input_order"]):
        raise InputError(
            f"--columns names {len(columns)}; {name} takes "
            f"{', '.join(entry['input_order'])}."
        )
    return name, entry, columns


def lists_of(entry):
    """For each input of a signature what `read_inputs` asks of its lists."""
    rows = [entry["request"][key][0] for key in entry["input_order"]]
    return [
        isinstance(row, list) and (isinstance(row[0], str) or int)
        for row in rows
    ]


def read_inputs(path, kind, columns, lists, own=None):
    """Yields each row's inputs: a list of str, or of list of str.

    Args:
        path: a file, also `.gz`, a data set's name, or "-" for standard
            input.
        kind: "lines", "csv", "tsv" or "jsonl"; None: by the file's name.
        columns: of a table, in the order of the inputs.
        lists: for each column whether it holds a list, written as JSON; of
            numbers where this is `int`.
        own: `Dialect`, of a file that is no UTF-8 or has no commas.
    """
    own = own or Dialect()
    kind = kind_of(path, kind)
    if kind == "lines" and len(columns) > 1:
        raise InputError(
            f"The model takes {' and '.join(columns)}, a line one text. Give "
            "a table with these columns: CSV, TSV, JSONL, Parquet, ..."
        )
    if kind == "lines" and own.separator:
        raise InputError(
            "--separator is for CSV, and the input has a text a line. Leave it "
            "out, or give --format=csv."
        )
    if kind == "columns":
        yield from _inputs(path, columnar_rows, columns, lists, own)
        return
    with _opened(path, kind, own.encoding) as text:
        if kind == "lines":
            with plain_errors(path, own):
                yield from ([line.rstrip("\r\n")] for line in text)
            return

        def read(path, columns, lists, own):
            return rows_of(path, text, columns, f".{kind}", lists, own=own)

        yield from _inputs(path, read, columns, lists, own)


def _inputs(path, read, columns, lists, own):
    """Each row of a table that `read` reads."""
    listed = [c for c, is_list in zip(columns, lists, strict=True) if is_list]
    for number, row in read(path, columns, listed, own=own):
        place = f"{path}, {line_or_row(path)} {number}"
        yield [
            _list(place, column, value, is_list) if is_list else value
            for column, value, is_list in zip(columns, row, lists, strict=True)
        ]


def kind_of(path, kind=None):
    """What a file is read as; `kind` where that is given."""
    if kind:
        return kind
    if is_columnar(path):
        return "columns"
    suffix, _ = ending(path)
    return suffix[1:] if suffix in KINDS else "lines"


def _opened(path, kind, encoding):
    # Lines may be any bytes; what is not UTF-8 the tokenizer leaves out.
    text = {
        "encoding": encoding,
        "errors": "replace" if kind == "lines" else "strict",
        "newline": "\n" if kind == "lines" else "",
    }
    if path == "-":
        return open(sys.stdin.fileno(), closefd=False, **text)
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    opened = gzip.open if ending(path)[1] else open
    return opened(path, "rt", **text)


def _list(place, column, value, of):
    try:
        items = value if isinstance(value, list) else json.loads(value)
    except ValueError:
        items = None
    if not items or not isinstance(items, list):
        raise InputError(
            f"{place}: expected a list of texts as JSON, got {value[:60]!r}"
        )
    if of is not int:
        return cells(place, column, items)
    rows = items if isinstance(items[0], list) else [items]
    if not all(
        type(row) is list and set(map(type, row)) == {int} for row in rows
    ):
        raise InputError(
            f"{place}: expected a list of integers in {column!r}, or lists of "
            f"them, got {json.dumps(items)[:60]}"
        )
    return items


class Answers:
    """The output: a line `{"row", "model", "signature", "inputs", "answer",
    "crc32"}` a row, which `tools/compare.py` reads too; the last is of the
    text before it.

    Args:
        path: a file, or "-" for standard output. A file that an interrupted
            run of the same model on the same rows left is continued.
        served: a `ServedModel`.
        signature: its name.
    """

    def __init__(self, path, served, signature):
        self.path, self.served, self.signature = path, served, signature
        entry = served.card["signatures"][signature]
        self.inputs = entry["input_order"]
        self.model = served.card["fingerprint"][:12]
        self.counts_truncated = "truncated" in entry["outputs"]
        self.done, self.truncated = 0, 0
        self.inputs_hash = hashlib.sha256()  # of the rows that are done
        if path != "-" and os.path.isfile(path):
            self._read_done()

    def _read_done(self):
        """Counts the lines that are complete, and cuts off one that is not."""
        end = 0
        with open(self.path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    if not self._begins_next(line):
                        self._refuse_foreign()
                    break
                try:
                    record = json.loads(line)
                    inputs, answer = record["inputs"], record["answer"]
                    is_ours = line == self._line(inputs, answer)
                    truncated = bool(answer.get("truncated"))
                except FOREIGN:
                    is_ours = False
                if not is_ours:
                    self._refuse_foreign()
                self.inputs_hash.update(_spell(inputs))
                self.done += 1
                self.truncated += truncated
                end += len(line)
        os.truncate(self.path, end)

    def _begins_next(self, line):
        """Whether what is to be cut off is the beginning of our next line."""
        begin = {"row": self.done, "model": self.model}
        begin = json.dumps(begin).removesuffix("}").encode()
        return line[: len(begin)] == begin[: len(line)]

    def _refuse_foreign(self):
        raise InputError(
            f"{self.path}, line {self.done + 1}, is not of this model and "
            "signature, or was changed. Name another --output, or give "
            "--overwrite to answer all rows again."
        )

    def answered(self, rows, batch_size):
        """Answers the rows that are not done yet; yields how many are.

        Numbers depend in the last bits on what else is in a batch. So the
        batches are those of the whole file: where it was interrupted, the
        rows before are asked again with the rest, and not written.

        Args:
            rows: iterator of each row's inputs.
        """
        size = BATCHES_AT_ONCE * batch_size
        before = self._skip(rows, size)
        ask = getattr(self.served, self.signature)
        with self._opened() as file:
            while some := list(islice(rows, size - len(before))):
                answers = _in_batches(ask, before + some, batch_size)
                for row, answer in zip(
                    some, answers[len(before) :], strict=True
                ):
                    line = self._line(self._by_name(row), answer)
                    file.write(line.decode())
                    self.done += 1
                    self.truncated += bool(answer.get("truncated"))
                file.flush()
                before = []
                yield self.done

    def _opened(self):
        if self.path == "-":
            return contextlib.nullcontext(sys.stdout)
        return open(self.path, "a", encoding="utf-8")

    def _skip(self, rows, size):
        """Checks the rows that are done; returns those of a `size` begun."""
        inputs_hash, begun = hashlib.sha256(), []
        for row in islice(rows, self.done):
            inputs_hash.update(_spell(self._by_name(row)))
            begun.append(row)
            if len(begun) == size:
                begun = []
        if inputs_hash.digest() != self.inputs_hash.digest():
            raise InputError(
                f"{self.path} holds {self.done} answers to other rows. Name "
                "another --output, or give --overwrite to replace it."
            )
        return begun

    def _by_name(self, row):
        return dict(zip(self.inputs, row, strict=True))

    def _line(self, inputs, answer):
        """The next line, as it is written."""
        record = {
            "row": self.done,
            "model": self.model,
            "signature": self.signature,
            "inputs": inputs,
            "answer": answer,
        }
        text = json.dumps(record, ensure_ascii=False).removesuffix("}")
        checksum = zlib.crc32(text.encode())
        return f'{text}, "crc32": "{checksum:08x}"}}\n'.encode()


def _spell(inputs):
    return json.dumps(inputs).encode() + b"\n"


def _in_batches(ask, rows, batch_size):
    """An answer a row, asked by length so that a batch wastes little."""
    lengths = [sum(len(str(value)) for value in row) for row in rows]
    order = np.argsort(lengths, kind="stable")
    answers = [None] * len(rows)
    for first in range(0, len(rows), batch_size):
        batch = order[first : first + batch_size]
        columns = zip(*[rows[i] for i in batch], strict=True)
        outputs = ask(*map(list, columns))
        for place, i in enumerate(batch):
            # Sorted: TensorFlow's order is another one in each process.
            answers[i] = {k: _plain(outputs[k][place]) for k in sorted(outputs)}
    return answers


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else value
