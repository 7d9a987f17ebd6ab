"""Notes on likely faults in the data or the results of a fine-tuning run."""

import math
from collections import Counter

import numpy as np

from bert_keras.errors import format_count

MAX_SHOWN = 20  # labels that `count_labels` shows
MAX_CUT = 0.1  # fraction of the texts that may be cut without a note
MAX_UNKNOWN = 0.1  # a larger fraction of [UNK] gets a note; English has < 0.01
LEAST_RECALL = 0.1  # a frequent class with a lower recall gets a note
FREQUENT = 0.05  # a class with a larger fraction of dev's labels is frequent
NOTHING_LEARNED = (
    "{metric} on dev is {value:.3f}, no better than the best constant "
    "prediction, {baseline:.3f}: the model has learned nothing from the texts. "
    "Do the labels follow from the texts? If so, train for more than {steps} "
    "or on more than {rows}. Or try another learning rate (2e-5 to "
    "5e-5 for pre-trained weights, 1e-4 and more for small or new models). Or "
    "try another seed, because some seeds fail with large models"
)


def note_data(examples, encoded, preprocess, longest=math.inf) -> list[str]:
    """Return the notes on the data files, on cut texts and on [UNK] tokens.

    Args:
        examples: dict: split -> examples of the task.
        encoded: the rows to train on.
        preprocess: `BertPreprocessor` of the run.
        longest: the model's number of positions.
    """
    notes = [
        note
        for rows in examples.values()
        for note in getattr(rows, "notes", ())
    ]
    notes = list(dict.fromkeys(notes))
    cut = cut_fraction(encoded)
    if cut > MAX_CUT:
        tokens = np.asarray(encoded.cut)
        length = preprocess.sequence_length
        enough = length + int(np.percentile(tokens[tokens > 0], 95))
        every = "all" if cut == 1 else f"{cut:.0%} of the"
        if enough <= longest:
            advice = f"`sequence_length={enough}` would hold most of them"
        elif length < longest:
            advice = f"set `sequence_length` to at most {longest}"
        else:
            advice = f"the model reads at most {longest}"
        notes.append(
            f"{every} texts are longer than {length} tokens and are cut: "
            f"{advice}"
        )
    unknown = unknown_fraction(encoded, preprocess)
    if unknown > MAX_UNKNOWN:
        notes.append(
            f"{unknown:.0%} of the tokens are [UNK], because the weights' "
            "vocabulary does not fit the texts. Use weights for the language "
            "of the texts"
        )
    return notes


def count_labels(labels, examples) -> str:
    """Return the most frequent labels with their counts, or "" without labels.

    For example, " (good 40, bad 38)" is shown after the number of classes.
    """
    counts: Counter = Counter()
    for example in examples:
        label = getattr(example, "label", None)
        many = isinstance(label, list | tuple | set | frozenset)
        for one in label if many else [label]:
            counts[labels[one] if isinstance(one, int) and labels else one] += 1
    known = [(-counts[name], name) for name in labels if counts[name]]
    shown = [f"{name} {-count:,}" for count, name in sorted(known)[:MAX_SHOWN]]
    shown += ["..."] * (len(known) > MAX_SHOWN)
    return f" ({', '.join(shown)})" if shown else ""


def note_results(metric, results, steps, learning_rate) -> list[str]:
    """Return the notes on a run's scores on dev.

    Args:
        metric: `Metric` by which runs are compared.
        results: results of `finetuning.run`.
        steps: steps of the run.
        learning_rate: learning rate of the run.
    """
    value = results[metric.name]
    if not math.isfinite(value):
        return [
            f"{metric.name} on dev is {value}. Try a `learning_rate` of "
            f"{learning_rate / 2:.1g}"
        ]
    if has_failed(metric, results):
        return [
            NOTHING_LEARNED.format(
                metric=metric.name,
                value=value,
                baseline=results.get("majority_baseline", math.nan),
                steps=format_count(steps, "step"),
                rows=format_count(results["rows"], "row"),
            )
        ]
    classes = results.get("classes") or {}
    # Count labels, not rows: a row may have several labels or entities.
    labels = sum(scores["support"] for scores in classes.values())
    return [
        f"{scores['support'] / labels:.0%} of the labels of dev are {name!r}, "
        f"with a recall of {scores['recall']:.2f}: the model hardly ever "
        "predicts this class. Try a `learning_rate` of "
        f"{2 * learning_rate:.1g}, more epochs, or `class_weights='balanced'`"
        for name, scores in classes.items()
        if scores["support"] > FREQUENT * labels
        and scores["recall"] < LEAST_RECALL
    ]


def has_failed(metric, results) -> bool:
    """Return True if a run is no better than the best constant prediction.

    A run whose metric, a `Metric`, is not finite has failed too.
    """
    baseline = {metric.name: results.get("majority_baseline", math.nan)}
    return metric.rank(results) <= metric.rank(baseline)


def cut_fraction(encoded) -> float:
    """Return the fraction of the rows whose text was cut."""
    return 0.0 if encoded.cut is None else float(np.mean(encoded.cut > 0))


def unknown_fraction(encoded, preprocess) -> float:
    """Return the fraction of the tokens that are [UNK]."""
    ids = encoded.inputs["token_ids"].flat_values.numpy()
    return float(np.mean(ids == preprocess.tokenizer.unk_id))
