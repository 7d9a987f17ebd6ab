"""This package: one pre-training step of rows that hold several examples."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from ours_model import packed_rows, pretrainer
from worker import serve


def prepare(settings):
    import tensorflow as tf

    batch, examples, per_row = packed_rows(settings)
    model = pretrainer(settings, per_row)
    batch = tf.nest.map_structure(tf.constant, batch)
    return (lambda: model.train_on_batch(*batch)), examples


serve(prepare)
