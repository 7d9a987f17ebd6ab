"""Read the examples of a GLUE task from official files or a data set."""

from pathlib import Path

from bert_keras.data.data_sets import is_data_set
from bert_keras.errors import InputError, format_count
from official_tasks.tasks.base import Example
from official_tasks.tasks.forms.cells import read_number
from official_tasks.tasks.forms.text_files import read_text


def read_glue(row, path, split, notes, part=0):
    """Return the examples of an official file or of a data set of GLUE.

    Notes for the user are added to `notes`. Each `Example` of a file gets the
    index of the part that has the file's name, or `part` if no part has this
    name.
    """
    if is_data_set(path):
        return _read_data_set(row, path, split, part)
    parts = row.parts.get(split, ())
    name = Path(path).stem
    part = parts.index(name) if name in parts else part
    header, lines = _split_header(row, path, split)
    text = _find_column(row, header, row.text, path)
    pair = row.text_pair and _find_column(row, header, row.text_pair, path)
    label = _find_label_column(row, header, path, split)
    index = header.index(row.index) if row.index in header else None
    is_in_split = _select_raw_rows(row, path, split)
    examples, ragged = [], []
    for number, cells in lines:
        if len(cells) != len(header):
            if not row.may_be_ragged:
                raise wrong_width(path, number, header, cells)
            ragged.append(number)
        elif is_in_split(cells):
            examples.append(
                Example(
                    cells[text],
                    None if pair is None else cells[pair],
                    None
                    if label is None
                    else read_label(row, cells[label], path, number),
                    str(len(examples)) if index is None else cells[index],
                    part,
                )
            )
    if ragged:
        notes.append(
            f"{path}: {format_count(len(ragged), 'row')} with a wrong number "
            f"of columns left out, the first at line {ragged[0]}. The official "
            "files have such rows"
        )
    return examples


def _read_data_set(row, source, split, part):
    """Return the examples of a data set, such as "tfds:glue", by their idx."""
    from bert_keras.data.data_sets import data_set_rows

    source = _add_config(source, row.name)
    if len(row.parts.get(split, ())) > 1:
        split = row.parts[split][part].replace("dev", "validation")
    text, pair = row.data_set_texts or (row.text, row.text_pair)
    columns = [text, *([pair] if row.text_pair else []), "label", "idx"]
    number = float if row.labels is None else int
    # TFDS shuffles the rows; the official files have them in this order.
    rows = sorted(
        data_set_rows(source, columns, split), key=lambda row: row["idx"]
    )
    # The official train and dev files of MRPC do not number their rows, and
    # data sets number the rows of the file that has both.
    is_numbered = split == "test" or not row.raw
    return [
        Example(
            values[text],
            values[pair] if row.text_pair else None,
            # A hidden test label is -1.
            None if values["label"] < 0 else number(values["label"]),
            str(int(values["idx"]) if is_numbered else position),
            part,
        )
        for position, values in enumerate(rows)
    ]


def _add_config(source, name):
    """Return the data set of one task: "tfds:glue" is "tfds:glue/mrpc"."""
    path, colon, version = source.removeprefix("tfds:").partition(":")
    if source.startswith("tfds:"):
        is_glue = path == "glue"
        return f"tfds:{path}/{name}{colon}{version}" if is_glue else source
    is_glue = source.removeprefix("hf:").rpartition("/")[2] == "glue"
    return f"{source}/{name}" if is_glue else source


def read_lines(path):
    """Return (line number, cells) of each line that is not empty.

    Quotes are ordinary characters. Lines end only at "\\n"; `str.splitlines`
    would also split at other characters, which occur in texts.
    """
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    rows = [
        (number, line.split("\t"))
        for number, line in enumerate(lines, 1)
        if line
    ]
    if not rows:
        raise InputError(f"{path}: the file is empty")
    return rows


def read_label(row, text, path, number):
    """Return the class index of a label in a file; for regression, a number."""
    if row.spelled is None:
        value = read_number(text)
        if value is not None:
            return value
        expected = "a number"
    else:
        if text in row.spelled:
            return row.spelled.index(text)
        expected = f"one of {', '.join(row.spelled)}"
    raise InputError(
        f"{path}, line {number}: expected {expected} as the label of the "
        f"task {row.name}, got {text[:40]!r}. Is it a file of another task?"
    )


def wrong_width(path, number, header, cells) -> InputError:
    """Return the error for a line with the wrong number of columns."""
    return InputError(
        f"{path}, line {number}: expected {len(header)} columns, separated by "
        f"tabs, got {len(cells)}{_comma_hint(cells)}"
    )


def _comma_hint(cells):
    is_csv = len(cells) == 1 and "," in cells[0]
    return ". The file seems to have commas in place of tabs" if is_csv else ""


def _split_header(row, path, split):
    """Return the header, and (line number, cells) of each row."""
    rows = read_lines(path)
    first = rows[0][1]
    if row.header and row.text not in first:
        return list(row.header), rows
    # CoLA's train and dev files have no header. A file with the header of SST-2
    # belongs to SST-2.
    if row.header and split != "test" and first == [row.text, row.label]:
        raise _other_task(row, path, first)
    return first, rows[1:]


def _find_column(row, header, name, path):
    if name not in header:
        raise _other_task(row, path, header)
    return header.index(name)


def _other_task(row, path, header):
    return InputError(
        f"{path} is no file of the task {row.name}: expected the columns "
        f"{', '.join(row.header or filter(None, (row.text, row.text_pair)))}, "
        f"got {', '.join(map(repr, header[:12]))}{_comma_hint(header)}"
    )


def _find_label_column(row, header, path, split):
    if row.label in header:
        return header.index(row.label)
    if split == "test":
        return None
    raise InputError(
        f"{path} has no label column {row.label!r}. It seems to be the test "
        f"file of {row.name}. A test file can only be used to predict. Give a "
        f"{split} file"
    )


def _select_raw_rows(row, path, split):
    """Return a function that returns True if a line's cells are in the split.

    MRPC's raw file contains train and dev. The file dev_ids.tsv, which GLUE's
    download script fetches, lists the two ids of each dev row. For other
    files, the function always returns True.
    """
    path = Path(path)
    if split == "test" or path.name != row.raw.get(split):
        return lambda cells: True
    listed = path.parent / "dev_ids.tsv"
    if not listed.is_file():
        raise InputError(
            f"{path} contains train and dev: put dev_ids.tsv, GLUE's list of "
            "the dev rows, into the same folder, or give --train and --dev"
        )
    ids = {tuple(cells[:2]) for _, cells in read_lines(listed)}
    return lambda cells: ((cells[1], cells[2]) in ids) == (split == "dev")
