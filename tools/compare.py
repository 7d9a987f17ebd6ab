"""Sends recorded requests to an export and prints where the answers differ.

    bert-keras compare old.jsonl runs/served

In: answers that bert-keras predict wrote (.jsonl, .csv or .tsv) or that a
server recorded (.jsonl), and the folder of a SavedModel. Each line of a JSONL
file has one answer:
{"inputs": {"text": "..."}, "answer": {"label": "...", "probabilities": [...]}}
Out: for each output, the fraction of equal answers (numbers: within 1e-5), the
greatest difference of numbers, and the worst cases. With --label=COLUMN, the
script also prints the accuracy of the old and of the new answers, and how many
rows the export fixes and breaks, in all and by class. COLUMN has the true
labels; predict --keep=COLUMN records it. If the export has other labels than
the records, the script says so and compares the common ones. Takes some seconds
to start.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import codecs
import collections
import csv
import dataclasses
import json
import os

import numpy as np

from bert_keras import json_files
from bert_keras.comparison import greatest_difference
from bert_keras.errors import InputError
from official_tasks import cli, progress
from official_tasks.options import option
from official_tasks.tasks.forms.delimited import MAX_CELL_LENGTH
from official_tasks.tasks.forms.text_files import make_dialect

BATCH = 32
# Rounding differs on another CPU or in another batch, so allow this difference.
TOLERANCE = 1e-5
BY_INDEX = ("label_index", "probabilities")  # outputs that number the labels
PROBABILITY = "probability_"  # start of the columns that predict writes
MAX_NAMES = 20  # labels to print; of changed rows, those with the most


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    worst: int = option(5, "Worst cases to print for each output.", at_least=0)
    label: str | None = option(None, "Column of the true labels.")
    separator: str | None = option(
        None, "Character between the columns of CSV; by default a comma."
    )


def main(values, path, folder):
    from bert_keras.serving.load import load_saved_model

    served = load_saved_model(folder)
    progress.print_version(folder, served)
    separator = make_dialect(values.separator).separator
    records = read_records(path, served.card, separator)
    labels = served.card["signatures"][served.card["default"]].get("labels", [])
    progress.print_notes(note_labels(records, labels))
    summaries = compare(records, served, values.worst, values.label)
    for name, summary in summaries.items():
        if summary is None:
            continue
        worst = summary.pop("worst")
        progress.console.print(name, summary, soft_wrap=True)
        for case in json_files.without_nan(worst):
            line = json.dumps(case, ensure_ascii=False)
            progress.console.print(f"  {line}", soft_wrap=True)
    if missing := [name for name, found in summaries.items() if found is None]:
        raise InputError(
            f"{folder} lacks the outputs {', '.join(missing)}, but the records "
            "have them. Compare with an export that has each of these outputs."
        )


def read_records(path, card, separator=None):
    """Return the records of a file as dicts: "inputs", "answer", "keep".

    A record may also have "signature". The default, and the signature of a
    table's answers, is the default signature of the export's `card`.
    `separator` is that of CSV; None means a comma.
    """
    entry = card["signatures"][card["default"]]
    records, ending = [], os.path.splitext(path)[1].lower()
    csv.field_size_limit(MAX_CELL_LENGTH)
    dialect = {"delimiter": separator or ","}
    if ending == ".tsv":
        dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    try:
        with open(path, "rb") as file:
            if ending in (".csv", ".tsv"):
                lines = codecs.iterdecode(file, "utf-8-sig")
                for row in csv.DictReader(lines, **dialect):
                    records.append(_read_row(row, entry))
            else:
                for line in file:
                    records.append(_read_line(line))
    except (ValueError, LookupError, TypeError, AttributeError, csv.Error):
        raise InputError(
            f"{path}: record {len(records) + 1} is not an answer. Expected "
            '{"inputs": {"text": "..."}, "answer": {"label": "..."}} on each '
            "line or, in a table, the columns that predict writes for this "
            f"export: {', '.join(entry['input_order'])} and an output such as "
            f"{next(iter(entry['outputs']))}. Columns that no comma separates "
            "need --separator."
        ) from None
    if not records:
        raise InputError(f"{path} has no answers. Expected at least one line.")
    return records


def _read_line(line):
    record = {"keep": {}, **json_files.parse_json(line)}
    empty = not (record["inputs"].keys() and record["answer"].keys())
    if empty or not isinstance(record.get("signature", ""), str):
        raise ValueError("not an answer")
    return record


def _read_row(row, entry):
    """Return a record, from a row of predict's table: column -> cell."""
    keep, answer = dict(row), {}
    for column in [name for name in row if name.startswith(PROBABILITY)]:
        one = {"label": column.removeprefix(PROBABILITY)}
        one["probability"] = json.loads(keep.pop(column))
        answer.setdefault("probabilities", []).append(one)
    for name, output in entry["outputs"].items():
        column = name
        while f"predicted_{column}" in row:  # a kept column has the name
            column = f"predicted_{column}"
        if column in row:
            answer[name] = _parse_cell(keep.pop(column), output)
    specs = entry["inputs"]
    inputs = {name: _parse_cell(keep.pop(name), specs[name]) for name in specs}
    if not answer:
        raise ValueError("no column is an output")
    return {"inputs": inputs, "answer": answer, "keep": keep}


