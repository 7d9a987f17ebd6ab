"""Tensor names of Hugging Face's BERT classes <-> the library's names."""

import re

from bert_keras.interop.layer_names import DENSE, NORM, expanded

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
# The head's own layer, by our class: three of theirs are a `classifier`.
_HEADS = {
    "BertClassifier": {"classifier": "classifier"},
    "BertTagger": {"tagger": "classifier"},
    "BertChooser": {"chooser": "classifier"},
    "BertSpanPredictor": {"span": "qa_outputs"},
}
_ENDS = (".weight", ".bias")


def heads_in(tensors):
    """Our classes whose head the file may hold, by the names of its tensors.

    Args:
        tensors: their names, as `modern` or `from_keras` gives them.
    """
    stems = {name.split(".")[0] for name in tensors}
    heads = ["BertPretrainer"] if "cls" in stems else []
    for head, layer in _HEADS.items():
        if stems & set(layer.values()):
            heads.append(head)
    return heads


def names(head):
    """The table of names for the weights of one class.

    Args:
        head: the name of our model class.
    """
    return {
        "encoder/embeddings/token/embeddings": (
            "embeddings.word_embeddings.weight"
        ),
        "encoder/embeddings/position/embeddings": (
            "embeddings.position_embeddings.weight"
        ),
        "encoder/embeddings/segment/embeddings": (
            "embeddings.token_type_embeddings.weight"
        ),
        "mlm/bias": "cls.predictions.bias",
        **expanded(_DENSE | _HEADS.get(head, {}), DENSE, _ENDS),
        **expanded(_NORM, NORM, _ENDS),
    }


def modern(name):
    """Their name today: no prefix, `weight` and `bias` for LayerNorm's.

    Before 2019 LayerNorm's scale and offset had TensorFlow's names.
    """
    name = name.removeprefix("bert.")
    name = re.sub(r"(?<=LayerNorm\.)gamma$", "weight", name)
    return re.sub(r"(?<=LayerNorm\.)beta$", "bias", name)


def from_keras(path):
    """Their name for a dataset of `tf_model.h5`; None for a second copy.

    Every layer's group repeats the path of the variable in the model, and
    the masked-LM head's lists the embeddings once more.
    """
    layer, _, path = path.removesuffix(":0").partition("/")
    if layer == "bert":
        path = path.rpartition("bert/")[2]
    elif "bert/" in path:
        return None
    else:
        path = path.replace("mlm___", "").replace("nsp___", "")
        path = path[max(path.find(f"{part}/") for part in _TOPS) :]
    path = path.replace("layer_._", "layer/").replace("/", ".")
    stem, _, end = path.rpartition(".")
    ends = {"kernel": "weight", "gamma": "weight", "beta": "bias"}
    return f"{stem}.{ends.get(end, end).replace('embeddings', 'weight')}"


_TOPS = ("cls", "classifier", "qa_outputs")
