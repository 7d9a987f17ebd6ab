"""Model Garden's TF2 checkpoints and the encoders of TF Hub and Kaggle.

Of a SavedModel only the variables, the vocabulary and the case are read;
its functions are never loaded.
"""

import os
import re

from bert_keras import files
from bert_keras.interop.checkpoint import Checkpoint, WeightsError
from bert_keras.interop.google import (
    CONFIG,
    VOCABULARY,
    name_cases,
    read_config,
)
from bert_keras.interop.heads_axis import joined
from bert_keras.interop.model_garden_names import NAMES, plain_names
from bert_keras.interop.renaming import renamed
from bert_keras.interop.tensor_bundle import read_index, read_scalar
from bert_keras.interop.text_side import text_reader
from bert_keras.interop.tf_checkpoint import (
    read_tf_checkpoint,
    variable_names,
)

LOWER_CASE = "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"


def open_model_garden(prefix, source, pieces=None):
    """The `Checkpoint` of an object checkpoint of an encoder.

    Args:
        prefix: path of the checkpoint without `.index`.
        source: what the user named, for messages and for its case.
        pieces: path of the vocabulary, if it is not beside it.
    """
    folder = os.path.dirname(prefix)
    found = read_tf_checkpoint(prefix)
    plain = plain_names(list(found), variable_names(prefix))
    tensors, skipped = renamed(found, NAMES, source, plain.get)
    if "encoder/embeddings/token/embeddings" not in tensors:
        raise WeightsError(
            source,
            "these are not the variables of a BERT encoder",
            "A model that this package exported is loaded with "
            "bert_keras.load_saved_model",
        )
    config = os.path.join(folder, CONFIG)
    if os.path.exists(config):
        encoder = read_config(config)
    else:
        encoder = _encoder(tensors, source)
    return Checkpoint(
        source=str(source),
        format="model_garden",
        encoder=encoder,
        head="BertPretrainer" if "mlm/bias" in tensors else "BertEncoder",
        head_arguments={},
        tensors={name: joined(name, t) for name, t in tensors.items()},
        skipped=skipped,
        read_text=text_reader(
            pieces or os.path.join(folder, VOCABULARY),
            lambda: {"cases": name_cases(source) | _stated_case(prefix)},
        ),
    )


def open_saved_model(folder):
    """The `Checkpoint` of a SavedModel of an encoder, from its variables."""
    assets = os.path.join(folder, "assets")
    for inner in (assets, os.path.join(folder, "variables")):
        files.check_inside(inner, folder)
    found = sorted(os.listdir(assets)) if os.path.isdir(assets) else []
    name = found[0] if len(found) == 1 else VOCABULARY
    prefix = os.path.join(folder, "variables", "variables")
    return open_model_garden(prefix, folder, os.path.join(assets, name))


def _encoder(tensors, source):
    """The sizes, as the shapes tell them; each head has its own axis here."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    layers = {re.search(r"layer_(\d+)", name) for name in shapes}
    try:
        vocabulary, hidden = shapes["encoder/embeddings/token/embeddings"]
        first = "encoder/layer_0"
        return {
            "vocabulary_size": vocabulary,
            "num_layers": len({match[1] for match in layers if match}),
            "num_heads": shapes[f"{first}/attention/query/kernel"][1],
            "hidden_dim": hidden,
            "intermediate_dim": shapes[f"{first}/intermediate/bias"][0],
            "max_sequence_length": shapes[
                "encoder/embeddings/position/embeddings"
            ][0],
            "num_segments": shapes["encoder/embeddings/segment/embeddings"][0],
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "activation": "gelu_tanh",
            "attention": "bidirectional",
        }
    except (KeyError, ValueError, IndexError) as error:
        raise WeightsError(
            source,
            f"the encoder is not complete ({error})",
            "Fetch the folder again",
        ) from None


def _stated_case(prefix):
    entry = read_index(prefix).get(LOWER_CASE)
    if entry is None:
        return {}
    return {f"{entry.file}, do_lower_case": bool(read_scalar(entry))}
