"""Make notes on suspicious rows of a user's files, with line numbers."""

from collections import Counter

from bert_keras.errors import format_count
from official_tasks.tasks.forms.list_cells import parse_list
from official_tasks.tasks.forms.table import line_or_row

MAX_LINES = 5  # maximum number of line numbers in a note
RARE = 0.2  # a rare class has fewer than (RARE * rows / classes) rows
MAX_CLASSES = 20  # with more integer labels, a note suggests regression


def format_lines(locations) -> str:
    """Return the first file and its lines, such as "a.csv, line 4, 7, ...".

    At most `MAX_LINES` lines are named.

    Args:
        locations: list of (file, line number).
    """
    file, _ = locations[0]
    numbers = [str(n) for path, n in locations[:MAX_LINES] if path == file]
    if len(numbers) < len(locations):
        numbers.append("...")
    return f"{file}, {line_or_row(file)} {', '.join(numbers)}"


def note_rows(rows, column) -> list[str]:
    """Return notes on texts that are empty, repeated, or all numbers.

    Args:
        rows: list of ((file, line number), example).
        column: name of the column of each row's first text.
    """
    notes = []
    empty = [
        location
        for location, example in rows
        if not all(text.strip() for text in example.texts)
    ]
    if empty:
        notes.append(f"{format_lines(empty)}: a text is empty")
    if rows and all(_is_number(example.texts[0]) for _, example in rows):
        notes.append(
            f"every text in column {column!r} is a number, such as "
            f"{rows[0][1].texts[0]!r}. If this is the wrong column, change the "
            "flag that names it"
        )
    for texts in zip(*(example.texts for _, example in rows), strict=False):
        if all(map(_is_code, texts)):
            notes.append(
                f"every text such as {texts[0][:60]!r} is a list or bytes as "
                "Python writes them, and is read as it stands. Write the text"
            )
    first: dict = {}
    again, contradicting = [], []
    for location, example in rows:
        before = first.setdefault(example.texts, example)
        if before is not example:
            is_same = before.label == example.label
            (again if is_same else contradicting).append(location)
    if again:
        notes.append(
            f"{format_lines(again)}: "
            f"{format_count(len(again), 'row repeats', 'rows repeat')} an "
            "earlier row"
        )
    if contradicting:
        notes.append(
            f"{format_lines(contradicting)}: "
            f"{format_count(len(contradicting), 'row repeats', 'rows repeat')} "
            "an earlier text under another label"
        )
    return notes


def _is_code(text):
    """Return True for ['a', 'b'] and b'a'."""
    is_bytes = text[:2] in ("b'", 'b"') and text[-1:] == text[1:2]
    return is_bytes or parse_list(text) is not None


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def note_overlap(train, dev) -> list[str]:
    """Return a note if texts are both in train and in dev.

    Args:
        train: list of ((file, line number), example).
        dev: list in the same form.
    """
    known = {example.texts for _, example in train}
    both = [row for row in dev if row[1].texts in known]
    if not both:
        return []
    locations = [location for location, _ in both]
    return [
        f"{format_lines(locations)}: "
        f"{format_count(len(both), 'text of dev is', 'texts of dev are')} "
        "also in train, so the score is too high; the first is "
        f"{both[0][1].texts[0][:60]!r}"
    ]


def note_names(names, column) -> list[str]:
    """Return notes on labels that are almost equal, or that are numbers.

    Args:
        names: the labels, sorted.
        column: name of the column of labels.
    """
    alike: dict = {}
    for name in names:
        alike.setdefault("".join(name.casefold().split()), []).append(name)
    notes = [
        f"the labels {', '.join(map(repr, same))} in column {column!r} differ "
        "in case or blanks only, and each label is learned as a class. If they "
        "mean the same class, spell them alike"
        for same in alike.values()
        if len(same) > 1
    ]
    notes += [
        f"the label {name!r} in column {column!r} is learned as a class. If it "
        "means a missing label, empty the cell"
        for name in names
        if name.lower() in ("nan", "null", "<na>")
    ]
    return notes + note_numbers(names)


def note_separators(names, rows) -> list[str]:
    """Return a note if no text has several labels, but one has a separator.

    doccano writes "#" between labels in CSV.

    Args:
        names: the labels.
        rows: the training rows, whose labels are sets.
    """
    if any(len(row.label) > 1 for row in rows):
        return []
    return [
        f"no text has several labels, but the label {name!r} has "
        f"{separator!r}. If it separates labels, give "
        f"--label_separator={separator!r}"
        for separator in "|;#"
        for name in [x for x in names if separator in x.strip(separator)][:1]
    ]


def note_numbers(names) -> list[str]:
    """Return a note if labels seem to be numbers and not names of classes."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return []
    fractions = [n for n in numbers if not n.is_integer()]
    if not fractions and len(numbers) <= MAX_CLASSES:
        return []
    return [
        f"the labels are {len(names)} different numbers, such as {names[0]}, "
        "and each number is learned as a class. To predict a number, give "
        "--task=regress"
    ]


def note_labels(problem, examples, labels) -> list[str]:
    """Return a note if a class is rare, or all regression labels are equal."""
    if problem == "regression":
        first = examples[0].label
        if any(example.label != first for example in examples):
            return []
        return [
            f"every training row has the number {first:g}, so there is "
            "nothing to learn"
        ]
    if problem == "multi":
        counts = Counter(i for example in examples for i in example.label)
    else:
        counts = Counter(example.label for example in examples)
    rare = min(range(len(labels)), key=lambda index: counts[index])
    fraction = counts[rare] / len(examples)
    if fraction * len(labels) >= RARE:
        return []
    return [
        f"the class {labels[rare]!r} has {fraction:.1%} of the rows. Select "
        "the best weights by --metric=macro_f1, and add or repeat rows of this "
        "class, or merge it with another class in the file"
    ]
