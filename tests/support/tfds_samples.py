"""Toy data sets in the files of TensorFlow Datasets."""

import random

import tensorflow_datasets as tfds


def write(name, splits):
    """Write rows of each split as the data set `name`, two to a file."""
    builder = tfds.builder(name)
    builder.data_path.mkdir(parents=True)
    writer = tfds.core.SequentialWriter(builder.info, 2)
    writer.initialize_splits(list(splits))
    for split, rows in splits.items():
        rows = [row for _, row in rows]
        random.Random(0).shuffle(rows)  # as TFDS does when it prepares
        writer.add_examples({split: rows})
    writer.close_all()
    return builder


def store(folder, rows, features):
    """Write rows, a list of dicts, as the train split of a data set.

    Args:
        folder: folder to write to.
        rows: list of dicts with the same keys.
        features: dict of key -> TFDS feature.

    Returns:
        the name of the rows, `tfds:FOLDER#train`.
    """
    builder = tfds.dataset_builders.store_as_tfds_dataset(
        "toy",
        "1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={"train": list(enumerate(rows))},
        data_dir=folder,
        disable_shuffling=True,
    )
    return f"tfds:{builder.data_dir}#train"
