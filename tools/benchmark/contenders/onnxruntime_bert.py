"""ONNX Runtime and the `tokenizers` package as a contender."""

import json
import os

import numpy as np


def classify(settings):
    """Texts to the first one's probabilities, from tools/export.py's files."""
    import onnxruntime
    from tokenizers import BertWordPieceTokenizer

    folder = settings["folder"]
    with open(os.path.join(folder, "tokenizer_settings.json")) as file:
        text = json.load(file)
    tokenizer = BertWordPieceTokenizer(
        os.path.join(folder, "vocab.txt"), lowercase=text["lowercase"]
    )
    tokenizer.enable_padding(pad_id=text["ids"]["pad"])
    tokenizer.enable_truncation(text["sequence_length"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    session = onnxruntime.InferenceSession(
        os.path.join(folder, "model.onnx"),
        options,
        providers=["CPUExecutionProvider"],
    )

    def run(texts):
        rows = tokenizer.encode_batch(texts)
        inputs = {
            "token_ids": [row.ids for row in rows],
            "segment_ids": [row.type_ids for row in rows],
            "padding_mask": [row.attention_mask for row in rows],
        }
        inputs = {name: np.array(v, "int32") for name, v in inputs.items()}
        (logits,) = session.run(None, inputs)
        shifted = np.exp(logits - logits.max(-1, keepdims=True))
        return (shifted / shifted.sum(-1, keepdims=True))[0].tolist()

    return run, 1
