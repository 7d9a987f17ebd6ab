"""Predicts a split with models, and writes a task's official files."""

import contextlib
import csv
import os
import shutil
import tempfile

import numpy as np
import tensorflow as tf

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.opening import open_checkpoint
from bert_keras.parallel import answer_at_once
from official_tasks import progress
from official_tasks.engine.answer_formats import WRITERS
from official_tasks.engine.batches import prediction_batches, row_lengths
from official_tasks.engine.models import load_trained
from official_tasks.outputs import refuse_input_as_output
from official_tasks.tasks import own_data
from official_tasks.tasks.base import SPLITS
from official_tasks.tasks.forms.cells import ID
from official_tasks.tasks.forms.delimited import write_csv
from official_tasks.tasks.source import Source

PREDICTION_BATCH = 64


class Predictor:
    """Batched prediction of encoded rows of any length, with a single trace.

    Args:
        model: a Keras model, or a function with the arguments `inputs` and
            `training`.
        per_token: True if the model's outputs have a token axis, see `Task`.
        pad_id: padding value of `token_ids`.
    """

    def __init__(self, model, per_token=False, pad_id=0):
        self.per_token = per_token
        self.pad_id = pad_id
        self._call = tf.function(
            lambda inputs: model(inputs, training=False), autograph=False
        )

    def __call__(
        self, encoded, batch_size=PREDICTION_BATCH, check=lambda: None
    ):
        """Return float32 outputs in row order, see `Task.decode`.

        `check` is called after each batch; it may raise an error.
        """
        lengths = row_lengths(encoded.inputs)
        order = np.argsort(lengths, kind="stable")
        positions = np.argsort(order)

        def in_row_order(batches):
            rows = [
                row
                for batch in batches
                for row in np.asarray(batch, np.float32)
            ]
            rows = [rows[position] for position in positions]
            if not self.per_token:
                return np.stack(rows)
            return [row[:n] for row, n in zip(rows, lengths, strict=True)]

        batches = prediction_batches(
            encoded.inputs, order, batch_size, self.pad_id
        )
        # Trace once for all shapes, because each trace takes seconds.
        call = self._call.get_concrete_function(batches.element_spec)
        outputs = []
        for output in answer_at_once(call, batches):
            outputs.append(output)
            check()
        if not isinstance(outputs[0], dict):
            return in_row_order(outputs)
        return {
            name: in_row_order([batch[name] for batch in outputs])
            for name in outputs[0]
        }


def predict_split(task, models, split, check=lambda examples: None):
    """Return the examples of a split, and their predictions.

    Args:
        task: a `Task`.
        models: model or run folders; outputs of several models are averaged.
        split: one of `SPLITS`.
        check: function of the examples, called before the prediction.

    Raises:
        InputError: a model does not fit the task, or several models cannot be
            averaged.
    """
    if len(models) > 1 and not task.averages:
        raise InputError(
            f"Several models of --task={task.name} cannot be averaged: name "
            "one."
        )
    # A test file lacks class names, thresholds and other arguments. Take them
    # from the models. The task keeps the class names of the first model.
    thresholds = set()
    for model in models:
        task.take_arguments(open_checkpoint(model).head_arguments)
        names = ("thresholds", "null_threshold")
        thresholds.add(str([getattr(task, name, None) for name in names]))
    if len(thresholds) > 1:
        raise InputError(
            "These models have different thresholds. A threshold fits the "
            "outputs of its own model, not the mean output of the "
            "models. Name one model."
        )
    examples = task.read(split)
    check(examples)
    encoded, outputs = average_outputs(task, models, examples)
    return examples, task.decode(examples, encoded, outputs)


def average_outputs(task, models, examples):
    """Return the first model's `Encoded` rows, and all models' mean output.

    Each model stays in memory until the next one is loaded.

    Raises:
        InputError: the models cut the texts into different rows, or an output
            is not finite.
    """
    first, outputs = None, []
    for preset in models:
        model, preprocess = load_trained(task, preset)
        encoded = task.encode(examples, preprocess)
        predictor = Predictor(model, task.per_token, preprocess.packer.pad_id)
        outputs.append(predictor(encoded))
        _check_finite(preset, examples, outputs[-1])
        first = first or encoded
    return first, _mean(outputs)


def _check_finite(preset, examples, outputs):
    """Raise `InputError` that names the first row with NaN or infinity."""
    columns = outputs.values() if isinstance(outputs, dict) else [outputs]
    for column in columns:
        for number, row in enumerate(column):
            if np.isfinite(row).all():
                continue
            text = ""
            if len(column) == len(examples):  # a text may have several rows
                texts = getattr(examples[number], "texts", [""])
                text = f", {texts[0][:60]!r}"
            raise InputError(
                f"The model {preset} answers row {number + 1}{text}, with NaN "
                "or infinity. Use earlier weights, or train again with a lower "
                "learning rate."
            )


