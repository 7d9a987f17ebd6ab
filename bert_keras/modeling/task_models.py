"""The models for fine-tuning: each is an encoder with a head.

Pre-training has pretrainer.py, and the model of vectors has embedder.py.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import (
    LogitsHead,
    check_labels,
    check_long_text,
)
from bert_keras.modeling.inputs import INPUT_NAMES
from bert_keras.modeling.task_base import (
    TaskModel,
    encode,
    fold,
    symbolic_inputs,
    unfold,
)

# Poolings of a recipe's vectors. "pooled" is not among them, because the pooler
# reads the last layer only.
FEATURE_POOLINGS = ("mean", "max", "cls", "last")


@keras.saving.register_keras_serializable("bert_keras")
class BertClassifier(TaskModel):
    """One dense layer on the pooled output, with dropout before it.

    Equals `create_model` of the original's `run_classifier.py`. On an encoder
    with `attention="left_to_right"` the layer reads the last token's vector,
    unless `bilstm_dim` or `recipe` is set.

    With `recipe` the model is the paper's feature-based approach (section 5.3).
    The dense layer reads pooled features. The encoder runs without dropout, and
    `fit` does not train it. `from_preset` also freezes the encoder. To save the
    optimizer's memory for an encoder that you pass, set its `trainable` to
    False before `compile`.

    Weights, by path: the encoder's, classifier/{kernel,bias}; with
    `bilstm_dim`, also the weights of `BiLSTM` under bilstm/; with a `recipe`
    that is a weighted sum, also features/{mix,scale}.

    Args:
        encoder: a `BertEncoder`.
        labels: names of the classes, in the order of the logits; None for
            ranking and for regression with one output. Regression with several
            outputs needs a name for each.
        problem: "single" (one label per text), "multi" (any number of labels
            per text), "regression", or "ranking" (one score: how well a
            passage, the second text, answers a query, the first text). Logits
            are computed in the same way for all problems. The outputs of
            exports and the settings in a preset depend on the problem. Pass a
            loss that fits the problem to `compile`.
        dropout: fraction of the pooled output dropped; None: the encoder's.
        bilstm_dim: width of each direction of a new bidirectional LSTM. The
            dense layer reads the LSTM's vector of [CLS]. None: no LSTM.
        examples_per_row: maximum number of examples in a packed row, E; None
            if rows are not packed.
        pair: True if each row of the training data had two texts. Exports
            read this argument; the logits do not depend on it.
        thresholds: for "multi" and "single", a number above 0 and below 1 for
            each label. A text gets the labels whose probability is at least
            their threshold; None: 0.5 for each. For "single", an answer whose
            probability is below its label's threshold is unsure; None: no
            answer is. Exports read this argument; the logits do not depend on
            it.
        recipe: name of the recipe that makes features from layers of the
            encoder, such as "concat_last_four" or "concat:-1,-2"; None to
            fine-tune the encoder.
        pooling: with `recipe`, the pooling of the features of a text's tokens:
            "mean" (also if None), "max", "cls" or "last".
        long_text: "windows" if the model was trained on windows of texts that
            are longer than a row, otherwise "truncate". Exports read this
            argument; the logits do not depend on it.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`, and for
            packed rows `position_ids` and `example_ids`, int32 (B, T); or
            only the token ids.

    Returns:
        float32 (B, C), logits; of packed rows (B, E, C).

    Raises:
        InputError: an argument is invalid, a BiLSTM is combined with a recipe,
            or packed rows are combined with a BiLSTM, a recipe or left-to-right
            attention.

    Examples:
        >>> from bert_keras import BertClassifier
        >>> preset, labels = "bert_keras_mini_en", ["no", "yes"]
        >>> model = BertClassifier.from_preset(preset, labels=labels)
        >>> print(model([[2, 45, 3]]).shape)
        (1, 2)
    """

    def __init__(
        self,
        encoder: BertEncoder,
        labels: Sequence[str] | None = None,
        problem: str = "single",
        dropout: float | None = None,
        bilstm_dim: int | None = None,
        examples_per_row: int | None = None,
        pair: bool = False,
        thresholds: Sequence[float] | None = None,
        recipe: str | None = None,
        pooling: str | None = None,
        long_text: str = "truncate",
        name: str = "classifier_model",
    ) -> None:
        self.encoder = encoder
        # None for ranking and for regression with one output. With Any, a type
        # checker does not ask for a check where there always are labels.
        self.labels: list[str] | Any = check_labels(labels, problem)
        self.thresholds = _check_thresholds(thresholds, self.labels, problem)
        if bilstm_dim and examples_per_row:
            raise InputError(
                f"examples_per_row is {examples_per_row} and `bilstm_dim` is "
                f"{bilstm_dim}. The LSTM would read from one example into "
                "the next. Pass only one of the two arguments."
            )
        self.pooling = _check_recipe(
            recipe, pooling, bilstm_dim or examples_per_row
        )
        self.problem = problem
        self.dropout = encoder.dropout if dropout is None else dropout
        self.bilstm_dim = bilstm_dim
        self.recipe = recipe
        # With left-to-right attention, [CLS] attends only to itself. The last
        # token attends to all tokens, so the classifier reads its vector. The
        # paper, section 5.1, does not say which token its model uses.
        reads_last = encoder.attention == "left_to_right"
        reads_last = reads_last and not (bilstm_dim or recipe)
        if reads_last and examples_per_row:
            raise InputError(
                f"examples_per_row is {examples_per_row}, but with "
                "left_to_right attention the classifier reads the last token "
                "of a row. Leave examples_per_row out."
            )
        # False if the classifier does not read the encoder's pooled output.
        self.pools = not (bilstm_dim or recipe or reads_last)
        self.examples_per_row = examples_per_row
        check_long_text(long_text, pair)
        self.pair, self.long_text = pair, long_text
        self.classifier = LogitsHead(
            # Without labels there is one output, a score.
            len(self.labels or "1"),
            self.dropout,
            name="classifier",
            dtype=encoder.dtype_policy,
        )
        inputs = symbolic_inputs(packed=examples_per_row is not None)
        encoded = encode(
            encoder,
            inputs,
            bilstm_dim,
            examples_per_row,
            recipe,
            "last" if reads_last else self.pooling,
        )
        # (B, D) to (B, C); of packed rows (B, E, D) to (B, E, C)
        logits = self.classifier(encoded["pooled_output"])
        super().__init__(inputs, logits, encoder, name)

    def reads_pairs(self) -> bool:
        # A row to rank is a query and a passage.
        return self.pair or self.problem == "ranking"

    def default_losses(self) -> dict[str, Any]:
        if self.problem == "single":
            return _classify()
        if self.problem == "regression":
            loss: Any = keras.losses.MeanSquaredError()
            metric: Any = keras.metrics.MeanAbsoluteError(name="mae")
        else:  # for "ranking" the label is 1 for a passage that answers
            loss = keras.losses.BinaryCrossentropy(from_logits=True)
            metric = keras.metrics.BinaryAccuracy("accuracy", threshold=0)
        return {"loss": loss, "weighted_metrics": [metric]}

    def predict_labels(self, texts: Any, batch_size: int = 32) -> list[dict]:
        """Return the label of each text, or its labels, and probabilities.

        Args:
            texts: what the model's `preprocessor` takes: texts (N,), or a tuple
                of two such batches; or ids.
            batch_size: number of rows in a batch.

        Returns:
            A dict for each row: "label" (with `thresholds` also "unsure"), or
            for problem="multi" the list "labels"; and "probabilities", a dict
            of label -> probability.

        Raises:
            InputError: the problem has no classes.
        """
        if self.labels is None or self.problem == "regression":
            raise InputError(
                f"A model with problem={self.problem!r} has no classes. Call "
                "predict, which returns its values."
            )
        logits = self.predict(texts, batch_size=batch_size, verbose=0)
        if self.problem == "single":
            values = np.exp(logits - logits.max(-1, keepdims=True))
            values /= values.sum(-1, keepdims=True)  # (N, C)
        else:
            values = 0.5 * (1 + np.tanh(logits / 2))  # the sigmoid, (N, C)
        answers = []
        for row in values:
            named = dict(zip(self.labels, map(float, row), strict=True))
            if self.problem == "single":
                best = row.argmax()
                found: dict = {"label": self.labels[best]}
                if self.thresholds:
                    found["unsure"] = bool(row[best] < self.thresholds[best])
            else:
                limits = self.thresholds or [0.5] * len(row)
                pairs = zip(self.labels, row >= limits, strict=True)
                found = {"labels": [name for name, is_in in pairs if is_in]}
            answers.append({**found, "probabilities": named})
        return answers


def _classify():
    return {
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "weighted_metrics": [
            keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        ],
    }


def _check_recipe(recipe, pooling, others=None):
    """Return `pooling`, by default "mean", or None if there is no recipe.

    `others` is `bilstm_dim` or `examples_per_row`, if the caller set one.

    Raises:
        InputError: `recipe` and `others` are both set, or `pooling` is invalid
            or set without `recipe`.
    """
    if recipe and others:
        raise InputError(
            f"`recipe` is {recipe!r}, so the dense layer reads pooled "
            "features. Leave `bilstm_dim` and `examples_per_row` out."
        )
    if pooling and not (recipe and pooling in FEATURE_POOLINGS):
        raise InputError(
            f"`pooling` is {pooling!r} and `recipe` is {recipe!r}. `pooling` "
            "only applies with a recipe, and must be one of "
            f"{', '.join(FEATURE_POOLINGS)}."
        )
    return (pooling or "mean") if recipe else None


def _check_thresholds(thresholds, labels, problem):
    if thresholds is None:
        return None
    if (
        problem not in ("multi", "single")
        or len(thresholds) != len(labels)
        or not all(0 < threshold < 1 for threshold in thresholds)
    ):
        raise InputError(
            f"thresholds is {thresholds}. Expected a number above 0 and below "
            '1 for each label, with problem="multi" or "single".'
        )
    return [float(threshold) for threshold in thresholds]


@keras.saving.register_keras_serializable("bert_keras")
class BertSpanPredictor(TaskModel):
    """Logits of the start and of the end of an answer, for each token.

    Padding and the question get logits too. Exports leave them out of answers.
    Equals `create_model` of the original's `run_squad.py`. The original's loss
    is the mean of two cross entropies: `compile(loss=span_losses(),
    loss_weights={"start": 0.5, "end": 0.5})`.

    Weights, by path: the encoder's, span/{kernel,bias} (start, end); with
    `bilstm_dim`, also the weights of `BiLSTM` under bilstm/.

    Args:
        encoder: a `BertEncoder`.
        bilstm_dim: width of each direction of a new bidirectional LSTM before
            the head, or None.
        may_be_none: True if some questions in training had no answer. Exports
            read this argument; the logits do not depend on it.
        null_threshold: with `may_be_none`, "no answer" is predicted if its
            score exceeds the best answer's score by more than this number.
            Exports read this argument; the logits do not depend on it.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`,
            int32 (B, T); or only the token ids.

    Returns:
        dict of `start` and `end`, float32 (B, T), logits.

    Examples:
        >>> from bert_keras import BertSpanPredictor
        >>> model = BertSpanPredictor.from_preset("bert_keras_mini_en")
        >>> print(model([[2, 45, 3]])["start"].shape)
        (1, 3)
    """

    pools = False
    token_outputs = ("start", "end")

    def __init__(
        self,
        encoder: BertEncoder,
        bilstm_dim: int | None = None,
        may_be_none: bool = False,
        null_threshold: float = 0.0,
        name: str = "span_predictor",
    ) -> None:
        self.encoder = encoder
        self.bilstm_dim = bilstm_dim
        self.may_be_none = may_be_none
        self.null_threshold = float(null_threshold)
        self.span = LogitsHead(2, name="span", dtype=encoder.dtype_policy)
        inputs = symbolic_inputs()
        encoded = encode(encoder, inputs, bilstm_dim)
        # The kernel's two columns are S and E of the paper, section 4.2.
        logits = self.span(encoded["sequence_output"])  # (B, T, 2)
        outputs = {"start": logits[..., 0], "end": logits[..., 1]}  # (B, T)
        super().__init__(inputs, outputs, encoder, name)

    def reads_pairs(self) -> bool:
        return True  # a question and a context

    def default_losses(self) -> dict[str, Any]:
        weights = {"start": 0.5, "end": 0.5}
        return {"loss": span_losses(), "loss_weights": weights}


def span_losses():
    """Return a dict of output name -> loss for `compile`.

    Each loss is the cross entropy over the tokens of a row.
    """
    return {
        name: keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        for name in ("start", "end")
    }


@keras.saving.register_keras_serializable("bert_keras")
class BertTagger(TaskModel):
    """One dense layer on every token's vector, with dropout before it.

    Sample weights (B, T) select the tokens in the loss, such as the first word
    piece of each word. For packed rows, pass `position_ids` and `example_ids`.
    The constructor needs no argument for packed rows.

    Weights, by path: the encoder's, tagger/{kernel,bias}; with `bilstm_dim`,
    also the weights of `BiLSTM` under bilstm/.

    Args:
        encoder: a `BertEncoder`.
        labels: names of the classes, in the order of the logits.
        dropout: fraction of a vector's values dropped; None: the encoder's.
        bilstm_dim: width of each direction of a new bidirectional LSTM before
            the head, or None. Packed rows need None.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`, and for
            packed rows `position_ids` and `example_ids`, int32 (B, T); or
            only the token ids.

    Returns:
        float32 (B, T, C), logits.

    Raises:
        InputError: labels are missing, repeated or not strings.

    Examples:
        >>> from bert_keras import BertTagger
        >>> labels = ["O", "B-PER"]
        >>> model = BertTagger.from_preset("bert_keras_mini_en", labels=labels)
        >>> print(model([[2, 45, 3]]).shape)
        (1, 3, 2)
    """

    pools = False
    token_outputs = ("logits",)

    def __init__(
        self,
        encoder: BertEncoder,
        labels: Sequence[str] = (),
        dropout: float | None = None,
        bilstm_dim: int | None = None,
        name: str = "tagger_model",
    ) -> None:
        self.encoder = encoder
        self.labels: list[str] = check_labels(labels)
        self.dropout = encoder.dropout if dropout is None else dropout
        self.bilstm_dim = bilstm_dim
        self.tagger = LogitsHead(
            len(self.labels),
            self.dropout,
            name="tagger",
            dtype=encoder.dtype_policy,
        )
        inputs = symbolic_inputs(packed=bilstm_dim is None)
        encoded = encode(encoder, inputs, bilstm_dim)
        logits = self.tagger(encoded["sequence_output"])  # (B, T, C)
        super().__init__(inputs, logits, encoder, name)

    def default_losses(self) -> dict[str, Any]:
        return _classify()


@keras.saving.register_keras_serializable("bert_keras")
class BertChooser(TaskModel):
    """One score for each of K choices, for a softmax over the choices.

    Each row is a pair: the example's first text and one choice. A dense layer
    on the row's pooled output computes the score, with dropout before
    this layer (the paper, section 4.4). With `recipe`, the layer reads pooled
    features of an encoder that is not trained. Without `recipe`, on an encoder
    with `attention="left_to_right"`, it reads the last token's vector.

    Weights, by path: the encoder's, chooser/{kernel,bias}; with a `recipe` that
    is a weighted sum, also features/{mix,scale}.

    Args:
        encoder: a `BertEncoder`.
        dropout: fraction of the pooled output dropped; None: the encoder's.
        recipe: see `BertClassifier`.
        pooling: see `BertClassifier`.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`,
            int32 (B, K, T); or only the token ids.

    Returns:
        float32 (B, K), logits.

    Raises:
        InputError: `recipe` or `pooling` is invalid.

    Examples:
        >>> from bert_keras import BertChooser
        >>> model = BertChooser.from_preset("bert_keras_mini_en")
        >>> print(model([[[2, 45, 3], [2, 6, 3]]]).shape)
        (1, 2)
    """

    reads_texts = False  # a row has several texts

    def __init__(
        self,
        encoder: BertEncoder,
        dropout: float | None = None,
        recipe: str | None = None,
        pooling: str | None = None,
        name: str = "chooser_model",
    ) -> None:
        self.encoder = encoder
        self.recipe = recipe
        self.pooling = _check_recipe(recipe, pooling)
        # With left-to-right attention, [CLS] attends only to itself. The last
        # token attends to all tokens.
        reads_last = encoder.attention == "left_to_right" and not recipe
        self.pools = not (recipe or reads_last)
        self.dropout = encoder.dropout if dropout is None else dropout
        self.chooser = LogitsHead(
            1, self.dropout, name="chooser", dtype=encoder.dtype_policy
        )
        inputs = {
            key: keras.Input(
                (None, None),
                dtype="int32",
                name=key,
                optional=key != "token_ids",
            )
            for key in INPUT_NAMES[:3]
        }
        rows = _RowPerChoice(name="rows")(inputs)  # (B, K, T) to (B K, T)
        pooling = "last" if reads_last else self.pooling
        encoded = encode(encoder, rows, recipe=recipe, pooling=pooling)
        scores = self.chooser(encoded["pooled_output"])  # (B K, 1)
        # Without `dtype`, the layer would use Keras's global policy. A
        # half-precision policy would round the logits.
        choices = _ChoicesOfRows(
            name="choices", dtype=self.chooser.dtype_policy.name
        )
        logits = choices(scores, inputs["token_ids"])  # (B, K)
        super().__init__(inputs, logits, encoder, name)

    def default_losses(self) -> dict[str, Any]:
        return _classify()


class _RowPerChoice(keras.layers.Layer):
    """Layer that reshapes inputs to (B K, T) and adds missing inputs."""

    def call(self, inputs):
        ids = inputs["token_ids"]
        inputs = {
            "token_ids": ids,
            "segment_ids": ops.zeros_like(ids),
            "padding_mask": ops.ones_like(ids),
            **{name: x for name, x in inputs.items() if x is not None},
        }
        return fold(inputs)  # (B K, T)

    def compute_output_spec(self, inputs):
        length = inputs["token_ids"].shape[-1]
        return {
            name: keras.KerasTensor((None, length), dtype="int32")
            for name in INPUT_NAMES[:3]
        }


class _ChoicesOfRows(keras.layers.Layer):
    """Layer that reshapes scores (B K, 1) to (B, K)."""

    def call(self, scores, token_ids):
        return unfold(scores, token_ids)  # (B, K)

    def compute_output_spec(self, scores, token_ids):
        return keras.KerasTensor(token_ids.shape[:2], dtype=scores.dtype)
