"""Objectives of pre-training: models, targets, losses, metrics, predictions."""

import keras
import numpy as np
import tensorflow as tf

import bert_keras
from bert_keras.modeling.pretrainer import (
    CrossEntropy,
    causal_targets,
    pretraining_losses,
    pretraining_metrics,
)

BEST = 5  # number of predictions to show for a mask
MAX_MASKS = 3  # maximum number of masks to show in a text


class MaskedTokens:
    """Objective of `BertPretrainer`: predict masked tokens and next sentences.

    With `next_sentence=False`, the next-sentence head and the pooler are not
    trained.
    """

    model_class = bert_keras.BertPretrainer
    encoder_arguments = {}
    headline = "mlm"

    def __init__(self, next_sentence=True):
        self.next_sentence = next_sentence

    def build(self, encoder, examples_per_row=None):
        """Return a model with this encoder and `examples_per_row`."""
        return bert_keras.BertPretrainer(encoder, examples_per_row)

    def prepare(self, model):
        """Freeze the weights that this objective does not train."""
        if not self.next_sentence:
            model.nsp.trainable = False
            model.encoder.pooler.trainable = False

    def losses(self):
        """Return the losses for `compile`."""
        losses = pretraining_losses()
        return losses if self.next_sentence else {**losses, "nsp": None}

    def metrics(self):
        """Return the `weighted_metrics` for `compile`."""
        metrics = pretraining_metrics()
        metrics["mlm"] = [TokenAccuracy("accuracy"), Perplexity("perplexity")]
        return metrics if self.next_sentence else {**metrics, "nsp": []}

    def select(self, x, y, w):
        """Return inputs, targets and weights of a batch, unchanged."""
        return x, y, w

    def predict(self, model, batch, vocabulary):
        """Return texts of a batch with the predictions at their masks.

        Returns:
            list of dict, one for each text with [MASK]: "text" and "masks".
            "masks" has a dict for each of the first `MAX_MASKS` masks: "truth",
            the true token, and "predictions", a list of [token, probability].
        """
        x, y, w = batch
        logits = model(x, training=False)["mlm"].numpy()  # (B, M, V)
        mask_id = vocabulary.index("[MASK]")
        rows = []
        for row, ids in enumerate(x["token_ids"].numpy()):
            real = np.flatnonzero(w["mlm"].numpy()[row])
            positions = x["mask_positions"].numpy()[row]
            masks = [m for m in real if ids[positions[m]] == mask_id]
            truths = y["mlm"].numpy()[row]
            masks = [
                _rank(logits[row, m], truths[m], vocabulary)
                for m in masks[:MAX_MASKS]
            ]
            if masks:
                text = _join_tokens(ids, vocabulary)
                rows.append({"text": text, "masks": masks})
        return rows


class OneDirection:
    """Objective of `BertCausalModel`: predict the next or previous token.

    Nothing is masked (the paper, section 5.1).
    """

    model_class = bert_keras.BertCausalModel
    headline = "lm"

    def __init__(self, attention):
        self.attention = attention
        self.encoder_arguments = {"attention": attention}

    def build(self, encoder, examples_per_row=None):
        """Return a model with this encoder; `examples_per_row` is not used."""
        return bert_keras.BertCausalModel(encoder)

    def prepare(self, model):
        """Do nothing, because the step leaves out the unused pooler."""

    def losses(self):
        return CrossEntropy()

    def metrics(self):
        return [TokenAccuracy("lm_accuracy"), Perplexity("lm_perplexity")]

    def select(self, x, y, w):
        """Undo the masking; return inputs, targets and weights."""
        x = {k: v for k, v in x.items() if k != "mask_positions"} | {
            "token_ids": unmask(x, y["mlm"], w["mlm"])
        }
        ids, weights = causal_targets(x, self.attention)
        # Rows that only fill up the last batch get weight 0.
        is_real = tf.reduce_max(w["mlm"], axis=1, keepdims=True)  # (B, 1)
        return x, ids, weights * is_real

    def predict(self, model, batch, vocabulary):
        """Return parts of texts, and predictions of a next or previous token.

        [MASK] stands for this token. The format is `MaskedTokens.predict`'s.
        """
        x, y, w = batch
        logits = model(x, training=False).numpy()  # (B, T, V)
        rows = []
        for row, ids in enumerate(x["token_ids"].numpy()):
            real = np.flatnonzero(w.numpy()[row])
            if not len(real):
                continue
            position = int(real[len(real) // 2])
            if self.attention == "left_to_right":
                text = f"{_join_tokens(ids[: position + 1], vocabulary)} [MASK]"
            else:
                text = f"[MASK] {_join_tokens(ids[position:], vocabulary)}"
            truth = y.numpy()[row, position]
            mask = _rank(logits[row, position], truth, vocabulary)
            rows.append({"text": text, "masks": [mask]})
        return rows


OBJECTIVES = {
    "mlm+nsp": MaskedTokens(),
    "mlm": MaskedTokens(next_sentence=False),
    "left_to_right": OneDirection("left_to_right"),
    "right_to_left": OneDirection("right_to_left"),
}


def unmask(x, ids, weights):
    """Return the token ids with the true id at each position to predict."""
    # (B, M). At unused mask positions, with weight 0, the change must be 0.
    change = ids - tf.gather(x["token_ids"], x["mask_positions"], batch_dims=1)
    change *= tf.cast(weights > 0, ids.dtype)
    rows = tf.repeat(tf.range(tf.shape(ids)[0]), tf.shape(ids)[1])  # (B M,)
    columns = tf.reshape(x["mask_positions"], [-1])  # (B, M) -> (B M,)
    return tf.tensor_scatter_nd_add(
        x["token_ids"],
        tf.stack([rows, columns], axis=1),  # (B M, 2)
        tf.reshape(change, [-1]),  # (B, M) -> (B M,)
    )


def _join_tokens(ids, vocabulary):
    tokens = [vocabulary[token_id] for token_id in ids]
    tokens = [token for token in tokens if token not in ("[PAD]", "[CLS]")]
    return " ".join(tokens).replace(" ##", "")


def _rank(logits, truth, vocabulary):
    """Return the true token and the best predictions, from logits `(V,)`."""
    shifted = np.exp(logits - logits.max())
    probabilities = shifted / shifted.sum()
    best = np.argsort(-probabilities)[:BEST]
    return {
        "truth": vocabulary[truth],
        "predictions": [[vocabulary[i], float(probabilities[i])] for i in best],
    }


# `TokenAccuracy` and `Perplexity` are faster than Keras's metrics. Keras's
# accuracy first searches the logits for negative zeros. Keras's cross-entropy
# also computes a gradient. In small models, logits take much of the step time.


class TokenAccuracy(keras.metrics.Mean):
    """Fraction of positions where the true token has the highest logit.

    If several logits are equally high, the first counts as the highest, as in
    Keras's `SparseCategoricalAccuracy`.
    """

    def update_state(self, y_true, y_pred, sample_weight=None):
        hit = tf.equal(
            tf.argmax(y_pred, -1, tf.int32), tf.cast(y_true, "int32")
        )
        return super().update_state(tf.cast(hit, self.dtype), sample_weight)


class Perplexity(keras.metrics.Mean):
    """Perplexity: exp(mean cross-entropy)."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = tf.cast(y_true, "int32")
        # (..., V) -> (...)
        true = tf.gather(y_pred, y_true, axis=-1, batch_dims=len(y_true.shape))
        entropy = tf.reduce_logsumexp(y_pred, -1) - true
        return super().update_state(entropy, sample_weight)

    def result(self):
        return keras.ops.exp(super().result())
