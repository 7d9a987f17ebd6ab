"""Read rows of Parquet files and of data sets: TFDS and Hugging Face.

A data set of TensorFlow Datasets is named `tfds:NAME[/CONFIG][:VERSION]
[#SPLIT]`, one of Hugging Face `hf:NAME[/CONFIG][:SPLIT]`. Rows come one at a
time, in a fixed order. Each library is imported at its first use.
"""

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bert_keras import files
from bert_keras.errors import InputError, get_first_line, install_command

PARQUET = ".parquet"
# Name of a split in this package -> possible names of the split in data sets.
SPLIT_NAMES = {
    "train": ("train",),
    "dev": ("validation", "dev"),
    "test": ("test",),
}
# Library -> form of the names, the form as text, and an example.
_FORMS = {
    "tfds": (
        re.compile(r"tfds:([^:#]+(?::[\d.*]+)?)(?:#(.+))?"),
        "tfds:NAME[/CONFIG][:VERSION][#SPLIT]",
        "tfds:imdb_reviews#train",
    ),
    "hf": (
        re.compile(r"hf:([^:]+)(?::(.+))?"),
        "hf:NAME[/CONFIG][:SPLIT]",
        "hf:stanfordnlp/imdb:train",
    ),
}
# Extra of bert_keras -> the library that it installs.
_PACKAGES = {"hf": "datasets", "parquet": "pyarrow"}
# First major version of `datasets` that does not run the scripts of data sets.
WITHOUT_SCRIPTS = 4
_AT_ONCE = 256  # rows that are converted to Python values at a time
_READ_AHEAD = 1 << 20  # bytes to read ahead in each column


class DataSet(NamedTuple):
    """Name of a data set: library, "tfds" or "hf", name in it, and split."""

    library: str
    name: str
    split: str

    @property
    def source(self) -> str:
        """The name without the split."""
        return f"{self.library}:{self.name}"


def is_data_set(source) -> bool:
    """Return True if a source is the name of a data set, not of a file."""
    return _find_library(source) in _FORMS


def parse_data_set(source: str, split="train") -> DataSet:
    """Return the `DataSet` that `source` names; `split` is the default."""
    library = _find_library(source)
    form, text, example = _FORMS[library]
    match = form.fullmatch(source)
    if match is None:
        raise InputError(
            f"{source!r} names no data set; expected {text}, for instance "
            f"{example}."
        )
    # Accept hf://OWNER/NAME too, because weights are named in this form.
    return DataSet(library, match[1].removeprefix("//"), match[2] or split)


def _find_library(source):
    return str(source).partition(":")[0]


def column_rows(
    source, columns: Sequence[str], optional=(), split="train"
) -> Iterator[tuple[int, list]]:
    """Yield `(number, values)` for each row; the first number is 1.

    `values` is a list with the row's value in each column, such as a str, a
    number, None or a list. A class label of a data set is converted to the
    name of the class. The label -1, which stands for an unpublished label,
    becomes None. A few hundred rows are in memory at a time.

    Args:
        source: a local or remote `.parquet` file, or the name of a data set.
        columns: names of the columns to read.
        optional: names in `columns` that may be missing in the source. The
            values of a missing column are None.
        split: split to read if `source` does not name a split. "dev" also
            finds the split "validation".

    Raises:
        InputError: the library, file, data set, split or a column is missing,
            a column occurs twice or has type null, or the data cannot be read.
    """
    if is_data_set(source):
        rows = _read_data_set_cells(source, columns, optional, split)
    else:
        rows = _read_file_cells(source, columns, optional)
    yield from enumerate(rows, 1)


def _read_file_cells(source, columns, optional):
    import_extra("parquet", source)
    with _raise_input_errors(source), files.open_file(source) as file:
        for batch in _read_parquet(file, source, columns, optional):
            batch.validate(full=True)  # raises if offsets are out of range
            lists = [
                batch.column(name).to_pylist()
                if name in batch.schema.names
                else [None] * batch.num_rows
                for name in columns
            ]
            yield from map(list, zip(*lists, strict=True))


def _read_parquet(file, source, columns, optional):
    """Yield batches of rows. One page of each column is in memory at a time."""
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(
        file,
        buffer_size=_READ_AHEAD,
        pre_buffer=False,
        page_checksum_verification=True,
    )
    present = _select_columns(source, table.schema_arrow, columns, optional)
    yield from table.iter_batches(_AT_ONCE, columns=present)


def _select_columns(source, schema, columns, optional):
    _check_columns(source, schema.names, columns, optional)
    for name in columns:
        if name not in optional and schema.names.count(name) > 1:
            raise InputError(
                f"{source}: {schema.names.count(name)} columns are called "
                f"{name!r}. Rename all but one"
            )
        if name not in optional and str(schema.field(name).type) == "null":
            raise InputError(
                f"{source}: expected values in {name!r}, got a column of type "
                "null, in which every row is empty"
            )
    # An optional column of which there are two counts as missing.
    return [n for n in dict.fromkeys(columns) if schema.names.count(n) == 1]


def _check_columns(source, names, columns, optional, fix="Name one of them"):
    for name in columns:
        if name not in names and name not in optional:
            raise InputError(
                f"{source}: no column {name!r}: its columns are "
                f"{', '.join(map(repr, names))}. {fix}"
            )


