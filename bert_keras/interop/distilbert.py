"""Translation of DistilBERT's Hugging Face settings and tensors to BERT's.

DistilBERT has no segment embeddings and no pooler. Its classes for sequence
classification and multiple choice have a dense ReLU layer, `pre_classifier`, on
the first token. This layer becomes the pooler, so the encoder's
`pooler_activation` is "relu".
"""

import dataclasses
import re

import numpy as np

from bert_keras.interop.tensor_files import Fields
from bert_keras.json_files import TEXTS

MODEL_TYPE = "distilbert"
# BERT's setting -> (DistilBERT's setting, DistilBERT's default).
_SETTINGS = {
    "num_hidden_layers": ("n_layers", 6),
    "num_attention_heads": ("n_heads", 12),
    "hidden_size": ("dim", 768),
    "intermediate_size": ("hidden_dim", 3072),
    "hidden_dropout_prob": ("dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "hidden_act": ("activation", "gelu"),
    "classifier_dropout": ("seq_classif_dropout", 0.2),
}
# Regular expression for part of DistilBERT's tensor name -> part of BERT's.
_PARTS = {
    r"^distilbert\.": "",
    r"^transformer\.layer\.": "encoder.layer.",
    r"\.attention\.q_lin\.": ".attention.self.query.",
    r"\.attention\.k_lin\.": ".attention.self.key.",
    r"\.attention\.v_lin\.": ".attention.self.value.",
    r"\.attention\.out_lin\.": ".attention.output.dense.",
    r"\.sa_layer_norm\.": ".attention.output.LayerNorm.",
    r"\.ffn\.lin1\.": ".intermediate.dense.",
    r"\.ffn\.lin2\.": ".output.dense.",
    r"\.output_layer_norm\.": ".output.LayerNorm.",
    r"^pre_classifier\.": "pooler.dense.",
    r"^vocab_transform\.": "cls.predictions.transform.dense.",
    r"^vocab_layer_norm\.": "cls.predictions.transform.LayerNorm.",
    r"^vocab_projector\.weight": "cls.predictions.decoder.weight",
    r"^vocab_projector\.bias": "cls.predictions.bias",
}
_SEGMENTS = "embeddings.token_type_embeddings.weight"


def translate_config(config):
    """Return DistilBERT's settings as `Fields` with BERT's names."""
    values = {**config.values, "type_vocab_size": 2}
    for name, (other, default) in _SETTINGS.items():
        values[name] = config.get(other, default=default)
    names = config.get("architectures", TEXTS, [])
    values["architectures"] = [
        re.sub("^DistilBert", "Bert", name) for name in names
    ]
    if "DistilBertForTokenClassification" in names:
        values["classifier_dropout"] = values["hidden_dropout_prob"]
    return Fields(values, config.path)


def translate_name(name):
    """Return BERT's name for a DistilBERT tensor; leave other names as is."""
    for pattern, replacement in _PARTS.items():
        name = re.sub(pattern, replacement, name)
    return name


def translate_tensors(stored, encoder):
    """Return the tensors with BERT's names; add segment embeddings of zeros.

    Args:
        stored: dict of DistilBERT's names -> `Tensor`.
        encoder: dict of arguments of `BertEncoder`.
    """
    found = {translate_name(name): tensor for name, tensor in stored.items()}
    shape = encoder["num_segments"], encoder["hidden_dim"]
    if stored:
        found[_SEGMENTS] = dataclasses.replace(
            next(iter(stored.values())),
            name=_SEGMENTS,
            shape=shape,
            read=lambda: np.zeros(shape, "float32"),
            rows=None,
        )
    return found