def _parse_cell(cell, spec):
    is_text = spec["dtype"] == "string" and len(spec["shape"]) == 1
    return cell if is_text else json.loads(cell)


def note_labels(records, labels):
    """Return notes on labels that only the records or only the export name."""
    answers = [record["answer"] for record in records]
    named = {x for a in answers for x in np.ravel(a.get("label", [])) if x}
    best = {x for a in answers for x in _by_label(a.get("probabilities", []))}
    only = {"records": {*named, *best} - {*labels}}
    if best:  # the records name all labels, or the ten best of each answer
        only["export"] = {*labels} - {*named, *best}
    notes = [
        f"labels of only the {side}: {', '.join(sorted(some)[:MAX_NAMES])}"
        for side, some in only.items()
        if some and labels
    ]
    if _has_other_labels(records, labels) and not best:
        notes.append(
            "the labels differ, so only the output 'label' is compared, not "
            "indices and probabilities without names"
        )
    return notes


def _has_other_labels(records, labels):
    """Return True if an index or a number of probabilities is of other labels.

    Args:
        records: list of dict; see `read_records`.
        labels: labels of the export; [] if it has none.
    """
    index_of = {name: index for index, name in enumerate(labels)}
    for answer in (record["answer"] for record in records):
        pairs = zip(
            np.ravel(answer.get("label", [])).tolist(),
            np.ravel(answer.get("label_index", [])).tolist(),
            strict=False,
        )
        values = answer.get("probabilities", [])
        if labels and (
            any(name and index_of.get(name) != i for name, i in pairs)
            or (values and not _by_label(values) and len(values) != len(labels))
        ):
            return True
    return False


def _by_label(old):
    """Return dict of label -> probability; empty for other recorded values."""
    is_named = isinstance(old, list) and old and isinstance(old[0], dict)
    return {x["label"]: x["probability"] for x in old} if is_named else {}


def compare(records, served, worst=5, label=None):
    """Compare the answers of a served model with the recorded answers.

    Args:
        records: list of dict; see `read_records`.
        served: a `ServedModel`.
        worst: maximum number of cases to return for each output.
        label: column with the true labels, a key of a record's `keep`.

    Returns:
        dict: name of an output -> summary, or None if the model lacks the
        output. A summary is a dict with `compared` (number of cases), `equal`
        (fraction of cases within `TOLERANCE`), `worst` (the cases with the
        largest differences above `TOLERANCE`, largest first) and, if all
        differences are finite, `greatest_difference`. With `label`, the summary
        of the output "label" also has the results of `score_labels`.
    """
    cases, groups = collections.defaultdict(list), collections.defaultdict(list)
    missing = set()
    for record in records:
        groups[record.get("signature", served.card["default"])].append(record)
    if unknown := ", ".join(sorted(groups.keys() - {*served.signatures})):
        raise InputError(
            f"The records need the signatures {unknown}; the export has only "
            f"{', '.join(served.signatures)}. Compare with another export."
        )
    for signature, group in groups.items():
        entry = served.card["signatures"][signature]
        differ = _has_other_labels(group, entry.get("labels", []))
        for first in range(0, len(group), BATCH):
            batch = group[first : first + BATCH]
            columns = (
                [record["inputs"].get(name) for record in batch]
                for name in entry["input_order"]
            )
            answers = getattr(served, signature)(*columns)
            for row, record in enumerate(batch):
                missing |= record["answer"].keys() - answers.keys()
                for name in sorted(record["answer"].keys() & answers.keys()):
                    is_named = _by_label(record["answer"][name])
                    if differ and name in BY_INDEX and not is_named:
                        continue
                    case = _make_case(record, name, answers[name][row], entry)
                    if case is not None:
                        cases[name].append(case)
    summaries = {name: _summarize(some, worst) for name, some in cases.items()}
    if label is not None:
        scores = score_labels(cases["label"], label)
        summaries["label"] |= scores
    return summaries | dict.fromkeys(sorted(missing))


