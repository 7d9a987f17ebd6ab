"""Pre-trains BERT on its two objectives, or a directional model.

    python -m official_tasks.pretrain --data=runs/data --output=runs/pretrain \
        --num_layers=2 --hidden_dim=256 --steps=1000 --phase_2_steps=0

In: a folder that tools/create_pretraining_data.py wrote. Pairs and masks are
sampled again in each epoch and at both lengths; --records takes examples that
were sampled once and written as TFRecords, the longer ones from
--phase_2_data. As in the paper, the last tenth of the steps sees sequences of
512 pieces (--phase_2_steps). --init starts from anybody's weights. Out, in
--output: model/ (weights and vocabulary, to start fine-tuning from),
results.json and report.html with the figures on held-out documents,
metrics.jsonl and TensorBoard logs of the curves. The same command resumes an
interrupted run; --dry_run prints what a run would take.

Takes about 3 minutes for 1,000 steps of 64 sequences of 48 pieces with 2
layers of 256 on two CPU cores in bfloat16, and 5 in float32 with AVX2 alone.
"""

import functools
import signal
import sys

from absl import flags

from bert_keras.errors import InputError
from official_tasks import script
from official_tasks.pretraining.cost import plan
from official_tasks.pretraining.runner import run
from official_tasks.pretraining.settings import (
    OBJECTIVES,
    Execution,
    Settings,
    phases,
    split,
)
from official_tasks.progress import console

__all__ = ["run"]
PAPER = Settings()
# What the script prints of the held-out figures, where the run has them.
FIGURES = (
    "mlm_accuracy",
    "mlm_perplexity",
    "nsp_accuracy",
    "lm_accuracy",
    "lm_perplexity",
)


def define_flags():
    flags.DEFINE_string("data", None, "Folder of pre-training data.")
    flags.DEFINE_string("output", None, "Folder of this run.")
    flags.DEFINE_bool("dry_run", False, "Print the plan; do not train.")
    _define_model_flags()
    _define_data_flags()
    _define_training_flags()
    _define_execution_flags()
    _limit_flags()
    flags.mark_flags_as_required(["data", "output"])


def _define_model_flags():
    flags.DEFINE_enum(
        "objectives", PAPER.objectives, OBJECTIVES, "What is learned."
    )
    flags.DEFINE_string("init", None, "Weights to start from, any format.")
    flags.DEFINE_string(
        "vocabulary", None, "The one the data must be made with."
    )
    flags.DEFINE_string("size", PAPER.size, "tiny to large, or as released.")
    flags.DEFINE_integer("num_layers", None, "Over size: layers.", 1)
    flags.DEFINE_integer("hidden_dim", None, "Over size: width.", 1)
    flags.DEFINE_integer(
        "num_heads", None, "Over size: heads; one for 64 of width.", 1
    )
    flags.DEFINE_float("dropout", PAPER.dropout, "Of layers and attention.")


def _define_data_flags():
    flags.DEFINE_bool("records", False, "Use its records: fixed examples.")
    flags.DEFINE_string(
        "phase_2_data", None, "With records: folder of those of phase 2."
    )
    flags.DEFINE_bool("packed", PAPER.packed, "Several examples in a row.")
    flags.DEFINE_float(
        "short_probability", PAPER.short_probability, "Of short examples."
    )
    flags.DEFINE_float("mask_rate", PAPER.mask_rate, "Share to predict.")
    flags.DEFINE_list("mask_mix", "80,10,10", "Percent masked, replaced, kept.")
    flags.DEFINE_bool("whole_word", PAPER.whole_word, "Mask whole words.")
    flags.DEFINE_integer("max_ngram", 1, "Mask runs of up to this many.", 1)
    for prefix, phase in (("", "Phase 1"), ("phase_2_", "Phase 2")):
        for name, what in (
            ("sequence_length", "pieces of an example."),
            ("max_predictions", "masked pieces, at most."),
            ("batch_size", "sequences a step."),
        ):
            default = getattr(PAPER, prefix + name)
            flags.DEFINE_integer(prefix + name, default, f"{phase}: {what}", 1)
    flags.DEFINE_integer("steps", PAPER.steps, "Of both phases.", 1)
    flags.DEFINE_float(
        "phase_2_steps",
        None,
        "Share or number that is long; by default 0.1, of --records alone 0.",
    )


