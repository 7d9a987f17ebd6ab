"""Reader of Model Garden's TF2 checkpoints, and of TF Hub and Kaggle encoders.

From a SavedModel, the reader takes the variables, the vocabulary and the case.
It does not load the SavedModel's functions.
"""

import os
import re

from bert_keras import files
from bert_keras.interop import google, tensor_bundle, tensors
from bert_keras.interop.tensors import WeightsError
from bert_keras.interop.text_settings import text_reader

# Names in Model Garden's checkpoints and TF Hub's SavedModels. In a checkpoint,
# a variable's key is a path in the object graph. In a SavedModel, the key has
# only a number, but the variable's name is stored too. `plain_names` gives a
# variable the same name in both formats.

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
LOWER_CASE = f"do_lower_case{VALUE}"
_LAYER = "transformer/layer_{}"
_DENSE = {
    "encoder/layer_{}/attention/query": f"{_LAYER}/self_attention/query",
    "encoder/layer_{}/attention/key": f"{_LAYER}/self_attention/key",
    "encoder/layer_{}/attention/value": f"{_LAYER}/self_attention/value",
    "encoder/layer_{}/attention/output": (
        f"{_LAYER}/self_attention/attention_output"
    ),
    "encoder/layer_{}/intermediate": f"{_LAYER}/intermediate",
    "encoder/layer_{}/output": f"{_LAYER}/output",
    "encoder/pooler": "pooler_transform",
    "mlm/dense": "cls/predictions/transform/dense",
    "nsp": "next_sentence",
}
_NORM = {
    "encoder/embeddings/norm": "embeddings/layer_norm",
    "encoder/layer_{}/attention_norm": f"{_LAYER}/self_attention_layer_norm",
    "encoder/layer_{}/output_norm": f"{_LAYER}/output_layer_norm",
    "mlm/norm": "cls/predictions/transform/LayerNorm",
}
NAMES = {
    "encoder/embeddings/token/embeddings": "word_embeddings/embeddings",
    "encoder/embeddings/position/embeddings": "position_embedding/embeddings",
    "encoder/embeddings/segment/embeddings": "type_embeddings/embeddings",
    "mlm/bias": "cls/predictions/output_bias/bias",
    **tensors.expand_names(_DENSE, _NORM),
}
PARTS = {
    "_attention_layer/_query_dense": "self_attention/query",
    "_attention_layer/_key_dense": "self_attention/key",
    "_attention_layer/_value_dense": "self_attention/value",
    "_attention_layer/_output_dense": "self_attention/attention_output",
    "_attention_output_dense": "self_attention/attention_output",
    "_attention_layer_norm": "self_attention_layer_norm",
    "_intermediate_dense": "intermediate",
    "_output_dense": "output",
    "_output_layer_norm": "output_layer_norm",
}
TABLES = ("word_embeddings", "position_embedding", "type_embeddings")
_HEADS = {
    "masked_lm/embedding_table": "word_embeddings/embeddings",
    "masked_lm/dense": "cls/predictions/transform/dense",
    "masked_lm/layer_norm": "cls/predictions/transform/LayerNorm",
    "masked_lm/output_bias.Sbias": "cls/predictions/output_bias/bias",
    "model/classification_heads/0/out_proj": "next_sentence",
    # Pre-training trains this head's pooler, not the encoder's pooler.
    "next_sentence..pooler_dense": "pooler_transform",
}


