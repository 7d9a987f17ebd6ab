"""Judges a pre-training run by its folder, while it runs or afterwards."""

import json
import os

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.modeling.sizes import SIZES
from official_tasks.pretraining.settings import phase_at, recorded

REFERENCES = os.path.join(os.path.dirname(__file__), "reference_curves.json")
# Share of the reference's accuracy under which something is wrong. Corpora of
# one language differ less: prose and documentation, 13.8 % and 18.1 %.
ENOUGH = 0.6
FEW_TOKENS = 1e6  # before, no curve says anything
RANDOM_NEXT = (0.45, 0.7)
MOST_PADDING = 0.25
WAITS = 0.1  # share of the time, from which on the input is worth a look
OVERFIT = 1.0  # nats between the losses of training and of held-out text
ACCURACIES = {
    "val_mlm_accuracy": "of masked pieces",
    "val_lm_accuracy": "of neighbouring pieces",
    "val_nsp_accuracy": "of next sentences",
}


def report(folder) -> list[str]:
    """What a run's figures say, one finding with its advice a line.

    Args:
        folder: of `official_tasks.pretrain`; may be remote.

    Raises:
        InputError: it is not the folder of a pre-training run, or nothing
            was evaluated yet.
    """
    settings, facts, last = _read(folder)
    shown = " and ".join(
        f"{last[k]:.1%} {what}" for k, what in ACCURACIES.items() if k in last
    )
    lines = [
        f"Step {last['step']:,.0f} of {settings['steps']:,}, "
        f"{last['tokens']:,.0f} tokens: held out, {shown} right."
    ]
    if last["tokens"] < FEW_TOKENS:
        lines.append(
            f"Fewer than {FEW_TOKENS:,.0f} tokens: too early to judge the "
            "curve."
        )
    else:
        lines += _compare_curve(settings, last) + _next_sentence(last, facts)
    skipped = last.get("skipped_steps", 0)
    if skipped:
        lines.append(
            f"{skipped:,.0f} steps had gradients that were not finite and were "
            "skipped. A few do no harm; if they grow, take a lower learning "
            "rate or float32."
        )
    gap = last["val_loss"] - last.get("loss", last["val_loss"])
    if gap >= OVERFIT:
        lines.append(
            f"The held-out loss is {gap:.2f} above the one of training: the "
            "text is learned by heart. Take more text, fewer steps or more "
            "dropout."
        )
    return [*lines, *_data(settings, facts), _speed(settings, facts, last)]


def _read(folder):
    """Settings, facts of the data, the last evaluation."""
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
    return settings, facts, curve[-1]


def _compare_curve(settings, last):
    """The last point against the reference curves of the same size."""
    if settings["init"] or not settings["objectives"].startswith("mlm"):
        return []
    usual = SIZES[settings["size"]]
    size = [settings[k] or usual[k] for k in ("num_layers", "hidden_dim")]
    references = files.read_json(REFERENCES)
    same = [one for one in references if one["size"] == size]
    if same:
        length = phase_at(last["step"], recorded(settings)).sequence_length
        # Where a curve has several lengths, its points say which.
        curves = {
            one["name"]: [
                p for p in one["curve"] if length == p.get("length", length)
            ]
            for one in same
        }
        return [_compare(n, c, last) for n, c in curves.items() if c] or [
            f"The reference curve of this size has no rows of {length} pieces."
        ]
    known = sorted({tuple(reference["size"]) for reference in references})
    known = ", ".join(f"{layers} x {width}" for layers, width in known)
    return [
        f"There is no reference curve of {size[0]} layers of {size[1]}; there "
        f"are some of {known}. To judge data and settings, run one of these "
        "sizes first."
    ]


def _compare(name, curve, last):
    tokens = [line["tokens"] for line in curve]
    expected = np.interp(
        np.log(last["tokens"]),
        np.log(tokens),
        [line["val_mlm_accuracy"] for line in curve],
    )
    accuracy = last["val_mlm_accuracy"]
    line = (
        f"Masked pieces: {accuracy:.1%}, where {name} has "
        f"{expected:.1%} at as many tokens"
    )
    if last["tokens"] > 1.5 * tokens[-1]:
        line += f" (its last, at {tokens[-1]:,})"
    if accuracy >= ENOUGH * expected:
        return f"{line}: as it should be."
    return (
        f"{line}: too low. Look at the learning rate (1e-3 suits models of a "
        "few million parameters, 1e-4 the paper's), at the warm-up, which "
        "must end early in the run, at the vocabulary (tools/doctor.py "
        "--vocabulary), and whether shorter rows come first."
    )


def _next_sentence(last, facts):
    accuracy, share = last.get("val_nsp_accuracy"), facts["random_next"]
    guess = max(share, 1 - share)
    if accuracy is None or accuracy > guess + 0.02:
        return []
    return [
        f"Next sentence is at {accuracy:.1%}, where always guessing the "
        f"commoner answer gives {guess:.1%}. Look at whether the documents of "
        "the data are documents, and not single sentences or sentences in "
        "random order."
    ]


def _data(settings, facts):
    """Rate of masks, share of random sentences, padding."""
    rate, asked = facts["mask_rate"], settings["mask_rate"]
    masks = f"Predicted pieces: {rate:.1%} of all, {asked:.0%} asked for"
    if abs(rate - asked) < 0.02:
        masks += ": as it should be."
    else:
        masks += (
            f". Look at max_predictions: {settings['max_predictions']} places "
            f"are too few for {settings['sequence_length']} pieces, if the "
            "rate is lower; very short examples have a higher one."
        )
    low, high = RANDOM_NEXT
    pairs = f"Second sentences that are random: {facts['random_next']:.1%}"
    if low <= facts["random_next"] <= high:
        pairs += ": as it should be, half and a little more."
    else:
        pairs += (
            ", where the sampling rule gives 50 % to 70 %. Too many mean that "
            "most documents are one sentence: look at how the text was split."
        )
    padding = f"Padding: {facts['padding']:.1%} of all places"
    if facts["padding"] <= MOST_PADDING:
        padding += ": little enough."
    else:
        padding += (
            ". --packed puts several examples into a row and wastes less; or "
            "take shorter sequences."
        )
    # A model of one direction sees the text as it is.
    masked = [masks] if settings["objectives"].startswith("mlm") else []
    return [*masked, pairs, padding]


def _speed(settings, facts, last):
    line = (
        f"Training takes {last['tokens_per_second']:,.0f} tokens a second and "
        f"waits for its input for {last['input_waits']:.0%} of the time; the "
        f"input alone gave {facts['input_tokens_per_second']:,.0f} when the "
        "run began"
    )
    if last["input_waits"] > WAITS:
        return (
            f"{line}: bound by its input. Give the process more CPU cores, or "
            "write records once and take --records."
        )
    if settings["dtype"] == "float32":
        advice = "--dtype=auto computes in bfloat16 where the device has it"
    else:
        advice = "a larger batch, or more devices (--distribution), go faster"
    return f"{line}: bound by computing; {advice}."
