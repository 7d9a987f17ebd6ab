"""Models of a task from a preset, and the files that a run began with."""

import glob
import os
import re
import warnings

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError, UntrainedWarning
from official_tasks import progress
from official_tasks.engine.batches import prediction_batches, row_lengths

# Models of a task: from a preset, and what they say of encoded rows.

PREDICTION_BATCH = 64
# Arguments of a head without which its weights answer something else.
DECISIVE = ("labels", "problem", "recipe", "lstm_dim")


def load_model(task, preset, dtype="float32", from_scratch=False):
    """The task's model over the encoder of `preset`.

    Where the preset is of the same kind, with the same labels, its head
    comes along; else the head begins at random.

    Args:
        preset: a model folder, the folder of a run, or a name.
        from_scratch: keep the sizes of `preset` only, no weight.
    """
    from bert_keras.errors import require_tensorflow
    from bert_keras.interop.presets import belonging_to, open_checkpoint
    from bert_keras.modeling.weights import felt, untrained_weights

    require_tensorflow("A task's model")
    checkpoint = open_checkpoint(preset_of(preset))
    encoder = _encoder(checkpoint, dtype)
    if from_scratch:
        return task.build(encoder.from_config(encoder.get_config()))
    model = task.build(encoder)
    checkpoint = belonging_to(type(model).__name__, checkpoint)
    if checkpoint.head == type(model).__name__:
        _take_head(model, checkpoint, dtype)
    new = felt(model, untrained_weights(model))
    if new:
        progress.console.print(
            f"note: new, and random before training: {', '.join(new)}",
            soft_wrap=True,
        )
    return model


def _encoder(checkpoint, dtype):
    """The encoder; what is new in it is for the whole model to say."""
    import bert_keras

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)
        return bert_keras.BertEncoder.from_preset(checkpoint, dtype=dtype)


def _take_head(model, checkpoint, dtype):
    """Gives the model the weights of the checkpoint, its head included."""
    from bert_keras.modeling.weights import (
        copy_weights,
        mark_untrained,
        untrained_weights,
    )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)
        stored = type(model).from_preset(
            checkpoint, dtype=dtype, **model.arguments()
        )
    copy_weights(stored, model)
    mark_untrained(model, untrained_weights(stored))


def preset_of(path):
    """The model folder of a run's folder; anything else as it is."""
    if not isinstance(path, str | os.PathLike):
        return path  # a checkpoint that was opened before
    inside = os.path.join(os.fspath(path), "model")
    return inside if os.path.isdir(inside) else path


class Predictor:
    """Runs a model over encoded rows; traced once for all calls.

    Args:
        model: a Keras model.
        per_token: whether its outputs have a token axis, see `Task`.
        pad_id: what `token_ids` are padded with.
    """

    def __init__(self, model, per_token=False, pad_id=0):
        import tensorflow as tf

        self.per_token = per_token
        self.pad_id = pad_id
        self._call = tf.function(
            lambda inputs: model(inputs, training=False),
            reduce_retracing=True,
        )

    def __call__(self, encoded, batch_size=PREDICTION_BATCH):
        """Outputs in row order, float32: see `Task.decode`."""
        lengths = row_lengths(encoded.inputs)
        order = np.argsort(lengths, kind="stable")
        batches = prediction_batches(
            encoded.inputs, order, batch_size, self.pad_id
        )
        outputs = [self._call(batch) for batch in batches]
        if not isinstance(outputs[0], dict):
            return self._in_row_order(outputs, order, lengths)
        return {
            name: self._in_row_order(
                [batch[name] for batch in outputs], order, lengths
            )
            for name in outputs[0]
        }

    def _in_row_order(self, batches, order, lengths):
        rows = [
            row for batch in batches for row in np.asarray(batch, np.float32)
        ]
        if self.per_token:
            rows = [
                row[: lengths[place]]
                for row, place in zip(rows, order, strict=True)
            ]
        places = np.argsort(order)
        in_order = [rows[place] for place in places]
        return in_order if self.per_token else np.stack(in_order)


def take_arguments(task, preset):
    """Gives a task what a model that was fine-tuned on it tells of it."""
    from bert_keras.interop.presets import open_checkpoint

    task.take_arguments(open_checkpoint(preset_of(preset)).head_arguments)


