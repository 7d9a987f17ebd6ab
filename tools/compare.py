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
import csv
import json
import os

import numpy as np
from absl import flags

from bert_keras import json_files
from bert_keras.comparison import greatest_difference
from bert_keras.errors import InputError
from official_tasks import progress, script

BATCH = 32
# Rounding differs on another CPU or in another batch, so allow this difference.
TOLERANCE = 1e-5
TABLES = {
    ".csv": {},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}
PROBABILITY = "probability_"  # start of the columns that predict writes
MAX_NAMES = 20  # labels to print; of changed rows, those with the most


def define_flags():
    flags.DEFINE_integer("worst", 5, "Worst cases to print for each output.", 0)
    flags.DEFINE_string("label", None, "Column of the true labels.")


def main(values, records, folder):
    from bert_keras.serving.load import load_saved_model

    served = load_saved_model(folder)
    progress.print_version(folder, served)
    records = read_records(records, served.card)
    progress.print_notes(list_label_notes(records, served))
    summaries = compare(records, served, values.worst, values.label)
    missing = [name for name, found in summaries.items() if found is None]
    for name, summary in summaries.items():
        if name in missing:
            continue
        cases = summary.pop("worst")
        progress.console.print(name, summary, soft_wrap=True)
        for case in json_files.without_nan(cases):
            line = json.dumps(case, ensure_ascii=False)
            progress.console.print(f"  {line}", soft_wrap=True)
    if missing:
        raise InputError(
            f"{folder} lacks the outputs {', '.join(missing)}, but the records "
            "have them. Compare with an export that has each of these outputs."
        )


def read_records(path, card=None):
    """Read requests and their recorded answers from a JSONL file or a table.

    A line is `{"signature": ..., "inputs": {name: value}, "answer": {name:
    value}}`. The default of `signature` is the model's default signature. Only
    the outputs in `answer` are compared. A line may also have `keep`, a dict
    of the columns that predict --keep recorded.

    Args:
        path: the file. The columns of a .csv or .tsv file are read as answers
            of the default signature.
        card: the card of the export; only needed for a table.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix in TABLES:
        records = _read_table(path, card, TABLES[suffix])
    else:
        records = _read_lines(path)
    if not records:
        raise InputError(
            f"{path} holds no requests. Expected at least one line."
        )
    return records


def _read_table(path, card, dialect):
    entry, records = card["signatures"][card["default"]], []
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, **dialect):
            try:
                record = _read_row(row, entry)
            except (ValueError, TypeError, KeyError):
                record = {"answer": {}}
            if not record["answer"]:
                columns = ", ".join(map(str, row))
                raise InputError(
                    f"{path}, row {len(records) + 1}: expected the columns "
                    "that predict writes for this export, "
                    f"{', '.join(entry['input_order'])} and an output such as "
                    f"{next(iter(entry['outputs']))}; got {columns}."
                )
            records.append(record)
    return records


def _read_row(row, entry):
    """Return a record, from a row of predict's table: column -> cell."""
    keep, answer = dict(row), {}
    for name, output in entry["outputs"].items():
        column = name
        while f"predicted_{column}" in row:  # a kept column has the name
            column = f"predicted_{column}"
        if column in row:
            answer[name] = _parse_cell(keep.pop(column), output)
    inputs = {
        name: _parse_cell(keep.pop(name), entry["inputs"][name])
        for name in entry["input_order"]
    }
    best = [
        {
            "label": name.removeprefix(PROBABILITY),
            "probability": json.loads(keep.pop(name)),
        }
        for name in row
        if name.startswith(PROBABILITY)
    ]
    record = {"inputs": inputs, "answer": answer, "keep": keep}
    if best:
        answer["probabilities"] = best
        record["labels"] = [one["label"] for one in best]
    return record


def _parse_cell(cell, spec):
    """Return the value of a cell; `spec` has its dtype and shape."""
    is_text = spec["dtype"] == "string" and len(spec["shape"]) == 1
    return cell if is_text else json.loads(cell)


