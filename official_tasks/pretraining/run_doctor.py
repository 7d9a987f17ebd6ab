"""Judges a pre-training run by its folder, while it runs or afterwards."""

import json
import os

from bert_keras import files
from bert_keras.errors import InputError

REFERENCES = os.path.join(os.path.dirname(__file__), "reference_curves.json")
# Share of the reference's accuracy under which something is wrong. Corpora of
# one language differ less: prose and documentation, 13.8 % and 18.1 %.
ENOUGH = 0.6
FEW_TOKENS = 1e6  # before, no curve tells anything
RANDOM_NEXT = (0.45, 0.7)
MOST_PADDING = 0.25
WAITS = 0.1  # share of the time, from which on the input is worth a look
OVERFIT = 1.0  # nats between the losses of training and of held-out text


def report(folder) -> list[str]:
    """What a run's figures say, one finding with its advice a line.

    Args:
        folder: of `official_tasks.pretrain`; may be remote.

    Raises:
        InputError: it is not the folder of a pre-training run, or nothing
            was evaluated yet.
    """
    settings, facts, curve = _read(folder)
    last = curve[-1]
    lines = [
        f"Step {last['step']:,.0f} of {settings['steps']:,}, "
        f"{last['tokens']:,.0f} tokens: {_accuracies(last)}."
    ]
    if last["tokens"] < FEW_TOKENS:
        lines.append(
            f"Fewer than {FEW_TOKENS:,.0f} tokens: too early to judge the "
            "curve."
        )
    else:
        lines += _against_reference(settings, curve)
        lines += _next_sentence(last, facts)
    lines += _broken(curve) + _overfit(last) + _data(settings, facts)
    return lines + _speed(settings, facts, last)


def reference_of(folder, name, command, commit) -> dict:
    """An entry of reference_curves.json from a run's folder."""
    settings, _, curve = _read(folder)
    figures = ("tokens", "val_mlm_accuracy", "val_nsp_accuracy", "val_loss")
    return {
        "name": name,
        "command": command,
        "commit": commit,
        "seed": settings["seed"],
        "size": _size(settings),
        "curve": [
            {k: round(line[k], 4) for k in figures if k in line}
            for line in curve
        ],
    }


def _read(folder):
    """Settings, facts of the data, curve."""
    try:
        settings = files.read_json(os.path.join(folder, "run.json"))["settings"]
        facts = files.read_json(os.path.join(folder, "stages", "data.json"))
        with files.open_file(os.path.join(folder, "metrics.jsonl"), "r") as f:
            curve = [json.loads(line) for line in f if line.endswith("\n")]
        settings["objectives"]  # which no other kind of run has
        facts = facts["figures"]
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise InputError(
            f"{folder} is not the folder of a pre-training run ({error}). "
            "Name the --output of official_tasks.pretrain."
        ) from None
    curve = [line for line in curve if "tokens" in line]
    if not curve:
        raise InputError(
            f"{folder} has no evaluation yet; the first comes at step "
            f"{max(1, settings['steps'] // settings['evaluations']):,}. Ask "
            "again then."
        )
    return settings, facts, curve


def _accuracies(line):
    names = {
        "val_mlm_accuracy": "of masked pieces",
        "val_lm_accuracy": "of neighbouring pieces",
        "val_nsp_accuracy": "of next sentences",
    }
    found = [f"{line[k]:.1%} {told}" for k, told in names.items() if k in line]
    return f"held out, {' and '.join(found)} right"


def _size(settings):
    """(layers, width) of a run's model."""
    from bert_keras.modeling.sizes import SIZES

    named = SIZES[settings["size"]]
    return [
        settings[name] or named[name] for name in ("num_layers", "hidden_dim")
    ]


def _against_reference(settings, curve):
    """The last point against the curves of the same size."""
    if settings["init"] or not settings["objectives"].startswith("mlm"):
        return []
    with open(REFERENCES, encoding="utf-8") as file:
        references = json.load(file)
    size, last = _size(settings), curve[-1]
    lines = [
        _compared(reference, last)
        for reference in references
        if reference["size"] == size
    ]
    if lines:
        return lines
    sizes = ", ".join(f"{a} x {b}" for a, b in sorted(_sizes(references)))
    return [
        f"There is no reference curve of {size[0]} layers of {size[1]}; there "
        f"are some of {sizes}. To judge data and settings, run one of these "
        "sizes first."
    ]