def open_model_garden(prefix, source, pieces=None):
    """Return the `Checkpoint` of a TF2 object checkpoint.

    Args:
        prefix: path of the checkpoint without `.index`.
        source: path that the user passed, for messages. The word "cased" or
            "uncased" in the last part of the path states the text's case.
        pieces: path of the vocabulary, if it is not next to the checkpoint.
    """
    folder = os.path.dirname(prefix)
    stored = tensor_bundle.read_tf_checkpoint(prefix)
    plain = plain_names(list(stored), tensor_bundle.variable_names(prefix))
    found, skipped = tensors.rename_tensors(stored, NAMES, source, plain.get)
    if "encoder/embeddings/token/embeddings" not in found:
        raise WeightsError(
            source,
            "these are not the variables of a BERT encoder",
            "If bert_keras exported the model, load the folder with "
            "bert_keras.load_saved_model",
        )
    config = os.path.join(folder, google.CONFIG)
    if os.path.exists(config):
        encoder = google.read_config(config)
    else:
        encoder = _encoder(found, source)
    return tensors.Checkpoint(
        source=str(source),
        format="model_garden",
        encoder=encoder,
        head="BertPretrainer" if "mlm/bias" in found else "BertEncoder",
        head_arguments={},
        tensors={
            name: tensors.merge_heads(name, t) for name, t in found.items()
        },
        skipped=skipped,
        read_text=text_reader(
            pieces or os.path.join(folder, google.VOCABULARY),
            lambda: {
                "cases": google.name_cases(source) | _find_stated_case(prefix)
            },
        ),
    )


def open_saved_model(folder):
    """Return the `Checkpoint` of an encoder in a SavedModel."""
    assets = os.path.join(folder, "assets")
    for inner in (assets, os.path.join(folder, "variables")):
        files.check_inside(inner, folder)
    found = sorted(os.listdir(assets)) if os.path.isdir(assets) else []
    name = found[0] if len(found) == 1 else google.VOCABULARY
    prefix = os.path.join(folder, "variables", "variables")
    return open_model_garden(prefix, folder, os.path.join(assets, name))


def _encoder(found, source):
    """Return `BertEncoder` arguments: sizes from shapes, others as in BERT."""
    shapes = {name: tensor.shape for name, tensor in found.items()}
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
            f"a weight is missing or has a wrong shape ({error})",
            "Fetch the folder again",
        ) from None


def _find_stated_case(prefix):
    entry = tensor_bundle.read_index(prefix).get(LOWER_CASE)
    if entry is None:
        return {}
    lowercase = any(tensor_bundle.read_bytes(entry))
    return {f"{entry.file}, do_lower_case": lowercase}


def plain_names(keys, variable_names):
    """Return dict of key -> normalized name, or "" for an unnamed variable.

    If the next-sentence head has its own pooler, the encoder's pooler is left
    out, because pre-training has not trained it.

    Args:
        keys: list of the checkpoint's keys.
        variable_names: dict of key -> the variable's name.
    """
    pattern = re.compile(r"layer_with_weights-(\d+)/_attention_layer/")
    numbered = filter(None, map(pattern.search, keys))
    # The first transformer layer is layer_with_weights-4.
    layers = 1 + max((int(match[1]) - 4 for match in numbered), default=-1)
    trained = any(key.startswith("next_sentence..pooler") for key in keys)
    found = {}
    for key in keys:
        name = _normalize_key(key.removesuffix(VALUE), layers)
        if name is None:
            name = variable_names.get(key, "").removeprefix("bert/")
        elif name.startswith("pooler") and trained and key.startswith("enc"):
            continue
        found[key] = name
    return found


def _normalize_key(key, layers):
    for prefix, name in _HEADS.items():
        if key == prefix or key.startswith(f"{prefix}/"):
            return name + key[len(prefix) :]
    match = re.fullmatch(
        r"(?:model/|encoder/)?layer_with_weights-(\d+)/(.+)", key
    )
    if match is None:
        return None
    number, rest = int(match[1]), match[2]
    if number < 3:
        return f"{TABLES[number]}/{rest}"
    if number == 3:
        return f"embeddings/layer_norm/{rest}"
    if number == layers + 4:
        return f"pooler_transform/{rest}"
    part, _, end = rest.rpartition("/")
    return f"transformer/layer_{number - 4}/{PARTS.get(part, part)}/{end}"
