"""The library's names and shapes of BERT's weights, without a model.

They are the paths that the models' docstrings list. Every converter maps its
format's names to these; a kernel is (inputs, outputs). Shapes follow from the
settings alone, so that a file is checked before anything is allocated.
"""

WORDS = "encoder/embeddings/token/embeddings"
POSITIONS = "encoder/embeddings/position/embeddings"
SEGMENTS = "encoder/embeddings/segment/embeddings"
# The layer of each class that is nothing but one projection, and how many
# numbers it puts out for how many labels.
HEADS = {
    "BertClassifier": "classifier",
    "BertTagger": "tagger",
    "BertSpanPredictor": "span",
    "BertChooser": "chooser",
}
OUTPUTS = {
    "BertClassifier": len,
    "BertTagger": len,
    "BertSpanPredictor": lambda labels: 2,
    "BertChooser": lambda labels: 1,
}


def encoder_shapes(encoder):
    """Dict of name -> shape of every weight of the encoder.

    Args:
        encoder: dict of the sizes that `BertEncoder` takes.
    """
    hidden = encoder["hidden_dim"]
    shapes = {
        WORDS: (encoder["vocabulary_size"], hidden),
        POSITIONS: (encoder["max_sequence_length"], hidden),
        SEGMENTS: (encoder["num_segments"], hidden),
        **_norm("encoder/embeddings/norm", hidden),
    }
    for index in range(encoder["num_layers"]):
        prefix = f"encoder/layer_{index}"
        shapes |= _layer(prefix, hidden, encoder["intermediate_dim"])
    return shapes | _dense("encoder/pooler", hidden, hidden)


def _layer(prefix, hidden, intermediate):
    shapes = {}
    for part in ("query", "key", "value", "output"):
        shapes |= _dense(f"{prefix}/attention/{part}", hidden, hidden)
    return {
        **shapes,
        **_norm(f"{prefix}/attention_norm", hidden),
        **_dense(f"{prefix}/intermediate", hidden, intermediate),
        **_dense(f"{prefix}/output", intermediate, hidden),
        **_norm(f"{prefix}/output_norm", hidden),
    }


def head_shapes(head, arguments, encoder):
    """Dict of name -> shape of the head's weights, by model class.

    Args:
        head: the name of a model class; one that is not ours has no entry.
        arguments: what its constructor takes beyond the encoder.
        encoder: dict of the sizes that `BertEncoder` takes.
    """
    hidden = encoder["hidden_dim"]
    units = arguments.get("bilstm_dim")
    lstm = _bilstm(hidden, units) if units else {}
    if head in ("BertPretrainer", "BertCausalModel"):
        return {
            **_dense("mlm/dense", hidden, hidden),
            **_norm("mlm/norm", hidden),
            "mlm/bias": (encoder["vocabulary_size"],),
            **_dense("nsp", hidden, 2),
        }
    if head in OUTPUTS:
        outputs = OUTPUTS[head](arguments.get("labels") or "1")
        inputs = 2 * units if units else hidden
        return _dense(HEADS[head], inputs, outputs) | lstm
    return {}


def _bilstm(hidden, units):
    """Four gates side by side, for each direction."""
    shapes = {}
    for direction in ("forward", "backward"):
        prefix = f"bilstm/both/{direction}_lstm/lstm_cell"
        shapes[f"{prefix}/kernel"] = (hidden, 4 * units)
        shapes[f"{prefix}/recurrent_kernel"] = (units, 4 * units)
        shapes[f"{prefix}/bias"] = (4 * units,)
    return shapes


def _norm(prefix, size):
    return {f"{prefix}/gamma": (size,), f"{prefix}/beta": (size,)}


def _dense(prefix, inputs, outputs):
    return {f"{prefix}/kernel": (inputs, outputs), f"{prefix}/bias": (outputs,)}
