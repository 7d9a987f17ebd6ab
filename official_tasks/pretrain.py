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

import dataclasses
import functools

from bert_keras.errors import InputError
from official_tasks import cli, options
from official_tasks.options import Condition, option
from official_tasks.pretraining.plan import plan
from official_tasks.pretraining.runner import run
from official_tasks.pretraining.settings import (
    Execution,
    Settings,
    note_masks,
    phases,
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


def _has_phase(number, values):
    settings = options.read(Settings, values)
    return any(phase.number == number for phase in phases(settings))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Settings, Execution):
    """Options of this script."""

    data: str = option(help="Folder of pre-training data.")
    output: str = option(help="Folder of this run.")
    dry_run: bool = option(
        False, "Print the sizes of the run and notes on its data; do not train."
    )
    # --batch_size applies even if phase 1 has no steps, because it is also the
    # default of --phase_2_batch_size.
    conditions = (
        Condition(
            ("sequence_length", "max_predictions"),
            "if phase 1 has steps (see --phase_2_steps)",
            functools.partial(_has_phase, 1),
        ),
        Condition(
            (
                *("phase_2_sequence_length", "phase_2_max_predictions"),
                *("phase_2_batch_size", "phase_2_data"),
            ),
            "if phase 2 has steps (see --phase_2_steps)",
            functools.partial(_has_phase, 2),
        ),
        Condition(
            (
                *("max_predictions", "phase_2_max_predictions", "mask_rate"),
                *("mask_mix", "whole_word"),
            ),
            "with --objectives=mlm+nsp or mlm, because a unidirectional model "
            "has no masks",
            lambda v: v.objectives.startswith("mlm"),
        ),
        Condition(
            ("bias_correction",),
            "with --optimizer=adamw; lamb always has bias correction",
            lambda v: v.optimizer == "adamw",
        ),
    )


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
    settings = options.read(Settings, values)
    execution = options.read(Execution, values)
    arguments = {
        **dataclasses.asdict(settings),
        **dataclasses.asdict(execution),
    }
    if values.dry_run:
        print_plan(values.data, **arguments)
        return
    print_notes(note_masks(settings))
    print_metrics(run(values.data, values.output, **arguments))


if __name__ == "__main__":
    cli.start(main, Options)
