"""The same numbers for every contender: sizes of models, random examples."""

import numpy as np

# Layers, width, heads.
SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
VOCABULARY = 30_522


def pretraining_batch(batch, length, predictions):
    """Random ids in dense rows, by the names of the original's features.

    Returns:
        dict of int32 arrays, `(batch, length)` or `(batch, predictions)`.
    """
    random = np.random.default_rng(0)
    ids = random.integers(1000, VOCABULARY, (batch, length))
    places = np.stack(
        [
            np.sort(random.permutation(length)[:predictions])
            for _ in range(batch)
        ]
    )
    arrays = {
        "input_ids": ids,
        "segment_ids": random.integers(0, 2, (batch, length)),
        "input_mask": np.ones((batch, length)),
        "masked_lm_positions": places,
        "masked_lm_ids": np.take_along_axis(ids, places, axis=1),
        "next_sentence_labels": random.integers(0, 2, (batch,)),
    }
    return {name: array.astype("int32") for name, array in arrays.items()}


def dense_rows(settings):
    """(inputs, labels) of `pretraining_batch`, by our and keras-hub's names."""
    batch = pretraining_batch(
        settings["batch"], settings["length"], settings["predictions"]
    )
    x = {
        "token_ids": batch["input_ids"],
        "segment_ids": batch["segment_ids"],
        "padding_mask": batch["input_mask"],
        "mask_positions": batch["masked_lm_positions"],
    }
    return x, {
        "mlm": batch["masked_lm_ids"],
        "nsp": batch["next_sentence_labels"],
    }