def _mean(outputs):
    first = outputs[0]
    if isinstance(first, dict):
        return {name: _mean([each[name] for each in outputs]) for name in first}
    shapes = [[np.shape(row) for row in each] for each in outputs]
    if any(each != shapes[0] for each in shapes):
        raise InputError(
            "The models cut the texts into different rows, so their outputs "
            "cannot be averaged. Name models with the same vocabulary and "
            "the same sequence length."
        )
    if isinstance(first, list):
        return [np.mean(rows, axis=0) for rows in zip(*outputs, strict=True)]
    return np.mean(outputs, axis=0)


def predict_task(task, models, output, split="test", overwrite=False, keep=()):
    """Write the official prediction files of a split to the folder `output`.

    Args:
        task: a `Task`.
        models: model or run folders; outputs of several models are averaged.
        output: folder, made if it is missing.
        split: one of `SPLITS`.
        overwrite: True to replace existing files.
        keep: columns of the test table to add to predictions.csv.

    Raises:
        InputError: the split is unknown, a file would replace an input, a
            file exists with other content and `overwrite` is False, or the
            columns of `keep` cannot be read or added.
    """
    if split not in SPLITS:
        raise InputError(
            f"`split` is {split!r}: expected one of {', '.join(SPLITS)}"
        )
    refuse_file_name(output)
    kept = _read_kept(task, split, keep) if keep else []
    examples, predictions = predict_split(task, models, split)
    progress.print_notes(getattr(examples, "notes", ()))
    with new_files(output, overwrite, input_files(task)) as folder:
        task.write(examples, predictions, folder)
        if keep:
            _add_columns(folder, keep, kept)


def refuse_file_name(output):
    """Raise `InputError` if the name of an output folder is that of a file."""
    is_name = os.path.splitext(output or "")[1].lower() in WRITERS
    if is_name and not files.is_folder(output):
        raise InputError(
            f"--output={output} has the name of a file, but several files are "
            "written. Name a folder."
        )


def _read_kept(task, split, keep):
    source = getattr(task, "source", None)
    if not isinstance(source, own_data.Table) or split != "test":
        raise InputError(
            "--keep only applies to the rows of a table that --test names. "
            "Leave --keep out."
        )
    return source.read_columns("test", keep)


def _add_columns(folder, names, rows):
    """Put columns in front of those of predictions.csv.

    A column of the file that has the same name gets the prefix "predicted_",
    unless it repeats the input.
    """
    path = os.path.join(folder, "predictions.csv")
    found: list = []
    if os.path.isfile(path):
        with open(path, encoding="utf-8", newline="") as file:
            found = list(csv.reader(file))
    if len(found) != 1 + len(rows):
        raise InputError(
            "This task does not write one row of predictions for each row of "
            "--test. Leave --keep out."
        )
    header = found[0]
    inputs = {ID, "text", "text_pair", "label"} & {*names}
    others = [i for i, name in enumerate(header) if name not in inputs]
    header = [f"predicted_{n}" if n in names else n for n in header]
    cells = [header, *found[1:]]
    write_csv(
        path,
        (
            [*kept, *(row[i] for i in others)]
            for kept, row in zip([names, *rows], cells, strict=True)
        ),
    )


def input_files(task) -> list:
    """Return the files that a task reads, including its test files."""
    source = getattr(task, "source", None)
    is_ours = isinstance(source, Source)  # a user's task may have no `Source`
    test = source.existing_files("test") if is_ours else []
    return [*task.data_files(), *test]


@contextlib.contextmanager
def new_files(folder, overwrite, inputs=()):
    """Yield a temporary folder; move its files into `folder` at the end.

    If a file exists with other content and `overwrite` is False, raise an
    InputError and move no file.

    Args:
        folder: the folder; it is made if it is missing.
        overwrite: True to replace existing files.
        inputs: files that are never replaced; an InputError is raised instead.
    """
    with tempfile.TemporaryDirectory() as written:
        yield written
        paths = {
            path: os.path.join(folder, os.path.relpath(path, written))
            for path in files.walk(written)
        }
        for path, target in paths.items():
            refuse_input_as_output(target, *inputs)
            is_same = files.same_content(path, target)
            if files.exists(target) and not is_same and not overwrite:
                raise InputError(
                    f"{target} exists, with other content. Name another "
                    "--output, or add --overwrite to replace it."
                )
        with contextlib.ExitStack() as stack:
            for path, target in paths.items():
                partial = stack.enter_context(files.atomic_output(target))
                shutil.copyfile(path, partial)
