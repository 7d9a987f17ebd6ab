"""Official prediction files from trained models: one, or several averaged."""

from bert_keras import files
from bert_keras.errors import InputError
from official_tasks import progress
from official_tasks.running import ensemble_outputs, take_arguments
from official_tasks.splits import SPLITS


def predict_task(task, models, output, split="test"):
    """Writes the task's official files of a split to the folder `output`.

    Args:
        task: a `Task`.
        models: model or run folders; the outputs of several are averaged.

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
    files.make_folder(output)
    task.write(examples, predictions, output)
    return predictions


def run(values):
    """As a script: --task, its options, --model=A[,B], --split, --output."""
    from official_tasks.tasks import task_from_flags

    if values.output == "-":
        raise InputError("--output is missing: give a folder for the files")
    task, _ = task_from_flags(values)
    predict_task(task, values.model.split(","), values.output, values.split)
    progress.console.print(f"Written to {values.output}")
