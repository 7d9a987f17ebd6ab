"""What in the user's own rows deserves a look, told with line numbers."""

from collections import Counter

SHOWN = 5  # line numbers that a note names
RARE = 0.2  # of an even share, under which a class is rare
MOST_CLASSES = 20  # of numbers for names


def on_rows(rows) -> list[str]:
    """Notes on empty texts and on texts that are there twice.

    Args:
        rows: list of `((file, line), texts, label)`.
    """
    found = []
    empty = [
        place
        for place, texts, _ in rows
        if not all(text.strip() for text in texts)
    ]
    if empty:
        found.append(f"{lines_of(empty)}: the text is empty")
    first: dict = {}
    again, contradicting = [], []
    for row in rows:
        place, texts, label = row
        before = first.setdefault(tuple(texts), row)
        if before is not row:
            same = before[2] == label
            (again if same else contradicting).append(place)
    if again:
        found.append(
            f"{lines_of(again)}: {len(again)} rows repeat an earlier one"
        )
    if contradicting:
        found.append(
            f"{lines_of(contradicting)}: {len(contradicting)} rows repeat an "
            "earlier text under another label"
        )
    return found


def on_overlap(train, dev) -> list[str]:
    """A note on texts that stand in train and in dev; rows as `on_rows`'s."""
    known = {tuple(texts) for _, texts, _ in train}
    both = [row for row in dev if tuple(row[1]) in known]
    if not both:
        return []
    (_, (first, *_), _), places = both[0], [place for place, _, _ in both]
    return [
        f"{lines_of(places)}: {len(both)} texts stand in train and in dev, "
        f"which flatters the score: the first is {first[:60]!r}"
    ]


def on_names(names, column) -> list[str]:
    """Notes on labels that may be one, or numbers; `names` are sorted."""
    alike: dict = {}
    for name in names:
        alike.setdefault("".join(name.casefold().split()), []).append(name)
    found = [
        f"the labels {', '.join(map(repr, same))} in column {column!r} differ "
        "in case or blanks only and are learned as different classes: write "
        "them alike if they are one"
        for same in alike.values()
        if len(same) > 1
    ]
    return found + number_hint(names)


def number_hint(names) -> list[str]:
    """A note on labels that seem to be numbers, not names of classes."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return []
    fractions = [n for n in numbers if not n.is_integer()]
    if not fractions and len(numbers) <= MOST_CLASSES:
        return []
    return [
        f"the labels are {len(names)} different numbers, such as {names[0]}, "
        "and each is a class of its own: to predict a number give "
        "--problem=regression"
    ]


def on_labels(problem, examples, labels) -> list[str]:
    """A note on rare classes, or on numbers that are all the same."""
    if problem == "regression":
        first = examples[0].label
        if any(example.label != first for example in examples):
            return []
        return [
            f"every number of the training rows is {first:g}: there is "
            "nothing to learn"
        ]
    if problem == "multi":
        counts = Counter(i for example in examples for i in example.label)
    else:
        counts = Counter(example.label for example in examples)
    rare = min(range(len(labels)), key=lambda index: counts[index])
    share = counts[rare] / len(examples)
    if share * len(labels) >= RARE:
        return []
    return [
        f"the class {labels[rare]!r} has {share:.1%} of the rows: look at "
        "macro_f1 rather than accuracy, and add or repeat rows of it"
    ]


def lines_of(places):
    """The first few places, the file named once: "a.csv, line 4, 7, ..."."""
    (file, _), shown = places[0], places[:SHOWN]
    numbers = [str(number) for path, number in shown if path == file]
    if len(numbers) < len(places):
        numbers.append("...")
    return f"{file}, line {', '.join(numbers)}"
