"""BERT in plain NumPy, an independent reference for the package's outputs.

The code follows the paper and the original's behaviour. `weights` is the result
of `published_weights`: a dict of names, such as encoder/pooler/kernel, to
arrays. Each row is computed by itself.
"""

import math

import numpy as np

erf = np.vectorize(math.erf)


def gelu_tanh(x):
    return (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    )


def gelu_exact(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


GELU = {"gelu_tanh": gelu_tanh, "gelu_exact": gelu_exact}


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def dense(weights, name, x):
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def layer_norm(weights, name, x):
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return (
        centred / deviation * weights[f"{name}/gamma"] + weights[f"{name}/beta"]
    )


def attend(weights, name, x, visible, num_heads):
    """Return attention for x (T, D); visible[t, s]: t may attend to s."""
    query, key, value = (
        dense(weights, f"{name}/{part}", x)
        for part in ("query", "key", "value")
    )
    width = x.shape[-1] // num_heads
    heads = []
    for h in range(num_heads):
        own = slice(h * width, (h + 1) * width)
        scores = query[:, own] @ key[:, own].T / math.sqrt(width)
        scores = np.where(visible, scores, scores - 10000.0)
        heads.append(softmax(scores) @ value[:, own])
    return dense(weights, f"{name}/output", np.concatenate(heads, axis=-1))


def encode_row(weights, config, row):
    """Return the hidden states of one row: a list of (T, D)."""
    ids = row["token_ids"]
    length = len(ids)
    segments = row.get("segment_ids", np.zeros(length, int))
    positions = row.get("position_ids", np.arange(length))
    mask = row.get("padding_mask", np.ones(length, int))
    examples = row.get("example_ids", np.ones(length, int))
    table = "encoder/embeddings/{}/embeddings".format
    x = weights[table("token")][ids] + weights[table("segment")][segments]
    x = x + weights[table("position")][positions]
    states = [layer_norm(weights, "encoder/embeddings/norm", x)]
    t, s = np.indices((length, length))
    visible = (mask[s] > 0) & (examples[t] == examples[s])
    if config["attention"] == "left_to_right":
        visible &= s <= t
    if config["attention"] == "right_to_left":
        visible &= s >= t
    for i in range(config["num_layers"]):
        states.append(
            _layer(weights, config, f"encoder/layer_{i}", states[-1], visible)
        )
    return states


def _layer(weights, config, name, x, visible):
    a = attend(weights, f"{name}/attention", x, visible, config["num_heads"])
    x = layer_norm(weights, f"{name}/attention_norm", x + a)
    y = GELU[config["activation"]](dense(weights, f"{name}/intermediate", x))
    y = dense(weights, f"{name}/output", y)
    return layer_norm(weights, f"{name}/output_norm", x + y)


def pool(weights, vector):
    return np.tanh(dense(weights, "encoder/pooler", vector))


def encode(weights, config, inputs):
    """Return a dict of the outputs and hidden states of a batch."""
    count = len(inputs["token_ids"])
    rows = [{k: v[i] for k, v in inputs.items()} for i in range(count)]
    states = [encode_row(weights, config, row) for row in rows]
    hidden = [np.stack(layer) for layer in zip(*states, strict=True)]
    return {
        "sequence_output": hidden[-1],
        "pooled_output": pool(weights, hidden[-1][:, 0]),
        "hidden_states": hidden,
    }


def mlm_logits(weights, config, sequence, positions):
    picked = np.stack(
        [row[own] for row, own in zip(sequence, positions, strict=True)]
    )
    x = GELU[config["activation"]](dense(weights, "mlm/dense", picked))
    x = layer_norm(weights, "mlm/norm", x)
    table = weights["encoder/embeddings/token/embeddings"]
    return x @ table.T + weights["mlm/bias"]


def cross_entropy(logits, labels, weights=None):
    """Return sum(weight x loss) / sum(weight)."""
    probabilities = softmax(logits)
    picked = np.take_along_axis(probabilities, labels[..., None], -1)[..., 0]
    weights = np.ones(labels.shape) if weights is None else weights
    return (-np.log(picked) * weights).sum() / weights.sum()


def pretraining_loss(weights, config, x, y, w, loss_weights=(1.0, 1.0)):
    encoded = encode(
        weights, config, {k: v for k, v in x.items() if k != "mask_positions"}
    )
    mlm = mlm_logits(
        weights, config, encoded["sequence_output"], x["mask_positions"]
    )
    nsp = dense(weights, "nsp", encoded["pooled_output"])
    mlm_weight, nsp_weight = loss_weights
    return mlm_weight * cross_entropy(
        mlm, y["mlm"], w["mlm"]
    ) + nsp_weight * cross_entropy(nsp, y["nsp"], w["nsp"])
