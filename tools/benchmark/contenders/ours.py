"""This package: one pre-training step by `train_on_batch`."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from examples import dense_rows
from ours_model import pretrainer
from worker import serve


def prepare(settings):
    import tensorflow as tf

    model = pretrainer(settings)
    x, y = tf.nest.map_structure(tf.constant, dense_rows(settings))
    return (lambda: model.train_on_batch(x, y)), settings["batch"]


serve(prepare)
