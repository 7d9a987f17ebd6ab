"""Names of the weights of a one-layer model in each format.

The names are from files that the original, transformers 4 and 5, keras-hub 0.32
and Model Garden 2.20 wrote. In keras-hub, Model Garden and TF Hub, attention
weights have an axis for the heads, except `output/bias`.
"""

import numpy as np

SIZES = {
    "vocabulary_size": 8,
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 6,
    "intermediate_dim": 10,
    "max_sequence_length": 16,
    "num_segments": 2,
}
# The first line of each weight has its name in bert_keras and its shape. The
# next lines have its names in Hugging Face, the original, keras-hub (below
# layers/), Model Garden (key) and TF Hub (variable).
ENCODER = """
encoder/embeddings/token/embeddings 8,6
 embeddings.word_embeddings.weight
 bert/embeddings/word_embeddings
 reversible_embedding/vars/0
 layer_with_weights-0/embeddings
 word_embeddings/embeddings
encoder/embeddings/position/embeddings 16,6
 embeddings.position_embeddings.weight
 bert/embeddings/position_embeddings
 position_embedding/vars/0
 layer_with_weights-1/embeddings
 position_embedding/embeddings
encoder/embeddings/segment/embeddings 2,6
 embeddings.token_type_embeddings.weight
 bert/embeddings/token_type_embeddings
 embedding/vars/0
 layer_with_weights-2/embeddings
 type_embeddings/embeddings
encoder/embeddings/norm/gamma 6
 embeddings.LayerNorm.weight
 bert/embeddings/LayerNorm/gamma
 layer_normalization/vars/0
 layer_with_weights-3/gamma
 embeddings/layer_norm/gamma
encoder/embeddings/norm/beta 6
 embeddings.LayerNorm.bias
 bert/embeddings/LayerNorm/beta
 layer_normalization/vars/1
 layer_with_weights-3/beta
 embeddings/layer_norm/beta
"""
for _name in ("query", "key", "value"):
    ENCODER += """\
encoder/layer_0/attention/NAME/kernel 6,6
 encoder.layer.0.attention.self.NAME.weight
 bert/encoder/layer_0/attention/self/NAME/kernel
 transformer_encoder/_self_attention_layer/NAME_dense/vars/0
 layer_with_weights-4/_attention_layer/_NAME_dense/kernel
 transformer/layer_0/self_attention/NAME/kernel
encoder/layer_0/attention/NAME/bias 6
 encoder.layer.0.attention.self.NAME.bias
 bert/encoder/layer_0/attention/self/NAME/bias
 transformer_encoder/_self_attention_layer/NAME_dense/vars/1
 layer_with_weights-4/_attention_layer/_NAME_dense/bias
 transformer/layer_0/self_attention/NAME/bias
""".replace("NAME", _name)
ENCODER += """\
encoder/layer_0/attention/output/kernel 6,6
 encoder.layer.0.attention.output.dense.weight
 bert/encoder/layer_0/attention/output/dense/kernel
 transformer_encoder/_self_attention_layer/output_dense/vars/0
 layer_with_weights-4/_attention_layer/_output_dense/kernel
 transformer/layer_0/self_attention/attention_output/kernel
encoder/layer_0/attention/output/bias 6
 encoder.layer.0.attention.output.dense.bias
 bert/encoder/layer_0/attention/output/dense/bias
 transformer_encoder/_self_attention_layer/output_dense/vars/1
 layer_with_weights-4/_attention_layer/_output_dense/bias
 transformer/layer_0/self_attention/attention_output/bias
encoder/layer_0/attention_norm/gamma 6
 encoder.layer.0.attention.output.LayerNorm.weight
 bert/encoder/layer_0/attention/output/LayerNorm/gamma
 transformer_encoder/_self_attention_layer_norm/vars/0
 layer_with_weights-4/_attention_layer_norm/gamma
 transformer/layer_0/self_attention_layer_norm/gamma
encoder/layer_0/attention_norm/beta 6
 encoder.layer.0.attention.output.LayerNorm.bias
 bert/encoder/layer_0/attention/output/LayerNorm/beta
 transformer_encoder/_self_attention_layer_norm/vars/1
 layer_with_weights-4/_attention_layer_norm/beta
 transformer/layer_0/self_attention_layer_norm/beta
encoder/layer_0/intermediate/kernel 6,10
 encoder.layer.0.intermediate.dense.weight
 bert/encoder/layer_0/intermediate/dense/kernel
 transformer_encoder/_feedforward_intermediate_dense/vars/0
 layer_with_weights-4/_intermediate_dense/kernel
 transformer/layer_0/intermediate/kernel
encoder/layer_0/intermediate/bias 10
 encoder.layer.0.intermediate.dense.bias
 bert/encoder/layer_0/intermediate/dense/bias
 transformer_encoder/_feedforward_intermediate_dense/vars/1
 layer_with_weights-4/_intermediate_dense/bias
 transformer/layer_0/intermediate/bias
encoder/layer_0/output/kernel 10,6
 encoder.layer.0.output.dense.weight
 bert/encoder/layer_0/output/dense/kernel
 transformer_encoder/_feedforward_output_dense/vars/0
 layer_with_weights-4/_output_dense/kernel
 transformer/layer_0/output/kernel
encoder/layer_0/output/bias 6
 encoder.layer.0.output.dense.bias
 bert/encoder/layer_0/output/dense/bias
 transformer_encoder/_feedforward_output_dense/vars/1
 layer_with_weights-4/_output_dense/bias
 transformer/layer_0/output/bias
encoder/layer_0/output_norm/gamma 6
 encoder.layer.0.output.LayerNorm.weight
 bert/encoder/layer_0/output/LayerNorm/gamma
 transformer_encoder/_feedforward_layer_norm/vars/0
 layer_with_weights-4/_output_layer_norm/gamma
 transformer/layer_0/output_layer_norm/gamma
encoder/layer_0/output_norm/beta 6
 encoder.layer.0.output.LayerNorm.bias
 bert/encoder/layer_0/output/LayerNorm/beta
 transformer_encoder/_feedforward_layer_norm/vars/1
 layer_with_weights-4/_output_layer_norm/beta
 transformer/layer_0/output_layer_norm/beta
encoder/pooler/kernel 6,6
 pooler.dense.weight
 bert/pooler/dense/kernel
 dense/vars/0
 layer_with_weights-5/kernel
 pooler_transform/kernel
encoder/pooler/bias 6
 pooler.dense.bias
 bert/pooler/dense/bias
 dense/vars/1
 layer_with_weights-5/bias
 pooler_transform/bias
"""
# Weights of task heads have names only in Hugging Face and the original.
PRETRAINER = """
mlm/dense/kernel 6,6
 cls.predictions.transform.dense.weight
 cls/predictions/transform/dense/kernel
mlm/dense/bias 6
 cls.predictions.transform.dense.bias
 cls/predictions/transform/dense/bias
mlm/norm/gamma 6
 cls.predictions.transform.LayerNorm.weight
 cls/predictions/transform/LayerNorm/gamma
mlm/norm/beta 6
 cls.predictions.transform.LayerNorm.bias
 cls/predictions/transform/LayerNorm/beta
mlm/bias 8
 cls.predictions.bias
 cls/predictions/output_bias
nsp/kernel 6,2
 cls.seq_relationship.weight
 cls/seq_relationship/output_weights
nsp/bias 2
 cls.seq_relationship.bias
 cls/seq_relationship/output_bias
"""
CLASSIFIER = """
classifier/kernel 6,3
 classifier.weight
 output_weights
classifier/bias 3
 classifier.bias
 output_bias
"""
SPAN = """
span/kernel 6,2
 qa_outputs.weight
 cls/squad/output_weights
span/bias 2
 qa_outputs.bias
 cls/squad/output_bias
"""
HUGGINGFACE, GOOGLE, KERAS_HUB, MODEL_GARDEN, TF_HUB = range(5)


def weights(*tables, seed=0):
    """Return a dict: name in bert_keras -> array of random values."""
    random = np.random.default_rng(seed)
    return {
        name: random.normal(0.2, 0.4, shape).astype("float32")
        for name, shape, _ in rows(*tables)
    }


def names(column, *tables):
    """Return a dict: name in bert_keras -> name in one format."""
    return {name: theirs[column] for name, _, theirs in rows(*tables)}


def rows(*tables):
    """Return a list of (name in bert_keras, shape, names in the formats)."""
    found = []
    for line in "".join(tables).splitlines():
        if line.startswith(" "):
            found[-1][2].append(line.strip())
        elif line:
            name, shape = line.split()
            found.append((name, tuple(map(int, shape.split(","))), []))
    return found


def with_heads_apart(name, array, heads=SIZES["num_heads"]):
    """Return `array` in the shape of formats with split heads."""
    if "/attention/" not in name or name.endswith("output/bias"):
        return array
    if name.endswith("bias"):
        return array.reshape(heads, -1)
    if name.endswith("output/kernel"):
        return array.reshape(heads, -1, array.shape[1])
    return array.reshape(array.shape[0], heads, -1)
