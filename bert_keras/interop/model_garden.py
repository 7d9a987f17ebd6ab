"""Reader of Model Garden's TF2 checkpoints, and of TF Hub and Kaggle encoders.

From a SavedModel, the reader takes the variables, the vocabulary and the case.
It does not load the SavedModel's functions.
"""

import os
import re

from bert_keras.interop import google, tensor_bundle, tensors
from bert_keras.interop.tensors import WeightsError
from bert_keras.interop.text_settings import read_vocabulary

# Names in Model Garden's checkpoints and TF Hub's SavedModels. In a checkpoint,
# a variable's key is a path in the object graph, which depends on the encoder's
# type ("bert" or "bert_v2") and on the object that was saved. The variable's
# name is stored too, except by some programs. `plain_names` gives a variable
# the same name in all these files.

SAVED_MODEL = "saved_model.pb"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
LOWER_CASE = f"do_lower_case{VALUE}"
_LAYER = "transformer/layer_{}"
NEXT_SENTENCE = "next_sentence"
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
    "nsp": NEXT_SENTENCE,
}
_NORM = {
    "encoder/embeddings/norm": "embeddings/layer_norm",
    "encoder/layer_{}/attention_norm": f"{_LAYER}/self_attention_layer_norm",
    "encoder/layer_{}/output_norm": f"{_LAYER}/output_layer_norm",
    "mlm/norm": "cls/predictions/transform/LayerNorm",
}
# Task models give their head's layer no name of its own; see `_find_head`.
_TASK_HEADS = ("classifier", "tagger", "span")
# The encoder's pooler, if the head has its own. No model loads it.
_UNUSED_POOLER = "unused_pooler"
NAMES = {
    "encoder/embeddings/token/embeddings": "word_embeddings/embeddings",
    "encoder/embeddings/position/embeddings": "position_embedding/embeddings",
    "encoder/embeddings/segment/embeddings": "type_embeddings/embeddings",
    "mlm/bias": "cls/predictions/output_bias/bias",
    **tensors.expand_names(_DENSE, _NORM),
    **tensors.expand_names(
        {name: name for name in (*_TASK_HEADS, _UNUSED_POOLER)}
    ),
}
# A name may follow the names of models, as in "bert_encoder_v2/...".
_PLAIN = re.compile(
    "(?:.*/)?("
    + "|".join(
        re.escape(name).replace(r"\{\}", r"\d+") for name in NAMES.values()
    )
    + ")"
)
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
# Attributes of `BertEncoderV2` and of the masked-LM head.
_LAYERS = {
    "_embedding_layer": "word_embeddings",
    "_position_embedding_layer": "position_embedding",
    "_type_embedding_layer": "type_embeddings",
    "_embedding_norm_layer": "embeddings/layer_norm",
    "_pooler_layer": "pooler_transform",
    "masked_lm/dense": "cls/predictions/transform/dense",
    "masked_lm/layer_norm": "cls/predictions/transform/LayerNorm",
}
_SINGLE = {
    "masked_lm/embedding_table": "word_embeddings/embeddings",
    "masked_lm/output_bias.Sbias": "cls/predictions/output_bias/bias",
}
# Keys of the optimizer's variables.
_OPTIMIZER = re.compile(r"(^|/)(\.OPTIMIZER_SLOT|optimizer|_variables)/")
# Layers of a sentence's head, by name or key. The group is the head's name.
_HEAD = r"(?:.*/)?([^/]+)"
_HEAD_PATH = (
    r"(?:.*/)?(classification_heads/\d+|classifier|layer_with_weights-1)"
)
_HEAD_LAYERS = {
    "logits": (rf"{_HEAD}/logits", rf"{_HEAD_PATH}/out_proj"),
    "pooler": (
        rf"{_HEAD}/pooler_dense",
        r"([^/]+)\.\.pooler_dense",
        rf"{_HEAD_PATH}/dense",
    ),
}
_TOKEN_LOGITS = "transform"  # from the name predictions/transform/logits