def _read_lines(path):
    records = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json_files.parse_json(line)
                is_record = _is_record(record)
            except (ValueError, LookupError, TypeError, AttributeError):
                is_record = False
            if not is_record:
                raise InputError(
                    f"{path}, line {number}, is not a recorded request. "
                    'Expected {"inputs": {"text": "..."}, "answer": '
                    '{"label": "..."}} on each line.'
                )
            records.append(record)
    return records


def _is_record(record):
    inputs = list(record["inputs"].values())
    return (
        len(inputs) > 0
        and all(isinstance(value, str | list) for value in inputs)
        and len(record["answer"].keys()) > 0
        and isinstance(record.get("signature", ""), str)
    )


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
        differences are finite, `greatest_difference`.
        If `label` is given, the summary of the output "label" also has
        `accuracy`: [of the recorded answers, of the new answers]; `fixed` and
        `broken`: number of rows that only the new or only the recorded answer
        has right; and `by_class`: dict of true label -> [fixed, broken].
    """
    cases, missing = {}, set()
    for signature, group in _group_by_signature(records, served).items():
        entry = served.card["signatures"][signature]
        are_equal = not _compare_label_sets(group, entry)
        labels = {x: i for i, x in enumerate(entry.get("labels", []))}
        for first in range(0, len(group), BATCH):
            batch = group[first : first + BATCH]
            answers = _call(served, signature, batch)
            for row, record in enumerate(batch):
                missing.update(set(record["answer"]) - set(answers))
                for name in sorted(set(record["answer"]) & set(answers)):
                    case = _make_case(
                        record,
                        name,
                        answers[name][row],
                        entry,
                        labels,
                        are_equal,
                    )
                    if case:
                        cases.setdefault(name, []).append(case)
    summaries = {name: _summarize(some, worst) for name, some in cases.items()}
    if label is not None:
        scores = _score_labels(cases.get("label", []), label)
        summaries["label"] |= scores
    return summaries | dict.fromkeys(sorted(missing))


def _make_case(record, name, new, entry, labels, are_equal):
    """Return the old and the new value of an output, and their difference.

    `labels` is a dict of the model's labels -> index.
    The result is None if the values depend on labels that only one model has.
    """
    old, output = record["answer"][name], entry["outputs"][name]
    new = new.tolist() if hasattr(new, "tolist") else new
    # Recorded lists of a server are padded; new lists are not.
    count = record["answer"].get("count")
    if output["padded"] and isinstance(count, int):
        old = old[:count]
    if output["per_entry"]:
        old = old[: len(new)]
    if isinstance(old, list) and old and type(old[0]) is dict:
        old, new = _select_labels(old, new, labels)
    elif not are_equal and name in ("label_index", "probabilities"):
        return None
    return {
        "inputs": record["inputs"],
        "keep": record.get("keep", {}),
        "old": old,
        "new": new,
        "difference": _measure_difference(old, new),
    }


def _select_labels(best, probabilities, labels):
    """Return the recorded and the new probabilities of the common labels.

    `best` is the recorded list of labels with probabilities. `probabilities`
    has a new probability for each of the model's `labels`.
    """
    common = [one for one in best if one.get("label") in labels]
    new = [probabilities[labels[one["label"]]] for one in common]
    return [one.get("probability") for one in common], new


def list_label_notes(records, served):
    """Return a note for each signature whose labels the records do not have."""
    groups = _group_by_signature(records, served)
    entries = served.card["signatures"]
    notes = {n: _compare_label_sets(g, entries[n]) for n, g in groups.items()}
    return [f"{name}: {note}" for name, note in notes.items() if note]


def _compare_label_sets(records, entry):
    """Return a sentence on the labels if records and export differ, or ""."""
    labels = entry.get("labels", [])
    if not labels or "label" not in entry["outputs"]:
        return ""
    positions = {name: index for index, name in enumerate(labels)}
    indices, counts = _collect_labels(records)
    complete = records[0].get("labels", labels)
    parts = []
    if only_old := [name for name in indices if name not in positions]:
        parts.append(f"only the records have {', '.join(only_old[:MAX_NAMES])}")
    if only_new := sorted({*labels} - {*complete}):
        parts.append(f"only the export has {', '.join(only_new[:MAX_NAMES])}")
    if counts - {len(labels)}:
        parts.append(f"the records have {max(counts)}, not {len(labels)}")
    moved = [n for n, i in indices.items() if i not in (None, positions.get(n))]
    if moved and not parts:
        parts.append("their order is another one")
    if not parts:
        return ""
    return (
        f"the labels differ: {'; '.join(parts)}. The labels are compared, and "
        "the probabilities of the labels that both have."
    )


def _collect_labels(records):
    """Return dict of label -> index or None, and the numbers of probabilities.

    The records of a table name all labels of their model. Other records name
    the labels that they predict.
    """
    indices, counts = {}, set()
    for record in records:
        answer = record["answer"]
        names, numbers = answer.get("label"), answer.get("label_index")
        if isinstance(names, str):
            names, numbers = [names], [numbers]
        numbers = numbers or [None] * len(names or [])
        indices |= zip(names or [], numbers, strict=False)
        values = answer.get("probabilities") or []
        if not values or not isinstance(values[0], dict):
            counts |= {len(values)} if values else set()
            continue
        for one in values:
            indices.setdefault(one.get("label"))
    indices.pop("", None)  # padding of several labels
    return indices, counts


def _score_labels(cases, column):
    """Return the accuracies and the counts of fixed and broken rows."""
    if not cases or any(column not in case["keep"] for case in cases):
        raise InputError(
            f"--label={column}: expected the output 'label' in the records and "
            f"in the export, and the column {column!r} in the records. "
            f"bert-keras predict --keep={column} writes such records."
        )
    if any(isinstance(c[side], list) for c in cases for side in ("old", "new")):
        raise InputError(
            f"--label={column}: expected one label for each text, but the "
            "model gives a text several labels. Leave --label out."
        )
    right, by_class = {"old": 0, "new": 0}, {}
    for case in cases:
        truth = str(case["keep"][column])
        was, is_now = case["old"] == truth, case["new"] == truth
        right["old"] += was
        right["new"] += is_now
        if was != is_now:
            by_class.setdefault(truth, [0, 0])[was] += 1
    changes = sorted(by_class.items(), key=lambda item: (-sum(item[1]), item))
    return {
        "accuracy": [count / len(cases) for count in right.values()],
        "fixed": sum(fixed for fixed, _ in by_class.values()),
        "broken": sum(broken for _, broken in by_class.values()),
        "by_class": dict(changes[:MAX_NAMES]),
    }


def _group_by_signature(records, served):
    groups = {}
    for record in records:
        name = record.get("signature", served.card["default"])
        groups.setdefault(name, []).append(record)
    unknown = sorted(set(groups) - set(served.signatures))
    if unknown:
        raise InputError(
            f"The records need the signatures {', '.join(unknown)}; the export "
            f"has only {', '.join(served.signatures)}. Compare with another "
            "export."
        )
    return groups


def _call(served, signature, batch):
    """Return the new answers to a batch of records, a dict: output -> rows."""
    order = served.card["signatures"][signature]["input_order"]
    columns = [[record["inputs"].get(key) for record in batch] for key in order]
    if any(None in column for column in columns):
        raise InputError(
            f"A record of {signature} lacks one of {' and '.join(order)}. "
            "Add the input to the record."
        )
    return getattr(served, signature)(*columns)


def _measure_difference(old, new):
    """Return the greatest difference between two answers.

    The result is infinity if lengths, texts or integers differ.
    """
    if old == new:
        return 0.0
    try:
        old, new = np.asarray(old), np.asarray(new)
    except ValueError:  # rows of different lengths
        return np.inf
    if old.dtype.kind == new.dtype.kind == "f":
        # JSON has float32 values as short decimals, so convert both to float32.
        old, new = old.astype("float32"), new.astype("float32")
    # Texts are not converted to numbers: "1" and "1.0" are different labels.
    return greatest_difference(old, new)


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


if __name__ == "__main__":
    script.start(main, define_flags, arguments=("OLD.jsonl", "FOLDER"))
