"""Official prediction files from trained models: one, or several averaged."""

import contextlib
import filecmp
import os
import shutil
import tempfile

from bert_keras import files
from bert_keras.errors import InputError
from official_tasks import progress
from official_tasks.running import ensemble_outputs, take_arguments
from official_tasks.splits import SPLITS


@contextlib.contextmanager
def new_files(folder, overwrite):
    """Yields a folder whose files are put into `folder` at the end.

    A file that is there with other bytes is refused unless `overwrite`.
    """
    with tempfile.TemporaryDirectory() as written:
        yield written
        paths = {
            path: os.path.join(folder, os.path.relpath(path, written))
            for path in files.walk(written)
        }
        others = [
            there
            for path, there in paths.items()
            if os.path.exists(there)
            and not (os.path.isfile(there) and filecmp.cmp(path, there, False))
        ]
        if others and not overwrite:
            raise InputError(
                f"{others[0]} is there already, with other content. Name "
                "another --output, or give --overwrite to replace it."
            )
        for path, there in paths.items():
            files.make_folder(os.path.dirname(there))
            shutil.copyfile(path, there)


def predict_task(task, models, output, split="test", overwrite=False):
    """Writes the task's official files of a split to the folder `output`.

    Args:
        task: a `Task`.
        models: model or run folders; the outputs of several are averaged.
        overwrite: whether to replace files that are there.

    Returns:
        The predictions, as the task's `decode` gives them.
    """
    if split not in SPLITS:
        raise InputError(
            f"split is {split!r}: expected one of {', '.join(SPLITS)}"
        )
    take_arguments(task, models[0])
    examples = task.read(split)
    encoded, outputs = ensemble_outputs(task, models, examples)
    predictions = task.decode(examples, encoded, outputs)
    with new_files(output, overwrite) as folder:
        task.write(examples, predictions, folder)
    return predictions


def run(values):
    """As a script: --task, its options, --model=A[,B], --split, --output."""
    from official_tasks.tasks import task_from_flags

    if values.output == "-":
        raise InputError("--output is missing: give a folder for the files")
    task, _ = task_from_flags(values)
    predict_task(
        task,
        values.model.split(","),
        values.output,
        values.split,
        values.overwrite,
    )
    progress.console.print(f"Written to {values.output}")
