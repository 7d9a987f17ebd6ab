r"""Pre-trains BERT on its two objectives, or a unidirectional model.

    bert-keras pretrain --data=runs/data --output=runs/pretrain \
        --num_layers=2 --hidden_dim=256 --num_heads=4 --sequence_length=64 \
        --batch_size=64 --steps=2000 --phase_2_steps=0 --learning_rate=1e-3 \
        --warmup=0.05 --bias_correction

In: --data, a folder that bert-keras create_pretraining_data wrote. As in the
paper, training has two phases: the last tenth of the steps (--phase_2_steps)
is phase 2, with sequences of 512 tokens. Each epoch samples new pairs and
masks. With --records the script reads TFRecords of examples that were sampled
once: for phase 1 from --data, for phase 2 from --phase_2_data. --init starts
from existing weights of any supported format. Out, in --output: model/ with
weights and vocabulary for fine-tuning; results.json and report.html with the
metrics on held-out documents; metrics.jsonl and TensorBoard logs with the
curves. The same command resumes an interrupted run. --dry_run prints the steps,
tokens and memory of a run.

With two layers of width 256, 1,000 steps of 64 sequences of 48 tokens take 3
minutes on two CPU cores in bfloat16. On cores without bfloat16, they take 5
minutes in float32.
"""

import functools

from absl import flags

from bert_keras.errors import InputError
from bert_keras.training import DISTRIBUTIONS, SCHEDULES
from official_tasks import script
from official_tasks.optimizers import OPTIMIZERS
from official_tasks.pretraining.plan import plan
from official_tasks.pretraining.runner import run
from official_tasks.pretraining.settings import (
    OBJECTIVES,
    Execution,
    Settings,
    note_masks,
    phases,
    split,
)
from official_tasks.progress import console, print_notes

__all__ = ["run"]
METRICS = (
    "mlm_accuracy",
    "mlm_perplexity",
    "nsp_accuracy",
    "lm_accuracy",
    "lm_perplexity",
)
_ROWS = {
    "sequence_length": "length of an example in tokens.",
    "max_predictions": "maximum number of masked tokens of an example. The "
    "default is the length times --mask_rate, rounded up.",
    "batch_size": "sequences per step. By default, phase 2 has the batch size "
    "of phase 1.",
}
# Field of `Settings` or `Execution` -> help of its flag, or (help, choices).
SETTINGS = {
    "objectives": ("Objectives to learn.", OBJECTIVES),
    "init": "Weights to start from, in any supported format.",
    "vocabulary": "File of the vocabulary that the data must have.",
    "size": "Size of the model: tiny, mini, small, medium, base, large, or the "
    "name of a released model.",
    "num_layers": "Number of layers; overrides --size.",
    "hidden_dim": "Width of the model; overrides --size.",
    "num_heads": "Number of attention heads; overrides --size. The default is "
    "--hidden_dim / 64 if --hidden_dim is set.",
    "dropout": "Dropout rate of layers and attention.",
    "records": "Train on the TFRecords in --data. Every epoch has the same "
    "examples.",
    "phase_2_data": "With --records: folder of the records of phase 2, which "
    "create_pretraining_data made of the same text with the same "
    "--held_out_share.",
    "packed": "Pack several examples into a row.",
    "short_probability": "Fraction of documents whose examples have a shorter, "
    "random length.",
    "mask_rate": "Fraction of tokens to predict.",
    "mask_mix": "Of the tokens to predict, the percentages that are masked, "
    "replaced by random tokens, and kept.",
    "whole_word": "Mask whole words.",
    **{name: f"Phase 1: {text}" for name, text in _ROWS.items()},
    **{f"phase_2_{name}": f"Phase 2: {text}" for name, text in _ROWS.items()},
    "steps": "Training steps of both phases together.",
    "phase_2_steps": "Steps of phase 2: a number, or a fraction of --steps. "
    "The default is 0.1, or 0 with --records and no --phase_2_data.",
    "evaluations": "Minimum number of evaluations on held-out documents.",
    "evaluation_steps": "Maximum number of batches of an evaluation.",
    "optimizer": ("AdamW, or LAMB for large batches.", OPTIMIZERS),
    "learning_rate": "Peak learning rate.",
    "warmup": "Steps in which the learning rate rises: a number, or a fraction "
    "of --steps.",
    "schedule": (
        "Shape of the learning rate after the warm-up.",
        SCHEDULES,
    ),
    "bias_correction": "Adam's bias correction; better for runs of few steps.",
    "rematerialize": "Compute layers again in the backward pass. This takes "
    "less memory and more time.",
    "dtype": (script.DTYPE_HELP, script.AUTO_DTYPES),
}
EXECUTION = {
    "distribution": (
        "Devices to train on; see docs/devices.md.",
        DISTRIBUTIONS,
    ),
    "tpu": "local, or a TPU's name or address.",
    "accumulation": "Number of micro-batches into which each device splits "
    "its part of a batch, to save memory.",
    "steps_per_execution": "Number of steps that Python starts in one call.",
    "save_every": "Steps between checkpoints.",
    "keep_last": "Number of newest checkpoints to keep.",
    "keep_every": "Also keep a checkpoint for each multiple of this number "
    "of steps.",
}


