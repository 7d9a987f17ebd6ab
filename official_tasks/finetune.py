r"""Fine-tunes BERT on a task and scores it.

    bert-keras finetune --task=classify --train=reviews.csv \
        --text=review --label=stars --init=runs/pretrain/model \
        --output=runs/reviews
    bert-keras finetune --task=mrpc \
        --init=hf://google-bert/bert-base-uncased --output=runs/mrpc \
        --learning_rate=5e-5,4e-5,3e-5,2e-5
    bert-keras finetune --task=glue --data_dir=glue \
        --init=hf://google-bert/bert-base-uncased --output=runs/glue

In: the data of a task, and --init, the weights to start from. --data_dir is a
folder of official files, or a data set such as hf:nyu-mll/glue. Without it,
GLUE, SQuAD, conll2003 and wikiann are read from TensorFlow Datasets, which
downloads them once. --task=classify, the default, multilabel, regress, spans,
tags, choices, embed and rank read any CSV, TSV, JSONL or Parquet file and any
data set. --task=my_task.py is a Python file with your task. Out, in --output:
model/ with the vocabulary, the labels and the weights with the best score on
dev; results.json with all official metrics; predictions/ of the dev split;
report.html; TensorBoard logs. bert-keras export exports model/, except a tagger
that was trained with --recipe. The same command resumes an interrupted run. If
a run of several fails, the others go on, and the exit code is 3.

--task=glue trains all nine tasks of GLUE, predicts the diagnostic set with
MNLI's model and writes glue.zip for the leaderboard. --learning_rate=3e-5,2e-5
tries two rates and keeps the best on dev. Without --recipe, the default rate of
small models is multiplied: by 6 up to hidden size 256, by 2 up to 512.
--seeds=5 trains with five seeds. --folds=5 cross-validates.

Takes about a minute for 1,000 rows and 3 epochs of a small model on two CPU
cores, and about 40 minutes for BERT base.
"""

import dataclasses

from bert_keras.errors import InputError, format_count
from official_tasks import cli, options
from official_tasks.engine.hyperparameters import Hyperparameters
from official_tasks.options import Condition, option
from official_tasks.tasks import registry
from official_tasks.tasks.registry import task_from_flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(options.DeviceOptions):
    """Arguments of `finetuning.run` besides `Hyperparameters`."""

    from_scratch: bool = option(
        False,
        "Start from random weights; use the sizes and vocabulary of --init.",
    )
    epochs: float | None = option(
        None, "Passes over the training rows; the default depends on the task."
    )
    batch_size: int | None = option(
        None,
        "Rows per step, over all devices together; the default depends on the "
        "task.",
        at_least=1,
        at_most=options.LARGEST_BATCH,
    )
    learning_rate: tuple[float, ...] | None = option(
        None,
        "Peak learning rate, or several to try; the best on dev is kept. The "
        "default depends on task and model size.",
    )
    sequence_length: int | None = option(
        None,
        "Maximum number of tokens of a row; the default depends on the task.",
    )
    seed: int = options.define_seed(
        "Seed of the row order, dropout and new weights."
    )
    dtype: str = options.define_dtype()
    pad_to_longest: bool | None = option(
        None,
        "Pad a batch to its longest row. --nopad_to_longest, the default on a "
        "TPU, pads every row to --sequence_length.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(RunOptions, Hyperparameters, registry.TaskOptions):
    """Options of this script."""

    task: str = registry.task_option("classify", "glue")
    others = {"glue": ("data_dir",)}
    init: str = option(help="Weights to start from: a folder or a name.")
    output: str | None = option(None, "Folder of this run.")
    dry_run: bool = option(
        False, "Print the sizes of the run and notes on its data; do not train."
    )
    seeds: int = option(
        1, "Number of seeds to train with: --seed, --seed + 1, ...", at_least=1
    )
    folds: int | None = option(
        None,
        "Cross-validate: split --train into this many parts. Each run is "
        "scored on one part and trained on the others.",
        at_least=2,
    )
    conditions = (
        Condition(
            ("lstm_dim",),
            "with --recipe",
            lambda v: v.recipe or registry.is_file(v),
        ),
        Condition(
            ("seeds", "dev", "split_seed"),
            "without --folds, which trains one run for each fold",
            lambda v: v.folds is None,
        ),
        Condition(
            ("folds",),
            "without --dry_run, which checks only the first run",
            lambda v: not v.dry_run,
        ),
        Condition(
            (
                *("train", "dev", "test", "dry_run", "class_weights", "folds"),
                *("label_smoothing", "metric", "tune_thresholds"),
                *("calibrate", "min_precision"),
            ),
            "to one task, not to --task=glue",
            lambda v: v.task.lower() != "glue",
        ),
        Condition(
            (
                *("lora_rank", "freeze_layers", "layer_decay"),
                *("rematerialize", "bilstm_dim"),
                *("lora_alpha", "lora_dropout", "lora_targets"),
            ),
            "without --recipe, which freezes the encoder",
            lambda v: not v.recipe or registry.is_file(v),
        ),
    )


def main(values):
    from official_tasks.engine.training import DivergedError

    results = _train(values)
    if errors := results.get("errors"):
        raise DivergedError(
            f"{format_count(len(errors), 'run')} failed: "
            f"{', '.join(errors)}. The results of the others are in "
            f"{values.output}. Try a lower learning rate in a new folder."
        )


def _train(values) -> dict:
    """Train the runs that the flags name; return the results."""
    if not (values.output or values.dry_run):
        raise InputError(
            "--output is missing: name the folder of the run, or give --dry_run"
        )
    arguments = dataclasses.asdict(options.read(RunOptions, values))
    rates = arguments["learning_rate"]
    if rates is None:
        del arguments["learning_rate"]
    elif len(rates) == 1:  # a run stores a single rate as a number
        arguments["learning_rate"] = rates[0]
    arguments |= options.read(Hyperparameters, values).changed()
    if values.task.lower() == "glue":
        from official_tasks.engine import leaderboard

        return leaderboard.run_glue(
            lambda name: task_from_flags(values, name),
            values.init,
            values.output,
            seeds=values.seeds,
            **arguments,
        )
    task, settings = task_from_flags(values)
    if values.folds:
        from official_tasks.engine import folds

        return folds.cross_validate(
            task,
            values.init,
            values.output,
            values.folds,
            settings=settings,
            **arguments,
        )
    from official_tasks.engine import runs

    output = None if values.dry_run else values.output
    return runs.run(
        task,
        values.init,
        output,
        seeds=values.seeds,
        settings=settings,
        **arguments,
    )


if __name__ == "__main__":
    cli.start(main, Options)
