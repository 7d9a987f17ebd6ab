"""Writers of other packages' formats, for the tests that read them."""

import json
import os
import tempfile

import h5py
import numpy as np

from bert_keras.modeling.sizes import DIMENSIONS
from bert_keras.modeling.weights import in_encoder, published_weights
from tests.support import tiny, weight_names
from tests.support.weight_names import (
    ENCODER,
    GOOGLE,
    KERAS_HUB,
    MODEL_GARDEN,
    TF_HUB,
)

GOOGLE_CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 6,
    "initializer_range": 0.02,
    "intermediate_size": 10,
    "max_position_embeddings": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "type_vocab_size": 2,
    "vocab_size": 8,
}


def write_google(folder, table="", name="bert_model.ckpt", **config):
    """Write a folder of the original BERT; return dict of our name -> array.

    Args:
        folder: folder to write; it may exist.
        table: the head's table in weight_names.py; "" for no head.
        name: prefix of the checkpoint's files.
        **config: values to change in bert_config.json.
    """
    os.makedirs(folder, exist_ok=True)
    arrays = weight_names.weights(ENCODER, table)
    variables = {"global_step": np.float32(7)}
    for own, other in weight_names.names(GOOGLE, ENCODER, table).items():
        array = arrays[own]
        variables[other] = array.T if "output_weights" in other else array
        variables[f"{other}/adam_m"] = np.zeros_like(variables[other])
        variables[f"{other}/adam_v"] = np.zeros_like(variables[other])
    write_tf_checkpoint(os.path.join(folder, name), variables)
    write_json(folder, "bert_config.json", {**GOOGLE_CONFIG, **config})
    write_pieces(os.path.join(folder, "vocab.txt"))
    return arrays


def write_tf_checkpoint(prefix, arrays):
    """Write a name-based checkpoint, which has no object graph."""
    import tensorflow as tf

    names = sorted(arrays)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(arrays[name], tf.float32) for name in names],
    )


def write_model_garden(folder, prefix="encoder"):
    """Write an encoder's object-based checkpoint; return our name -> array."""
    arrays = weight_names.weights(ENCODER)
    variables = {
        f"{prefix}/{other}": (weight_names.with_heads_apart(own, arrays[own]),)
        for own, other in weight_names.names(MODEL_GARDEN, ENCODER).items()
    }
    write_objects(folder, variables)
    return arrays


def write_objects(folder, variables):
    """Write an object-based checkpoint bert_model.ckpt, and a vocabulary.

    Args:
        folder: folder to write; it may exist.
        variables: dict of path in the object graph -> (array, variable's name),
            or (array,) for a variable without a name of its own. In the
            last part of a path, "|" stands for "/".
    """
    import tensorflow as tf

    os.makedirs(folder, exist_ok=True)
    root = tf.train.Checkpoint()
    for path, (array, *name) in variables.items():
        *parents, last = path.split("/")
        owner = root
        for part in parents:
            if not hasattr(owner, part):
                setattr(owner, part, tf.train.Checkpoint())
            owner = getattr(owner, part)
        variable = tf.Variable(array, name=name[0] if name else None)
        setattr(owner, last.replace("|", "/"), variable)
    root.write(os.path.join(folder, "bert_model.ckpt"))
    write_pieces(os.path.join(folder, "vocab.txt"))


def write_tf_hub(folder):
    """Write an encoder's SavedModel; return dict of our name -> array.

    The checkpoint's keys are numbered and hold no names. `do_lower_case` is a
    variable.
    """
    import tensorflow as tf

    arrays, root = weight_names.weights(ENCODER), tf.Module()
    root.variables_ = [
        tf.Variable(weight_names.with_heads_apart(own, arrays[own]), name=other)
        for own, other in weight_names.names(TF_HUB, ENCODER).items()
    ]
    root.do_lower_case = tf.Variable(True, trainable=False)
    with tempfile.TemporaryDirectory() as parent:
        pieces = os.path.join(parent, "pieces.txt")
        write_pieces(pieces)
        root.vocab_file = tf.saved_model.Asset(pieces)
        tf.saved_model.save(root, str(folder))
    return arrays


def write_keras_hub(path, model, preprocessor):
    """Write a classifier of one layer as a folder of keras-hub."""
    encoder, tokenizer = model.encoder, preprocessor.tokenizer
    paths = weight_names.names(KERAS_HUB, ENCODER)
    paths["classifier/kernel"] = "dense/vars/0"
    paths["classifier/bias"] = "dense/vars/1"
    os.makedirs(os.path.join(path, "assets", "tokenizer"))
    assets = os.path.join(path, "assets", "tokenizer", "vocabulary.txt")
    write_pieces(assets, preprocessor.tokenizer.vocabulary)
    parts = {"model.weights.h5": {}, "task.weights.h5": {}}
    for name, weight in published_weights(model).items():
        file = "model" if in_encoder(name) else "task"
        array = weight_names.with_heads_apart(
            name, weight.numpy(), encoder.num_heads
        )
        parts[f"{file}.weights.h5"][f"layers/{paths[name]}"] = array
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
    """Return the serialized form of a keras-hub object."""
    return {
        "module": f"keras_hub.src.models.bert.{module}",
        "class_name": name,
        "config": config,
        "registered_name": f"keras_hub>{name}",
    }


def tensorflow_name(name):
    """Return the name in transformers' TensorFlow classes of a PyTorch name."""
    heads = ("bert.", "cls.", "classifier.", "qa_outputs.")
    name = name if name.startswith(heads) else f"bert.{name}"
    name = name.replace(".", "/").replace("/layer/", "/layer_._")
    name = name.replace("cls/predictions", "mlm___cls/predictions")
    name = name.replace("cls/seq_relationship", "nsp___cls/seq_relationship")
    if "LayerNorm" in name:
        return name.replace("weight", "gamma").replace("bias", "beta")
    if "embeddings" not in name:
        return name.replace("/weight", "/kernel")
    is_token = "word_embeddings" in name
    return name if is_token else name.replace("/weight", "/embeddings")


def tensorflow_arrays(tensors):
    """Return a PyTorch model's tensors as in transformers' TensorFlow classes.

    The keys are the names of the variables, without the model's name.
    """
    found = {}
    for name, array in tensors.items():
        other = tensorflow_name(name)
        array = array.T if other.endswith("/kernel") else array
        found[f"{other}:0"] = np.ascontiguousarray(array)
    return found


def write_tf_model(path, tensors):
    """Write a PyTorch model's tensors as tf_model.h5 of transformers."""
    found = {}
    for name, array in tensorflow_arrays(tensors).items():
        found[f"{name.split('/')[0]}/tf_bert_for_x_1/{name}"] = array
    write_h5(path, found)


def write_h5(path, arrays):
    """Write arrays as HDF5 datasets; a name may contain groups, as in "a/b"."""
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def write_pieces(path, pieces=tiny.PIECES):
    """Write a vocabulary file."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{piece}\n" for piece in pieces)


def write_json(folder, name, value):
    """Write one JSON file."""
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file)