def _define_training_flags():
    flags.DEFINE_integer(
        "evaluations", PAPER.evaluations, "On held-out documents, evenly.", 1
    )
    flags.DEFINE_integer(
        "evaluation_steps",
        PAPER.evaluation_steps,
        "Batches of each, at most.",
        1,
    )
    flags.DEFINE_enum(
        "optimizer", PAPER.optimizer, ("adamw", "lamb"), "Of the weights."
    )
    flags.DEFINE_float("learning_rate", PAPER.learning_rate, "At its peak.")
    flags.DEFINE_float(
        "warmup", PAPER.warmup, "Share of the steps, or their number."
    )
    flags.DEFINE_bool(
        "bias_correction", False, "Adam's; better for runs of few steps."
    )
    flags.DEFINE_integer(
        "seed",
        PAPER.seed,
        "Of weights, order and dropout.",
        0,
        script.LARGEST_SEED,
    )
    flags.DEFINE_enum(
        "dtype",
        PAPER.dtype,
        script.AUTO_DTYPES,
        script.DTYPE_HELP,
    )


def _define_execution_flags():
    usual = Execution()
    flags.DEFINE_enum(
        "distribution",
        usual.distribution,
        ("off", "mirrored", "multi_worker", "tpu", "auto"),
        "Devices; see docs/devices.md.",
    )
    flags.DEFINE_string("tpu", usual.tpu, "local, or a TPU's name.")
    script.applies_only(
        "with --distribution=tpu", lambda v: v.distribution == "tpu", "tpu"
    )
    for name, what in (
        ("accumulation", "Micro-batches of a batch, one after another."),
        ("steps_per_execution", "Steps between two returns to Python."),
        ("save_every", "Steps between checkpoints."),
        ("keep", "Newest checkpoints that stay."),
        ("keep_every", "Checkpoints at multiples of this step stay."),
    ):
        flags.DEFINE_integer(name, getattr(usual, name), what, 1)


def _limit_flags():
    for number, prefix in ((1, ""), (2, "phase_2_")):
        names = ["sequence_length", "max_predictions"]
        names += ["batch_size"] if number == 2 else []  # 1's is 2's default
        script.applies_only(
            f"where phase {number} has steps (see --phase_2_steps)",
            functools.partial(_has_phase, number),
            *[prefix + name for name in names],
        )
    script.applies_only(
        "with --objectives=mlm+nsp or mlm: a model of one direction sees the "
        "text as it is",
        lambda v: v.objectives.startswith("mlm"),
        *("max_predictions", "phase_2_max_predictions", "mask_rate"),
        *("mask_mix", "whole_word", "max_ngram"),
    )
    script.applies_only(
        "with --optimizer=adamw; lamb always has it",
        lambda v: v.optimizer == "adamw",
        "bias_correction",
    )


def _has_phase(number, values):
    settings, _ = split(_arguments(values))
    return any(phase.number == number for phase in phases(settings))


def _arguments(values):
    """The fields of `Settings` and `Execution`, as the flags say."""
    given = values.flag_values_dict()
    names = (*Settings._fields, *Execution._fields)
    arguments = {name: given[name] for name in names}
    return {**arguments, "mask_mix": script.percentages(values.mask_mix)}


def print_plan(data, **arguments):
    """Prints what `run` would take, and checks its inputs."""
    for line in plan(data, **arguments):
        console.print(line, soft_wrap=True)


def print_figures(results):
    """Prints the held-out figures, and those before the first step."""
    before = results["before"] or {}
    for name in FIGURES:
        if name in results:
            line = f"{name}: {results[name]:.4g}"
            if name in before:
                line += f" (before the first step: {before[name]:.4g})"
            console.print(f"  {line}")


def main(values):
    if values.init and values["size"].present:
        raise InputError(
            "--size is given together with --init, whose weights decide the "
            "sizes. Leave one of the two out."
        )
    # Before and after the training, which saves first; see `TrainingState`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(script.RUN_AGAIN))
    arguments = _arguments(values)
    if values.dry_run:
        print_plan(values.data, **arguments)
    else:
        print_figures(run(values.data, values.output, **arguments))


if __name__ == "__main__":
    script.start(main, define_flags)
