"""Reader of the checkpoints of Google's original BERT.

The files are bert_config.json, vocab.txt and bert_model.ckpt.
"""

import math
import os
import re

from bert_keras.interop import tensors
from bert_keras.interop.head_table import HEADS, layers_in
from bert_keras.interop.huggingface import SIZES
from bert_keras.interop.tensor_bundle import find_prefix, read_tf_checkpoint
from bert_keras.interop.tensor_files import DEVIATION, read_json
from bert_keras.interop.text_settings import read_vocabulary
from bert_keras.json_files import COUNT

CONFIG, VOCABULARY = "bert_config.json", "vocab.txt"
# Arguments of `BertEncoder` that bert_config.json must state.
REQUIRED = (
    *("vocabulary_size", "num_layers", "num_heads", "hidden_dim"),
    "intermediate_dim",
)

# Weight names in bert_keras -> variable names in Google's checkpoints.
_LAYER = "bert/encoder/layer_{}"
_DENSE = {
    "encoder/layer_{}/attention/query": f"{_LAYER}/attention/self/query",
    "encoder/layer_{}/attention/key": f"{_LAYER}/attention/self/key",
    "encoder/layer_{}/attention/value": f"{_LAYER}/attention/self/value",
    "encoder/layer_{}/attention/output": f"{_LAYER}/attention/output/dense",
    "encoder/layer_{}/intermediate": f"{_LAYER}/intermediate/dense",
    "encoder/layer_{}/output": f"{_LAYER}/output/dense",
    "encoder/pooler": "bert/pooler/dense",
    "mlm/dense": "cls/predictions/transform/dense",
}
_NORM = {
    "encoder/embeddings/norm": "bert/embeddings/LayerNorm",
    "encoder/layer_{}/attention_norm": f"{_LAYER}/attention/output/LayerNorm",
    "encoder/layer_{}/output_norm": f"{_LAYER}/output/LayerNorm",
    "mlm/norm": "cls/predictions/transform/LayerNorm",
}
_HEADS = layers_in("google")
_OUTPUTS = {"nsp": "cls/seq_relationship/output"}
for _layer in _HEADS.values():
    _OUTPUTS |= _layer
NAMES = {
    "encoder/embeddings/token/embeddings": "bert/embeddings/word_embeddings",
    "encoder/embeddings/position/embeddings": (
        "bert/embeddings/position_embeddings"
    ),
    "encoder/embeddings/segment/embeddings": (
        "bert/embeddings/token_type_embeddings"
    ),
    "mlm/bias": "cls/predictions/output_bias",
    **tensors.expand_names(_DENSE, _NORM),
    **tensors.expand_names(_OUTPUTS, ends=("_weights", "_bias")),
}
# Google's checkpoints store the kernels of heads as (outputs, inputs).
TRANSPOSED = tuple(f"{head}/kernel" for head in _OUTPUTS)


def matches(path):
    """Return True for a TensorFlow checkpoint or a folder with one."""
    return find_prefix(path) is not None


def open_path(path, wanted=None):
    """Return the `Checkpoint` of files that the original BERT wrote.

    Args:
        path: path of the checkpoint without `.index`, or its folder. Settings
            and vocabulary are in the folder.
        wanted: not used: the tensors' names decide the head.
    """
    prefix = find_prefix(path)
    found, skipped = tensors.rename_tensors(
        read_tf_checkpoint(prefix), NAMES, path
    )
    for name in TRANSPOSED:
        if name in found:
            found[name] = found[name].transpose()
    config = os.path.join(os.path.dirname(prefix), CONFIG)
    head, arguments = _find_head(found)
    deviation = read_json(config).get("initializer_range")
    return tensors.Checkpoint(
        path=path,
        source=str(path),
        format="google",
        encoder=read_config(config),
        head=head,
        head_arguments=arguments,
        tensors=found,
        skipped=skipped,
        initializer_range=deviation if DEVIATION.fits(deviation) else None,
    )


def read_text(checkpoint):
    """Return the `TextSettings`; None without a vocabulary.

    The word "cased" or "uncased" in the last part of the path states the case.
    """
    folder = os.path.dirname(find_prefix(checkpoint.path))
    cases = name_cases(checkpoint.path)
    return read_vocabulary(os.path.join(folder, VOCABULARY), cases=cases)


def read_config(path):
    """Return the arguments of `BertEncoder` that a `bert_config.json` states.

    The file must state all sizes except the number of positions (default 512)
    and of segments (default 2). In Google's code, `gelu` is GELU's tanh form.
    """
    config = read_json(path)
    config.get("hidden_act", ["gelu"], "gelu")
    hidden = config.get("hidden_size", COUNT)
    if config.get("embedding_size", COUNT, hidden) != hidden:
        config.refuse(
            "embedding_size",
            f"the hidden_size {hidden}",
            config.get("embedding_size"),
        )
    for name in REQUIRED:
        config.get(*SIZES[name][:2])  # raises if it is missing
    return {
        **{name: config.get(*setting) for name, setting in SIZES.items()},
        "activation": "gelu_tanh",
        "attention": "bidirectional",
    }


# Only whole words match: "lowercased" and "showcased" do not match.
_CASE = re.compile(r"(?<![a-z])(un)?cased(?![a-z])")


def name_cases(source):
    """Return the case that the last part of the path states.

    Return `{"the name PART": is_uncased}`, as in `TextSettings.cases`, or {} if
    this part has neither the word "cased" nor "uncased".
    """
    name = os.path.basename(os.path.normpath(source)).lower()
    match = _CASE.search(name)
    return {f"the name {name}": match[1] == "un"} if match else {}


def _find_head(found):
    """Return (class name, arguments) for the head among the tensors."""
    for head, layer in _HEADS.items():
        for name in layer:
            bias = found.get(f"{name}/bias")
            if bias is not None and HEADS[head].has_labels:
                return head, tensors.unnamed_labels(math.prod(bias.shape))
            if bias is not None:
                return head, {}
    if "mlm/bias" in found or "nsp/bias" in found:
        return "BertPretrainer", {}
    return "BertEncoder", {}
