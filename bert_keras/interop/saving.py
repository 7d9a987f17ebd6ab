"""Writing of a model and its vocabulary to a Hugging Face folder.

config.json has a `bert_keras` block; see block.py. sentence-transformers can
open the folder too if the model embeds sentences.
"""

import contextlib
import os

import ml_dtypes

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop import (
    block,
    huggingface,
    huggingface_tokenizer,
    sentence_transformers,
    tensors,
    text_settings,
)
from bert_keras.safetensors_files import write_safetensors

OUTPUT_FILES = (
    block.CONFIG,
    block.WEIGHTS,
    *huggingface_tokenizer.OUTPUT_FILES,
    *sentence_transformers.OUTPUT_FILES,
    tensors.LICENSE,
)


def save_model(
    folder,
    model,
    preprocessor=None,
    without=(),
    dtype="float32",
    overwrite=True,
):
    """Write a model and its preprocessor to a Hugging Face folder.

    The folder is written under a temporary name and then renamed. The
    optimizer's state is not written. NaN and infinity are refused.

    Args:
        folder: path of the folder; see `new_folder`.
        model: `BertEncoder` or a task model.
        preprocessor: the model's `BertPreprocessor`; None for no vocabulary.
        without: names of weights to leave out. Loading initialises them.
        dtype: dtype of the weights in the file: "float32", or "bfloat16" with
            half the bytes and 8 bits of precision.
        overwrite: see `atomic_output`.
    """
    with new_folder(
        folder, OUTPUT_FILES, model, preprocessor, overwrite
    ) as partial:
        config, arrays = huggingface.describe(model, preprocessor, without)
        stored = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        entry = write_safetensors(
            os.path.join(partial, block.WEIGHTS),
            {name: (stored, *array) for name, array in arrays.items()},
            {"format": "pt"},
            is_finite=True,
        )
        if preprocessor is not None:
            huggingface_tokenizer.write_tokenizer(partial, preprocessor)
            sentence_transformers.write_modules(partial, model, preprocessor)
        block.write_config(partial, config, model, entry)


@contextlib.contextmanager
def new_folder(folder, names, model, preprocessor, overwrite=True):
    """Yield an empty folder that replaces `folder` when the `with` block ends.

    The file LICENSE is added if the license of the weights has a text.

    Args:
        folder: path; an existing folder may only hold files in `names`.
        names: names of all files that this package may write there.
        model: the model.
        preprocessor: the model's `BertPreprocessor`, or None. Its sizes must
            fit the model's.
        overwrite: see `atomic_output`.
    """
    if preprocessor is not None:
        text_settings.check_fits(model, preprocessor)
    present = files.list_folder(folder) if files.is_folder(folder) else ()
    others = sorted(set(present) - set(names))
    if others:
        raise InputError(
            f"The folder {folder} holds other files ({', '.join(others[:5])})"
            ", which saving would remove. Name a new folder."
        )
    with files.atomic_output(folder, overwrite) as partial:
        os.mkdir(partial)
        yield partial
        license = getattr(model, "encoder", model).license
        tensors.write_license(license, partial)
