"""keras-hub preset folders, of its backbone and its tasks, both ways."""

import os
import re

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.native import check_replaceable
from bert_keras.interop.tensor_files import Fields, read_h5, read_json, write_h5
from bert_keras.interop.tensors import (
    DENSE,
    KERAS_HUB_HEAD,
    NORM,
    Checkpoint,
    WeightsError,
    check_computable,
    expanded,
    joined,
    mapped,
    parted,
    renamed,
)
from bert_keras.interop.text_settings import (
    check_fits,
    text_reader,
    write_pieces,
)
from bert_keras.modeling.sizes import DIMENSIONS
from bert_keras.modeling.weights import published_weights

# Paths in keras-hub's weight files <-> the library's names. Keras counts the
# layers of one class: the second dense layer of a model would be `dense_1`. A
# layer's weights are numbered 0, 1 in the order of creation.

_LAYER = "layers/transformer_encoder_{}"
_ATTENTION = f"{_LAYER}/_self_attention_layer"
_ENDS = ("/vars/0", "/vars/1")
_ENCODER = {
    "encoder/layer_{}/attention/query": f"{_ATTENTION}/query_dense",
    "encoder/layer_{}/attention/key": f"{_ATTENTION}/key_dense",
    "encoder/layer_{}/attention/value": f"{_ATTENTION}/value_dense",
    "encoder/layer_{}/attention/output": f"{_ATTENTION}/output_dense",
    "encoder/layer_{}/intermediate": (
        f"{_LAYER}/_feedforward_intermediate_dense"
    ),
    "encoder/layer_{}/output": f"{_LAYER}/_feedforward_output_dense",
    "encoder/pooler": "layers/dense",
}
_ENCODER_NORM = {
    "encoder/embeddings/norm": "layers/layer_normalization",
    "encoder/layer_{}/attention_norm": f"{_LAYER}/_self_attention_layer_norm",
    "encoder/layer_{}/output_norm": f"{_LAYER}/_feedforward_layer_norm",
}
BACKBONE_NAMES = {
    "encoder/embeddings/token/embeddings": "layers/reversible_embedding/vars/0",
    "encoder/embeddings/position/embeddings": (
        "layers/position_embedding/vars/0"
    ),
    "encoder/embeddings/segment/embeddings": "layers/embedding/vars/0",
    **expanded(_ENCODER, DENSE, _ENDS),
    **expanded(_ENCODER_NORM, NORM, _ENDS),
}
# The second file, of a task: by our model class.
TASK_NAMES = {
    "BertClassifier": expanded({"classifier": "layers/dense"}, DENSE, _ENDS),
    "BertPretrainer": {
        "mlm/bias": "layers/masked_lm_head/vars/0",
        **expanded(
            {"mlm/dense": "layers/masked_lm_head/_intermediate_dense"},
            DENSE,
            _ENDS,
        ),
        **expanded(
            {"mlm/norm": "layers/masked_lm_head/_intermediate_layer_norm"},
            NORM,
            _ENDS,
        ),
    },
}


def plain_path(path):
    """The path as today's Keras and keras-hub write it.

    Earlier ones called the container otherwise, and parts of a layer; the
    first layer of a class has no number.
    """
    path = re.sub(r"^_layer_checkpoint_dependencies/", "layers/", path)
    path = path.replace("layernorm/", "layer_norm/")
    path = re.sub(r"/_(query|key|value|output)_dense/", r"/\1_dense/", path)
    return re.sub(r"^(layers/transformer_encoder)/", r"\1_0/", path)


def written_path(path):
    """The path as Keras writes it: the first layer has no number."""
    return path.replace(
        "layers/transformer_encoder_0/", "layers/transformer_encoder/"
    )


# The JSON files of a keras-hub preset <-> the library's arguments. A class is
# compared with the short list here and never looked up. keras-hub has no place
# for label names and the longest word: they stand in the metadata, which it
# ignores.

CONFIG, TASK_CONFIG, METADATA = "config.json", "task.json", "metadata.json"
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
    path = os.path.join(folder, TASK_CONFIG)
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
    path = os.path.join(folder, TASK_CONFIG)
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
            os.path.join(folder, TASK_CONFIG),
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


# What keras-hub reads back as the same backbone, tokenizer and task.


def backbone_settings(encoder):
    """What keras-hub deserializes to the same backbone."""
    sizes = {name: getattr(encoder, name) for name in (*DIMENSIONS, "dropout")}
    return _object("bert_backbone", "BertBackbone", sizes)


