"""Paths in keras-hub's weight files <-> the library's names.

Keras counts the layers of one class: the second dense layer of a model would
be `dense_1`. A layer's weights are numbered 0, 1 in the order of creation.
"""

import re

from bert_keras.interop.layer_names import DENSE, NORM, expanded

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
BACKBONE = {
    "encoder/embeddings/token/embeddings": "layers/reversible_embedding/vars/0",
    "encoder/embeddings/position/embeddings": (
        "layers/position_embedding/vars/0"
    ),
    "encoder/embeddings/segment/embeddings": "layers/embedding/vars/0",
    **expanded(_ENCODER, DENSE, _ENDS),
    **expanded(_ENCODER_NORM, NORM, _ENDS),
}
# The second file, of a task: by our model class.
TASK = {
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


def plain(path):
    """The path as today's Keras and keras-hub write it.

    Earlier ones called the container otherwise, and parts of a layer; the
    first layer of a class has no number.
    """
    path = re.sub(r"^_layer_checkpoint_dependencies/", "layers/", path)
    path = path.replace("layernorm/", "layer_norm/")
    path = re.sub(r"/_(query|key|value|output)_dense/", r"/\1_dense/", path)
    return re.sub(r"^(layers/transformer_encoder)/", r"\1_0/", path)


def written(path):
    """The path as Keras writes it: the first layer has no number."""
    return path.replace(
        "layers/transformer_encoder_0/", "layers/transformer_encoder/"
    )
