"""The JSON files of a keras-hub preset <-> the library's arguments.

A class is compared with the short list here and never looked up. keras-hub
has no place for label names and the longest word: they stand in the metadata,
which it ignores.
"""

import os

from bert_keras.interop.checkpoint import WeightsError
from bert_keras.interop.computable import KERAS_HUB_HEAD
from bert_keras.interop.json_file import Fields, read_json
from bert_keras.modeling.sizes import DIMENSIONS

CONFIG, TASK, METADATA = "config.json", "task.json", "metadata.json"
TOKENIZER, PREPROCESSOR = "tokenizer.json", "preprocessor.json"
# Its backbone and its tasks, with the class of ours that holds each.
TASKS = {
    "BertTextClassifier": "BertClassifier",
    "BertClassifier": "BertClassifier",  # before keras-hub 0.17
    "BertMaskedLM": "BertPretrainer",
    "BertTextEmbedder": "BertEncoder",  # the rest of it has no weights
}
POOLINGS = ("mean", "cls", "max")


def read_encoder(folder):
    """The arguments of `BertEncoder` of the folder's backbone."""
    config = _config_of(
        read_json(os.path.join(folder, CONFIG)), ["BertBackbone"]
    )
    most = {"num_layers": 1000}
    sizes = {
        name: config.integer(name, maximum=most.get(name, 2**31 - 1))
        for name in DIMENSIONS
    }
    dropout = config.share("dropout", 0.1)
    return {
        **sizes,
        "dropout": dropout,
        "attention_dropout": dropout,
        "activation": "gelu_tanh",
        "attention": "bidirectional",
    }


def _config_of(file, classes):
    """The `config` of a serialized object of one of the classes."""
    name = file.text("class_name")
    module = file.text("module")
    if name not in classes or module.split(".")[0] not in (
        "keras_hub",
        "keras_nlp",
    ):
        raise WeightsError(
            file.path,
            "this is not keras-hub's BERT",
            "Load it with the package that wrote it",
            expected=" or ".join(classes) + " of keras_hub",
            found=f"{name} of {module}",
        )
    return file.object("config")


def read_head(folder):
    """Our class's name and its arguments beside the encoder."""
    path = os.path.join(folder, TASK)
    if not os.path.exists(path):
        return "BertEncoder", {}
    file = read_json(path)
    config = _config_of(file, TASKS)
    head = TASKS[file.text("class_name")]
    if head == "BertPretrainer":
        return head, dict(KERAS_HUB_HEAD)
    if head == "BertEncoder":
        return head, {}
    activation = config.raw("activation", "linear")
    if activation not in ("linear", "softmax", "sigmoid"):
        config.refuse("activation", "linear, softmax or sigmoid", activation)
    problem, labels = _read_labels(folder, config.integer("num_classes"))
    return head, {
        "labels": labels,
        "problem": "multi" if activation == "sigmoid" else problem,
        "dropout": config.share("dropout", 0.1),
    }


def read_embedding(folder):
    """How the folder's `BertTextEmbedder` pools; None of any other class."""
    path = os.path.join(folder, TASK)
    if not os.path.exists(path):
        return None
    file = read_json(path)
    if file.text("class_name") != "BertTextEmbedder":
        return None
    config = file.object("config")
    pooling = config.text("pooling_mode", "mean")
    if pooling not in POOLINGS:
        config.refuse("pooling_mode", " or ".join(POOLINGS), pooling)
    return {
        "pooling": pooling,
        "normalize": config.boolean("normalize", True),
    }


def _read_labels(folder, count):
    """Problem and labels, from the metadata if this package wrote them."""
    if count > 2**20:
        raise WeightsError(
            os.path.join(folder, TASK),
            "the number of classes is absurd",
            "Fetch the folder again",
            found=f"{count}",
        )
    labels = [f"LABEL_{index}" for index in range(count)]
    problem = "regression" if count == 1 else "single"
    metadata = _metadata(folder)
    labels = metadata.texts("labels", labels)
    if len(labels) != count:
        metadata.refuse("labels", f"{count} names", f"{len(labels)}")
    return metadata.text("problem", problem), labels


def _metadata(folder):
    path = os.path.join(folder, METADATA)
    return read_json(path) if os.path.exists(path) else Fields({}, path)


def read_text(folder):
    """The arguments of `TextSide` beside the pieces."""
    path = os.path.join(folder, TOKENIZER)
    if not os.path.exists(path):
        return {}
    config = _config_of(read_json(path), ["BertTokenizer"])
    return {
        "tokenizer": {
            "strip_accents": config.boolean("strip_accents", False),
            "keep_special_tokens": config.boolean(
                "special_tokens_in_strings", False
            ),
            "max_word_length": _metadata(folder).integer(
                "max_word_length", 200
            ),
        },
        "cases": {path: config.boolean("lowercase", False)},
        "sequence_length": _read_length(folder),
    }


def _read_length(folder):
    """The tokens that the folder's preprocessor makes, or None."""
    path = os.path.join(folder, PREPROCESSOR)
    if not os.path.exists(path):
        return None
    config = read_json(path).object("config", {})
    if "sequence_length" not in config:
        return None
    return config.integer("sequence_length")