def _make_case(record, name, new, entry):
    """Return the old and the new value of an output, and their difference.

    The result is None if the values are of labels that only one model has.
    """
    old, output = record["answer"][name], entry["outputs"][name]
    # Recorded lists of a server are padded; new lists are not.
    if output["padded"]:
        old = old[: record["answer"].get("count")]
    if output["per_entry"]:
        old = old[: len(new)]
    by_label = _by_label(old)
    if by_label and "labels" in entry:
        found = dict(zip(entry["labels"], new, strict=True))
        common = [label for label in by_label if label in found]
        if not common:
            return None
        old, new = ([x[n] for n in common] for x in (by_label, found))
    a, b = np.asarray(old), np.asarray(new)
    if a.dtype.kind == b.dtype.kind == "f":
        # JSON has float32 values as short decimals, so convert both to float32.
        a, b = a.astype("float32"), b.astype("float32")
    return {
        "inputs": record["inputs"],
        "keep": record.get("keep", {}),
        "old": old,
        "new": new if isinstance(new, str) else b.tolist(),
        # Texts are not converted to numbers: "1" is not the label "1.0".
        "difference": greatest_difference(a, b),
    }


def _summarize(cases, worst):
    differences = np.array([case["difference"] for case in cases])
    order = np.argsort(-differences, kind="stable")[:worst]
    summary = {
        "compared": len(cases),
        "equal": float((differences <= TOLERANCE).mean()),
        "worst": [cases[i] for i in order if differences[i] > TOLERANCE],
    }
    if np.isfinite(differences).all():
        summary["greatest_difference"] = float(differences.max())
    return summary


def score_labels(cases, column):
    """Return the accuracies and the counts of fixed and broken rows.

    Args:
        cases: the cases of the output "label"; see `_make_case`.
        column: key of the true label in a case's `keep`.

    Returns:
        dict: `accuracy`: [of the old answers, of the new answers]; `fixed` and
        `broken`: number of rows that only the new or only the old answer has
        right; `by_class`: dict of true label -> [fixed, broken].
    """
    if not cases or any(
        column not in case["keep"]
        or isinstance(case["old"], list)
        or isinstance(case["new"], list)
        for case in cases
    ):
        raise InputError(
            f"--label={column}: expected the output 'label', with one label a "
            f"text, in the records and in the export, and the column "
            f"{column!r} in the records. bert-keras predict --keep={column} "
            "writes such records."
        )
    truth = np.array([str(case["keep"][column]) for case in cases])
    was, is_now = (
        np.array([case[key] for case in cases]) == truth
        for key in ("old", "new")
    )
    fixed, broken = is_now & ~was, was & ~is_now
    by_class = {
        str(name): [
            int((rows & (truth == name)).sum()) for rows in (fixed, broken)
        ]
        for name in np.unique(truth[fixed | broken])
    }
    most = sorted(by_class.items(), key=lambda item: (-sum(item[1]), item))
    return {
        "accuracy": [float(was.mean()), float(is_now.mean())],
        "fixed": int(fixed.sum()),
        "broken": int(broken.sum()),
        "by_class": dict(most[:MAX_NAMES]),
    }


if __name__ == "__main__":
    cli.start(main, Options, arguments=("OLD.jsonl", "FOLDER"))
