"""Folders as transformers and sentence-transformers write them."""

import json
import os

import numpy as np
from safetensors.numpy import save_file

from tests.support import tiny, weight_names
from tests.support.weight_names import (
    CLASSIFIER,
    ENCODER,
    HUGGINGFACE,
    PRETRAINER,
    SPAN,
)

CONFIG = {
    "model_type": "bert",
    "vocab_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 6,
    "intermediate_size": 10,
    "max_position_embeddings": 16,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
}
KINDS = {
    "BertModel": ("BertEncoder", ""),
    "BertForPreTraining": ("BertPretrainer", PRETRAINER),
    "BertForSequenceClassification": ("BertClassifier", CLASSIFIER),
    "BertForQuestionAnswering": ("BertSpanPredictor", SPAN),
}


def folder_of(folder, kind="BertModel", rename=lambda name: name, **config):
    """Write a folder as transformers does; return name -> array."""
    os.makedirs(folder, exist_ok=True)
    tables = ENCODER, KINDS[kind][1]
    numbers = weight_names.weights(*tables)
    tensors = {}
    for name, theirs in weight_names.names(HUGGINGFACE, *tables).items():
        array = numbers[name]
        if name.endswith("/kernel"):
            array = array.T
        if name.startswith("encoder/") and kind != "BertModel":
            theirs = f"bert.{theirs}"
        tensors[rename(theirs)] = np.ascontiguousarray(array)
    save_file(tensors, os.path.join(folder, "model.safetensors"))
    if kind == "BertForSequenceClassification":
        config.setdefault("id2label", {"0": "no", "1": "so", "2": "yes"})
    write_json(
        folder, "config.json", {**CONFIG, "architectures": [kind], **config}
    )
    return numbers


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file)


MODULE = "sentence_transformers.models."


def sentence_folder(folder, inner="", kinds=("Pooling", "Normalize"), **pool):
    """Write a folder as sentence-transformers writes it."""
    folder_of(folder / inner)
    pieces = folder / inner / "vocab.txt"
    pieces.write_text("\n".join(tiny.PIECES) + "\n")
    write_json(
        folder / inner, "sentence_bert_config.json", {"max_seq_length": 9}
    )
    modules = [{"type": f"{MODULE}Transformer", "path": inner}]
    for number, kind in enumerate(kinds, 1):
        path = f"{number}_{kind}"
        modules.append({"type": MODULE + kind, "path": path})
        os.makedirs(folder / path, exist_ok=True)
    write_json(folder, "modules.json", modules)
    pool = pool or {"pooling_mode_mean_tokens": True}
    write_json(
        folder,
        "1_Pooling/config.json",
        {
            "word_embedding_dimension": 6,
            "pooling_mode_cls_token": False,
            **pool,
        },
    )