def load_trained(task, preset, dtype="float32"):
    """A model that was fine-tuned on the task, and its preprocessor.

    Raises:
        InputError: the model is of another kind, has other labels, or reads
            other layers.
    """
    import bert_keras
    from bert_keras.errors import require_tensorflow
    from bert_keras.interop.presets import belonging_to, open_checkpoint

    require_tensorflow("A task's model")
    checkpoint = open_checkpoint(preset_of(preset))
    model = task.build(_encoder(checkpoint, dtype))
    checkpoint = belonging_to(type(model).__name__, checkpoint)
    _check_kind(task, model, checkpoint)
    _take_head(model, checkpoint, dtype)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        checkpoint, pad_to_longest=True
    )
    return model, preprocess


def _check_kind(task, model, checkpoint):
    wanted = type(model).__name__
    if checkpoint.head != wanted:
        raise InputError(
            f"The model {checkpoint.source} is a {checkpoint.head}; the task "
            f"{task.name} needs a {wanted}. Name a model that was fine-tuned "
            "on this task."
        )
    arguments = model.arguments()
    for name in DECISIVE:
        stored = checkpoint.head_arguments.get(name)
        if stored and stored != arguments.get(name, stored):
            raise InputError(
                f"The model {checkpoint.source} has the {name} {stored}; the "
                f"task {task.name} has {arguments[name]}. Name a model that "
                "was fine-tuned on this task."
            )


def ensemble_outputs(task, models, examples, dtype="float32"):
    """What several models say together, each read, run and left in turn.

    Args:
        models: model or run folders.

    Returns:
        `(encoded, outputs)`: the rows as the first model cuts them, and the
        mean of the outputs.
    """
    first, outputs = None, []
    for preset in models:
        model, preprocess = load_trained(task, preset, dtype)
        encoded = task.encode(examples, preprocess)
        predictor = Predictor(model, task.per_token, preprocess.packer.pad_id)
        outputs.append(predictor(encoded))
        first = first or encoded
    return first, mean_outputs(outputs)


def mean_outputs(outputs):
    """The mean over several models' outputs, as an ensemble's answer.

    Raises:
        InputError: the models do not see the same rows.
    """
    first = outputs[0]
    if isinstance(first, dict):
        return {
            name: mean_outputs([each[name] for each in outputs])
            for name in first
        }
    if any(_shapes(each) != _shapes(first) for each in outputs):
        raise InputError(
            "The models cut the texts into different rows, so that their "
            "outputs cannot be averaged. Give models of one vocabulary and "
            "one sequence length."
        )
    if isinstance(first, list):
        return [np.mean(rows, axis=0) for rows in zip(*outputs, strict=True)]
    return np.mean(outputs, axis=0)


def _shapes(outputs):
    rows = outputs if isinstance(outputs, list) else [outputs]
    return [np.shape(row) for row in rows]


# The files that a run began with, and whether they changed.

# Of several checkpoints of TensorFlow, `checkpoint` names the newest.
_WEIGHTS = re.compile(
    r"\.safetensors$|\.h5$|\.index$|\.data-\d+-of-\d+$|/checkpoint$"
)
# A SavedModel and sentence-transformers have a folder inside for them.
_PLACES = ("", "variables", "0_*")


def weights_of(init) -> list:
    """The files of weights that a local folder, zip or checkpoint has."""
    preset = os.fspath(preset_of(init))
    if os.path.isfile(preset):
        return [preset]
    name = glob.escape(preset)
    patterns = [f"{name}.*"]  # a checkpoint by its path without .index
    if os.path.isdir(preset):
        patterns = [os.path.join(name, place, "*") for place in _PLACES]
    found = [path for pattern in patterns for path in glob.glob(pattern)]
    return sorted(filter(_WEIGHTS.search, found))


def checked_files(paths, folder) -> dict:
    """Hashes of the files, which must be those that the run began with; one
    of before they were noted goes on with any."""
    now = {
        str(path): files.sha256(path)
        for path in paths
        if files.is_file(path)  # reading tells where it is needed
    }
    before = folder.done("files") or {}
    changed = [path for path in now if before.get(path, now[path]) != now[path]]
    if changed:
        raise InputError(
            f"{folder.path} was begun with other files: {', '.join(changed)} "
            "changed since. Name another folder for those of now, or give "
            "those of then."
        )
    return now
