"""The base of all task models: an encoder, a head and the training step."""

import re
import types
from typing import Any, Self

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling import inputs as checks
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import BiLSTM, LayerMix, Pooling
from bert_keras.modeling.inputs import (
    INPUT_NAMES,
    POOLING_MASK,
    as_tensor,
    list_argument_names,
)
from bert_keras.modeling.keras_adapter import (
    CACHED_EVALUATION,
    TaskTrainer,
    forget_compilation,
    given_losses,
)
from bert_keras.modeling.model_methods import ModelMethods
from bert_keras.modeling.text_inputs import ReadsTexts
from bert_keras.modeling.weights import (
    get_adaptation,
    mark_new_weights,
    published_weights,
)


class TaskModel(ReadsTexts, ModelMethods, TaskTrainer, keras.Model):
    """An encoder with a head, as a functional Keras model.

    A subclass

    - registers with Keras;
    - stores each constructor argument, except `encoder` and `name`, in an
      attribute of the same name;
    - makes its head;
    - sets `pools` to False if its outputs do not depend on the pooler,
      `returns_logits` to False if they are not logits, and `token_outputs` to
      the names of the outputs with a token axis;
    - calls `super().__init__` with inputs from `symbolic_inputs()` and outputs
      computed from `encode(...)`.

    Saving, loading, copying and optional inputs then work.
    `from_config(get_config())` makes a model with new weights. `with_dtype`
    copies the weights too. Keras's `clone_model` returns a plain Keras model.

    Weights are listed in the order in which layers become attributes. To list
    the encoder's weights first, set `self.encoder` before the other layers.

    `fit` and `evaluate` compute the loss of the global batch, with any Keras
    optimizer, loss, metric, loss weights and sample weights. If a label is one
    class, labels and keys of `class_weight` are indices or names of the
    classes; a class that `class_weight` lacks weighs 1. Indices out of range
    are refused, in a `PyDataset` only those of the first batch. The `reduction`
    of each loss applies to the rows of all replicas: "mean_with_sample_weight"
    is sum(weight x loss) / sum(weight). On one device the loss equals Keras's.
    Gradients are summed over the replicas, then clipped, then applied. The
    optimizer's attribute `accumulate` is the number of micro-batches into which
    each replica splits its rows. A subclass that defines `compute_loss` is
    trained by Keras's own step.

    Models may share an encoder: the constructor changes nothing in it. If
    `pools` is False, or with a recipe, a step neither updates nor decays the
    weights that the outputs do not depend on, although they stay trainable.

    Examples:
        >>> @keras.saving.register_keras_serializable("mine")
        ... class Embedder(TaskModel):
        ...     def __init__(self, encoder, name="embedder"):
        ...         inputs = symbolic_inputs()
        ...         vectors = encode(encoder, inputs)["pooled_output"]
        ...         super().__init__(inputs, vectors, encoder, name)
    """

    # Class of the encoder that `from_preset` makes.
    encoder_class = BertEncoder
    # True if the outputs depend on the pooler.
    pools = True
    # True if the outputs are logits. Losses and metrics that take probabilities
    # are then refused.
    returns_logits = True
    # Names of the outputs with a token axis, (B, T, ...). Their values at
    # padding have no meaning. A model's only output is named "logits" here.
    token_outputs: tuple[str, ...] = ()

    def __init__(
        self, inputs: Any, outputs: Any, encoder: BertEncoder, name: str
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.encoder = encoder
        # Without this line, the model would have Keras's global policy.
        self.dtype_policy = encoder.dtype_policy
        if hasattr(encoder, "load_report"):  # the encoder was loaded
            names = published_weights(self)
            heads = [n for n in names if not n.startswith("encoder/")]
            mark_new_weights(self, heads)

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, without encoder and name."""
        names = list_argument_names(type(self))
        return {
            name: getattr(self, name)
            for name in names
            if name not in ("encoder", "name")
        }

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        checks.refuse_labels(inputs)
        if self._reads(inputs):
            inputs = self.encode_batch(inputs)[0]
        inputs = self._complete(inputs)
        return self._call_rows(super().__call__, inputs, *args, **kwargs)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        # On JAX, Keras's `predict` calls this method instead of `__call__`.
        inputs = self._complete(inputs)
        return self._call_rows(super().call, inputs, training, mask)

    def _call_rows(self, call, inputs, *args, **kwargs):
        return call(inputs, *args, **kwargs)

    def _complete(self, inputs):
        """Return a dict of all inputs, with None for each missing input."""
        if not isinstance(inputs, dict):
            checks.refuse_list(inputs)
            inputs = {"token_ids": inputs}
        expected = self.input
        unknown = sorted(set(inputs) - set(expected))
        if unknown:
            raise InputError(
                f"{type(self).__name__} has no input named "
                f"{', '.join(unknown)}. Expected {', '.join(expected)}."
            )
        # A functional model needs None for each missing input.
        return {name: as_tensor(name, inputs.get(name)) for name in expected}

    def _input_specs(self):
        packed = getattr(self, "examples_per_row", None)
        return {
            name: keras.InputSpec(shape=x.shape, dtype="int32", name=name)
            for name, x in self.input.items()
            # `export` without `input_signature` omits the pooling mask and, if
            # `examples_per_row` is None, the inputs of packed rows.
            if packed or name not in (*INPUT_NAMES[3:], POOLING_MASK)
        }

    def default_losses(self) -> dict[str, Any]:
        """Return the arguments of `compile` that `loss="auto"` stands for.

        They are `loss`, `loss_weights` and `weighted_metrics`, as far as the
        model's problem decides them.
        """
        return {}

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = "auto",
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Configure the model for training, like `keras.Model.compile`.

        `loss="auto"` takes the loss of the model's problem and, if no metric is
        given, its metrics. Losses and metrics of an earlier `compile` are
        forgotten; Keras keeps those that are not given again.

        Raises:
            InputError: the name of a loss that takes probabilities is given.
        """
        if isinstance(loss, str) and loss == "auto":
            chosen = {} if self._has_compute_loss() else self.default_losses()
            loss = chosen.get("loss")
            loss_weights = loss_weights or chosen.get("loss_weights")
            if metrics is None and weighted_metrics is None:
                weighted_metrics = chosen.get("weighted_metrics")
        elif self.returns_logits:
            from bert_keras.training import step

            step.check_names(loss)
        forget_compilation(self)
        super().compile(
            optimizer, loss, loss_weights, metrics, weighted_metrics, **kwargs
        )

    def compile_from_config(self, config: Any) -> None:
        # Keras's method compiles no model that has a `compile` of its own.
        config = keras.saving.deserialize_keras_object(config)
        self.compile(**config)
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def train_step(self, *arguments: Any) -> Any:
        if self._has_compute_loss():
            return super().train_step(*arguments)
        return _import_step().train_step(self, *arguments)

    def test_step(self, *arguments: Any) -> Any:
        if self._has_compute_loss():
            return super().test_step(*arguments)
        return _import_step().test_step(self, *arguments)

    def check_batch(self, batch: Any) -> None:
        if not self._has_compute_loss():
            from bert_keras.training import step

            step.build(self, keras.utils.unpack_x_y_sample_weight(batch))

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        # Keras looks up each output, also one without a metric.
        if isinstance(y_pred, dict):
            y, sample_weight = (
                {name: each.get(name) for name in y_pred}
                if isinstance(each, dict)
                else each
                for each in (y, sample_weight)
            )
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _has_compute_loss(self):
        return type(self).compute_loss is not keras.Model.compute_loss

    def read_arguments(self, values: dict[str, Any]) -> None:
        if values.get(CACHED_EVALUATION):  # `fit` has read the data
            return
        if "y" in values:
            checks.refuse_named_labels(values["x"], self._class_names())
        names = ("x", "y", "sample_weight")
        data = self._read_data(*(values.get(name) for name in names))
        dev = values.get("validation_data")
        if dev is not None:
            dev = keras.utils.unpack_x_y_sample_weight(dev)
            dev = self._read_data(*dev)
        if values.get("class_weight") is not None:
            values["class_weight"] = self._read_class_weight(
                values["class_weight"]
            )
        self.encode_arguments(values, data, dev)
        if "y" in values:  # `predict` ignores labels
            values["x"] = self._watch_labels(values["x"])
        if values.get("validation_data") is not None:
            x, *rest = values["validation_data"]
            values["validation_data"] = self._watch_labels(x), *rest
        super().read_arguments(values)

    def _read_data(self, x, y=None, sample_weight=None):
        """Return texts, labels and weights as arrays; check the labels."""
        if self._reads_arrays(x):
            x, y, sample_weight = self.read_arrays(x, y, sample_weight)
        if y is not None:
            y = self._read_labels(y)
        return x, y, checks.as_array(sample_weight)

    def _watch_labels(self, data):
        """Return a data set or generator that refuses labels out of range.

        Of a `PyDataset`, only the first batch is checked.
        """

        def check(batch):
            _, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
            if y is not None:
                self._read_labels(y)
            return batch

        if isinstance(data, types.GeneratorType):
            return (check(batch) for batch in data)
        if isinstance(data, keras.utils.PyDataset) and data.num_batches != 0:
            check(data[0])
        *_, num_classes = self._find_index_shape() or [None]
        # A distributed data set has no method `map`.
        is_data_set = hasattr(data, "element_spec") and hasattr(data, "map")
        # A chooser may have any number of choices.
        if is_data_set and num_classes is not None:
            return checks.watch_labels(data, num_classes)
        return data

    def _class_names(self):
        """Return the names of the classes, None if labels are not classes."""
        is_single = getattr(self, "problem", "single") == "single"
        return getattr(self, "labels", None) if is_single else None

    def _read_labels(self, labels):
        if isinstance(labels, dict):
            return {name: checks.read_labels(y) for name, y in labels.items()}
        return checks.read_labels(
            labels, self._class_names(), self._find_index_shape()
        )

    def _find_index_shape(self):
        """Return the logits' shape if labels are indices, otherwise None."""
        losses = given_losses(self)
        # Other losses may give other numbers a meaning.
        is_index = len(losses) == 1 and isinstance(
            losses[0], keras.losses.SparseCategoricalCrossentropy
        )
        is_index = is_index and losses[0].ignore_class is None
        if not is_index or isinstance(self.output, dict):
            return None
        return tuple(self.output.shape)

    def _refuse_ids(self, error):
        found = re.search(
            r"label value of\]? \[?(\S+?)\]? \[?which is outside the valid "
            r"range of \[0, (\d+)\)",
            getattr(error, "message", ""),
        )
        if found:
            # TensorFlow converts NaN to the least integer.
            is_nan = "nan" in found[1] or float(found[1]) < -(2**30)
            label = "NaN" if is_nan else found[1]
            checks.refuse_label(label, int(found[2]))
        super()._refuse_ids(error)

    def _read_class_weight(self, class_weight):
        """Return `class_weight` by index; refuse several labels a row."""
        is_multiple = getattr(self, "problem", "") == "multi"
        # Keras itself refuses class_weight for a dict of outputs.
        if not isinstance(self.output, dict):
            is_multiple |= len(self.output.shape) > 2
        if is_multiple:
            # When Keras applies sample_weight, the loss has no class axis any
            # more, so sample_weight has no class axis either.
            shape = "(B,)" if len(self.output.shape) == 2 else "(B, T)"
            if getattr(self, "examples_per_row", None):
                shape = "(B, E)"
            raise InputError(
                "class_weight is given, but a row has several labels. Weight "
                f"them in the loss, or pass sample_weight of shape {shape}."
            )
        return checks.read_class_weight(class_weight, self._class_names())

    def get_config(self) -> dict[str, Any]:
        return {
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "name": self.name,
            **self.arguments(),
            **get_adaptation(self),
            **self.describe_preprocessor(),
        }

    def copy_structure(self, policy: Any) -> Self:
        """Return a new model with the same arguments and another dtype."""
        encoder = self.encoder.copy_structure(policy)
        return type(self)(encoder, name=self.name, **self.arguments())


def _import_step():
    # Imported here, because `training` imports `modeling`.
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from bert_keras.training import step_tensorflow as step
    elif backend == "jax":
        from bert_keras.training import step_jax as step
    else:
        raise InputError(
            f"The Keras backend is {backend}. `fit` and `evaluate` of a task "
            "model need tensorflow or jax. Set KERAS_BACKEND."
        )
    return step


def symbolic_inputs(*required, packed=False, optional=()):
    """Return a dict of Keras inputs, by name.

    Args:
        *required: inputs that each call must pass, in addition to token_ids.
        packed: True to add the inputs that packed rows need.
        optional: inputs that a call may leave out, in addition to segment_ids
            and padding_mask.
    """
    names = (*(INPUT_NAMES if packed else INPUT_NAMES[:3]), *optional)
    needed = ("token_ids", *required)
    return {
        name: keras.Input(
            (None,), dtype="int32", name=name, optional=name not in needed
        )
        for name in (*names, *required)
    }


def fold(inputs):
    """Return inputs (B, K, T) as rows (B K, T); missing inputs stay None."""
    rows = (-1, ops.shape(inputs["token_ids"])[-1])  # (B K, T)
    return {
        name: x if x is None else ops.reshape(x, rows)
        for name, x in inputs.items()
    }


def unfold(values, token_ids, *axes):
    """Return values of the rows of `token_ids`, (B K, ...), as (B, K, *axes).

    The axes are given, because `values` may not know their sizes in a graph.
    """
    return ops.reshape(values, (*ops.shape(token_ids)[:2], *axes))


def encode(
    encoder,
    inputs,
    bilstm_dim=None,
    examples_per_row=None,
    recipe=None,
    pooling=None,
):
    """Return the encoder's outputs by name, for symbolic inputs.

    With `bilstm_dim`, a new bidirectional LSTM of that width reads the token
    vectors. `sequence_output` is then the LSTM's output, (B, T, 2 bilstm_dim),
    and `pooled_output` is the LSTM's first vector.

    `recipe` names the layers whose features replace `sequence_output`; see
    `mix_features`. `pooling`, one of `POOLINGS` except "pooled", computes
    `pooled_output` from `sequence_output`. With `recipe` alone, there is no
    `pooled_output`. For `examples_per_row`, see `BertEncoder`.
    """
    if recipe:
        features = mix_features(encoder, inputs, recipe)  # (B, T, F)
        outputs = {"sequence_output": features}
    else:
        outputs = encoder(
            {name: x for name, x in inputs.items() if name in INPUT_NAMES},
            examples_per_row=examples_per_row,
        )
    if pooling:
        policy = encoder.dtype_policy
        pool = Pooling(pooling, False, name=pooling, dtype=policy)
        pooled = pool(outputs, inputs["padding_mask"])  # (B, F)
        outputs = {**outputs, "pooled_output": pooled}
    if bilstm_dim is None:
        return outputs
    # The LSTM reads in both directions, so its first vector depends on the
    # whole row. This vector can be the pooled output.
    bilstm = BiLSTM(bilstm_dim, name="bilstm", dtype=encoder.dtype_policy)
    sequence = bilstm(outputs["sequence_output"], inputs["padding_mask"])
    # (B, T, 2 bilstm_dim) and (B, 2 bilstm_dim)
    return {"sequence_output": sequence, "pooled_output": sequence[:, 0]}


def mix_features(encoder, inputs, recipe):
    """Return a recipe's features, (B, T, F).

    The encoder runs without dropout, even in training, and gets no gradient.
    """
    states = encoder(inputs, training=False, hidden_states=True)
    mix = LayerMix(
        recipe,
        encoder.num_layers,
        name="features",
        dtype=encoder.dtype_policy,
    )
    return mix(states["hidden_states"])
