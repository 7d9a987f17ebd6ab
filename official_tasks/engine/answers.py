"""Writes a file with a served model's answer to each row, in row order.

The model answers rows in batches bucketed by length. Only the rows of 16
batches are in memory at a time. The same call resumes an interrupted file,
unless `overwrite` is True.
"""

import contextlib
import hashlib
import json
import os
import sys
import zlib
from itertools import islice

import numpy as np

from bert_keras import files, full_disk
from bert_keras.errors import InputError
from bert_keras.json_files import read_json, write_json
from official_tasks.engine.answer_formats import (
    MAX_LABELS,
    VECTOR,
    Table,
    encode_vector,
    find_writer,
    write_npy,
)
from official_tasks.engine.prediction import encode_row
from official_tasks.tasks.forms.cells import ID

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Errors that a line may cause if `predict` did not write the line.
FOREIGN = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
BATCHES_AT_ONCE = 16  # the rows of this many batches are sorted by length
BEST_LABELS = 10  # labels to write if a model has more than `MAX_LABELS`
UNFINISHED = ".unfinished"  # suffix of an incomplete output


def list_written(path) -> list[str]:
    """Return the paths that `Answers` may write for the output `path`."""
    if path == "-":
        return []
    return [path, path + UNFINISHED, _record_path(path)]


def _record_path(path):
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.answered")


