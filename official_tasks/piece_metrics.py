"""Figures of guessed pieces, at a fraction of the cost of Keras's own.

A step of a small model spends much of its time on logits over all pieces:
Keras's accuracy looks for negative zeros in them first, and its cross-entropy
computes a gradient too.
"""

import keras
import tensorflow as tf


class PieceAccuracy(keras.metrics.Mean):
    """Share of places where the true piece has the highest logit; of equal
    ones the first counts, as in Keras's `SparseCategoricalAccuracy`."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        hit = tf.equal(
            tf.argmax(y_pred, -1, tf.int32), tf.cast(y_true, "int32")
        )
        return super().update_state(tf.cast(hit, self.dtype), sample_weight)


class Perplexity(keras.metrics.Mean):
    """e to the mean cross-entropy: among how many pieces it still wavers."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = tf.cast(y_true, "int32")
        true = tf.gather(y_pred, y_true, axis=-1, batch_dims=len(y_true.shape))
        entropy = tf.reduce_logsumexp(y_pred, -1) - true
        return super().update_state(entropy, sample_weight)

    def result(self):
        return keras.ops.exp(super().result())