def tokenizer_settings(preprocessor):
    ours = preprocessor.tokenizer
    return _object(
        "bert_tokenizer",
        "BertTokenizer",
        {
            "config_file": TOKENIZER,
            "lowercase": ours.lowercase,
            "strip_accents": ours.strip_accents,
            "special_tokens_in_strings": ours.keep_special_tokens,
        },
    )


def task_settings(model, preprocessor):
    """The JSON of a task, or None for the backbone alone."""
    name = type(model).__name__
    if name == "BertClassifier":
        settings = {
            "num_classes": len(model.labels or "1"),
            "activation": "linear",
            "dropout": model.dropout,
        }
        theirs = "text_classifier", "BertTextClassifier", settings
    elif name == "BertPretrainer":
        theirs = "masked_lm", "BertMaskedLM", {}
    else:
        return None
    module, cls, settings = theirs
    settings["backbone"] = backbone_settings(model.encoder)
    settings["preprocessor"] = preprocessor and task_preprocessor(
        module, f"{cls}Preprocessor", preprocessor
    )
    return _object(f"bert_{module}", cls, settings)


def preprocessor_settings(model, ours):
    """The JSON of the task's preprocessor; of the backbone alone, of that of
    texts: it has the length."""
    whole = task_settings(model, ours)
    if whole is not None:
        return whole["config"]["preprocessor"]
    kind = "text_classifier", "BertTextClassifierPreprocessor"
    return task_preprocessor(*kind, ours)


def task_preprocessor(module, cls, preprocessor):
    return _object(
        f"bert_{module}_preprocessor",
        cls,
        {
            "tokenizer": tokenizer_settings(preprocessor),
            "config_file": PREPROCESSOR,
            "sequence_length": preprocessor.sequence_length,
        },
    )


def _object(module, cls, config):
    return {
        "module": f"keras_hub.src.models.bert.{module}",
        "class_name": cls,
        "config": config,
        "registered_name": f"keras_hub>{cls}",
    }


def metadata_settings(model, preprocessor):
    """What keras-hub has no place for: label names, problem, word length."""
    names = ("labels", "problem")
    values = {n: getattr(model, n) for n in names if hasattr(model, n)}
    if preprocessor is not None:
        values["max_word_length"] = preprocessor.tokenizer.max_word_length
    return values


# keras-hub preset folders, of its backbone and its tasks, both ways.

WEIGHTS, TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"
ASSETS = os.path.join("assets", "tokenizer")
VOCABULARY = "vocabulary.txt"
WRITTEN = (
    WEIGHTS,
    TASK_WEIGHTS,
    "assets",
    CONFIG,
    TASK_CONFIG,
    METADATA,
    TOKENIZER,
    PREPROCESSOR,
)


def open_keras_hub(folder):
    """The `Checkpoint` of a preset folder."""
    files.check_inside(os.path.join(folder, ASSETS), folder)
    encoder = read_encoder(folder)
    head, arguments = read_head(folder)
    tensors, skipped = _read(folder, WEIGHTS, BACKBONE_NAMES)
    if os.path.exists(os.path.join(folder, TASK_WEIGHTS)):
        of_task, left = _read(folder, TASK_WEIGHTS, TASK_NAMES.get(head, {}))
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
            lambda: read_text(folder),
        ),
        embedding=read_embedding(folder),
    )


def _read(folder, file, table):
    path = os.path.join(folder, file)
    return renamed(read_h5(path), table, folder, plain_path)


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
    table = BACKBONE_NAMES | TASK_NAMES.get(type(model).__name__, {})
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
            written_path(mapped(name, table)): (
                parted(name, weight.shape, heads),
                weight.numpy,
            )
            for name, weight in weights.items()
        },
    )


def _write_settings(folder, model, preprocessor):
    encoder = getattr(model, "encoder", model)
    values = {
        CONFIG: backbone_settings(encoder),
        TASK_CONFIG: task_settings(model, preprocessor),
        METADATA: metadata_settings(model, preprocessor),
    }
    if preprocessor is not None:
        values[TOKENIZER] = tokenizer_settings(preprocessor)
        values[PREPROCESSOR] = preprocessor_settings(model, preprocessor)
        os.makedirs(os.path.join(folder, ASSETS))
        write_pieces(preprocessor, os.path.join(folder, ASSETS, VOCABULARY))
    for file, value in values.items():
        if value is not None:
            files.write_json(value, os.path.join(folder, file))
