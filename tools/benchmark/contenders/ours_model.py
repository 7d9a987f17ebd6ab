"""This package's model and rows, for the scripts that measure it."""

import numpy as np
from examples import SIZES, VOCABULARY


def pretrainer(settings, examples_per_row=None, jit=None):
    """A `BertPretrainer` compiled with AdamW, by the settings of a row.

    Args:
        settings: "size", "dtype", "dropout" and, where it differs from it,
            "attention_dropout".
        examples_per_row: of packed rows; None for others.
        jit: Keras's `jit_compile`; what the settings say where None.
    """
    import bert_keras
    from bert_keras.modeling.pretrainer import pretraining_losses

    layers, width, heads = SIZES[settings["size"]]
    rate = settings["dropout"]
    encoder = bert_keras.BertEncoder(
        VOCABULARY,
        layers,
        heads,
        width,
        4 * width,
        dropout=rate,
        attention_dropout=settings.get("attention_dropout", rate),
        dtype=settings["dtype"],
    )
    model = bert_keras.BertPretrainer(encoder, examples_per_row)
    model.compile(
        bert_keras.adamw(1e-4, steps=1_000_000, bias_correction=True),
        pretraining_losses(),
        jit_compile=settings.get("jit", False) if jit is None else jit,
    )
    return model


def packed_rows(settings):
    """Examples of the lengths given, several to a row.

    Filled and masked as the pre-training pipeline does it.

    Returns:
        `((inputs, labels, weights), examples, examples_per_row)`: `examples`
        is the share of all examples that the rows stand for.
    """
    from bert_keras.data.examples import fill_rows, masked_rows
    from bert_keras.data.sampling import SamplingRules

    length, rows = settings["length"], settings["batch"]
    rules = SamplingRules(length, max(1, length * 15 // 100), packed=True)
    random = np.random.default_rng(0)
    lengths = np.asarray(settings["lengths"])
    order, row, whole = fill_rows(
        lengths, length, rules.examples_per_row, random
    )
    lengths = lengths[order]

    def examples(numbers, width):
        inside = np.arange(width) < lengths[numbers, None]  # (n, width)
        ids = random.integers(1000, VOCABULARY, inside.shape) * inside
        return {
            "token_ids": ids.astype("int32"),
            "segment_ids": np.zeros_like(ids, "int32"),
            "padding_mask": inside.astype("int32"),
            "next_sentence_labels": random.integers(0, 2, len(ids)),
        }

    packed = masked_rows(
        lengths, row, whole, examples, rules, _pieces(), random
    )
    # Evenly from all rows, and again where they do not suffice.
    chosen = np.linspace(0, whole, rows, endpoint=False).astype(int)
    packed = {name: values[chosen] for name, values in packed.items()}
    names = ("token_ids", "segment_ids", "padding_mask", "position_ids")
    x = {n: packed[n] for n in (*names, "example_ids", "mask_positions")}
    y = {"mlm": packed["mask_ids"], "nsp": packed["next_sentence_labels"]}
    w = {"mlm": packed["mask_weights"], "nsp": packed["example_weights"]}
    return (x, y, w), len(lengths) * rows / whole, rules.examples_per_row


def _pieces():
    from bert_keras.data.sampling import Pieces

    special = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    return Pieces([*special, *map(str, range(4, VOCABULARY))])
