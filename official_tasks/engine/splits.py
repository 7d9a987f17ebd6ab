"""Read and encode the train and dev splits of a run."""

import bert_keras
from bert_keras.errors import InputError, collect_faults
from official_tasks.engine import batches
from official_tasks.tasks import registry


def read_versions(task) -> dict:
    """Return the versions of files when the task read them, before its run.

    These are the files of a `Table` and the file of a user's own task.
    """
    versions = getattr(getattr(task, "source", None), "versions", {})
    return {**versions, **registry.find_task_file(task)}


def load_preprocessor(init, sequence_length):
    return bert_keras.BertPreprocessor.from_preset(
        init,
        sequence_length=sequence_length,
        pad_to_longest=True,
        prompt=None,  # tasks encode texts without a prompt
    )


def encode_splits(task, preprocess) -> tuple[dict, dict]:
    """Return the examples and their `Encoded` rows.

    Returns:
        Two dicts with the keys "train" and "dev".

    Raises:
        InputError: a split has invalid rows, no examples or no labels.
    """
    examples, faults = {}, []
    for split in ("train", "dev"):
        with collect_faults(faults):
            examples[split] = task.read(split)
    if faults:
        raise InputError("\n".join(dict.fromkeys(faults)))
    encoded = {
        split: task.encode(rows, preprocess) for split, rows in examples.items()
    }
    for split, rows in encoded.items():
        if not len(batches.row_lengths(rows.inputs)):
            raise InputError(
                f"The {split} split of {task.title} has no examples; expected "
                "at least one. Check the file."
            )
        if rows.targets is None:
            raise InputError(
                f"The {split} split of {task.title} has no labels: expected "
                "one for each example. A test file without labels can only be "
                "used to predict."
            )
    return examples, encoded
