"""Read texts with classes, sets of labels or numbers from a user's tables."""

import re

from bert_keras.errors import (
    InputError,
    collect_faults,
    format_count,
    raise_all,
)
from official_tasks.tasks.base import Example, Examples
from official_tasks.tasks.data_notes import (
    format_lines,
    note_labels,
    note_names,
    note_separators,
)
from official_tasks.tasks.forms.cells import (
    LARGEST_NUMBER,
    drop_zeros,
    read_number,
)
from official_tasks.tasks.forms.list_cells import parse_labels
from official_tasks.tasks.own_data import Columns, Table, has_text


class TextTable(Table):
    """Table of texts and labels that converts class names to indices.

    Args:
        name: name of the task.
        problem: "single", "multi" or "regression"; see `BertClassifier`.
        options: values of the task's options in `own_tasks`.
    """

    def __init__(self, name, problem, options):
        self.options, self.problem = options, problem
        pair, columns = options.text_pair, [options.label]
        # Names of the labels, if a row has 0 or 1 for each.
        self.classes: list[str] = []
        if problem == "multi":
            self.classes = _split(options.classes)
        if problem == "multi" and "," in options.label:
            self.classes = columns = _split(options.label)
        if twice := {x for x in self.classes if self.classes.count(x) > 1}:
            raise InputError(
                f"--{'classes' if options.classes else 'label'} has "
                f"{min(twice)!r} twice. Name each label once"
            )
        is_one = len(columns) == 1 and problem != "regression"
        columns = Columns(
            name,
            [options.text, *([pair] if pair else [])],
            columns,
            self._parse,
            lists=tuple(columns) if is_one else (),
            has_label=self._has_label,
            is_stratified=problem == "single",
        )
        self.reads_folders = problem == "single" and not pair
        super().__init__(columns, options)

    def _parse(self, where, number, cells):
        options, label = self.options, None
        names = [name for name in self.columns.labels if name in cells]
        if len(names) > 1:
            label = tuple(cells[name].strip() for name in names)
        elif names:
            label = self._parse_label(where, cells[names[0]])
        return Example(cells[options.text], cells.get(options.text_pair), label)

    def _parse_label(self, where, cell):
        """Return a class name, a tuple of class names, or a number."""
        is_list = isinstance(cell, list)
        if self.problem == "multi":
            names = cell if is_list else self._split_labels(where, cell)
            names = (name.strip() for name in names)
            return tuple(name for name in names if name)
        if self.problem == "single":
            if is_list and len(cell) > 1:
                raise InputError(
                    f"{where}: expected one label in column "
                    f"{self.options.label!r}, got {', '.join(cell)[:60]!r}. "
                    "For several labels, give --task=multilabel"
                )
            return (cell[0] if is_list else cell).strip()
        value = read_number(cell)
        if value is None:
            raise InputError(
                f"{where}: expected a number from {-LARGEST_NUMBER:g} to "
                f"{LARGEST_NUMBER:g} in column {self.options.label!r}, got "
                f"{cell!r}"
            )
        return value

    def _split_labels(self, where, cell):
        try:
            names = parse_labels(cell.strip())
        except ValueError:
            raise InputError(
                f"{where}: expected labels in column {self.options.label!r} "
                f"with {self.options.label_separator!r} between them, or a "
                f'list as JSON, such as ["a", "b"], got {cell[:60]!r}'
            ) from None
        separator = self.options.label_separator
        return cell.split(separator) if names is None else names

    def _has_label(self, cell):
        if self.problem == "multi":
            return True  # an empty cell means no labels
        is_nan = self.problem == "regression" and cell.strip().lower() == "nan"
        return has_text(cell) and not is_nan

    def find_labels(self):
        """Return the labels; set the sorted names in `train` if they are None.

        They stay None in regression, and if there is no training file.
        """
        has_classes = self.problem != "regression" and "train" in self.files
        if self.labels is None and has_classes:
            self.labels = self._collect_labels()
        return self.labels

    def _collect_labels(self):
        rows = self.rows("train")
        names = set().union(*(self._get_names(example) for _, example in rows))
        names.update(self.classes)
        if len(names) < 2:
            raise InputError(
                f"{self.files['train']}: expected at least 2 classes in column "
                f"{self.options.label!r}, got {len(names)}"
            )
        return sorted(names)

    def _get_names(self, example) -> set:
        is_multi = self.problem == "multi"
        return set(example.label if is_multi else [example.label])

    def read_files(self, split):
        """Return the rows of `Table.read_files`; labels 1.0 and 1 are one."""
        rows = super().read_files(split)
        if self.problem == "regression" or split == "test":
            return rows
        if self.problem == "multi":
            rows = self._name_positions(rows)
        names = set().union(*(self._get_names(example) for _, example in rows))
        new = {n: name for n, name in self._spell(split, names) if n != name}
        if not new:
            return rows
        renamed, changed = [], []
        for location, example in rows:
            old = self._get_names(example)
            if old & new.keys():
                changed.append(location)
                label = {new.get(name, name) for name in old}
                if self.problem == "single":
                    (label,) = label
                example = example._replace(label=label)
            renamed.append((location, example))
        old, name = min(new.items())
        note = (
            f"{format_lines(changed)}: the labels of "
            f"{format_count(len(changed), 'row')} are "
            f"whole numbers, so {old!r} is read as {name!r}"
        )
        return Examples(renamed, [*rows.notes, note])

    def _name_positions(self, rows):
        """Return the rows with sets of labels.

        With `classes`, a row has 0 or 1 for each class. Without, it has names.
        """
        names = self.classes
        result, faults = Examples(notes=rows.notes), []
        if not names:
            self._refuse_positions(rows)
        for location, example in rows:
            label = example.label
            if names:
                digits = _find_digits(label)
                if len(digits) != len(names) or {*digits} - {"0", "1"}:
                    faults.append(
                        f"{format_lines([location])}: expected 0 or 1 for each "
                        f"of {', '.join(names)}, got {', '.join(label)!r}"
                    )
                pairs = zip(names, digits, strict=False)
                label = (name for name, digit in pairs if digit == "1")
            result.append((location, example._replace(label={*label})))
        raise_all(faults)
        return result

    def _refuse_positions(self, rows):
        """Raise if labels are 0s and 1s, a list of the same length a row."""
        labels = [_find_digits(row.label) for _, row in rows]
        if any({*label} - {"0", "1"} for label in labels):
            return
        repeats = any(len({*label}) < len(label) for label in labels)
        if repeats or {*map(len, labels)} == {2}:
            raise InputError(
                f"{format_lines([rows[0][0]])}: the column "
                f"{self.options.label!r} has lists of 0s and 1s. If each "
                "position is a label, name the labels, as in --classes=a,b,c. "
                "If not, write the names of a text's labels in place of 0s "
                "and 1s"
            )

    def _spell(self, split, names):
        """Yield (name in the file, name of the class), such as "1.0", "1".

        If the classes are unknown, ".0" is dropped if all names are whole
        numbers.
        """
        # The labels of `train` are unknown unless a model set them.
        known = self.labels if split == "train" else self.find_labels()
        if known is None:
            short = [drop_zeros(name) for name in names]
            if all(re.fullmatch("-?[0-9]+", name) for name in short):
                yield from zip(names, short, strict=True)
            return
        by_number = {drop_zeros(name): name for name in known}
        for name in names - {*known}:
            yield name, by_number.get(drop_zeros(name), name)

    def read(self, split):
        examples = super().read(split)
        if split == "train":
            examples.notes += note_labels(
                self.problem, examples, self.find_labels()
            )
        return examples

    def prepare(self, split, rows):
        """Return the rows with class indices in place of class names.

        A model is scored on the classes that it knows; other classes are left
        out. For regression and for the test split, return `rows` unchanged.
        """
        if self.problem == "regression" or split == "test":
            return rows
        notes, labels = [], self.find_labels()
        if split == "train":
            notes = note_names(labels, self.options.label)
            if self.problem == "multi":
                notes += note_separators(labels, (row for _, row in rows))
        if self.has_model_labels:
            rows = self._leave_out_unknown(split, rows)
        index = {name: i for i, name in enumerate(labels or [])}
        numbered = Examples(notes=rows.notes + notes)
        faults: list[str] = []
        for location, example in rows:
            with collect_faults(faults):
                where = format_lines([location])
                label = self._find_index(where, example, index)
                numbered.append((location, example._replace(label=label)))
        if faults and index:
            faults[0] += (
                ". Correct it, leave the row out, or add rows of this label to "
                "--train"
            )
        raise_all(faults)
        return numbered

    def _find_index(self, where, example, index):
        if not index:
            raise InputError(
                f"{where}: the names of the labels are unknown: give --train "
                "or a fine-tuned --model"
            )
        names = sorted(self._get_names(example))
        for name in names:
            if name not in index:
                raise InputError(
                    f"{where}: expected one of the labels {_join(index)}, "
                    f"got {name!r}"
                )
        numbers = frozenset(index[name] for name in names)
        return numbers if self.problem == "multi" else index[names[0]]

    def _leave_out_unknown(self, split, rows) -> Examples:
        """Return the rows without classes that the model lacks, and a note.

        A text with one class is left out with it. If no class is known, return
        the rows, so that `_find_index` raises an error that names a class.
        """
        known = {*self.labels}
        unknown = [self._get_names(example) - known for _, example in rows]
        found = set().union(*unknown)
        names = set().union(*(self._get_names(row) for _, row in rows))
        if not found or found == names:
            return rows
        kept = Examples(notes=rows.notes)
        for (location, example), lacking in zip(rows, unknown, strict=True):
            if self.problem == "multi":
                example = example._replace(label=example.label - lacking)
            elif lacking:
                continue
            kept.append((location, example))
        kept.notes.append(
            f"{format_count(sum(map(bool, unknown)), 'row')} of the {split} "
            "file with classes that the model lacks, which are left out: "
            f"{_join(map(repr, sorted(found)))}"
        )
        return kept


def _to_digit(cell) -> str:
    """Return "0" or "1" also for the cells false and true; see `drop_zeros`."""
    return {"false": "0", "true": "1"}.get(cell.lower(), drop_zeros(cell))


def _find_digits(label) -> list[str]:
    """Return the labels of a row; 0s and 1s in one cell, "0 1", are split."""
    if len(label) == 1 and re.fullmatch("[01]([ ;|][01])+|0[01]+", label[0]):
        return re.findall("[01]", label[0])
    return [*map(_to_digit, label)]


def _split(names) -> list[str]:
    return [name.strip() for name in names.split(",")] if names else []


def _join(names):
    """Return at most 20 names in a line, and "..." in place of the others."""
    names = list(names)
    return ", ".join(names[:20] + ["..."] * (len(names) > 20))