def _sizes(references):
    return {tuple(reference["size"]) for reference in references}


def _compared(reference, last):
    import numpy as np

    known = reference["curve"]
    tokens = [line["tokens"] for line in known]
    wanted = np.interp(
        np.log(last["tokens"]),
        np.log(tokens),
        [line["val_mlm_accuracy"] for line in known],
    )
    found = last["val_mlm_accuracy"]
    told = (
        f"Masked pieces: {found:.1%}, where {reference['name']} has "
        f"{wanted:.1%} at as many tokens"
    )
    if last["tokens"] > 1.5 * tokens[-1]:
        told += f" (its last, at {tokens[-1]:,})"
    if found >= ENOUGH * wanted:
        return f"{told}: as it should be."
    return (
        f"{told}: too low. Look at the learning rate (1e-3 suits models of a "
        "few million parameters, 1e-4 the paper's), at the warm-up, which "
        "must end early in the run, and at the vocabulary (tools/doctor.py "
        "--vocabulary)."
    )


def _next_sentence(last, facts):
    accuracy = last.get("val_nsp_accuracy")
    share = facts["random_next"]
    guess = max(share, 1 - share)
    if accuracy is None or accuracy > guess + 0.02:
        return []
    return [
        f"Next sentence is at {accuracy:.1%}, where always guessing the "
        f"commoner answer gives {guess:.1%}. Look at whether the documents of "
        "the data are documents, and not single sentences or sentences in "
        "random order."
    ]


def _broken(curve):
    skipped = curve[-1].get("skipped_steps", 0)
    if not skipped:
        return []
    return [
        f"{skipped:,.0f} steps had gradients that were not finite and were "
        "skipped. A few do no harm; if they grow, take a lower learning rate "
        "or float32."
    ]


def _overfit(last):
    gap = last["val_loss"] - last.get("loss", last["val_loss"])
    if gap < OVERFIT:
        return []
    return [
        f"The held-out loss is {gap:.2f} above the one of training: the text "
        "is learned by heart. Take more text, fewer steps or more dropout."
    ]


def _data(settings, facts):
    lines = [_masks(settings, facts["mask_rate"])]
    low, high = RANDOM_NEXT
    share = facts["random_next"]
    told = f"Second sentences that are random: {share:.1%}"
    if low <= share <= high:
        lines.append(f"{told}: as the law has it, half and a little more.")
    else:
        lines.append(
            f"{told}, where the law gives 50 % to 70 %. Too many mean that "
            "most documents are one sentence: look at how the text was split."
        )
    told = f"Padding: {facts['padding']:.1%} of all places"
    if facts["padding"] > MOST_PADDING:
        lines.append(
            f"{told}. --packed puts several examples into a row and wastes "
            "less; or take shorter sequences."
        )
    else:
        lines.append(f"{told}: little enough.")
    return lines


def _masks(settings, rate):
    wanted = settings["mask_rate"]
    told = f"Predicted pieces: {rate:.1%} of all, {wanted:.0%} asked for"
    if abs(rate - wanted) < 0.02:
        return f"{told}: as it should be."
    return (
        f"{told}. Look at max_predictions: {settings['max_predictions']} "
        f"places are too few for {settings['sequence_length']} pieces, if "
        "the rate is lower; very short examples have a higher one."
    )


def _speed(settings, facts, last):
    waits, given = last["input_waits"], facts["input_tokens_per_second"]
    told = (
        f"Training takes {last['tokens_per_second']:,.0f} tokens a second and "
        f"waits for its input for {waits:.0%} of the time; the input alone "
        f"gave {given:,.0f} when the run began"
    )
    if waits > WAITS:
        return [
            f"{told}: bound by its input. Give the process more CPU cores, or "
            "write records once and take --records."
        ]
    advice = (
        "--dtype=auto computes in bfloat16 where the device has it"
        if settings["dtype"] == "float32"
        else "a larger batch, or more devices (--distribution), go faster"
    )
    return [f"{told}: bound by computing; {advice}."]