@contextlib.contextmanager
def _raise_input_errors(source):
    try:
        yield
    except InputError:
        raise
    # pyarrow and datasets raise these errors, for example for damaged files.
    except (
        OSError,
        ValueError,
        RuntimeError,
        LookupError,
        ArithmeticError,
    ) as error:
        if getattr(error, "errno", None) in files.TEMPORARY:
            raise
        raise InputError(
            f"{source} cannot be read: {get_first_line(error)}. Write it "
            "again, or fetch it again."
        ) from error


def data_set_rows(
    source: str, columns: Sequence[str], split="train"
) -> Iterator[dict]:
    """Yield the rows of a data set, as dicts of all columns.

    Args:
        source: name of a data set.
        columns: names of the columns that the data set must have.
        split: split to read if `source` does not name a split. "dev" also
            finds the split "validation".

    Raises:
        InputError: the library, data set, split or a column is missing, or
            the data set cannot be read.
    """
    features, rows = _open(source, split)
    if features:  # a split without rows may have no features
        fix = f"Name a data set that has {', '.join(columns)}"
        _check_columns(source, list(features), columns, (), fix)
    with _raise_input_errors(source):
        yield from rows


def data_set_features(source: str, split="train") -> dict:
    """Return a dict of column name -> feature of the data set's library.

    If the features are unknown, the values are those of the first row.
    """
    return _open(source, split)[0]


def _read_data_set_cells(source, columns, optional, split):
    features, rows = _open(source, split)
    _check_columns(source, list(features), columns, optional)
    present = [name for name in dict.fromkeys(columns) if name in features]
    if hasattr(rows, "select_columns"):
        rows = rows.select_columns(present)  # do not decode other columns
    names = {name: _find_class_names(features[name]) for name in present}
    with _raise_input_errors(source):
        for row in rows:
            yield [
                _decode_classes(row.get(name), names.get(name))
                for name in columns
            ]


def _find_class_names(feature):
    """Return the class names of a feature or of its items, or None."""
    return getattr(getattr(feature, "feature", feature), "names", None)


def _decode_classes(value, names):
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [_decode_classes(one, names) for one in value]
    if not names or value is None:
        return value
    return names[value] if value >= 0 else None  # -1 is an unpublished label


def _find_split(source, available, split):
    """Return the name that a data set has for a split, such as "dev"."""
    names = SPLIT_NAMES.get(split, (split,))
    present = [name for name in names if name in available]
    if not present:
        raise InputError(
            f"{source} has no {split} split; it has {', '.join(available)}"
        )
    return present[0]


def _open(source, split):
    """Return the features, as `data_set_features` does, and the rows."""
    data_set = parse_data_set(source, split)
    if data_set.library == "hf":
        return _open_hf(data_set)
    from bert_keras.data.tfds_sets import open_tfds

    return open_tfds(
        data_set.name, lambda available: _find_slices(data_set, available)
    )


def _find_slices(data_set, available):
    """Return TFDS's split, such as "train[:10%]" or "train+validation"."""
    slices = []
    for part in data_set.split.split("+"):
        name, bracket, rest = part.partition("[")
        if name != "all":  # TFDS's name of all splits together
            name = _find_split(data_set.source, available, name)
        slices.append(name + bracket + rest)
    return "+".join(slices)


def _open_hf(data_set):
    source = data_set.source
    datasets = import_extra("hf", source)
    if int(datasets.__version__.partition(".")[0]) < WITHOUT_SCRIPTS:
        raise InputError(
            f"{source}: datasets {datasets.__version__} may run a data set's "
            f"code. Expected {WITHOUT_SCRIPTS} or later, which runs no code: "
            f"{install_command('hf')}."
        )
    try:
        splits = _open_hugging_face(datasets, data_set.name)
    except (ValueError, RuntimeError, OSError) as error:
        raise InputError(
            f"{source} cannot be opened: {get_first_line(error)}. Expected "
            "hf:OWNER/NAME[/CONFIG] of huggingface.co or hf:FOLDER with data "
            "files. A data set that needs a script is not read."
        ) from error
    rows = splits[_find_split(source, splits, data_set.split)]
    with _raise_input_errors(source):
        return rows.features or dict(next(iter(rows), {})), rows


def _open_hugging_face(datasets, name):
    """Return a dict of split name -> rows, from a folder or from the Hub."""
    if any(
        os.path.isfile(os.path.join(name, file))
        for file in ("dataset_dict.json", "state.json")
    ):
        saved = datasets.load_from_disk(name)
        return saved if isinstance(saved, dict) else {"train": saved}
    above, _, config = name.rpartition("/")
    if os.path.isdir(name):
        above, config = name, None
    elif not os.path.isdir(above):
        owner, _, rest = name.partition("/")
        first, _, config = rest.partition("/")
        above = f"{owner}/{first}" if first else owner
        if above.isidentifier() and importlib.util.find_spec(
            f"datasets.packaged_modules.{above}"
        ):
            # `datasets` would read files of this format in the current folder.
            raise ValueError(f"{above} is a format, not a data set")
    return datasets.load_dataset(above, config or None, streaming=True)


def import_extra(extra, source):
    """Import and return the package of an extra; errors name `source`."""
    package = _PACKAGES[extra]
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(
            f"{source} needs {package}, which is not installed: "
            f"{install_command(extra)}."
        ) from error
