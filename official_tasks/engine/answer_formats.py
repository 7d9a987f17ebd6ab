"""Writes answers as JSONL, CSV, TSV, Parquet or NPY, from lines of JSON.

A writer gets a function that returns an iterator over the lines, which are
bytes; the path to write; and a `Table`.
"""

import base64
import csv
import json
import os
from itertools import islice

import numpy as np

from bert_keras.data.data_sets import import_extra
from bert_keras.errors import InputError
from official_tasks.tasks.forms.delimited import make_csv_writer

ROWS_AT_ONCE = 1024  # rows per write to a Parquet file
VECTOR = "embedding"  # name of a signature's output that holds vectors
MAX_LABELS = 100  # more labels make a row too long (73 kB for 5,000 labels)
# Output with a value for each label -> start of the names of its columns.
BY_LABEL = {"probabilities": "probability", "score": "score"}


def find_writer(path, entry):
    """Return the function of `WRITERS` that writes the format of `path`.

    Args:
        path: the output file; its ending decides the format.
        entry: dict that describes the signature, from `ServedModel.card`.

    Raises:
        InputError: the ending is unknown, pyarrow is missing, or the format
            cannot hold the answers.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in WRITERS:
        raise InputError(
            f"{path}: expected a name that ends in {', '.join(WRITERS)}, got "
            f"{suffix or 'no ending'!r}"
        )
    if suffix == ".parquet":
        import_extra("parquet", path)
    if suffix == ".npy" and VECTOR not in entry["outputs"]:
        raise InputError(
            f"{path}: .npy is for vectors, but the signature returns "
            f"{', '.join(entry['outputs'])}. Name a file that ends in "
            f"{', '.join(name for name in WRITERS if name != '.npy')}."
        )
    return WRITERS[suffix]


class Table:
    """Columns of a table of answers.

    The columns are the kept ones, the inputs, then the outputs. Of an output
    with a value for each label, each label has a column.

    Args:
        keep: names of the kept columns.
        entry: the signature's entry in the card.
        separator: see `Answers`.
    """

    def __init__(self, keep, entry, separator=None):
        self.separator = separator
        labels = entry.get("labels", ())
        self._keep = keep
        self._by_label = {
            name: [f"{start}_{label}" for label in labels]
            for name, start in BY_LABEL.items()
            if len(labels) <= MAX_LABELS
            and name in entry["outputs"]
            and entry["outputs"][name]["shape"] == ["B", "C"]
        }
        inputs, outputs = entry["input_order"], sorted(entry["outputs"])
        record = {"keep": keep, "inputs": inputs, "answer": outputs}
        empty = {key: dict.fromkeys(x) for key, x in record.items()}
        self.columns = list(self.make_row(empty))

    def make_row(self, record):
        """Return a record as a dict of column -> value.

        An output gets the prefix "predicted_" if an earlier column has its
        name. An input with the name of a kept column is left out.
        """
        row = dict.fromkeys(self._keep, "") | record.get("keep", {})
        row |= {k: v for k, v in record["inputs"].items() if k not in row}
        for output, value in record["answer"].items():
            names = self._by_label.get(output)
            values = (value or [None] * len(names)) if names else [value]
            for name, one in zip(names or [output], values, strict=True):
                while name in row:
                    name = f"predicted_{name}"
                row[name] = one
        return row


def _write_jsonl(lines, path, table):
    with open(path, "wb") as file:
        file.writelines(lines())


def _write_csv(lines, path, table):
    mark, separator = "", ","
    if table.separator:
        mark, separator = "\ufeff", table.separator
    _write_text(lines, path, table, str, mark, delimiter=separator)


def _write_tsv(lines, path, table):
    _write_text(
        lines,
        path,
        table,
        # Replace tabs and line breaks, because TSV has no quotes.
        lambda cell: " ".join(cell.replace("\t", " ").splitlines()),
        "",
        delimiter="\t",
        quoting=csv.QUOTE_NONE,
        quotechar=None,
    )


def _write_text(lines, path, table, clean, mark, **dialect):
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(mark)
        writer = make_csv_writer(file, **dialect)
        writer.writerow(map(clean, table.columns))
        for row in map(table.make_row, map(json.loads, lines())):
            writer.writerow(clean(_cell(value)) for value in row.values())


def _cell(value):
    is_text = isinstance(value, str)
    return value if is_text else json.dumps(value, ensure_ascii=False)


def _write_parquet(lines, path, table):
    import pyarrow as pa
    import pyarrow.parquet

    def batches():
        rows = map(table.make_row, map(json.loads, lines()))
        while batch := list(islice(rows, ROWS_AT_ONCE)):
            yield batch

    schemas = {pa.Table.from_pylist(batch).schema for batch in batches()}
    if not schemas:
        schemas = {pa.schema([(name, pa.null()) for name in table.columns])}
    schema = pa.unify_schemas(list(schemas), promote_options="permissive")
    schema = pa.schema([(f.name, _narrow(pa, f.type)) for f in schema])
    with pyarrow.parquet.ParquetWriter(path, schema) as file:
        for batch in batches():
            file.write_table(pa.Table.from_pylist(batch, schema))


def _narrow(pa, dtype):
    """Replace float64 in a type by float32, the dtype of the outputs."""
    if pa.types.is_list(dtype):
        return pa.list_(_narrow(pa, dtype.value_type))
    return pa.float32() if pa.types.is_float64(dtype) else dtype


def encode_vector(vector):
    """Return a float32 vector in base64; numbers in JSON are slower.

    Only the parts of an .npy output have such text. A vector with NaN or
    infinity is returned as a list, which `Answers` refuses.
    """
    if not np.isfinite(vector).all():
        return np.asarray(vector).tolist()
    return base64.b64encode(np.asarray(vector, "<f4")).decode()


def write_npy(lines, path, table):
    """Write the vectors as one float32 array (rows, dim)."""

    def vectors():
        for record in map(json.loads, lines()):
            yield base64.b64decode(record["answer"][VECTOR])

    count = sum(1 for _ in lines())
    dim = len(next(vectors(), b"")) // 4
    with open(path, "wb") as file:
        header = {
            "shape": (count, dim),
            "fortran_order": False,
            "descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)),
        }
        np.lib.format.write_array_header_1_0(file, header)
        file.writelines(vectors())


WRITERS = {
    ".jsonl": _write_jsonl,
    ".csv": _write_csv,
    ".tsv": _write_tsv,
    ".parquet": _write_parquet,
    ".npy": write_npy,
}
