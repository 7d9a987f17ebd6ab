"""Losses of a `BertEmbedder` for examples of several texts.

The losses compare vectors by their cosine, so the vectors' norms do not matter.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling.gradients import custom_gradient
from bert_keras.modeling.heads import normalize_vectors
from bert_keras.modeling.inputs import ShowsArguments


class _SimilarityLoss(ShowsArguments, keras.losses.Loss):
    """A loss on the vectors (B, K, D) of the K texts of each example.

    If a loss needs no labels, `y_true` may be None.
    """

    # For messages: the number K, and the arguments of `preprocess.each`.
    texts, columns = "2", "(firsts, seconds)"
    fewest, most = 2, 2.0  # minimum and maximum of K
    needs_labels = False
    # True if the loss of a row depends on other rows of the batch. With
    # micro-batches, the step then caches gradients.
    compares_rows = False

    def __call__(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        shape = y_pred.shape
        is_right = len(shape) == 3 and (
            shape[1] is None or self.fewest <= shape[1] <= self.most
        )
        if not is_right:
            raise InputError(
                f"{type(self).__name__} got vectors of shape {tuple(shape)}. "
                "Expected (B, K, D), where K, the number of texts in an "
                f"example, is {self.texts}. Make the inputs by "
                f"preprocess.each({self.columns})."
            )
        if y_true is None:
            if self.needs_labels:
                raise InputError(
                    f"{type(self).__name__} got no labels. Expected the target "
                    "cosine of each example. Make the inputs and labels by "
                    "preprocess.each((firsts, seconds), scores)."
                )
            y_true = ops.zeros_like(y_pred[:, 0, 0])
        return super().__call__(y_true, y_pred, sample_weight)


@keras.saving.register_keras_serializable("bert_keras")
class InBatchNegatives(_SimilarityLoss):
    """Cross entropy of finding each anchor's positive among the batch's texts.

    A row has an anchor, its positive (partner), and K - 2 hard negatives. The
    candidates are the positives and hard negatives of all rows of all replicas.
    The logits of a row are `scale` times the cosines of the row's anchor with
    the candidates. The label is the row's positive. This loss equals the loss
    of Henderson et al. 2017, section 4.4, with cosines instead of dot products.
    It also equals `MultipleNegativesRankingLoss` of sentence-transformers.

    A candidate other than the label is a false negative if its text equals the
    row's anchor, the row's positive, or the positive of a row with the same
    anchor. With `y_true`, the loss excludes false negatives.

    Args:
        scale: factor of the cosines, the inverse of a temperature.
        name: name of the loss.
        **kwargs: arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: None, or int (B, K), a number below 2**24 for each text. Equal
            texts have equal numbers. An array of another static shape is
            ignored. An array of unknown static width must have width K.
        y_pred: float (B, K, D) with K of 2 or more.

    Examples:
        >>> import numpy as np
        >>> from bert_keras import InBatchNegatives
        >>> vectors = np.array([[[1, 0], [0.8, 0.6]], [[0, 1], [0.6, 0.8]]])
        >>> round(float(InBatchNegatives(scale=20.0)(None, vectors)), 4)
        0.0181
    """

    texts = "2 or more"
    most = float("inf")
    compares_rows = True

    def __init__(
        self,
        scale: float = 20.0,
        name: str = "in_batch_negatives",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.scale = scale

    def call(self, y_true: Any, y_pred: Any) -> Any:
        vectors = normalize_vectors(y_pred)  # (B, K, D)
        # Candidates of the G rows of the global batch, (G, K - 1, D).
        others, before = _gather_replicas(vectors[:, 1:])
        count, width = ops.shape(others)[1:]
        candidates = ops.reshape(others, (-1, width))  # (G (K-1), D)
        # (B, D) times (D, G (K-1)) gives (B, G (K-1)).
        scores = ops.matmul(vectors[:, 0], ops.transpose(candidates))
        # Each row adds K - 1 candidates. The first of them is its positive.
        rows = before + ops.arange(ops.shape(y_pred)[0])
        labels = rows * count  # (B,)
        logits = self.scale * scores  # (B, G (K-1))
        if _has_text_numbers(y_true, y_pred):
            columns = ops.arange(ops.shape(logits)[1])
            is_label = ops.equal(columns, labels[:, None])  # (B, G (K-1))
            is_excluded = _is_false_negative(y_true) & ~is_label
            logits = ops.where(is_excluded, -1e9, logits)
        return ops.sparse_categorical_crossentropy(
            labels, logits, from_logits=True
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}


@keras.saving.register_keras_serializable("bert_keras")
class CosineRegression(_SimilarityLoss):
    """Squared difference between the cosine of two texts and their target.

    Equals `CosineSimilarityLoss` of sentence-transformers.

    Call arguments:
        y_true: float (B,) or (B, 1), the target cosines.
        y_pred: float (B, 2, D).

    Examples:
        >>> import numpy as np
        >>> from bert_keras import CosineRegression
        >>> vectors = np.array([[[1, 0], [0.6, 0.8]]])  # their cosine is 0.6
        >>> round(float(CosineRegression()([1.0], vectors)), 4)
        0.16
    """

    needs_labels = True

    def __init__(self, name: str = "cosine_regression", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        vectors = normalize_vectors(y_pred)  # (B, 2, D)
        cosines = ops.sum(vectors[:, 0] * vectors[:, 1], axis=-1)  # (B,)
        return ops.square(cosines - ops.reshape(y_true, (-1,)))


@keras.saving.register_keras_serializable("bert_keras")
class CoSENT(_SimilarityLoss):
    """Order of the cosines of all pairs of texts: that of their scores.

    The loss is log(1 + sum of exp(scale * (c - d))). The sum is over any two
    rows of all replicas, of which the row with cosine c has the lower score and
    the row with cosine d the higher score. Only the order of the scores counts.
    Equals `CoSENTLoss` of sentence-transformers.

    Args:
        scale: factor of the cosines, the inverse of a temperature.
        name: name of the loss.
        **kwargs: arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: float (B,) or (B, 1), the scores.
        y_pred: float (B, 2, D).

    Returns:
        The loss. Sample weights only multiply it by their mean, because a row
        has no loss of its own.

    Examples:
        >>> import numpy as np
        >>> from bert_keras import CoSENT
        >>> vectors = np.array([[[1, 0], [0.8, 0.6]], [[1, 0], [0.6, 0.8]]])
        >>> round(float(CoSENT(scale=20.0)([0.1, 0.9], vectors)), 4)
        4.0181
    """

    needs_labels = True
    compares_rows = True

    def __init__(
        self, scale: float = 20.0, name: str = "cosent", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.scale = scale

    def call(self, y_true: Any, y_pred: Any) -> Any:
        vectors = normalize_vectors(y_pred)  # (B, 2, D)
        cosines = ops.sum(vectors[:, 0] * vectors[:, 1], axis=-1)  # (B,)
        # The G rows of the global batch.
        cosines, _ = _gather_replicas(cosines)
        scores, _ = _gather_replicas(ops.reshape(y_true, (-1,)))
        # In row i and column j: the pair i has a lower score than the pair j.
        is_lower = scores[:, None] < scores  # (G, G)
        differences = self.scale * (cosines[:, None] - cosines)
        terms = ops.where(is_lower, differences, -1e9)
        # log(1 + e**x) is the softplus of x.
        loss = ops.softplus(ops.logsumexp(terms))
        return ops.broadcast_to(loss, ops.shape(y_pred)[:1])  # (B,)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}


@keras.saving.register_keras_serializable("bert_keras")
class Triplet(_SimilarityLoss):
    """Triplet loss on cosines.

    The loss is max(0, cos(anchor, negative) - cos(anchor, positive) + margin).
    It equals `TripletLoss` of sentence-transformers with its cosine distance,
    and the triplet loss of Schroff et al. 2015 with 1 - cosine as the distance.

    Args:
        margin: the loss is 0 if the positive's cosine exceeds the negative's
            cosine by at least this number.
        name: name of the loss.
        **kwargs: arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: not read; may be None.
        y_pred: float (B, 3, D), vectors of anchor, positive and negative.

    Examples:
        >>> import numpy as np
        >>> from bert_keras import Triplet
        >>> vectors = np.array([[[1, 0], [0.6, 0.8], [0.8, 0.6]]])
        >>> round(float(Triplet(margin=0.5)(None, vectors)), 4)
        0.7
    """

    texts, columns = "3", "(anchors, positives, negatives)"
    fewest, most = 3, 3.0

    def __init__(
        self, margin: float = 0.5, name: str = "triplet", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.margin = margin

    def call(self, y_true: Any, y_pred: Any) -> Any:
        vectors = normalize_vectors(y_pred)  # (B, 3, D)
        cosines = ops.sum(vectors[:, :1] * vectors[:, 1:], axis=-1)  # (B, 2)
        return ops.relu(cosines[:, 1] - cosines[:, 0] + self.margin)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "margin": self.margin}


@keras.saving.register_keras_serializable("bert_keras")
class Matryoshka(_SimilarityLoss):
    """Weighted sum of one loss on vectors that are cut to several sizes.

    After training, a vector cut to one of the sizes is about as good as the
    full vector of a model with this vector size (Kusupati et al. 2022). The
    loss equals `MatryoshkaLoss` of sentence-transformers.

    Args:
        loss: one of the other losses in this module.
        dims: list of sizes. A size is the number of first values that are kept.
        weights: list of a factor for each size; None for factors of 1.
        name: name of the loss.
        **kwargs: arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: as for `loss`.
        y_pred: float (B, K, D), D at least the largest of `dims`.

    Raises:
        InputError: `loss` is not a loss of this module, or `dims` or `weights`
            is invalid.

    Examples:
        >>> import numpy as np
        >>> from bert_keras import CosineRegression, Matryoshka
        >>> vectors = np.array([[[1, 0], [0.6, 0.8]]])
        >>> loss = Matryoshka(CosineRegression(), dims=[2, 1])
        >>> round(float(loss([0.0], vectors)), 4)  # 0.6**2 + 1.0**2
        1.36
    """

    def __init__(
        self,
        loss: _SimilarityLoss,
        dims: Sequence[int],
        weights: Sequence[float] | None = None,
        name: str = "matryoshka",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if not isinstance(loss, _SimilarityLoss):
            raise InputError(
                f"loss is {loss!r}. Expected a loss on vectors, such as "
                "InBatchNegatives()."
            )
        self.loss, self.dims = loss, list(dims)
        self.weights = [1.0] * len(self.dims) if weights is None else weights
        is_size = all(type(dim) is int and dim > 0 for dim in self.dims)
        if not self.dims or not is_size or len(self.weights) != len(self.dims):
            raise InputError(
                f"dims is {dims} and weights is {weights}. Expected whole "
                "numbers above 0 in dims, and as many weights as dims."
            )
        self.texts, self.fewest, self.most = loss.texts, loss.fewest, loss.most
        self.needs_labels, self.columns = loss.needs_labels, loss.columns
        self.compares_rows = loss.compares_rows

    def call(self, y_true: Any, y_pred: Any) -> Any:
        width = y_pred.shape[-1]
        if max(self.dims) > width:
            raise InputError(
                f"dims is {self.dims}. Expected at most {width}, the size of "
                "the model's vectors."
            )
        # The cut vectors need no normalization, because the loss uses cosines.
        return sum(
            weight * self.loss.call(y_true, y_pred[..., :dim])
            for dim, weight in zip(self.dims, self.weights, strict=True)
        )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "loss": keras.saving.serialize_keras_object(self.loss),
            "dims": self.dims,
            "weights": self.weights,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Matryoshka":
        loss = keras.saving.deserialize_keras_object(config["loss"])
        return cls(**{**config, "loss": loss})


def _has_text_numbers(y_true, y_pred):
    """Return True if the static shape of `y_true` allows a number per text."""
    if len(y_true.shape) != 2 or y_true.shape[1] == 1:  # a label per example
        return False
    widths = y_true.shape[1], y_pred.shape[1]
    return None in widths or widths[0] == widths[1]


def _is_false_negative(numbers):
    """Return bool (B, G (K-1)): True at false negatives and at the label.

    The global batch has G rows. A row has K texts: an anchor, its positive, and
    hard negatives. The candidates are the positives and hard negatives of all
    rows. A false negative of a row equals the row's anchor, the row's positive,
    or the positive of a row with the same anchor.

    Args:
        numbers: whole numbers (B, K) of any dtype, one for each text. Equal
            texts have equal numbers.
    """
    every, _ = _gather_replicas(numbers)  # (G, K)
    same_anchor = ops.equal(numbers[:, :1], every[:, 0])  # (B, G)
    candidates = ops.reshape(every[:, 1:], (-1,))  # (G (K-1),)
    is_its_positive = ops.equal(every[:, 1:2], candidates)  # (G, G (K-1))
    factors = (ops.cast(x, "float32") for x in (same_anchor, is_its_positive))
    is_positive = ops.matmul(*factors) > 0  # (B, G) by (G, G (K-1))
    # Texts that equal the anchor are not negatives: their cosine is about 1.
    return is_positive | ops.equal(numbers[:, :1], candidates)


def _gather_replicas(vectors):
    """Return the global batch, and the index of this replica's first row in it.

    On JAX, `vectors` already is the global batch.
    """
    if keras.backend.backend() != "tensorflow":
        return vectors, 0
    import tensorflow as tf

    from bert_keras.training.optimizers_tensorflow import sum_over_replicas

    context = tf.distribute.get_replica_context()
    # The context is None when Keras builds the loss outside of any replica.
    if context is None or context.num_replicas_in_sync == 1:
        return vectors, 0
    # Pad this replica's rows with zeros to the global batch size, and sum over
    # the replicas. `all_gather` would register a gradient function, which would
    # keep the graph and the weights in memory until the process ends.
    number, replicas = (
        context.replica_id_in_sync_group,
        context.num_replicas_in_sync,
    )
    count = tf.shape(vectors)[0]
    counts = tf.one_hot(number, replicas, on_value=count, dtype="int32")  # (R,)
    [counts] = sum_over_replicas([counts])
    before = tf.cumsum(counts, exclusive=True)[number]
    after = tf.reduce_sum(counts) - before - count
    padding = [[before, after], *[[0, 0]] * (len(vectors.shape) - 1)]

    @custom_gradient
    def gather(x):
        def gradient(upstream):
            return sum_over_replicas([upstream])[0]

        return sum_over_replicas([x])[0], gradient

    return gather(tf.pad(vectors, padding)), before
