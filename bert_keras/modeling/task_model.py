"""What the task models share: an encoder below, a functional graph."""

import functools
from typing import Any, Self

import keras

from bert_keras.errors import InputError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import BiLSTM
from bert_keras.modeling.inputs import (
    INPUT_NAMES,
    argument_names,
    as_tensor,
)
from bert_keras.modeling.lora import adaptation
from bert_keras.modeling.portable import Portable
from bert_keras.modeling.weights import mark_untrained, published_weights


class TaskModel(Portable, keras.Model):
    """An encoder with a head, as a functional Keras model.

    A subclass keeps the arguments of its constructor as attributes of the same
    names, makes its head, calls `super().__init__` with the outputs that follow
    from `symbolic_inputs()` and `encode(...)`, sets `pools` to whether it reads
    the pooled output, and registers with Keras. Saving, loading, copying and
    the filling in of inputs that were left out come from here.

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
    # Whether the outputs depend on the pooler.
    pools = True
    # The outputs with a token axis, (B, T, ...), which mean nothing at
    # padding; "logits" is the name of a model's only output.
    token_outputs: tuple[str, ...] = ()

    def __init__(
        self, inputs: Any, outputs: Any, encoder: BertEncoder, name: str
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.encoder = encoder
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

    @property
    def trainable_variables(self) -> list[Any]:
        return self._in_use(super().trainable_variables)

    @property
    def trainable_weights(self) -> list[Any]:
        return self._in_use(super().trainable_weights)

    @property
    def non_trainable_variables(self) -> list[Any]:
        return super().non_trainable_variables + self._idle()

    @property
    def non_trainable_weights(self) -> list[Any]:
        return super().non_trainable_weights + self._idle()

    def _idle(self):
        """What would train, but for `_in_use`."""
        variables = super().trainable_variables
        used = {id(variable) for variable in self._in_use(variables)}
        return [v for v in variables if id(v) not in used]

    def _in_use(self, variables):
        """Without a pooler that no output depends on: it has no gradient."""
        if self.pools:
            return variables
        idle = {id(weight) for weight in self.encoder.pooler.weights}
        return [v for v in variables if id(v) not in idle]

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(self._complete(inputs), *args, **kwargs)

    def _complete(self, inputs):
        """The inputs by name, with None for each optional one left out."""
        if not isinstance(inputs, dict):
            inputs = {"token_ids": inputs}
        expected = self._inputs_struct
        unknown = sorted(set(inputs) - set(expected))
        if unknown:
            raise InputError(
                f"{type(self).__name__} has no input named "
                f"{', '.join(unknown)}. Expected {', '.join(expected)}."
            )
        return {name: as_tensor(inputs.get(name)) for name in expected}

    def train_step(self, *arguments: Any) -> Any:
        return self._step("train_step")(*arguments)

    def test_step(self, *arguments: Any) -> Any:
        return self._step("test_step")(*arguments)

    def _step(self, name):
        """The optimizer's step where it has one, otherwise Keras's.

        `adamw` and `lamb` have one: the loss of the global batch on any number
        of devices. It knows only the losses of `compile`, so a model with a
        `compute_loss` of its own gets Keras's step.
        """
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        step = getattr(optimizer, name, None)
        own_loss = type(self).compute_loss is not keras.Model.compute_loss
        if step is None or own_loss:
            return getattr(super(), name)
        return functools.partial(step, self)

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
        encoder = self.encoder._rebuilt(policy)
        return type(self)(encoder, name=self.name, **self.arguments())


def symbolic_inputs(*required, packed=False):
    """Keras inputs by name: those of the encoder, then the `required`.

    With `packed`, also those of rows that hold several examples.
    """
    names = INPUT_NAMES if packed else INPUT_NAMES[:3]
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
    bilstm = BiLSTM(bilstm_dim, name="bilstm", dtype=encoder.dtype_policy)
    sequence = bilstm(outputs["sequence_output"], inputs["padding_mask"])
    # (B, T, 2 bilstm_dim) and (B, 2 bilstm_dim)
    return {"sequence_output": sequence, "pooled_output": sequence[:, 0]}
