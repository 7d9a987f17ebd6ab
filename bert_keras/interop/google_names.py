"""Variable names of the original's checkpoints <-> the library's names."""

from bert_keras.interop.layer_names import DENSE, NORM, expanded

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
# These kernels lie in the files as (outputs, inputs).
_OUTPUTS = {
    "nsp": "cls/seq_relationship/output",
    "classifier": "output",
    "span": "cls/squad/output",
}
NAMES = {
    "encoder/embeddings/token/embeddings": "bert/embeddings/word_embeddings",
    "encoder/embeddings/position/embeddings": (
        "bert/embeddings/position_embeddings"
    ),
    "encoder/embeddings/segment/embeddings": (
        "bert/embeddings/token_type_embeddings"
    ),
    "mlm/bias": "cls/predictions/output_bias",
    **expanded(_DENSE, DENSE),
    **expanded(_NORM, NORM),
    **expanded(_OUTPUTS, DENSE, ("_weights", "_bias")),
}
TURNED = tuple(f"{head}/kernel" for head in _OUTPUTS)