def matches(path):
    """Return True for a SavedModel or a checkpoint with an object graph."""
    if os.path.exists(os.path.join(path, SAVED_MODEL)):
        return True
    prefix = tensor_bundle.find_prefix(path)
    if prefix is None:
        return False
    return tensor_bundle.OBJECT_GRAPH in tensor_bundle.read_index(prefix)


def _find_files(path):
    """Return the paths of the checkpoint, without `.index`, and vocabulary."""
    if not os.path.exists(os.path.join(path, SAVED_MODEL)):
        prefix = tensor_bundle.find_prefix(path)
        return prefix, os.path.join(os.path.dirname(prefix), google.VOCABULARY)
    assets = os.path.join(path, "assets")
    found = sorted(os.listdir(assets)) if os.path.isdir(assets) else []
    name = found[0] if len(found) == 1 else google.VOCABULARY
    prefix = os.path.join(path, "variables", "variables")
    return prefix, os.path.join(assets, name)


def open_path(path, wanted=None):
    """Return the `Checkpoint` of a SavedModel or a TF2 object checkpoint.

    Args:
        path: path of the checkpoint without `.index`, or a folder.
        wanted: not used: the object graph decides the head.

    Raises:
        WeightsError: a file is damaged, or the files hold no BERT encoder.
    """
    prefix, _ = _find_files(path)
    source = str(path)
    stored = tensor_bundle.read_tf_checkpoint(prefix)
    graph = tensor_bundle.read_object_graph(prefix)
    plain = plain_names(stored, tensor_bundle.variable_names(graph))
    head, arguments, of_head = _find_head(stored, graph, plain)
    plain |= of_head
    if any("embedding_projection" in name for name in plain.values() if name):
        raise WeightsError(
            source,
            "the embeddings are narrower than the layers, as in ALBERT",
            "Use a checkpoint with embedding_size equal to hidden_size",
        )
    found, skipped = tensors.rename_tensors(stored, NAMES, source, plain.get)
    if "encoder/embeddings/token/embeddings" not in found:
        raise WeightsError(
            source,
            "these are not the variables of a BERT encoder",
            "If bert_keras exported the model, load the folder with "
            "bert_keras.load_saved_model",
        )
    config = os.path.join(os.path.dirname(prefix), google.CONFIG)
    if os.path.exists(config):
        encoder = google.read_config(config)
    else:
        encoder = _encoder(found, source)
    return tensors.Checkpoint(
        path=path,
        source=source,
        format="model_garden",
        encoder=encoder,
        head=head,
        head_arguments=arguments,
        tensors={
            name: tensors.merge_heads(name, t) for name, t in found.items()
        },
        skipped=skipped,
    )


def read_text(checkpoint):
    """Return the `TextSettings`; None without a vocabulary.

    The last part of the path, as in `google.read_text`, and a variable of the
    checkpoint state the case.
    """
    prefix, pieces = _find_files(checkpoint.path)
    cases = google.name_cases(checkpoint.path) | _find_stated_case(prefix)
    return read_vocabulary(pieces, cases=cases)


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
    """Return dict of key -> name as in `NAMES`, or the variable's own name.

    Args:
        keys: the checkpoint's keys.
        variable_names: dict of key -> the variable's name.
    """
    pattern = re.compile(r"layer_with_weights-(\d+)/_attention_layer/")
    numbered = filter(None, map(pattern.search, keys))
    # The first transformer layer is layer_with_weights-4.
    layers = 1 + max((int(match[1]) - 4 for match in numbered), default=-1)
    found = {}
    for key in keys:
        if _OPTIMIZER.search(key):
            continue
        name = variable_names.get(key, "")
        from_key = _normalize_key(key.removesuffix(VALUE), layers) or ""
        match = _PLAIN.fullmatch(name) or _PLAIN.fullmatch(from_key)
        found[key] = match[1] if match else name
    return found


