"""keras-hub preset folders, of its backbone and its tasks, both ways."""

import os

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop import keras_hub_config as config
from bert_keras.interop import keras_hub_settings as settings
from bert_keras.interop.checkpoint import Checkpoint
from bert_keras.interop.computable import check_computable
from bert_keras.interop.h5_file import read_h5, write_h5
from bert_keras.interop.heads_axis import joined, parted
from bert_keras.interop.keras_hub_names import BACKBONE, TASK, plain, written
from bert_keras.interop.layer_names import mapped
from bert_keras.interop.own import check_replaceable
from bert_keras.interop.renaming import renamed
from bert_keras.interop.text_side import (
    check_fits,
    text_reader,
    write_pieces,
)
from bert_keras.modeling.weights import published_weights

WEIGHTS, TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"
ASSETS = os.path.join("assets", "tokenizer")
VOCABULARY = "vocabulary.txt"
WRITTEN = (
    WEIGHTS,
    TASK_WEIGHTS,
    "assets",
    config.CONFIG,
    config.TASK,
    config.METADATA,
    config.TOKENIZER,
    config.PREPROCESSOR,
)


def open_keras_hub(folder):
    """The `Checkpoint` of a preset folder."""
    files.check_inside(os.path.join(folder, ASSETS), folder)
    encoder = config.read_encoder(folder)
    head, arguments = config.read_head(folder)
    tensors, skipped = _read(folder, WEIGHTS, BACKBONE)
    if os.path.exists(os.path.join(folder, TASK_WEIGHTS)):
        of_task, left = _read(folder, TASK_WEIGHTS, TASK.get(head, {}))
        tensors, skipped = tensors | of_task, skipped + left
    return Checkpoint(
        source=str(folder),
        format="keras_hub",
        encoder=encoder,
        head=head,
        head_arguments=arguments,
        tensors={name: joined(name, t) for name, t in tensors.items()},
        skipped=skipped,
        read_text=text_reader(
            os.path.join(folder, ASSETS, VOCABULARY),
            lambda: config.read_text(folder),
        ),
        embedding=config.read_embedding(folder),
    )


def _read(folder, file, table):
    path = os.path.join(folder, file)
    return renamed(read_h5(path), table, folder, plain)


def save_keras_hub(folder, model, preprocessor=None, without=()):
    """Writes the folder as keras-hub reads it.

    Args:
        folder: where to.
        model: `BertEncoder` or a task model.
        preprocessor: its `BertPreprocessor`; no tokenizer is written without.
        without: names of weights that were never trained. keras-hub reads no
            folder that lacks some: the pooler is written as it is, a head is
            refused.

    Returns:
        names of the weights that keras-hub has no place for: it has no
        next-sentence head.
    """
    encoder = getattr(model, "encoder", model)
    check_computable(model, "keras_hub", "keras-hub")
    weights = published_weights(model)
    table = BACKBONE | TASK.get(type(model).__name__, {})
    left_out = [name for name in weights if not mapped(name, table)]
    _check_whole(model, left_out, without)
    if preprocessor is not None:
        check_fits(model, preprocessor)
    check_replaceable(folder, WRITTEN)
    with files.written_beside(folder) as partial:
        os.mkdir(partial)
        for file, part in _parts(weights).items():
            _write(os.path.join(partial, file), part, encoder.num_heads, table)
        _write_settings(partial, model, preprocessor)
    return left_out


def _check_whole(model, left_out, without):
    """Refuses a head that has no place, or one that was never trained."""
    homeless = [name for name in left_out if not name.startswith("nsp/")]
    if homeless:
        raise InputError(
            f"keras-hub has no place for {homeless[0]} of a "
            f"{type(model).__name__}. Save it in another format."
        )
    empty = [n for n in without if not n.startswith(("nsp/", "encoder/"))]
    if empty:
        raise InputError(
            f"{empty[0]} was never trained, and keras-hub reads no "
            f"{type(model).__name__} without it. Save the encoder alone."
        )


def _parts(weights):
    """Dict of file -> weights: the backbone's, the head's."""
    parts = {WEIGHTS: {}, TASK_WEIGHTS: {}}
    for name, weight in weights.items():
        if not name.startswith("nsp/"):
            file = WEIGHTS if name.startswith("encoder/") else TASK_WEIGHTS
            parts[file][name] = weight
    return {file: part for file, part in parts.items() if part}


def _write(path, weights, heads, table):
    write_h5(
        path,
        {
            written(mapped(name, table)): (
                parted(name, weight.shape, heads),
                weight.numpy,
            )
            for name, weight in weights.items()
        },
    )


def _write_settings(folder, model, preprocessor):
    encoder = getattr(model, "encoder", model)
    values = {
        config.CONFIG: settings.backbone(encoder),
        config.TASK: settings.task(model, preprocessor),
        config.METADATA: settings.metadata(model, preprocessor),
    }
    if preprocessor is not None:
        values[config.TOKENIZER] = settings.tokenizer(preprocessor)
        values[config.PREPROCESSOR] = settings.preprocessor(model, preprocessor)
        os.makedirs(os.path.join(folder, ASSETS))
        write_pieces(preprocessor, os.path.join(folder, ASSETS, VOCABULARY))
    for file, value in values.items():
        if value is not None:
            files.write_json(value, os.path.join(folder, file))
