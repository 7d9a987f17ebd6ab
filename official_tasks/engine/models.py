"""Loads models of a task, and lists their files."""

import os
import warnings

import bert_keras
from bert_keras import versions
from bert_keras.errors import InputError, UntrainedWarning, require_tensorflow
from bert_keras.interop import downloads
from bert_keras.interop.load_report import is_spare, list_names
from bert_keras.interop.opening import find_model_folder, open_checkpoint
from bert_keras.modeling import weights
from official_tasks import progress
from official_tasks.tasks.base import LARGEST_RATE

# Arguments of a head. Trained weights are valid only for the same values.
DECISIVE = ("labels", "problem", "recipe", "pooling", "lstm_dim", "long_text")
ABSENT = {"long_text": "truncate"}  # argument -> value to assume if not stored
# Maximum hidden size -> factor on the paper's learning rates, which are for
# sizes 768 and 1024. Turc et al. 2019 use up to 3e-4 for smaller models.
RATE_FACTORS = {256: 6, 512: 2}


def load_model(
    task,
    preset,
    dtype="float32",
    from_scratch=False,
    bilstm_dim=None,
    **encoder_arguments,
):
    """Return the task's model with the encoder of `preset`.

    The weights of the preset's head are loaded too if its class, labels,
    recipe, pooling and `bilstm_dim` are those of the task's model. Otherwise,
    and with `from_scratch`, the head is random.

    Args:
        task: a `Task`.
        preset: a model folder, a run folder, or the name of a preset.
        dtype: Keras policy.
        from_scratch: True to use only the sizes of `preset`, not its weights.
        bilstm_dim: units in each direction of a BiLSTM between encoder and
            head; None adds no BiLSTM.
        **encoder_arguments: arguments of `BertEncoder` that replace the
            preset's.
    """
    from bert_keras.interop.presets import load_head  # imports Keras

    checkpoint, encoder = _open(preset, dtype, **encoder_arguments)
    if from_scratch:
        encoder = encoder.from_config(encoder.get_config())
        return _build_model(task, encoder, bilstm_dim)
    model = _build_model(task, encoder, bilstm_dim)
    name = type(model).__name__
    checkpoint = open_checkpoint(checkpoint, name)
    new_labels = []
    if checkpoint.head == name:
        new_labels = load_head(model, checkpoint)
    _print_new_weights(model, checkpoint, new_labels)
    return model


def _print_new_weights(model, checkpoint, new_labels):
    new = weights.drop_unused_pooler(model, weights.untrained_weights(model))
    notes = []
    if new_labels:
        notes.append(
            "the head keeps what it learned of the labels that it had; new "
            "labels: "
            f"{list_names(new_labels)}"
        )
    elif new:
        notes.append(f"new weights, random before training: {', '.join(new)}")
        unknown = [name for name in checkpoint.skipped if not is_spare(name)]
        if unknown:
            notes.append(
                "the initial weights also have tensors whose names are "
                f"unknown: {list_names(unknown)}"
            )
    for note in notes:
        progress.console.print(f"note: {note}", soft_wrap=True, markup=False)


def load_trained(task, preset):
    """Return a model that was fine-tuned on the task, and its preprocessor.

    Raises:
        InputError: the model's class, or an argument of its head such as the
            labels, does not fit the task.
    """
    from bert_keras.interop.presets import load_head  # imports Keras

    checkpoint, encoder = _open(preset, "float32")
    bilstm_dim = checkpoint.head_arguments.get("bilstm_dim")
    model = _build_model(task, encoder, bilstm_dim)
    name = type(model).__name__
    checkpoint = open_checkpoint(checkpoint, name)
    # A model that adds no weights to the encoder has no head to check.
    has_head = not all(
        map(weights.in_encoder, weights.published_weights(model))
    )
    if checkpoint.head != name and has_head:
        raise InputError(
            f"The model {checkpoint.source} is a {checkpoint.head}; the task "
            f"{task.name} needs a {name}. Name a model that was fine-tuned on "
            "this task."
        )
    arguments = model.arguments()
    for name in DECISIVE if has_head else ():
        if name in task.overrides:
            continue
        stored = checkpoint.head_arguments.get(name, ABSENT.get(name))
        differs = stored != arguments.get(name, stored)
        if differs and (stored or name == "recipe"):
            raise InputError(
                f"The model {checkpoint.source} has the {name} {stored}; the "
                f"task {task.name} has {arguments[name]}. Name a model that "
                "was fine-tuned on this task."
            )
    load_head(model, checkpoint)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        checkpoint, pad_to_longest=True
    )
    return model, preprocess


def _build_model(task, encoder, bilstm_dim):
    model = task.build(encoder)
    if getattr(model, "recipe", None):
        encoder.trainable = False  # as `from_preset` does
    if not bilstm_dim:
        return model
    arguments = model.arguments()
    if "bilstm_dim" not in arguments:
        raise InputError(
            f"`bilstm_dim` is {bilstm_dim}, but a {type(model).__name__}, the "
            f"model of {task.name}, takes no BiLSTM. Leave `bilstm_dim` out."
        )
    return type(model)(encoder, **{**arguments, "bilstm_dim": bilstm_dim})


def _open(preset, dtype, **encoder_arguments):
    require_tensorflow("A task's model")
    checkpoint = open_checkpoint(preset)
    with warnings.catch_warnings():
        # Ignore the warning, because `load_model` prints all new weights.
        warnings.simplefilter("ignore", UntrainedWarning)
        encoder = bert_keras.BertEncoder.from_preset(
            checkpoint, dtype=dtype, **encoder_arguments
        )
    return checkpoint, encoder


def scale_rate(rate, init) -> float:
    """Return `rate`, times a factor from `RATE_FACTORS` for a small encoder.

    A rate above `LARGEST_RATE` is returned unchanged, because such rates are
    for a head on a frozen encoder.
    """
    if rate > LARGEST_RATE:
        return rate
    size = open_checkpoint(init).encoder["hidden_dim"]
    factors = [RATE_FACTORS[most] for most in RATE_FACTORS if size <= most]
    return float(f"{rate * max(factors, default=1):.3g}")


def list_model_files(init) -> list:
    """Return the sorted files of a local or packaged `init`, else []."""
    preset = os.fspath(find_model_folder(init))
    if not os.path.exists(preset) and preset in downloads.packaged_names():
        preset = os.path.join(downloads.PACKAGED, preset)
    if not os.path.isdir(preset) and not os.path.isfile(f"{preset}.index"):
        return []
    return sorted(filter(os.path.isfile, versions.list_files(preset)))