def define_flags():
    flags.DEFINE_string("data", None, "Folder of pre-training data.")
    flags.DEFINE_string("output", None, "Folder of this run.")
    flags.DEFINE_bool("dry_run", False, "Print the plan; do not train.")
    script.define_fields(Settings(), SETTINGS, least=1)
    script.define_fields(Execution(), EXECUTION, least=1)
    script.define_seed("Seed of new weights, examples, order and dropout.")
    script.applies_only(
        "with --distribution=tpu", lambda v: v.distribution == "tpu", "tpu"
    )
    _limit_flags()
    flags.mark_flags_as_required(["data", "output"])


def _limit_flags():
    for number, prefix in ((1, ""), (2, "phase_2_")):
        names = ["sequence_length", "max_predictions"]
        # --batch_size applies even if phase 1 has no steps, because it is also
        # the default of --phase_2_batch_size.
        names += ["batch_size", "data"] if number == 2 else []
        script.applies_only(
            f"if phase {number} has steps (see --phase_2_steps)",
            functools.partial(_has_phase, number),
            *[prefix + name for name in names],
        )
    script.applies_only(
        "with --objectives=mlm+nsp or mlm, because a unidirectional model has "
        "no masks",
        lambda v: v.objectives.startswith("mlm"),
        *("max_predictions", "phase_2_max_predictions", "mask_rate"),
        *("mask_mix", "whole_word"),
    )
    script.applies_only(
        "with --optimizer=adamw, because lamb always has bias correction",
        lambda v: v.optimizer == "adamw",
        "bias_correction",
    )


def _has_phase(number, values):
    settings, _ = split(_arguments(values))
    return any(phase.number == number for phase in phases(settings))


def _arguments(values):
    names = (*Settings._fields, *Execution._fields)
    arguments = {name: values[name].value for name in names}
    mask_mix = script.to_numbers(values.mask_mix, "--mask_mix=80,10,10")
    return {**arguments, "mask_mix": mask_mix}


def print_plan(data, **arguments):
    """Print the plan of a run, and check its inputs."""
    for line in plan(data, **arguments):
        console.print(line, soft_wrap=True)


def print_metrics(results):
    """Print each held-out metric, its value before training, and the notes."""
    before = results["before"] or {}
    for name in METRICS:
        if name in results:
            line = f"{name}: {results[name]:.4g}"
            if name in before:
                line += f" (before the first step: {before[name]:.4g})"
            console.print(f"  {line}")
    print_notes(results["notes"])


def main(values):
    if values.init and values["size"].present:
        raise InputError(
            "--size and --init exclude each other, because the weights of "
            "--init have a size. Leave one of the two out."
        )
    arguments = _arguments(values)
    if values.dry_run:
        print_plan(values.data, **arguments)
        return
    print_notes(note_masks(split(arguments)[0]))
    print_metrics(run(values.data, values.output, **arguments))


if __name__ == "__main__":
    script.start(main, define_flags)