class Answers:
    """Context manager that writes the output of `predict`.

    A JSONL file is written and resumed in place. It has a line for each row:
    `{"row", "model", "signature", "inputs", "keep", "answer", "crc32"}`. If no
    columns are kept, "keep" is missing. The checksum covers the line's text
    before "crc32". `bert-keras compare` reads such lines. If a model has more
    than 100 labels, `probabilities` holds only the ten best, with their labels.
    For another format, and to overwrite a file, lines are first written to
    `path` with the suffix ".unfinished". Then `finish` writes the output. For
    another format it also writes a hidden record of model and rows. With this
    record, the same call ends at once.

    Args:
        path: a file with an ending of `WRITERS`; or a pipe, a device, or "-"
            for standard output, which get JSONL lines.
        served: a `ServedModel`.
        signature: name of the signature.
        keep: columns of the input to write next to the answers. A row may have
            one value more, its id, which is also kept.
        overwrite: True to answer all rows again and replace `path` at the end.
        separator: character between the columns of CSV; None for a comma. With
            a separator, CSV begins with a byte order mark, as Excel expects.

    Raises:
        InputError: `path` is remote or a folder, the format is unknown or
            cannot hold the answers, `path` exists in a format other than JSONL
            with other answers and `overwrite` is False, a line of `path` was
            changed or is the answer to another row or from another model or
            signature, or another process writes to `path`.
    """

    def __init__(
        self,
        path,
        served,
        signature,
        keep=(),
        overwrite=False,
        separator=None,
    ):
        if files.is_remote(path):
            raise InputError(
                f"{path} is remote, and answers are only written to a local "
                "file. Name a local --output."
            )
        self.path, self.served, self.signature = path, served, signature
        entry = served.card["signatures"][signature]
        self.inputs, self.keep = entry["input_order"], list(keep)
        self._entry, self._labels = entry, entry.get("labels", ())
        # Earlier versions kept no ids, and their outputs are continued so.
        self._has_ids, self._drops_ids = False, False
        self.model = served.card["fingerprint"][:12]
        self.counts_truncated = "truncated" in entry["outputs"]
        self.done, self.truncated = 0, 0  # answered rows, truncated rows
        self.inputs_hash = hashlib.sha256()  # hash of the answered rows
        self._record = {}  # record of a finished output
        self._overwrite, self._separator = overwrite, separator
        self._write = None  # function that writes the format; None for JSONL
        self._encoders = {}  # output -> function that replaces `_as_json`
        self.lines = None  # path of the JSONL file; None for a pipe or device
        if path == "-" or os.path.exists(path) and not os.path.isfile(path):
            files.refuse_folder(path)
            return
        self._write = find_writer(path, entry)
        exists = os.path.isfile(path)
        if exists and self._write and not overwrite:
            self._read_record()
        is_separate = self._write or exists and overwrite
        self.lines = path + UNFINISHED if is_separate else path
        if self._write is write_npy:
            self._encoders = {VECTOR: encode_vector}

    def _read_record(self):
        """Read the record of a finished output, which needs no answers."""
        with contextlib.suppress(OSError, *FOREIGN):
            record = read_json(_record_path(self.path))
            rows, truncated = record["rows"], record["truncated"]
            # Records of earlier versions have no separator.
            record.setdefault("separator", self._separator)
            if record == self._make_record(rows, truncated, record["inputs"]):
                self.done, self.truncated = rows, truncated
                self._record = record
                return
        raise InputError(
            f"{self.path} exists, with other answers. Name another --output, "
            "or add --overwrite to replace it."
        )

    def _make_record(self, rows, truncated, inputs):
        return {
            "model": self.model,
            "signature": self.signature,
            "rows": rows,
            "truncated": truncated,
            "inputs": inputs,
            "separator": self._separator,
            "output": files.sha256(self.path),
        }

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            if self._record:
                pass  # nothing is left to write
            elif self.lines is not None:
                stack.enter_context(full_disk.name_file(self.lines))
                self._open(stack)
            elif self.path == "-":
                self._file = sys.stdout
                if hasattr(self._file, "reconfigure"):
                    self._file.reconfigure(encoding="utf-8")
            else:
                self._file = stack.enter_context(
                    open(self.path, "w", encoding="utf-8")
                )
            self._stack = stack.pop_all()
        return self

    def _open(self, stack):
        files.make_folder(os.path.dirname(os.path.abspath(self.lines)))
        if self.lines != self.path and os.path.isfile(self.path):
            stack.enter_context(_open_locked(self.path, self.path))
        self._file = stack.enter_context(_open_locked(self.lines, self.path))
        if self._overwrite:
            self._file.truncate(0)
        self._read_lines()

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    def finish(self):
        """Write the complete answers to `path` in the format of its ending."""
        if self._record or self.lines in (None, self.path):
            return
        if self._write is None:
            self._file.flush()
            files.flush(self.lines)
            os.replace(self.lines, self.path)
            return
        keep = [ID] * self._has_ids + self.keep
        table = Table(keep, self._entry, self._separator)
        with files.atomic_output(self.path) as partial:
            self._write(self.lines, partial, table)
        record = self._make_record(
            self.done, self.truncated, self.inputs_hash.hexdigest()
        )
        with files.atomic_output(_record_path(self.path)) as partial:
            write_json(record, partial)
        os.remove(self.lines)

    def _read_lines(self):
        """Check and count the complete lines; cut off a partial last line."""
        end = 0
        with open(self.lines, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    self._check_partial(line)
                    break
                try:
                    record = json.loads(line)
                    answer = record["answer"]
                    row = [record["inputs"], record.get("keep", {})]
                    self._note_id(row)
                    is_valid = line == self._format_line(*row, answer)
                    truncated = bool(answer.get("truncated"))
                except FOREIGN:
                    is_valid = False
                if not is_valid:
                    self._refuse_line()
                self.inputs_hash.update(encode_row(row))
                self.done += 1
                self.truncated += truncated
                end += len(line)
        self._file.truncate(end)

    def _check_partial(self, line):
        """Raise unless a partial last line begins like the next row's line."""
        start = {"row": self.done, "model": self.model}
        start = json.dumps(start).removesuffix("}").encode()
        if line[: len(start)] != start[: len(line)]:
            self._refuse_line()

    def _refuse_line(self):
        raise InputError(
            f"{self.lines}, line {self.done + 1}, is from another model or "
            "signature, or was changed. Name another --output, or add "
            "--overwrite to answer all rows again."
        )

    def answer(self, rows, batch_size):
        """Answer the remaining rows; yield the number of answered rows so far.

        Rows are sorted by length within a group of `BATCHES_AT_ONCE` batches.
        The last bits of a value depend on the other rows of its batch. So a
        resumed call must make the same batches. If an earlier call wrote only
        part of a group, this call computes the whole group again. It writes
        only the missing answers.

        Args:
            rows: iterator over all rows, including the answered ones. A row
                is a list of its inputs, then its values of the columns `keep`.
            batch_size: rows of a batch.
        """
        size = BATCHES_AT_ONCE * batch_size
        before = self._skip(rows, size)
        signature = getattr(self.served, self.signature)
        count = len(self.inputs)
        while group := list(islice(rows, size - len(before))):
            if self._record:
                self._refuse_rows()
            inputs = [row[:count] for row in before + group]
            answers = _answer_in_batches(
                signature, inputs, batch_size, self._labels, self._encoders
            )
            for row, answer in zip(group, answers[len(before) :], strict=True):
                values = self._name_values(row)
                self._note_id(values)
                self._file.write(self._format_line(*values, answer))
                self.inputs_hash.update(encode_row(values))
                self.done += 1
                self.truncated += bool(answer.get("truncated"))
            self._file.flush()
            before = []
            yield self.done

    def _skip(self, rows, size):
        """Skip the answered rows; raise if the file answers other rows.

        Returns:
            list of the answered rows of an incomplete last group; [] if the
            group is complete.
        """
        with_ids, without, group = hashlib.sha256(), hashlib.sha256(), []
        for row in islice(rows, self.done):
            with_ids.update(encode_row(self._name_values(row)))
            without.update(encode_row(self._name_values(row, False)))
            group.append(row)
            if len(group) == size:
                group = []
        answered = self._record.get("inputs", self.inputs_hash.hexdigest())
        if with_ids.hexdigest() != answered:
            if without.hexdigest() != answered:
                self._refuse_rows()
            self._drops_ids = True
        return group

    def _refuse_rows(self):
        path = self.path if self._record else self.lines
        raise InputError(
            f"{path} holds {self.done} answers to other rows. Name another "
            "--output, or add --overwrite to replace it."
        )

    def _name_values(self, row, has_id=True):
        """Return a row as two dicts: input -> value, kept column -> value."""
        count, end = len(self.inputs), len(self.inputs) + len(self.keep)
        inputs = dict(zip(self.inputs, row[:count], strict=True))
        keep = dict(zip(self.keep, row[count:end], strict=True))
        if has_id and not self._drops_ids and any(row[end:]):
            keep = {ID: row[end], **keep}
        return [inputs, keep]

    def _note_id(self, values):
        is_kept = ID in values[1] and ID not in self.keep
        self._has_ids = self._has_ids or is_kept

    def _format_line(self, inputs, keep, answer):
        """Return the next line: a str for a pipe, bytes for a file."""
        record = {
            "row": self.done,
            "model": self.model,
            "signature": self.signature,
            "inputs": inputs,
            **({"keep": keep} if keep else {}),
            "answer": answer,
        }
        try:
            text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        except ValueError:
            raise InputError(
                f"The model answers row {self.done + 1} of the input with NaN "
                "or infinity. Use earlier weights, or train again with a lower "
                f"learning rate. The inputs are {str(inputs)[:60]}"
            ) from None
        text = text.removesuffix("}")
        checksum = zlib.crc32(text.encode())
        line = f'{text}, "crc32": "{checksum:08x}"}}\n'
        return line if self.lines is None else line.encode()


@contextlib.contextmanager
def _open_locked(path, output):
    """Open a file for appending; raise if another process has locked it."""
    with open(path, "ab") as file:
        if fcntl:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The file is not free if another process just renamed it.
                is_free = os.path.exists(path) and os.path.samestat(
                    os.fstat(file.fileno()), os.stat(path)
                )
            except BlockingIOError:
                is_free = False
            if not is_free:
                raise InputError(
                    f"Another process writes {output}. Wait until the process "
                    "ends, or name another --output."
                )
        yield file


def _answer_in_batches(signature, rows, batch_size, labels, encoders):
    lengths = [sum(len(str(value)) for value in row) for row in rows]
    order = np.argsort(lengths, kind="stable")
    answers = [None] * len(rows)
    for first in range(0, len(rows), batch_size):
        batch = order[first : first + batch_size]
        columns = zip(*[rows[i] for i in batch], strict=True)
        outputs = signature(*map(list, columns))
        if len(labels) > MAX_LABELS and "probabilities" in outputs:
            outputs["probabilities"] = [
                _find_best(row, labels) for row in outputs["probabilities"]
            ]
        for index, i in enumerate(batch):
            answers[i] = {
                name: encoders.get(name, _as_json)(outputs[name][index])
                for name in sorted(outputs)
            }
    return answers


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