def _normalize_key(key, layers):
    for path, name in _SINGLE.items():
        if key == path or key.endswith(f"/{path}"):
            return name
    for path, name in _LAYERS.items():
        match = re.fullmatch(rf"(?:.*/)?{path}/([^/]+)", key)
        if match:
            return f"{name}/{match[1]}"
    match = re.fullmatch(r"(?:.*/)?_transformer_layers/(\d+)/(.+)", key)
    if match:
        return _name_part(int(match[1]), match[2])
    match = re.fullmatch(r"(?:.*/)?layer_with_weights-(\d+)/(.+)", key)
    if match is None:
        return None
    number, rest = int(match[1]), match[2]
    if number < 3:
        return f"{TABLES[number]}/{rest}"
    if number == 3:
        return f"embeddings/layer_norm/{rest}"
    if number == layers + 4:
        return f"pooler_transform/{rest}"
    return _name_part(number - 4, rest)


def _name_part(layer, path):
    part, _, end = path.rpartition("/")
    return f"transformer/layer_{layer}/{PARTS.get(part, part)}/{end}"


def _find_head(stored, graph, plain):
    """Return (class name, arguments, dict of key -> name) of the head.

    The dict has the names, as in `NAMES`, of the head's variables. If the head
    has its own pooler, the dict replaces the encoder's pooler by it, because
    training has not used the encoder's.

    Args:
        stored: dict of key -> `Tensor`.
        graph: the checkpoint's object graph.
        plain: dict of key -> name, of `plain_names`.
    """
    is_pretrainer = NAMES["mlm/bias"] in plain.values()
    default = "BertPretrainer" if is_pretrainer else "BertEncoder", {}, {}
    layers = _list_head_layers(plain)
    logits, poolers = layers["logits"], layers["pooler"]
    name = next(iter(logits)) if len(logits) == 1 else NEXT_SENTENCE
    if set(logits.get(name, ())) != {"kernel", "bias"}:
        return default
    shape = stored[logits[name]["kernel"]].shape
    if len(shape) != 2 or (is_pretrainer and shape[1] != 2):
        return default
    head, layer, arguments = "BertPretrainer", NEXT_SENTENCE, {}
    if not is_pretrainer:
        head, layer, arguments = _find_task(name, shape[1], graph)
    found = {key: f"{layer}/{end}" for end, key in logits[name].items()}
    only = next(iter(poolers.values())) if len(poolers) == 1 else {}
    pooler = poolers.get(name, only)
    if not pooler:
        return head, arguments, found
    if any(stored[key].shape[-1:] != shape[:1] for key in pooler.values()):
        return default  # the encoder has no pooler of this width
    pooler = {key: f"pooler_transform/{end}" for end, key in pooler.items()}
    unused = {
        key: name.replace("pooler_transform", _UNUSED_POOLER)
        for key, name in plain.items()
        if name.startswith("pooler_transform/")
    }
    return head, arguments, {**found, **unused, **pooler}


def _find_task(name, outputs, graph):
    """Return (class name, layer, arguments) for a task model's head."""
    if name != _TOKEN_LOGITS:
        arguments = tensors.unnamed_labels(outputs)
        return "BertClassifier", "classifier", arguments
    children = [child for node in graph.nodes for child in node.children]
    if any(child.local_name == "span_labeling" for child in children):
        return "BertSpanPredictor", "span", {}
    labels = tensors.unnamed_labels(outputs, "single")["labels"]
    return "BertTagger", "tagger", {"labels": labels}


def _list_head_layers(plain):
    """Return dict of "logits" and "pooler" -> head -> "kernel", "bias" -> key.

    A variable's name is matched first, then its key.
    """
    layers = {kind: {} for kind in _HEAD_LAYERS}
    for kind, patterns in _HEAD_LAYERS.items():
        for key, name in plain.items():
            path = key.removesuffix(VALUE)
            for pattern in patterns:
                pattern = rf"{pattern}/(kernel|bias)"
                match = re.fullmatch(pattern, name or "") or re.fullmatch(
                    pattern, path
                )
                if match:
                    layers[kind].setdefault(match[1], {})[match[2]] = key
                    break
    return layers
