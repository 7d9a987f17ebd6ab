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

from absl import flags

from bert_keras.errors import format_count
from bert_keras.training import DISTRIBUTIONS
from official_tasks import script
from official_tasks.engine.hyperparameters import (
    CHOICES,
    RANGES,
    Hyperparameters,
)
from official_tasks.tasks import registry
from official_tasks.tasks.registry import task_from_flags

RUN_FLAGS = (
    "from_scratch",
    "epochs",
    "batch_size",
    "sequence_length",
    "seed",
    "dtype",
    "pad_to_longest",
    "distribution",
    "tpu",
)

# Field of `Hyperparameters` -> help of its flag, or (help, choices).
TRAINING = {
    "bilstm_dim": "Units in each direction of a new BiLSTM between encoder and "
    "head.",
    "warmup": "Steps in which the learning rate rises: a number, or a fraction "
    "of the steps.",
    "schedule": (
        "Shape of the learning rate after the warm-up.",
        CHOICES["schedule"],
    ),
    "ema": "Momentum of the moving averages of the weights. The run scores and "
    "saves these averages.",
    "label_smoothing": "Fraction of each label to spread over all classes.",
    "lora_rank": "Rank of LoRA's matrices. Only they, the head and other new "
    "weights are trained.",
    "lora_alpha": "LoRA's change of a kernel is multiplied by --lora_alpha / "
    "--lora_rank. By default, this factor is 1.",
    "lora_dropout": "Dropout rate of the input of LoRA's matrices.",
    "lora_targets": "Projections that LoRA changes: any of query, key, value, "
    "output, feed_forward.",
    "freeze_layers": "Freeze the embeddings and this many lowest layers.",
    "accumulation": "Number of micro-batches into which each device splits "
    "its part of a batch, to save memory.",
    "steps_per_execution": "Number of steps that Python starts in one call.",
    "save_every": "Steps between checkpoints, from which a run resumes.",
    "evaluations": "How often dev is scored, at even distances, at most once a "
    "step. The default is once an epoch.",
    "max_rows": "Use at most this many rows of train and of dev: a random "
    "sample, the same for every --seed. With --folds, of --train in all.",
    "early_stopping": "End after this many evaluations without a better score.",
    "tune_thresholds": "Choose the thresholds with the best F1 on dev: one for "
    'each label, or one for "no answer".',
    "min_precision": "With one class a text: choose the threshold above which "
    "answers have this precision on dev. The others are unsure.",
    "calibrate": "Divide the logits by the temperature with the lowest loss on "
    "dev.",
    "metric": "Metric on dev that decides the best weights and early stopping: "
    "loss, or a metric of the task. The default is the task's main metric.",
    "layer_decay": "A layer's learning rate is this factor times the rate of "
    "the layer above.",
    "weight_decay": "Decoupled weight decay, except for biases and LayerNorm.",
    "clip_norm": "Maximum global norm of the gradients; 0 does not clip them.",
    "dropout": "Dropout rate of layers, attention and head; by default the "
    "rates stored with the weights.",
    "optimizer": ("AdamW, or LAMB for large batches.", CHOICES["optimizer"]),
    "class_weights": (
        "balanced: all classes have the same total weight in the loss.",
        CHOICES["class_weights"],
    ),
    "rematerialize": "Compute layers again in the backward pass. This takes "
    "less memory and more time.",
}


def define_flags():
    registry.define_task_flags("classify", {"glue": ("data_dir",)})
    flags.adopt_module_key_flags(registry)
    flags.DEFINE_string(
        "init", None, "Weights to start from: a folder or a preset's name."
    )
    flags.DEFINE_bool(
        "from_scratch",
        False,
        "Start from random weights; use the sizes and vocabulary of --init.",
    )
    flags.DEFINE_string("output", None, "Folder of this run.")
    flags.DEFINE_bool(
        "dry_run", False, "Check data and settings; do not train."
    )
    flags.DEFINE_float(
        "epochs",
        None,
        "Passes over the training rows; the default depends on the task.",
    )
    flags.DEFINE_integer(
        "batch_size",
        None,
        "Rows per step, over all devices together; the default depends on the "
        "task.",
        1,
        script.LARGEST_BATCH,
    )
    flags.DEFINE_list(
        "learning_rate",
        None,
        "Peak learning rate, or several to try; the best on dev is kept. The "
        "default depends on task and model size.",
    )
    flags.DEFINE_integer(
        "sequence_length",
        None,
        "Maximum number of tokens of a row; the default depends on the task.",
    )
    flags.DEFINE_integer(
        "seeds", 1, "Number of seeds to train with: --seed, --seed + 1, ...", 1
    )
    flags.DEFINE_integer(
        "folds",
        None,
        "Cross-validate: split --train into this many parts. Each run is "
        "scored on one part and trained on the others.",
        2,
    )
    script.define_seed("Seed of the row order, dropout and new weights.")
    flags.DEFINE_enum("dtype", "float32", script.AUTO_DTYPES, script.DTYPE_HELP)
    flags.DEFINE_bool(
        "pad_to_longest",
        None,
        "Pad a batch to its longest row. --nopad_to_longest, the default on a "
        "TPU, pads every row to --sequence_length.",
    )
    flags.DEFINE_enum(
        "distribution",
        "off",
        DISTRIBUTIONS,
        "Devices to train on; see docs/devices.md.",
    )
    flags.DEFINE_string("tpu", "local", "local, or a TPU's name or address.")
    _define_training_flags()
    script.applies_only(
        "with --distribution=tpu", lambda v: v.distribution == "tpu", "tpu"
    )
    script.applies_only(
        "with --recipe", lambda v: v.recipe or registry.is_file(v), "lstm_dim"
    )
    script.applies_only(
        "without --folds, which trains one run for each fold",
        lambda v: v.folds is None,
        *("seeds", "dev", "split_seed"),
    )
    script.applies_only(
        "without --dry_run, which checks only the first run",
        lambda v: not v.dry_run,
        "folds",
    )
    flags.mark_flag_as_required("init")
    flags.register_multi_flags_validator(
        ["output", "dry_run"],
        lambda values: values["output"] or values["dry_run"],
        "expected --output, the folder of the run, or --dry_run",
    )
    script.applies_only(
        "to one task, not to --task=glue",
        lambda v: v.task.lower() != "glue",
        *("train", "dev", "test", "dry_run", "class_weights", "folds"),
        *("label_smoothing", "metric", "tune_thresholds"),
        *("calibrate", "min_precision"),
    )


def _define_training_flags():
    script.define_fields(Hyperparameters(), TRAINING)
    for name, (expected, fits) in RANGES.items():
        script.require(expected, fits, name)
    script.group_flags("training", *TRAINING)
    script.applies_only(
        "without --recipe, which freezes the encoder",
        lambda v: not v.recipe or registry.is_file(v),
        *("lora_rank", "freeze_layers", "layer_decay", "rematerialize"),
        "bilstm_dim",
        *("lora_alpha", "lora_dropout", "lora_targets"),
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
    arguments = {name: getattr(values, name) for name in RUN_FLAGS}
    if values.learning_rate is not None:
        rates = script.to_numbers(values.learning_rate, "--learning_rate=2e-5")
        # A run stores a single rate as a number.
        arguments["learning_rate"] = rates[0] if len(rates) == 1 else rates
    fields = {name: values[name].value for name in Hyperparameters._fields}
    fields["lora_targets"] = tuple(values.lora_targets)
    arguments |= Hyperparameters(**fields).changed()
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
    script.start(main, define_flags)
