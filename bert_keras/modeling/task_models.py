"""The task models: an encoder below, a head on top, a functional graph.

Those of pre-training are in pretrainer.py.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

import keras
import numpy as np
from keras import ops

from bert_keras.errors import InputError
from bert_keras.files import PathLike
from bert_keras.modeling.encoder import BertEncoder, Portable
from bert_keras.modeling.heads import (
    BiLSTM,
    LogitsHead,
    Pooling,
    check_labels,
    logits_dtype,
)
from bert_keras.modeling.inputs import (
    INPUT_NAMES,
    POOLING_MASK,
    ClassifierArguments,
    EmbedderArguments,
    EncoderArguments,
    SpanArguments,
    TaggerArguments,
    argument_names,
    as_tensor,
)
from bert_keras.modeling.keras_adapter import TaskTrainer
from bert_keras.modeling.weights import (
    adaptation,
    mark_untrained,
    published_weights,
    switch_pooler,
)


class TaskModel(Portable, TaskTrainer, keras.Model):
    """An encoder with a head, as a functional Keras model.

    A subclass keeps the arguments of its constructor as attributes of the same
    names, makes its head, calls `super().__init__` with the outputs that follow
    from `symbolic_inputs()` and `encode(...)`, sets `pools` to whether it reads
    the pooled output, and registers with Keras. `from_config(get_config())`
    makes another one without its weights, `with_dtype` a copy; Keras's
    `clone_model` loses the class. Saving, loading, copying and
    the filling in of inputs that were left out come from here.

    `fit` and `evaluate` compute the loss of the global batch with any
    optimizer, loss, metric and weights of Keras: for each loss sum(weight x
    loss) / sum(weight), or what its reduction says, over all replicas. On one
    device this equals Keras's own step. Gradients are summed over the
    replicas, then clipped, then applied. A batch is cut into as many
    micro-batches as the optimizer's attribute `accumulate` says. A subclass
    with a `compute_loss` of its own gets Keras's step.

    A model that does not read the pooled output sets
    `encoder.pooler.trainable` to False, when it is made and before each `fit`:
    the pooler has no gradient. Where a model that does read it shares the
    encoder, that one sets it to True again.

    Example:
    >>> @keras.saving.register_keras_serializable("mine")
    ... class Embedder(TaskModel):
    ...     def __init__(self, encoder, name="embedder"):
    ...         inputs = symbolic_inputs()
    ...         vectors = encode(encoder, inputs)["pooled_output"]
    ...         super().__init__(inputs, vectors, encoder, name)
    """

    # What `from_preset` builds below the head.
    encoder_class = BertEncoder
    # True if the outputs depend on the pooler.
    pools = True
    # True if the outputs are logits: losses on probabilities are refused.
    returns_logits = True
    # The outputs with a token axis, (B, T, ...), which mean nothing at
    # padding; "logits" is the name of a model's only output.
    token_outputs: tuple[str, ...] = ()

    def __init__(
        self, inputs: Any, outputs: Any, encoder: BertEncoder, name: str
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.encoder = encoder
        switch_pooler(self)
        # Keras would take the global policy.
        self.dtype_policy = encoder.dtype_policy
        if hasattr(encoder, "load_report"):  # a new head on known weights
            names = published_weights(self)
            heads = [n for n in names if not n.startswith("encoder/")]
            mark_untrained(self, heads)

    def arguments(self) -> dict[str, Any]:
        """What the constructor took beyond the encoder, as plain values.

        The attributes that have the names of its arguments.
        """
        names = argument_names(type(self))
        passed = ("encoder", "name")
        return {
            name: getattr(self, name) for name in names if name not in passed
        }

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(self._complete(inputs), *args, **kwargs)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        # On JAX, Keras's `predict` comes here and not by way of `__call__`.
        return super().call(self._complete(inputs), training, mask)

    def _complete(self, inputs):
        """Return the inputs by name, with None for each one left out."""
        if not isinstance(inputs, dict):
            inputs = {"token_ids": inputs}
        expected = self.input
        unknown = sorted(set(inputs) - set(expected))
        if unknown:
            raise InputError(
                f"{type(self).__name__} has no input named "
                f"{', '.join(unknown)}. Expected {', '.join(expected)}."
            )
        # A functional model wants each optional input named, with None.
        return {name: as_tensor(inputs.get(name)) for name in expected}

    def _input_specs(self):
        packed = getattr(self, "examples_per_row", None)
        return {
            name: keras.InputSpec(shape=x.shape, dtype="int32", name=name)
            for name, x in self.input.items()
            # The others of a packed row are left out where rows are single.
            if packed or name not in (*INPUT_NAMES[3:], POOLING_MASK)
        }

    def train_step(self, *arguments: Any) -> Any:
        if self._has_own_loss():
            return super().train_step(*arguments)
        return _step().train_step(self, *arguments)

    def test_step(self, *arguments: Any) -> Any:
        if self._has_own_loss():
            return super().test_step(*arguments)
        return _step().test_step(self, *arguments)

    def check_batch(self, batch: Any) -> None:
        if not self._has_own_loss():
            from bert_keras.training import step

            step.build(self, keras.utils.unpack_x_y_sample_weight(batch))

    def _has_own_loss(self):
        """Return True if a subclass has a `compute_loss` of its own."""
        return type(self).compute_loss is not keras.Model.compute_loss

    def _run(self, loop, x, *args, **kwargs):
        if loop.__name__ == "fit":
            # `encoder.trainable = True` has set the pooler's too.
            switch_pooler(self)
        callbacks = kwargs.get("callbacks") or []
        # `callbacks` is the fifth argument after `x`.
        if loop.__name__ == "fit" and len(args) < 5:
            if isinstance(callbacks, keras.callbacks.Callback):
                callbacks = [callbacks]
            if isinstance(callbacks, list | tuple):
                kwargs["callbacks"] = [*callbacks, _schedule_watch()]
        return super()._run(loop, x, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "name": self.name,
            **self.arguments(),
            **adaptation(self),
        }

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        custom_objects: dict[str, Any] | None = None,
    ) -> Self:
        encoder = keras.saving.deserialize_keras_object(
            config["encoder"], custom_objects=custom_objects
        )
        return super().from_config({**config, "encoder": encoder})

    def _rebuilt(self, policy):
        # A graph keeps its dtypes, so it is made once more.
        encoder = self.encoder._rebuilt(policy)
        return type(self)(encoder, name=self.name, **self.arguments())


def _step():
    """Return the module with the training step of this backend."""
    # When it is called: the room of training builds on this one.
    if keras.backend.backend() == "tensorflow":
        from bert_keras.training import step_tensorflow as step
    else:
        from bert_keras.training import step_jax as step
    return step


def _schedule_watch():
    from bert_keras.training.optimizers import ScheduleWatch

    return ScheduleWatch()


def symbolic_inputs(*required, packed=False, optional=()):
    """Return Keras inputs by name: the encoder's, the optional, the required.

    With `packed`, also those of rows that hold several examples.
    """
    # T is left open: one model takes rows of any length.
    names = (*(INPUT_NAMES if packed else INPUT_NAMES[:3]), *optional)
    inputs = {
        name: keras.Input(
            (None,), dtype="int32", name=name, optional=name != "token_ids"
        )
        for name in names
    }
    for name in required:
        inputs[name] = keras.Input((None,), dtype="int32", name=name)  # (B, M)
    return inputs


def encode(encoder, inputs, bilstm_dim=None, examples_per_row=None):
    """The encoder's outputs for symbolic inputs, under the encoder's names.

    With `bilstm_dim`, a new bidirectional LSTM of that width reads the token
    vectors, and its vectors take their place; the pooled one is then its
    vector of the first token.
    """
    names = [name for name in INPUT_NAMES if name in inputs]
    outputs = encoder(
        {name: inputs[name] for name in names},
        examples_per_row=examples_per_row,
    )
    if bilstm_dim is None:
        return outputs
    # The paper, section 5.1: it gives back what one direction does not see.
    bilstm = BiLSTM(bilstm_dim, name="bilstm", dtype=encoder.dtype_policy)
    sequence = bilstm(outputs["sequence_output"], inputs["padding_mask"])
    # (B, T, 2 bilstm_dim) and (B, 2 bilstm_dim)
    return {"sequence_output": sequence, "pooled_output": sequence[:, 0]}


@keras.saving.register_keras_serializable("bert_keras")
class BertClassifier(TaskModel):
    """One dense layer on the pooled output, with dropout before it.

    Equals `create_model` of the original's `run_classifier.py`. On an encoder
    with `attention="left_to_right"` it reads the vector of the last token.

    Weights, by path: the encoder's, classifier/{kernel,bias}; with
    `bilstm_dim` those of `BiLSTM` behind bilstm/.

    Args:
        encoder: a `BertEncoder`.
        labels: names of the classes, in the order of the logits; may be left
            out for regression and ranking, which then have one output.
        problem: "single" (one label a text), "multi" (any number of labels a
            text, one sigmoid each), "regression" or "ranking" (one logit:
            how well the second text, a passage, answers the first, a query).
            The logits are the same; the loss, the export and the formats
            differ.
        dropout: share of the pooled output dropped in training; the
            encoder's where None.
        bilstm_dim: width of a new bidirectional LSTM between encoder and
            head; none where None.
        examples_per_row: most examples in a packed row, E; rows are not
            packed where None.
        pair: whether a row is two texts, as trained. The export reads it; no
            weight depends on it.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`, and for
            packed rows `position_ids` and `example_ids`, int32 (B, T); or
            the token ids alone.

    Returns:
        float32 (B, C), logits; of packed rows (B, E, C).

    Raises:
        InputError: labels missing or repeated, an unknown problem, packed
            rows under a BiLSTM.

    Example:
    >>> encoder = BertEncoder(100, 2, 2, 8, 16)
    >>> BertClassifier(encoder, labels=["no", "yes"])([[2, 45, 3]]).shape
    (1, 2)
    """

    if TYPE_CHECKING:  # its arguments by name

        @classmethod
        def from_preset(
            cls, preset: PathLike, **arguments: Unpack[ClassifierArguments]
        ) -> Self: ...

    def __init__(
        self,
        encoder: BertEncoder,
        labels: Sequence[str] | None = None,
        problem: str = "single",
        dropout: float | None = None,
        bilstm_dim: int | None = None,
        examples_per_row: int | None = None,
        pair: bool = False,
        name: str = "classifier_model",
    ) -> None:
        self.labels = check_labels(labels, problem)
        if bilstm_dim and examples_per_row:
            raise InputError(
                f"examples_per_row is {examples_per_row} and bilstm_dim is "
                f"{bilstm_dim}: the LSTM would read from one example into "
                "the next. Leave one of them out."
            )
        self.problem = problem
        self.dropout = encoder.dropout if dropout is None else dropout
        self.bilstm_dim = bilstm_dim
        # Left to right, [CLS] attends to nothing else, and the last token to
        # all: its vector is classified. The paper, section 5.1, says nothing.
        reads_last = encoder.attention == "left_to_right" and not bilstm_dim
        if reads_last and examples_per_row:
            raise InputError(
                f"examples_per_row is {examples_per_row} and the encoder's "
                "attention is left_to_right, whose classifier reads the last "
                "token of a row. Leave examples_per_row out."
            )
        # The BiLSTM's first vector takes the pooler's place.
        self.pools = bilstm_dim is None and not reads_last
        self.examples_per_row = examples_per_row
        self.pair = pair
        self.classifier = LogitsHead(
            # Regression has one output, which needs no name.
            len(self.labels or "1"),
            self.dropout,
            name="classifier",
            dtype=encoder.dtype_policy,
        )
        policy = encoder.dtype_policy.name
        inputs = symbolic_inputs(packed=examples_per_row is not None)
        encoded = encode(encoder, inputs, bilstm_dim, examples_per_row)
        pooled = encoded["pooled_output"]
        if reads_last:
            last = Pooling("last", False, name="last", dtype=policy)
            pooled = last(encoded, inputs["padding_mask"])
        # (B, D) to (B, C); of packed rows (B, E, D) to (B, E, C)
        logits = self.classifier(pooled)
        super().__init__(inputs, logits, encoder, name)


@keras.saving.register_keras_serializable("bert_keras")
class BertSpanPredictor(TaskModel):
    """Scores every token as the first and as the last of the answer.

    Two dense logits a token. Padding and the question get scores like any
    token; whoever reads the answer leaves them out. Equals `create_model` of
    the original's `run_squad.py`, whose loss is the mean of the two cross
    entropies: `compile(loss=span_losses(), loss_weights=...)` with a dict of
    0.5 for "start" and "end".

    Weights, by path: the encoder's, span/{kernel,bias} (start, end); with
    `bilstm_dim` those of `BiLSTM` behind bilstm/.

    Args:
        encoder: a `BertEncoder`.
        bilstm_dim: width of a new bidirectional LSTM between encoder and
            head; none where None.
        may_be_none: whether a question may have no answer, as trained. Those
            who read the answers need it; no weight depends on it.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`,
            int32 (B, T); or the token ids alone.

    Returns:
        dict of `start` and `end`, float32 (B, T), logits.

    Example:
    >>> model = BertSpanPredictor(BertEncoder(100, 2, 2, 8, 16))
    >>> model([[2, 45, 3]])["start"].shape
    (1, 3)
    """

    pools = False
    token_outputs = ("start", "end")

    if TYPE_CHECKING:  # its arguments by name

        @classmethod
        def from_preset(
            cls, preset: PathLike, **arguments: Unpack[SpanArguments]
        ) -> Self: ...

    def __init__(
        self,
        encoder: BertEncoder,
        bilstm_dim: int | None = None,
        may_be_none: bool = False,
        name: str = "span_predictor",
    ) -> None:
        self.bilstm_dim = bilstm_dim
        self.may_be_none = may_be_none
        self.span = LogitsHead(2, name="span", dtype=encoder.dtype_policy)
        inputs = symbolic_inputs()
        encoded = encode(encoder, inputs, bilstm_dim)
        # S and E of the paper, section 4.2, as the two columns of one kernel.
        logits = self.span(encoded["sequence_output"])  # (B, T, 2)
        outputs = {"start": logits[..., 0], "end": logits[..., 1]}  # (B, T)
        super().__init__(inputs, outputs, encoder, name)


def span_losses():
    """For `compile`: cross entropy over the tokens, at either end."""
    return {
        name: keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        for name in ("start", "end")
    }


@keras.saving.register_keras_serializable("bert_keras")
class BertTagger(TaskModel):
    """One dense layer on every token's vector, with dropout before it.

    Which tokens count (the first piece of a word, say) `fit` learns from
    sample weights (B, T). Packed rows need nothing more than their inputs.

    Weights, by path: the encoder's, tagger/{kernel,bias}; with `bilstm_dim`
    those of `BiLSTM` behind bilstm/.

    Args:
        encoder: a `BertEncoder`.
        labels: names of the classes, in the order of the logits.
        dropout: share of the vectors dropped in training; the encoder's
            where None.
        bilstm_dim: width of a new bidirectional LSTM between encoder and
            head; none where None.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`, and for
            packed rows `position_ids` and `example_ids` (not under a
            BiLSTM), int32 (B, T); or the token ids alone.

    Returns:
        float32 (B, T, C), logits.

    Raises:
        InputError: labels missing or repeated.

    Example:
    >>> encoder = BertEncoder(100, 2, 2, 8, 16)
    >>> BertTagger(encoder, labels=["O", "B-PER"])([[2, 45, 3]]).shape
    (1, 3, 2)
    """

    pools = False
    token_outputs = ("logits",)

    if TYPE_CHECKING:  # its arguments by name

        @classmethod
        def from_preset(
            cls, preset: PathLike, **arguments: Unpack[TaggerArguments]
        ) -> Self: ...

    def __init__(
        self,
        encoder: BertEncoder,
        labels: Sequence[str] = (),
        dropout: float | None = None,
        bilstm_dim: int | None = None,
        name: str = "tagger_model",
    ) -> None:
        self.labels = check_labels(labels)
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


@keras.saving.register_keras_serializable("bert_keras")
class BertChooser(TaskModel):
    """One score a choice; the softmax runs over the choices.

    Every choice is encoded as a row of its own, first text and choice as a
    pair; one dense logit on its pooled output, with dropout before it. Equals
    the paper, section 4.4.

    Weights, by path: the encoder's, chooser/{kernel,bias}.

    Args:
        encoder: a `BertEncoder`.
        dropout: share of the pooled output dropped in training; the
            encoder's where None.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`,
            int32 (B, K, T); or the token ids alone.

    Returns:
        float32 (B, K), logits.

    Example:
    >>> model = BertChooser(BertEncoder(100, 2, 2, 8, 16))
    >>> model([[[2, 45, 3], [2, 6, 3]]]).shape
    (1, 2)
    """

    if TYPE_CHECKING:  # its arguments by name

        @classmethod
        def from_preset(
            cls, preset: PathLike, **arguments: Unpack[EncoderArguments]
        ) -> Self: ...

    def __init__(
        self,
        encoder: BertEncoder,
        dropout: float | None = None,
        name: str = "chooser_model",
    ) -> None:
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
        # Each choice is a row, as the paper's section 4.4 has it.
        rows = _RowPerChoice(name="rows")(inputs)  # (B, K, T) to (B K, T)
        encoded = encode(encoder, rows)
        scores = self.chooser(encoded["pooled_output"])  # (B K, 1)
        # Otherwise a global half precision would round the float32 logits.
        choices = _ChoicesOfRows(
            name="choices", dtype=self.chooser.dtype_policy.name
        )
        logits = choices(scores, inputs["token_ids"])  # (B, K)
        super().__init__(inputs, logits, encoder, name)


class _RowPerChoice(keras.layers.Layer):
    """Inputs (B, K, T) to (B K, T); what was left out is filled in."""

    def call(self, inputs):
        ids = inputs["token_ids"]
        inputs = {
            "token_ids": ids,
            "segment_ids": ops.zeros_like(ids),
            "padding_mask": ops.ones_like(ids),
            **{name: x for name, x in inputs.items() if x is not None},
        }
        rows = (-1, ops.shape(ids)[-1])  # (B K, T)
        return {name: ops.reshape(x, rows) for name, x in inputs.items()}

    def compute_output_spec(self, inputs):
        length = inputs["token_ids"].shape[-1]
        return {
            name: keras.KerasTensor((None, length), dtype="int32")
            for name in INPUT_NAMES[:3]
        }


class _ChoicesOfRows(keras.layers.Layer):
    """Scores (B K, 1) to (B, K), as the token ids have it."""

    def call(self, scores, token_ids):
        return ops.reshape(scores, ops.shape(token_ids)[:2])

    def compute_output_spec(self, scores, token_ids):
        return keras.KerasTensor(token_ids.shape[:2], dtype=scores.dtype)


class _Traced:
    """A traced function, and what it was traced for.

    No tuple, in which Keras would find the preprocessor, a layer.
    """

    def __init__(self, key, preprocessor, function):
        self.key, self.function = key, function
        self.preprocessor = preprocessor  # another one may not get its id


@keras.saving.register_keras_serializable("bert_keras")
class BertEmbedder(TaskModel):
    """One vector a text: the encoder's, pooled; texts compare by the cosine.

    It adds no weights. Equals sentence-transformers' `Transformer`, `Pooling`
    and `Normalize` (Reimers and Gurevych 2019, section 3). The losses that
    learn from several texts an example are in
    `bert_keras.training.similarity`.

    Weights, by path: the encoder's.

    Args:
        encoder: a `BertEncoder`.
        pooling: "mean" or "max" over the tokens, [CLS] and [SEP] among them;
            "cls" or "last", the vector of [CLS] or of the last token;
            "pooled", the output of the pooler;
            None: as the folder of the weights says, else the mean.
        normalize: makes each vector's length 1; None: as the folder of the
            weights says, else true.
        truncate_dim: number of values of a vector to keep, the first ones,
            after it is normalized; None: as the folder of the weights says,
            else all.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`, int32
            (B, T), or (B, K, T) of K texts an example; or the token ids
            alone. `pooling_mask` is 1 at tokens that are pooled; a
            preprocessor with `include_prompt=False` makes it.

    Returns:
        float32 (B, D), or (B, K, D); D is `truncate_dim`, if that is set.

    Raises:
        InputError: an unknown pooling, or `truncate_dim` below 1.

    Example:
    >>> model = BertEmbedder(BertEncoder(100, 2, 2, 8, 16))
    >>> model([[[2, 45, 3], [2, 6, 3]]]).shape
    (1, 2, 8)
    """

    if TYPE_CHECKING:  # its arguments by name

        @classmethod
        def from_preset(
            cls, preset: PathLike, **arguments: Unpack[EmbedderArguments]
        ) -> Self: ...

    def __init__(
        self,
        encoder: BertEncoder,
        pooling: str | None = None,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
        name: str = "embedder_model",
    ) -> None:
        chosen = {
            "pooling": pooling,
            "normalize": normalize,
            "truncate_dim": truncate_dim,
        }
        settings = {"pooling": "mean", "normalize": True, "truncate_dim": None}
        settings |= getattr(encoder, "sentence_embedding", {})
        settings |= {k: v for k, v in chosen.items() if v is not None}
        self.pooling = settings["pooling"]
        self.normalize = settings["normalize"]
        self.truncate_dim = settings["truncate_dim"]
        pool = Pooling(
            self.pooling,
            self.normalize,
            self.truncate_dim,
            name="pooling",
            # Half precision would round what cosines are made of.
            dtype=logits_dtype(encoder.dtype_policy),
        )
        self.pools = self.pooling == "pooled"
        # What an export and a preset of the encoder alone say.
        self.sentence_embedding = self.arguments()
        inputs = symbolic_inputs(optional=(POOLING_MASK,))
        encoded = encode(encoder, inputs)
        # (B, D)
        vectors = pool(encoded, inputs["padding_mask"], inputs[POOLING_MASK])
        super().__init__(inputs, vectors, encoder, name)
        self._axes: set[int] = set()  # of what `predict` was traced for
        self._embed: _Traced | None = None

    def _run(self, loop, x, *args, **kwargs):
        values = keras.tree.flatten(getattr(x, "element_spec", x))
        axes = {len(v.shape) for v in values if hasattr(v, "shape")}
        if loop.__name__ == "predict" and axes != self._axes:
            # TensorFlow would trace once for both numbers of axes, and know
            # neither.
            self._axes, self.predict_function = axes, None
        return super()._run(loop, x, *args, **kwargs)

    def encode(
        self, texts: Sequence[str], preprocessor: Any, batch_size: int = 64
    ) -> Any:
        """Compute the vectors of many texts, as fast as an export does.

        Texts are sorted by length, batched, and computed by one graph that
        leaves padding out; a second call with the same preprocessor uses the
        graph again.

        Args:
            texts: strings, N of them.
            preprocessor: the model's `BertPreprocessor`.
            batch_size: texts in a batch.

        Returns:
            NumPy's float32 (N, D), in the order of the texts.
        """
        texts = np.asarray(texts, "object")
        width = self.output.shape[-1]
        vectors: Any = np.zeros((len(texts), width), "float32")
        embed = self._trace_embed(preprocessor)
        lengths = [len(text) for text in texts]
        # Longest first: memory that is too short is found at once.
        order = np.argsort(lengths, kind="stable")[::-1]
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            outputs = embed(ops.convert_to_tensor(texts[rows], "string"))
            vectors[rows] = outputs["embedding"]
        return vectors

    def _trace_embed(self, preprocessor):
        """Return the function of an export, traced once."""
        from bert_keras.serving.embedding import embed
        from bert_keras.serving.graph import Rows

        # LoRA adds weights, which a trace of before would not read.
        key = id(preprocessor), len(self.weights)
        if self._embed is None or self._embed.key != key:
            rows = Rows(preprocessor)
            signature = embed(
                self, rows, self.pooling, self.normalize, self.truncate_dim
            )
            self._embed = _Traced(key, preprocessor, signature.traced())
        return self._embed.function

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return self._folded(super().__call__, inputs, *args, **kwargs)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        return self._folded(super().call, inputs, training, mask)

    def _folded(self, ask, inputs, *args, **kwargs):
        """What `ask` gives for inputs of two axes, for three as well."""
        inputs = self._complete(inputs)
        if len(inputs["token_ids"].shape) == 2:
            return ask(inputs, *args, **kwargs)
        examples, texts, length = ops.shape(inputs["token_ids"])  # (B, K, T)
        rows = {
            name: x if x is None else ops.reshape(x, (-1, length))  # (B K, T)
            for name, x in inputs.items()
        }
        vectors = ask(rows, *args, **kwargs)  # (B K, D)
        return ops.reshape(vectors, (examples, texts, -1))  # (B, K, D)
