"""What the live model answers to ids, and the tokenizer to texts: `live.py`."""

import numpy as np
import tensorflow as tf

from bert_keras.modeling.chooser import BertChooser
from bert_keras.serving.ids import INPUTS, OURS, output_names, outputs_of
from bert_keras.serving.live_rows import difference, framed


def request(model, preprocessor, style, texts):
    """The texts as a request of ids: input name -> rows, filled up with 0."""
    rows = [
        framed(preprocessor, np.array(preprocessor.tokenizer(t))) for t in texts
    ]
    width = max(row["token_ids"].shape[1] for row in rows)
    values = {}
    for ours, name in zip(OURS, INPUTS[style], strict=True):
        values[name] = [
            np.pad(row[ours][0], (0, width - row[ours].shape[1])).tolist()
            for row in rows
        ]
    if isinstance(model, BertChooser):
        return {
            k: [[row, rows[0]] for row in rows] for k, rows in values.items()
        }
    return values


def ids(model, preprocessor, options, answer, *inputs):
    """Compares every output; those with a token axis at real tokens."""
    style = options["ids_signature"]
    tensors = [tf.constant(rows, tf.int32) for rows in inputs]
    outputs = outputs_of(model, dict(zip(OURS, tensors, strict=True)), style)
    names = output_names(model, style)
    if set(answer) != set(names):
        return np.inf
    real = np.array(inputs[1], bool)  # the padding mask, (B, T)
    per_token = [*model.token_outputs, "mlm"]  # scored at every position here
    worst = 0.0
    for ours, name, live in zip(
        output_names(model, "ours"), names, outputs, strict=True
    ):
        served, live = answer[name], np.asarray(live)
        if ours in per_token and served.shape == live.shape:
            served, live = served[real], live[real]
        worst = max(worst, difference(served, live))
    return worst


def tokenize(model, preprocessor, options, answer, texts):
    """0 where ids, pieces and offsets are those of the live tokenizer."""
    tokenizer = preprocessor.tokenizer
    pieces = np.array(tokenizer.vocabulary)
    for row, text in enumerate(texts):
        live = [np.array(x) for x in tokenizer.tokenize_with_offsets(text)]
        count = answer["count"][row]
        served = [
            answer[key][row, :count] for key in ("token_ids", "start", "end")
        ]
        if not all(map(np.array_equal, served, live)):
            return np.inf
        named = np.char.encode(pieces[live[0]], "utf-8")
        if not np.array_equal(answer["pieces"][row, :count], named):
            return np.inf
    return 0.0
