"""Sends recorded requests to an export and prints where the answers differ.

    python tools/compare.py old.jsonl runs/served

In: a JSONL file of answers, written by official_tasks.predict or recorded from
a server, and the folder of a SavedModel. Each line of the file has one answer:
{"inputs": {"text": "..."}, "answer": {"label": "...", "probabilities": [...]}}
Out: for each output, the fraction of equal answers (numbers: within 1e-5), the
greatest difference of numbers, and the worst cases. With --label=COLUMN, the
script also prints the accuracy of the old and of the new answers. COLUMN has
the true labels; predict --keep=COLUMN records it. Takes some seconds to start.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import json

import numpy as np
from absl import flags

from bert_keras import json_files
from bert_keras.comparison import greatest_difference
from bert_keras.errors import InputError
from official_tasks import progress, script

BATCH = 32
# Rounding differs on another CPU or in another batch, so allow this difference.
TOLERANCE = 1e-5


def define_flags():
    flags.DEFINE_integer("worst", 5, "Worst cases to print for each output.", 0)
    flags.DEFINE_string("label", None, "Column of the true labels.")


def main(values, records, folder):
    from bert_keras.serving.load import load_saved_model

    records, served = read_records(records), load_saved_model(folder)
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


def read_records(path):
    """Read a JSONL file of requests and their recorded answers.

    A line is `{"signature": ..., "inputs": {name: value}, "answer": {name:
    value}}`. The default of `signature` is the model's default signature. Only
    the outputs in `answer` are compared. A line may also have `keep`, a dict
    of the columns that predict --keep recorded.
    """
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
    if not records:
        raise InputError(
            f"{path} holds no requests. Expected at least one line."
        )
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
        `accuracy`: [of the recorded answers, of the new answers].
    """
    from bert_keras.serving.load import has_value_per_entry

    cases, missing = {}, set()
    for signature, group in _group_by_signature(records, served).items():
        for first in range(0, len(group), BATCH):
            batch = group[first : first + BATCH]
            answers = _call(served, signature, batch)
            entry = served.card["signatures"][signature]
            labels, outputs = entry.get("labels", []), entry["outputs"]
            for row, record in enumerate(batch):
                missing.update(set(record["answer"]) - set(answers))
                for name in sorted(set(record["answer"]) & set(answers)):
                    old, new = record["answer"][name], answers[name][row]
                    new = new.tolist() if hasattr(new, "tolist") else new
                    # Recorded lists of a server are padded; new lists are not.
                    count = record["answer"].get("count")
                    is_padded = name in entry.get("padded", ())
                    if is_padded and isinstance(count, int):
                        old = old[:count]
                    if has_value_per_entry(outputs[name]):
                        old = old[: len(new)]
                    if isinstance(old, list) and old and type(old[0]) is dict:
                        old, new = _select_labels(old, new, labels)
                    case = {
                        "inputs": record["inputs"],
                        "keep": record.get("keep", {}),
                        "old": old,
                        "new": new,
                        "difference": _measure_difference(old, new),
                    }
                    cases.setdefault(name, []).append(case)
    summaries = {name: _summarize(some, worst) for name, some in cases.items()}
    if label is not None:
        accuracies = _score_labels(cases.get("label", []), label)
        summaries["label"]["accuracy"] = accuracies
    return summaries | dict.fromkeys(sorted(missing))


def _select_labels(best, probabilities, labels):
    """Return the recorded and the new probabilities of the recorded labels.

    `best` is the recorded list of labels with probabilities. `probabilities`
    has a new probability for each of the model's `labels`. A recorded label
    that the model lacks gets the new probability None.
    """
    values = dict(zip(labels, probabilities, strict=False))
    new = [values.get(one.get("label")) for one in best]
    return [one.get("probability") for one in best], new


def _score_labels(cases, column):
    if not cases or any(column not in case["keep"] for case in cases):
        raise InputError(
            f"--label={column}: expected the output 'label' in the records and "
            f"in the export, and the column {column!r} in the records. "
            f"official_tasks.predict --keep={column} writes such records."
        )
    if any(isinstance(c[side], list) for c in cases for side in ("old", "new")):
        raise InputError(
            f"--label={column}: expected one label for each text, but the "
            "model gives a text several labels. Leave --label out."
        )
    return [
        float(np.mean([c[side] == str(c["keep"][column]) for c in cases]))
        for side in ("old", "new")
    ]


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
