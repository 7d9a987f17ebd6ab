"""A served model's answers to many rows, in their order, in one file.

Rows are answered in batches bucketed by length; no more of the input is in
memory than some hundred rows. Rows that a file holds already are not asked
again.
"""

import contextlib
import csv
import hashlib
import importlib
import json
import os
import sys
import zlib
from itertools import islice

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# What reading a line raises that `predict` did not write.
FOREIGN = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
BATCHES_AT_ONCE = 16  # are sorted by length together
ROWS_AT_ONCE = 1024  # of a table that is written
UNFINISHED = ".unfinished"  # behind the name of an output


class Answers:
    """The output, a context manager; `finish` puts it in place.

    JSONL is written and resumed in place: a line `{"row", "model",
    "signature", "inputs", "keep", "answer", "crc32"}` a row, which
    `tools/compare.py` reads; the last is of the text before it. Other formats
    are made of such a file, NAME.unfinished, which then goes.

    Args:
        path: a file whose ending says the format, see `WRITERS`, or "-" for
            standard output.
        served: a `ServedModel`.
        signature: its name.
        keep: columns of the input that stand with the answers.
        overwrite: answer all rows again; what is at `path` is replaced when
            the answers are complete.

    Raises:
        InputError: another ending; answers to something else at `path`, or
            somebody who writes them.
    """

    def __init__(self, path, served, signature, keep=(), overwrite=False):
        self.path, self.served, self.signature = path, served, signature
        entry = served.card["signatures"][signature]
        self.inputs, self.keep = entry["input_order"], list(keep)
        self.model = served.card["fingerprint"][:12]
        self.counts_truncated = "truncated" in entry["outputs"]
        self.done, self.truncated = 0, 0
        self.inputs_hash = hashlib.sha256()  # of the rows that are done
        self._overwrite = overwrite
        self._write = None  # of another format than JSONL
        self.work = None  # the file of lines; None of a pipe or a device
        if path == "-" or os.path.exists(path) and not os.path.isfile(path):
            files.refuse_folder(path)
            return
        self._write = find_writer(path, entry)
        is_there = os.path.isfile(path)
        if is_there and self._write and not overwrite:
            raise InputError(
                f"{path} is there already. Name another --output, or give "
                "--overwrite to replace it."
            )
        beside = self._write or is_there and overwrite
        self.work = path + UNFINISHED if beside else path

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            if self.work is None:
                self._file = sys.stdout
                if self.path != "-":
                    self._file = stack.enter_context(open(self.path, "w"))
            else:
                files.make_folder(os.path.dirname(os.path.abspath(self.work)))
                if self.work != self.path and os.path.isfile(self.path):
                    stack.enter_context(_locked(self.path, self.path))
                self._file = stack.enter_context(_locked(self.work, self.path))
                if self._overwrite:
                    self._file.truncate(0)
                self._read_done()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self._stack.close()

    def finish(self):
        """Put the complete answers at their place, in their format."""
        if self.work in (None, self.path):
            return
        if self._write is None:
            self._file.flush()
            files.flush(self.work)
            os.replace(self.work, self.path)
            return
        with files.atomic_output(self.path) as partial:
            self._write(self.work, partial)
        os.remove(self.work)

    def _read_done(self):
        """Count the lines that are complete, and cut off one that is not."""
        end = 0
        with open(self.work, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    if not self._begins_next(line):
                        self._refuse_foreign()
                    break
                try:
                    record = json.loads(line)
                    answer = record["answer"]
                    row = [record["inputs"], record.get("keep", {})]
                    is_ours = line == self._line(*row, answer)
                    truncated = bool(answer.get("truncated"))
                except FOREIGN:
                    is_ours = False
                if not is_ours:
                    self._refuse_foreign()
                self.inputs_hash.update(_spell(row))
                self.done += 1
                self.truncated += truncated
                end += len(line)
        self._file.truncate(end)

    def _begins_next(self, line):
        """Return True if the partial last line begins the next one."""
        begin = {"row": self.done, "model": self.model}
        begin = json.dumps(begin).removesuffix("}").encode()
        return line[: len(begin)] == begin[: len(line)]

    def _refuse_foreign(self):
        raise InputError(
            f"{self.work}, line {self.done + 1}, is not of this model and "
            "signature, or was changed. Name another --output, or give "
            "--overwrite to answer all rows again."
        )

    def answered(self, rows, batch_size):
        """Answer the rows that are not done yet; yield how many are.

        Values depend in the last bits on what else is in a batch. So the
        batches are those of the whole file: where it was interrupted, the
        rows before are asked again with the rest, and not written.

        Args:
            rows: iterator of each row's inputs, and of what is kept.
            batch_size: rows at once.
        """
        size = BATCHES_AT_ONCE * batch_size
        before = self._skip(rows, size)
        ask = getattr(self.served, self.signature)
        count = len(self.inputs)
        while some := list(islice(rows, size - len(before))):
            asked = [row[:count] for row in before + some]
            answers = _in_batches(ask, asked, batch_size)
            for row, answer in zip(some, answers[len(before) :], strict=True):
                self._file.write(self._line(*self._by_name(row), answer))
                self.done += 1
                self.truncated += bool(answer.get("truncated"))
            self._file.flush()
            before = []
            yield self.done

    def _skip(self, rows, size):
        """Check the rows that are done; return those of a `size` begun."""
        inputs_hash, begun = hashlib.sha256(), []
        for row in islice(rows, self.done):
            inputs_hash.update(_spell(self._by_name(row)))
            begun.append(row)
            if len(begun) == size:
                begun = []
        if inputs_hash.digest() != self.inputs_hash.digest():
            raise InputError(
                f"{self.work} holds {self.done} answers to other rows. Name "
                "another --output, or give --overwrite to replace it."
            )
        return begun

    def _by_name(self, row):
        """Return the row's inputs and what is kept of it, by name."""
        count = len(self.inputs)
        inputs = dict(zip(self.inputs, row[:count], strict=True))
        return [inputs, dict(zip(self.keep, row[count:], strict=True))]

    def _line(self, inputs, keep, answer):
        """Return the next line, as it is written."""
        record = {
            "row": self.done,
            "model": self.model,
            "signature": self.signature,
            "inputs": inputs,
            **({"keep": keep} if keep else {}),
            "answer": answer,
        }
        text = json.dumps(record, ensure_ascii=False).removesuffix("}")
        checksum = zlib.crc32(text.encode())
        line = f'{text}, "crc32": "{checksum:08x}"}}\n'
        return line if self.work is None else line.encode()


@contextlib.contextmanager
def _locked(work, output):
    """Open a file to append to it, which no other process has locked."""
    with open(work, "ab") as file:
        if fcntl:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Who held it a moment ago may have put it in place.
                is_there = os.path.exists(work)
                is_held = not is_there or not os.path.samestat(
                    os.fstat(file.fileno()), os.stat(work)
                )
            except BlockingIOError:
                is_held = True
            if is_held:
                raise InputError(
                    f"Another process writes {output}. Wait for its end, or "
                    "name another --output."
                )
        yield file


def _spell(row):
    return json.dumps(row).encode() + b"\n"


def _in_batches(ask, rows, batch_size):
    """Return an answer a row, asked by length so that a batch wastes little."""
    lengths = [sum(len(str(value)) for value in row) for row in rows]
    order = np.argsort(lengths, kind="stable")
    answers = [None] * len(rows)
    for first in range(0, len(rows), batch_size):
        batch = order[first : first + batch_size]
        columns = zip(*[rows[i] for i in batch], strict=True)
        outputs = ask(*map(list, columns))
        for index, i in enumerate(batch):
            # Sorted: TensorFlow's order is another one in each process.
            answers[i] = {
                name: plain_value(outputs[name][index])
                for name in sorted(outputs)
            }
    return answers


def plain_value(value):
    """Return an output as JSON takes it: float32 in its shortest form."""
    if not hasattr(value, "tolist"):
        return value
    if value.dtype.kind == "f" and value.dtype.itemsize < 8:
        # 0.1, and not 0.10000000149011612, the same number as float64.
        value = value.astype(str).astype(np.float64)
    return value.tolist()


# The formats: each is written from the file of lines.


def find_writer(path, entry):
    """Return the function that writes the format of a name; None for JSONL.

    Args:
        path: the output.
        entry: of the signature, in the card.

    Raises:
        InputError: an unknown ending, or a format that cannot hold the
            answers.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in WRITERS:
        raise InputError(
            f"{path}: expected a name that ends in {', '.join(WRITERS)}, got "
            f"{suffix or 'no ending'!r}"
        )
    if suffix == ".parquet":
        try:
            importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise InputError(
                f"{path} needs pyarrow, which is not installed: "
                "pip install 'bert_keras[parquet]'."
            ) from None
    if suffix == ".npy" and VECTOR not in entry["outputs"]:
        raise InputError(
            f"{path}: .npy is for vectors, and the signature answers "
            f"{', '.join(entry['outputs'])}. Name a file that ends in "
            f"{', '.join(name for name in WRITERS if name != '.npy')}."
        )
    return WRITERS[suffix]


def _records(work):
    with open(work, "rb") as file:
        yield from map(json.loads, file)


def _flat(record):
    """Return the columns of a row: kept ones, inputs, answers."""
    row = {**record.get("keep", {})}
    row |= {k: v for k, v in record["inputs"].items() if k not in row}
    for name, value in record["answer"].items():
        row[f"predicted_{name}" if name in row else name] = value
    return row


def _write_csv(work, path):
    _write_text(work, path, csv.writer, str, lineterminator="\n")


def _write_tsv(work, path):
    _write_text(
        work,
        path,
        csv.writer,
        # There is no way to write them: TSV is split at tabs and nowhere else.
        lambda cell: " ".join(cell.replace("\t", " ").splitlines()),
        delimiter="\t",
        lineterminator="\n",
        quoting=csv.QUOTE_NONE,
        quotechar=None,
    )


def _write_text(work, path, writer, clean, **form):
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = writer(file, **form)
        for number, record in enumerate(_records(work)):
            row = _flat(record)
            if number == 0:
                rows.writerow(map(clean, row))
            rows.writerow(clean(_cell(value)) for value in row.values())


def _cell(value):
    is_text = isinstance(value, str)
    return value if is_text else json.dumps(value, ensure_ascii=False)


def _write_parquet(work, path):
    import pyarrow as pa
    import pyarrow.parquet

    def batches():
        rows = map(_flat, _records(work))
        while some := list(islice(rows, ROWS_AT_ONCE)):
            yield some

    schemas = {pa.Table.from_pylist(some).schema for some in batches()}
    if not schemas:
        schemas = {pa.schema([])}
    schema = pa.unify_schemas(list(schemas), promote_options="permissive")
    schema = pa.schema([(f.name, _narrow(pa, f.type)) for f in schema])
    with pyarrow.parquet.ParquetWriter(path, schema) as file:
        for some in batches():
            file.write_table(pa.Table.from_pylist(some, schema))


def _narrow(pa, kind):
    """Return a type with float32, which the outputs are, for float64."""
    if pa.types.is_list(kind):
        return pa.list_(_narrow(pa, kind.value_type))
    return pa.float32() if pa.types.is_float64(kind) else kind


VECTOR = "embedding"  # the output of a signature that answers vectors


def _write_npy(work, path):
    """Write float32 (rows, dim)."""
    count = sum(1 for _ in _records(work))
    first = next((r["answer"][VECTOR] for r in _records(work)), [])
    with open(path, "wb") as file:
        header = {
            "shape": (count, len(first)),
            "fortran_order": False,
            "descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)),
        }
        np.lib.format.write_array_header_1_0(file, header)
        for record in _records(work):
            file.write(np.array(record["answer"][VECTOR], "<f4").tobytes())


WRITERS = {
    ".jsonl": None,
    ".csv": _write_csv,
    ".tsv": _write_tsv,
    ".parquet": _write_parquet,
    ".npy": _write_npy,
}
