"""Writers of other packages' formats, for tests of their readers."""

import json
import os

import h5py

from bert_keras.interop.google import NAMES, TRANSPOSED
from bert_keras.interop.keras_hub import BACKBONE_NAMES, TASK_NAMES
from bert_keras.interop.tensors import map_name
from bert_keras.modeling.sizes import DIMENSIONS
from bert_keras.modeling.weights import in_encoder, published_weights


def write_tf_checkpoint(prefix, arrays):
    """Write variables by name, without an object graph."""
    import tensorflow as tf

    names = sorted(arrays)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(arrays[name], tf.float32) for name in names],
    )


def write_google(path, model, preprocessor):
    """Write a classifier's folder as the original's."""
    encoder = model.encoder
    os.mkdir(path)
    config = {
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "hidden_act": "gelu",
        "hidden_dropout_prob": encoder.dropout,
        "hidden_size": encoder.hidden_dim,
        "intermediate_size": encoder.intermediate_dim,
        "max_position_embeddings": encoder.max_sequence_length,
        "num_attention_heads": encoder.num_heads,
        "num_hidden_layers": encoder.num_layers,
        "type_vocab_size": encoder.num_segments,
        "vocab_size": encoder.vocabulary_size,
    }
    write_json(path, "bert_config.json", config)
    write_pieces(os.path.join(path, "vocab.txt"), preprocessor)
    write_tf_checkpoint(
        os.path.join(path, "bert_model.ckpt"),
        {
            map_name(name, NAMES): weight.numpy().T
            if name in TRANSPOSED
            else weight.numpy()
            for name, weight in published_weights(model).items()
        },
    )


def write_keras_hub(path, model, preprocessor):
    """Write a classifier's folder as keras-hub's."""
    encoder, tokenizer = model.encoder, preprocessor.tokenizer
    table = BACKBONE_NAMES | TASK_NAMES["BertClassifier"]
    os.makedirs(os.path.join(path, "assets", "tokenizer"))
    assets = os.path.join(path, "assets", "tokenizer", "vocabulary.txt")
    write_pieces(assets, preprocessor)
    parts = {"model.weights.h5": {}, "task.weights.h5": {}}
    for name, weight in published_weights(model).items():
        file = "model" if in_encoder(name) else "task"
        place = map_name(name, table).replace("_encoder_0/", "_encoder/")
        parts[f"{file}.weights.h5"][place] = weight.numpy().reshape(
            shape_with_heads(name, weight.shape, encoder.num_heads)
        )
    for file, arrays in parts.items():
        write_h5(os.path.join(path, file), arrays)
    sizes = {name: getattr(encoder, name) for name in (*DIMENSIONS, "dropout")}
    backbone = serialized("bert_backbone", "BertBackbone", sizes)
    task = {
        "backbone": backbone,
        "num_classes": len(model.labels),
        "activation": "linear",
        "dropout": model.dropout,
    }
    own = {"lowercase": tokenizer.lowercase, "strip_accents": False}
    length = {"sequence_length": preprocessor.sequence_length}
    for file, value in {
        "config.json": backbone,
        "task.json": serialized(
            "bert_text_classifier", "BertTextClassifier", task
        ),
        "tokenizer.json": serialized("bert_tokenizer", "BertTokenizer", own),
        "preprocessor.json": {"config": length},
    }.items():
        write_json(path, file, value)


def serialized(module, name, config):
    """Return what keras-hub deserializes to an object of that class."""
    return {
        "module": f"keras_hub.src.models.bert.{module}",
        "class_name": name,
        "config": config,
        "registered_name": f"keras_hub>{name}",
    }


def shape_with_heads(name, shape, heads):
    """Return the shape of our weight where each head has an axis."""
    *_, part, end = name.split("/")
    if "/attention/" not in name or (part, end) == ("output", "bias"):
        return tuple(shape)
    if end == "bias":
        return (heads, shape[0] // heads)
    if part == "output":
        return (heads, shape[0] // heads, shape[1])
    return (shape[0], heads, shape[1] // heads)


def write_h5(path, arrays):
    """Write datasets, groups as their names say."""
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def write_pieces(path, preprocessor):
    """Write a vocabulary file."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{p}\n" for p in preprocessor.tokenizer.vocabulary)


def write_json(folder, name, value):
    """Write one JSON file."""
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file)
