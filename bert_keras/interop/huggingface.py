"""Reader and writer of config.json and the weights in Hugging Face folders.

`huggingface_weights.py` reads the files of weights, `huggingface_tokenizer.py`
reads and writes the tokenizer files.
"""

import dataclasses
import math
import os

from bert_keras.errors import InputError
from bert_keras.interop import (
    block,
    distilbert,
    huggingface_tokenizer,
    tensor_files,
    tensors,
)
from bert_keras.interop.block import CONFIG
from bert_keras.interop.head_table import BY_ARCHITECTURE, HEADS, layers_in
from bert_keras.interop.huggingface_weights import (
    TIED,
    normalize_name,
    read_weights,
)
from bert_keras.interop.tensor_files import DEVIATION, EPSILON, FRACTION
from bert_keras.interop.tensors import WeightsError
from bert_keras.json_files import BOOLEAN, COUNT, TEXT, TEXTS, count_to
from bert_keras.modeling.weights import (
    POOLER,
    drop_unused_pooler,
    in_encoder,
    published_weights,
    untrained_weights,
)

# Activation in transformers -> activation in bert_keras.
ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_python": "gelu_exact",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    # Both libraries compute the same; "leaky_relu" has other slopes in Keras.
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "swish": "silu",
    "mish": "mish",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "linear": "linear",
}
# Argument of `BertEncoder` -> its setting, the type, the default. The original
# BERT's bert_config.json has the same settings.
SIZES = {
    "vocabulary_size": ("vocab_size", COUNT, 30522),
    "num_layers": ("num_hidden_layers", count_to(1000), 12),
    "num_heads": ("num_attention_heads", COUNT, 12),
    "hidden_dim": ("hidden_size", COUNT, 768),
    "intermediate_dim": ("intermediate_size", COUNT, 3072),
    "max_sequence_length": ("max_position_embeddings", COUNT, 512),
    "num_segments": ("type_vocab_size", COUNT, 2),
    "dropout": ("hidden_dropout_prob", FRACTION, 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", FRACTION, 0.1),
}
PROBLEMS = {
    "single_label_classification": "single",
    "multi_label_classification": "multi",
    "regression": "regression",
}
# Weight names in bert_keras -> tensor names in transformers.
_LAYER = "encoder.layer.{}"
_DENSE = {
    "encoder/layer_{}/attention/query": f"{_LAYER}.attention.self.query",
    "encoder/layer_{}/attention/key": f"{_LAYER}.attention.self.key",
    "encoder/layer_{}/attention/value": f"{_LAYER}.attention.self.value",
    "encoder/layer_{}/attention/output": f"{_LAYER}.attention.output.dense",
    "encoder/layer_{}/intermediate": f"{_LAYER}.intermediate.dense",
    "encoder/layer_{}/output": f"{_LAYER}.output.dense",
    "encoder/pooler": "pooler.dense",
    "mlm/dense": "cls.predictions.transform.dense",
    "nsp": "cls.seq_relationship",
}
_NORM = {
    "encoder/embeddings/norm": "embeddings.LayerNorm",
    "encoder/layer_{}/attention_norm": f"{_LAYER}.attention.output.LayerNorm",
    "encoder/layer_{}/output_norm": f"{_LAYER}.output.LayerNorm",
    "mlm/norm": "cls.predictions.transform.LayerNorm",
}
_TABLES = {
    "encoder/embeddings/token/embeddings": "embeddings.word_embeddings.weight",
    "encoder/embeddings/position/embeddings": (
        "embeddings.position_embeddings.weight"
    ),
    "encoder/embeddings/segment/embeddings": (
        "embeddings.token_type_embeddings.weight"
    ),
    "mlm/bias": "cls.predictions.bias",
}
# Class -> {layer of the head in bert_keras: layer in transformers}. In three
# classes of transformers, the layer is called `classifier`.
_HEADS = layers_in("huggingface")
_ENDS = (".weight", ".bias")
# `model_type` -> class of keras-hub that reads such a Hugging Face folder.
_KERAS_HUB = {
    "albert": "AlbertBackbone",
    "roberta": "RobertaBackbone",
    "xlm-roberta": "XLMRobertaBackbone",
}


def name_package(model_type):
    """Return the name of a class or package that loads this model type."""
    other = _KERAS_HUB.get(model_type)
    return f"keras_hub.models.{other}" if other else "transformers"


def names(head):
    """Return dict of weight name in bert_keras -> name in transformers.

    The dict has the weights of the encoder and of the pre-training heads, and
    the weights of the head of the class `head`.
    """
    return {
        **_TABLES,
        **tensors.expand_names(_DENSE | _HEADS.get(head, {}), _NORM, _ENDS),
    }


def matches(folder):
    """Return True for a folder with config.json.

    keras-hub's folders have that file too; see `keras_hub.matches`.
    """
    return os.path.exists(os.path.join(folder, CONFIG))


def open_folder(folder, wanted=None):
    """Return the `Checkpoint` of a Hugging Face folder.

    The `bert_keras` block of config.json names the model class. Without this
    block, `architectures` names the class. Folders of 2019 have neither. Their
    tensors decide the class, or `wanted` if several classes fit.
    """
    config = tensor_files.read_json(os.path.join(folder, CONFIG))
    fields = block.read_block(folder, config)
    _check_model(config, fields)
    stored = read_weights(folder)
    is_distilbert = config.get("model_type") == distilbert.MODEL_TYPE
    if is_distilbert:
        config = distilbert.translate_config(config)
    encoder = _read_encoder(config)
    if is_distilbert:
        encoder["pooler_activation"] = "relu"
        stored = distilbert.translate_tensors(stored, encoder)
    if fields is None:
        head = _read_stated_head(config, stored, wanted, folder)
    else:
        head = _read_own_head(folder, fields, stored)
        encoder |= block.read_encoder(fields)
        head |= block.read_origin(fields, folder)
    deviation = config.get("initializer_range")
    return tensors.Checkpoint(
        path=folder,
        source=str(folder),
        format="huggingface",
        encoder=encoder,
        initializer_range=deviation if DEVIATION.fits(deviation) else None,
        **head,
    )


def _read_own_head(folder, fields, stored):
    """Return the `Checkpoint` fields of the head that the block states."""
    head = fields.get("class", TEXT)
    found, skipped = tensors.rename_tensors(
        stored, names(head), folder, normalize_name
    )
    # Tensors that transformers lacks have bert_keras's names.
    own_names = [name for name in skipped if "/" in name]
    found = _transpose_kernels(found) | {
        name: stored[name] for name in own_names
    }
    return {
        "head": head,
        "head_arguments": block.read_arguments(fields),
        "tensors": block.add_check(found, folder, fields),
        "skipped": [name for name in skipped if name not in own_names],
    }


def _read_stated_head(config, stored, wanted, folder):
    """Return the `Checkpoint` fields of the head in a folder without block."""
    fault, fitting = None, ()
    try:
        head = _read_head(config)
        fitting = (head,) if head else tuple(_find_heads(config, stored))
    except WeightsError as error:
        fault = error
    head = wanted if wanted in fitting else "BertEncoder"
    if len(fitting) == 1:
        head = fitting[0]
    found, skipped = tensors.rename_tensors(
        stored, names(head), folder, normalize_name
    )
    found = _transpose_kernels(found)
    arguments = {}
    try:
        arguments = _read_arguments(config, head, found)
    except WeightsError as error:
        fault = error
    _check_output_table(found, stored)
    return {
        "head": head,
        "head_arguments": arguments,
        "head_fault": fault,
        "fitting_heads": () if head in fitting else fitting,
        "tensors": found,
        "skipped": skipped,
    }


def read_text(checkpoint, folder=None):
    """Return the `TextSettings`; None without a vocabulary.

    `folder` has the tokenizer; None means the folder of the checkpoint.
    """
    folder = folder or checkpoint.path
    config = tensor_files.read_json(os.path.join(folder, CONFIG))
    text = huggingface_tokenizer.read_text(
        folder, config, checkpoint.encoder["max_sequence_length"]
    )
    if text is None or not block.is_current(config):
        return text
    return dataclasses.replace(text, is_resolved=True)


def _transpose_kernels(found):
    return {
        name: tensor.transpose() if name.endswith("/kernel") else tensor
        for name, tensor in found.items()
    }


def _check_output_table(found, stored):
    """Add a check to `mlm/bias` that compares tied weights with their copies.

    The check refuses a copy with other values, because transformers 5 computes
    with the copy, but bert_keras with the weight.
    """
    if "mlm/bias" not in found:
        return
    copies = {}
    for name, tensor in stored.items():
        weight = TIED.get(normalize_name(name))
        if weight in found:
            copies[found[weight]] = tensor

    def compare():
        for weight, copy in copies.items():
            if not weight.equals(copy):
                raise WeightsError(
                    copy.file,
                    "this copy differs from the tied weight",
                    "Load the file with transformers, or load a BertEncoder",
                    tensor=copy.name,
                    expected=f"the values of {weight.name}",
                    found="other values",
                )

    if copies:
        bias = found["mlm/bias"]
        checks = compare, *bias.checks
        found["mlm/bias"] = dataclasses.replace(bias, checks=checks)


def _check_model(config, fields):
    """Raise `WeightsError` for a model that this package cannot load.

    `fields` is the `bert_keras` block, or None. With the block, the model type
    must be "bert" or "bert_keras". Without it, "bert" or "distilbert".
    """
    if "auto_map" in config or "custom_pipelines" in config:
        raise WeightsError(
            config.path,
            "the model needs code in the folder (auto_map), which bert_keras "
            "never runs",
            "Use a checkpoint that needs no code of its own",
        )
    known = ["bert", block.NAME if fields else distilbert.MODEL_TYPE]
    model_type = config.get("model_type", TEXT, "bert")
    if model_type not in known:
        raise WeightsError(
            config.path,
            f'this is a model of type "{model_type}"',
            f"Load the folder with {name_package(model_type)}",
            expected='the model type "bert" or "distilbert"',
            found=f'"{model_type}"',
        )
    position = config.get("position_embedding_type", TEXT, "absolute")
    if position != "absolute":
        raise WeightsError(
            config.path,
            f'the position embeddings are "{position}", not "absolute"',
            "Use a checkpoint with absolute positions",
        )
    for name in ("quantization_config", "pruned_heads", "add_cross_attention"):
        if config.get(name):
            raise WeightsError(
                config.path,
                f'"{name}" is set, which this package does not support',
                "Use the original checkpoint, without this setting",
            )


def _read_encoder(config):
    activation = config.get("hidden_act", ACTIVATIONS, "gelu")
    is_decoder = config.get("is_decoder", BOOLEAN, False)
    return {
        **{name: config.get(*setting) for name, setting in SIZES.items()},
        "activation": ACTIVATIONS[activation],
        "attention": "left_to_right" if is_decoder else "bidirectional",
        "norm_epsilon": config.get("layer_norm_eps", EPSILON, 1e-12),
    }


def _read_head(config):
    stated = config.get("architectures", TEXTS, [])
    if not stated:
        return None
    if stated[0] not in BY_ARCHITECTURE:
        expected = " or ".join(BY_ARCHITECTURE)
        config.refuse("architectures", expected, stated[0])
    head = BY_ARCHITECTURE[stated[0]]
    if head == "BertCausalModel" and not config.get(
        "is_decoder", BOOLEAN, False
    ):
        return "BertPretrainer"
    return head


def _find_heads(config, stored):
    """Return the names of the model classes that fit the tensors.

    Three classes of transformers call their head `classifier`. The number of
    outputs, the pooler and the settings tell which classes are possible.
    """
    by_name = {normalize_name(name): t for name, t in stored.items()}
    layers = {name.split(".")[0] for name in by_name if name}
    heads = ["BertPretrainer"] if "cls" in layers else []
    heads += [h for h, table in _HEADS.items() if layers & {*table.values()}]
    bias = by_name.get("classifier.bias")
    if bias:
        outputs, pools = math.prod(bias.shape), "pooler.dense.weight" in by_name
        # With one output and one label, the head may be a `BertClassifier`.
        # With one output and more labels, it may be a `BertChooser`.
        has_one = len(_read_labels(config)) == 1
        fits = {
            "BertClassifier": pools and (outputs > 1 or has_one),
            "BertTagger": outputs > 1 and "problem_type" not in config,
            "BertChooser": pools and outputs == 1 and not has_one,
        }
        heads = [head for head in heads if fits.get(head, True)]
    if config.get("is_decoder", BOOLEAN, False):
        heads = [h.replace("Pretrainer", "CausalModel") for h in heads]
    return heads or ["BertEncoder"]


def _read_arguments(config, head, found):
    """Return the arguments of a model class, except the encoder.

    `found` is a dict of weight name in bert_keras -> `Tensor`.
    """
    arguments, row = {}, HEADS[head]
    if row.is_tied and not config.get("tie_word_embeddings", BOOLEAN, True):
        config.refuse("tie_word_embeddings", "true, as in BERT", "false")
    if row.has_labels:
        bias = found.get(f"{row.layer}/bias")
        count = math.prod(bias.shape) if bias else None
        arguments["labels"] = _read_labels(config, count)
    if head == "BertClassifier":
        # With left-to-right attention, `BertClassifier` reads the last token,
        # but transformers reads the pooled output.
        if config.get("is_decoder", BOOLEAN, False):
            config.refuse("is_decoder", "false for a classifier", "true")
        # In transformers, one output without `problem_type` is a regression.
        has_one = len(arguments["labels"]) == 1
        arguments["problem"] = "regression" if has_one else "single"
        if "problem_type" in config:
            problem = config.get("problem_type", PROBLEMS)
            arguments["problem"] = PROBLEMS[problem]
        arguments["labels"] = tensors.hide_default_label(**arguments)
    if row.has_dropout and "classifier_dropout" in config:
        arguments["dropout"] = config.get("classifier_dropout", FRACTION)
    return arguments


def _read_labels(config, count=None):
    """Return the label names in the order of the logits.

    Return `count` default names LABEL_0, LABEL_1, ..., if the config has no
    names, if every name is a number, or if the names are LABEL_0 and LABEL_1.
    transformers writes these two for any head without names.

    Args:
        config: `Fields` of config.json.
        count: number of default names, one for each output of the head. None:
            the number that the config states.
    """
    by_index = config.object("id2label", {}).values
    labels = [by_index.get(str(index)) for index in range(len(by_index))]
    stated = len(labels) or config.get("num_labels", count_to(2**20), 2)
    unnamed = [f"LABEL_{index}" for index in range(count or stated)]
    is_unnamed = all(type(label) in (int, float) for label in labels)
    if is_unnamed or labels == ["LABEL_0", "LABEL_1"]:
        return unnamed
    if not all(isinstance(label, str) for label in labels):
        expected = f"a name for each index from 0 to {len(by_index) - 1}"
        config.refuse("id2label", expected, by_index)
    if len(set(labels)) < len(labels):
        config.refuse("id2label", "a different name for each index", by_index)
    return labels


def describe(model, preprocessor=None, without=()):
    """Return the fields of config.json and the tensors to write.

    The weights to write decide the class in `architectures`. If transformers
    lacks the head, `architectures` names only the encoder, and the tensors of
    the head keep their bert_keras names. If transformers cannot compute the
    encoder, `model_type` is "bert_keras", which transformers refuses.

    Args:
        model: `BertEncoder` or a task model.
        preprocessor: the model's `BertPreprocessor`, or None.
        without: names of weights to leave out. A pooler that is random and
            unused is left out too.

    Returns:
        Two dicts: config.json without its `bert_keras` block, and tensor name
        -> (shape, function that returns the values).
    """
    random = untrained_weights(model)
    if POOLER[0] in {*random} - {*drop_unused_pooler(model, random)}:
        without = {*without, *POOLER}
    weights = {
        name: weight
        for name, weight in sorted(published_weights(model).items())
        if name not in without
    }
    stored = tensor_names(model, weights)
    arrays = {}
    for name, weight in weights.items():
        shape, read = tuple(weight.shape), weight.numpy
        if name.endswith("/kernel") and stored[name] != name:
            # PyTorch stores kernels as (outputs, inputs).
            shape, read = shape[::-1], lambda w=weight: w.numpy().T
        arrays[stored[name]] = shape, read
    architecture = _choose_architecture(model, weights)
    config = _make_config(model, architecture, preprocessor)
    encoder = getattr(model, "encoder", model)
    pools_by_tanh = encoder.pooler_activation == "tanh"
    has_more = any(in_encoder(name) and stored[name] == name for name in stored)
    if (
        has_more
        or encoder.attention == "right_to_left"
        or not (pools_by_tanh or POOLER[0] not in weights)
    ):
        config["model_type"] = block.NAME
    return config, arrays


def tensor_names(model, weights):
    """Return dict of weight name in bert_keras -> name in transformers.

    Weights that transformers lacks, of a head or of a subclass of
    `BertEncoder`, keep their names in bert_keras.

    Args:
        model: `BertEncoder` or a task model.
        weights: names in bert_keras of the weights that the folder has.
    """
    is_encoder = _choose_architecture(model, weights) == "BertModel"
    table = names("" if is_encoder else type(model).__name__)
    found = {}
    for name in weights:
        is_known = in_encoder(name) or not is_encoder
        other = tensors.map_name(name, table) if is_known else None
        prefix = "bert." if in_encoder(name) and not is_encoder else ""
        found[name] = f"{prefix}{other}" if other else name
    return found


def _choose_architecture(model, weights):
    """Return the name of the transformers class with these weights.

    If transformers lacks the head, return "BertModel".
    """
    encoder, head = getattr(model, "encoder", model), type(model).__name__
    is_same = all(
        getattr(model, f"mlm_{name}", None) in (None, getattr(encoder, name))
        for name in ("activation", "norm_epsilon")
    )
    changes = (getattr(model, name, None) for name in ("bilstm_dim", "recipe"))
    is_same = is_same and not any(changes)
    if head in ("BertClassifier", "BertChooser"):
        # In transformers, both classes read the pooled output.
        is_same = is_same and model.pools
    if head == "BertPretrainer" and is_same:
        return {
            (True, True): "BertForPreTraining",
            (True, False): "BertForMaskedLM",
            (False, True): "BertForNextSentencePrediction",
            (False, False): "BertModel",
        }["mlm/bias" in weights, "nsp/bias" in weights]
    known = HEADS[head].architectures if is_same and head in HEADS else ()
    return (*known, "BertModel")[0]


def _make_config(model, architecture, preprocessor):
    encoder = getattr(model, "encoder", model)
    activations = {name: other for other, name in reversed(ACTIVATIONS.items())}
    for value in (encoder.activation, getattr(model, "mlm_activation", None)):
        if value is not None and value not in activations:
            raise InputError(
                f"The activation is {value!r}, which Hugging Face's format "
                f"does not have. Expected one of {', '.join(activations)}. "
                "model.save writes any activation to a .keras file."
            )
    config = {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": encoder.vocabulary_size,
        "num_hidden_layers": encoder.num_layers,
        "num_attention_heads": encoder.num_heads,
        "hidden_size": encoder.hidden_dim,
        "intermediate_size": encoder.intermediate_dim,
        "max_position_embeddings": encoder.max_sequence_length,
        "type_vocab_size": encoder.num_segments,
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "hidden_act": activations[encoder.activation],
        "layer_norm_eps": encoder.norm_epsilon,
        "is_decoder": encoder.attention == "left_to_right",
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
    }
    if encoder.initializer_range is not None:
        config["initializer_range"] = encoder.initializer_range
    if preprocessor is not None:
        config["pad_token_id"] = preprocessor.tokenizer.pad_id
    if architecture == "BertModel":
        return config
    row = HEADS[type(model).__name__]
    if row.has_labels:
        labels = model.labels or ["LABEL_0"]
        config["id2label"] = {str(i): name for i, name in enumerate(labels)}
        config["label2id"] = {name: i for i, name in enumerate(labels)}
    if hasattr(model, "problem"):
        problems = {name: other for other, name in PROBLEMS.items()}
        # transformers has no ranking, so a ranking score is a regression there.
        config["problem_type"] = problems.get(model.problem, "regression")
    if row.has_dropout:
        config["classifier_dropout"] = model.dropout
    return config
