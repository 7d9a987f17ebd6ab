"""The original's checkpoints: bert_config.json, vocab.txt, bert_model.ckpt.

A folder, the released zip, or the path of one checkpoint in a folder.
"""

import os
import re

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.checkpoint import Checkpoint
from bert_keras.interop.computable import (
    check_computable,
    settings_of_start,
)
from bert_keras.interop.google_names import NAMES, TURNED
from bert_keras.interop.json_file import read_json
from bert_keras.interop.layer_names import mapped
from bert_keras.interop.own import check_replaceable
from bert_keras.interop.renaming import renamed
from bert_keras.interop.text_side import (
    check_fits,
    read_settings,
    settings_of,
    text_reader,
    write_pieces,
)
from bert_keras.interop.tf_checkpoint import (
    read_tf_checkpoint,
    write_tf_checkpoint,
)
from bert_keras.modeling.weights import published_weights

CONFIG, VOCABULARY, PREFIX = "bert_config.json", "vocab.txt", "bert_model.ckpt"
WRITTEN = (
    CONFIG,
    VOCABULARY,
    f"{PREFIX}.index",
    f"{PREFIX}.data-00000-of-00001",
)


def open_google(prefix, source=None):
    """The `Checkpoint` of the original's files.

    Args:
        prefix: path of the checkpoint without `.index`; the settings and the
            vocabulary stand beside it.
        source: what the user named, for messages and for its case.
    """
    folder, source = os.path.dirname(prefix), str(source or prefix)
    tensors, skipped = renamed(read_tf_checkpoint(prefix), NAMES, source)
    for name in TURNED:
        if name in tensors:
            tensors[name] = tensors[name].transposed()
    path = os.path.join(folder, CONFIG)
    head, arguments = _head(tensors, path)
    return Checkpoint(
        source=source,
        format="google",
        encoder=read_config(path),
        head=head,
        head_arguments=arguments,
        tensors=tensors,
        skipped=skipped,
        read_text=text_reader(
            os.path.join(folder, VOCABULARY),
            lambda: _text(path, source),
        ),
        initializer_range=read_json(path).handed_on("initializer_range"),
    )


def read_config(path):
    """The arguments of `BertEncoder` in a `bert_config.json`.

    The original has no default for the sizes that matter; its code computes
    the tanh form of GELU, whatever the file calls `gelu`.
    """
    config = read_json(path)
    activation = config.text("hidden_act", "gelu")
    if activation != "gelu":
        config.refuse("hidden_act", "gelu", activation)
    if config.integer("embedding_size", config.integer("hidden_size")) != (
        config.integer("hidden_size")
    ):
        config.refuse("embedding_size", "that of hidden_size", "another")
    return {
        "vocabulary_size": config.integer("vocab_size"),
        "num_layers": config.integer("num_hidden_layers", maximum=1000),
        "num_heads": config.integer("num_attention_heads"),
        "hidden_dim": config.integer("hidden_size"),
        "intermediate_dim": config.integer("intermediate_size"),
        "max_sequence_length": config.integer("max_position_embeddings", 512),
        "num_segments": config.integer("type_vocab_size", 2),
        "dropout": config.share("hidden_dropout_prob", 0.1),
        "attention_dropout": config.share("attention_probs_dropout_prob", 0.1),
        "activation": "gelu_tanh",
        "attention": "bidirectional",
    }


def _text(path, source):
    """What this package states in the settings, or the case by the name."""
    text = read_settings(read_json(path))
    return {**text, "cases": text["cases"] or name_cases(source)}


def name_cases(source):
    """What the name of a released folder or zip says about the case."""
    name = os.path.basename(os.path.normpath(source)).lower()
    match = re.search(r"(un)?cased", name)
    return {f"the name {name}": match[1] == "un"} if match else {}


def _head(tensors, path):
    """The class that the weights beyond the encoder belong to."""
    if "classifier/bias" in tensors:
        count = tensors["classifier/bias"].shape[0]
        return "BertClassifier", _classes(read_json(path), count)
    if "span/bias" in tensors:
        return "BertSpanPredictor", {}
    if "mlm/bias" in tensors or "nsp/bias" in tensors:
        return "BertPretrainer", {}
    return "BertEncoder", {}


def _classes(config, count):
    """Labels and problem: the original has none, this package adds them."""
    labels = [f"LABEL_{index}" for index in range(count)]
    if "labels" in config:
        labels = config.texts("labels")
    if len(labels) != count:
        config.refuse("labels", f"{count} names", f"{len(labels)}")
    default = "regression" if count == 1 else "single"
    return {"labels": labels, "problem": config.text("problem", default)}


def save_google(folder, model, preprocessor=None, without=()):
    """Writes the folder as the original's code reads it.

    Args and Returns: as `save_own`.
    """
    check_computable(model, "google", "the original")
    weights = {
        name: weight
        for name, weight in published_weights(model).items()
        if name not in without
    }
    unknown = [name for name in weights if not mapped(name, NAMES)]
    if unknown:
        raise InputError(
            f"The original has no place for {unknown[0]} of a "
            f"{type(model).__name__}. Save it in another format."
        )
    if preprocessor is not None:
        check_fits(model, preprocessor)
    check_replaceable(folder, WRITTEN)
    with files.written_beside(folder) as partial:
        os.mkdir(partial)
        config = _config(model)
        if preprocessor is not None:
            config |= settings_of(preprocessor)
            write_pieces(preprocessor, os.path.join(partial, VOCABULARY))
        files.write_json(config, os.path.join(partial, CONFIG))
        write_tf_checkpoint(
            os.path.join(partial, PREFIX),
            {mapped(n, NAMES): _reader(n, w) for n, w in weights.items()},
        )
    return list(without)


def _reader(name, weight):
    if name in TURNED:
        return lambda: weight.numpy().T
    return weight.numpy


def _config(model):
    encoder = getattr(model, "encoder", model)
    named = {n: getattr(model, n, None) for n in ("labels", "problem")}
    return {
        **{name: value for name, value in named.items() if value},
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "hidden_act": "gelu",
        "hidden_dropout_prob": encoder.dropout,
        "hidden_size": encoder.hidden_dim,
        **settings_of_start(model),
        "intermediate_size": encoder.intermediate_dim,
        "max_position_embeddings": encoder.max_sequence_length,
        "num_attention_heads": encoder.num_heads,
        "num_hidden_layers": encoder.num_layers,
        "type_vocab_size": encoder.num_segments,
        "vocab_size": encoder.vocabulary_size,
    }
