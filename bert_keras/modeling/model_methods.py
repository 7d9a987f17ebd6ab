"""Methods that `BertEncoder` and every task model have."""

import contextlib
import functools
import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self

import keras

from bert_keras.errors import InputError, refuse_fork
from bert_keras.files import PathLike
from bert_keras.modeling import modes, weights
from bert_keras.modeling.inputs import (
    INPUT_NAMES,
    check_arrays,
    refuse_labels,
)
from bert_keras.modeling.keras_adapter import (
    RestoresVariables,
    separate_averages,
)


class ModelMethods(RestoresVariables):
    """Mixin that loads, saves, copies and exports a model."""

    copy_structure: Callable[[Any], Any]  # takes a dtype policy

    @classmethod
    def from_preset(cls, preset: PathLike, **arguments: Any) -> Self:
        """Return a model with the weights of a preset.

        Args:
            preset: folder of a checkpoint, or a name from `bert_keras.presets`
                or the Hub; see docs/formats.md.
            **arguments: arguments of the constructor and of `BertEncoder`. They
                replace the preset's settings. For a task model also
                `sequence_length` of its preprocessor, or `preprocessor`, which
                replaces the preset's (None for a model of ids); and
                `num_classes` in place of `labels`. If the constructor has the
                same argument as `BertEncoder`, such as `dropout`, the
                constructor gets it. Sizes are refused, because the weights
                decide them, except a larger `max_sequence_length`, whose added
                positions are new weights. For a name on the Hub, also
                `revision`.
        """
        # Imported here, because interop imports the models.
        from bert_keras.interop.presets import load_model

        return load_model(cls, preset, **arguments)

    def save_preset(self, folder: PathLike, preprocessor: Any = None) -> None:
        """Write configuration, weights and vocabulary to `folder`.

        The folder has Hugging Face's format, so transformers opens it too. The
        optimizer's state is not written.

        Args:
            folder: a new folder, or an earlier preset, which is replaced.
            preprocessor: the `BertPreprocessor` that the model was trained
                with: its vocabulary, length, prompts and keys are stored,
                `pad_to_longest` is not. None: the model's `preprocessor`.

        Raises:
            InputError: the preprocessor is missing or does not fit the model,
                or the folder contains other files.
        """
        if preprocessor is None:
            preprocessor = getattr(self, "preprocessor", None)
        if preprocessor is None:
            raise InputError(
                "save_preset got no preprocessor, but a preset needs its "
                "vocabulary. Pass the BertPreprocessor that the model was "
                "trained with: save_preset(folder, preprocess)."
            )
        from bert_keras.interop.saving import save_model

        save_model(folder, self, preprocessor)

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        custom_objects: dict[str, Any] | None = None,
    ) -> Self:
        config = dict(config)
        adaptation = config.pop("adaptation", {})
        if "encoder" in config:  # if it is a task model
            config["encoder"] = keras.saving.deserialize_keras_object(
                config["encoder"], custom_objects=custom_objects
            )
        model = cls(**config)
        weights.adapt(model, **adaptation)
        return model

    if not TYPE_CHECKING:  # type checkers read the signatures of Keras

        @functools.wraps(keras.Model.fit)
        def fit(self, *args, **kwargs):
            from bert_keras.training.schedules import ScheduleWatch

            values = self._name_arguments(super().fit, args, kwargs)
            callbacks = values["callbacks"] or []
            if isinstance(callbacks, keras.callbacks.Callback):
                callbacks = [callbacks]
            if isinstance(callbacks, list | tuple):
                values["callbacks"] = [*callbacks, ScheduleWatch()]
            with self._explain_errors():
                history = super().fit(**values)
            separate_averages(self.optimizer)
            return history

        @functools.wraps(keras.Model.evaluate)
        def evaluate(self, *args, **kwargs):
            values = self._name_arguments(super().evaluate, args, kwargs)
            with self._explain_errors():
                return super().evaluate(**values)

        @functools.wraps(keras.Model.predict)
        def predict(self, *args, **kwargs):
            values = self._name_arguments(super().predict, args, kwargs)
            with self._explain_errors():
                return super().predict(**values)

        @functools.wraps(keras.Model.train_on_batch)
        def train_on_batch(self, *args, **kwargs):
            values = self._name_arguments(super().train_on_batch, args, kwargs)
            with self._explain_errors():
                return super().train_on_batch(**values)

        @functools.wraps(keras.Model.test_on_batch)
        def test_on_batch(self, *args, **kwargs):
            values = self._name_arguments(super().test_on_batch, args, kwargs)
            with self._explain_errors():
                return super().test_on_batch(**values)

        @functools.wraps(keras.Model.predict_on_batch)
        def predict_on_batch(self, *args, **kwargs):
            values = self._name_arguments(
                super().predict_on_batch, args, kwargs
            )
            with self._explain_errors():
                return super().predict_on_batch(**values)

    def _name_arguments(self, loop, args, kwargs):
        """Return the arguments of a loop of Keras by name, read and checked."""
        refuse_fork(getattr(self, "encoder", self)._process)
        bound = inspect.signature(loop).bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        values |= values.pop("kwargs", {})  # `evaluate` has **kwargs
        refuse_labels(values["x"])
        self.read_arguments(values)
        return values

    def read_arguments(self, values: dict[str, Any]) -> None:
        """Check the inputs among the arguments of `fit` and others.

        Args:
            values: dict of all arguments by name. Subclasses change it.
        """
        check_arrays(values["x"])
        dev = values.get("validation_data")
        check_arrays(keras.utils.unpack_x_y_sample_weight(dev)[0])

    @contextlib.contextmanager
    def _explain_errors(self):
        """Restore the variables if a loop fails; explain known errors."""
        if keras.backend.backend() == "jax":
            self.jax_state_sync()  # a callback of `fit` may be the caller
        try:
            yield
        except BaseException as error:
            if not self.restore_variables():
                error.add_note(
                    "JAX had given the memory of the weights to the step that "
                    "failed, so this model's weights are lost. Load them again "
                    "from the preset or the last checkpoint."
                )
            # Remove the traced functions, so that Keras makes new ones. If the
            # first trace failed after it created the optimizer's variables, a
            # second trace of the same function would fail too.
            self.train_function = None
            self.test_function = None
            self.predict_function = None
            _refuse_batch(error)
            self._refuse_ids(error)
            _refuse_uneven_batch(error)
            raise

    def _refuse_ids(self, error):
        """Raise `InputError` if TensorFlow found an id that is out of range."""
        message = getattr(error, "message", "")
        found = re.search(r"= (-?\d+) is not in \[0, \d+\)", message)
        # Functions of `tf.data`, such as Keras's for class weights, look up
        # other numbers.
        if not found or "user-defined function" in message:
            return
        encoder = getattr(self, "encoder", self)
        text = (
            f"The inputs have the id {found[1]}. Expected token_ids below "
            f"{encoder.vocabulary_size}, segment_ids below "
            f"{encoder.num_segments}, and positions below "
            f"{encoder.max_sequence_length} and within the row. Make the "
            "inputs with the preprocessor of this model."
        )
        if encoder.num_segments == 1:
            text += " A model with num_segments=1 reads no pairs of texts."
        raise InputError(text) from None

    def export(
        self,
        filepath: PathLike,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Export the model with ids as inputs, like `keras.Model.export`.

        By default, the exported model reads a dict of int32 arrays, with any
        number of rows of up to `max_sequence_length` tokens. The inputs of
        packed rows are included only if the model was made with
        `examples_per_row`. To export a model that reads texts and returns
        results such as labels, call `export_saved_model`.
        """
        if input_signature is None:
            input_signature = [self._input_specs()]
            if keras.backend.backend() == "jax" and format == "tf_saved_model":
                shapes = {
                    name: _name_axes(name, spec.shape)
                    for name, spec in input_signature[0].items()
                }
                kwargs.setdefault(
                    "jax2tf_kwargs", {"polymorphic_shapes": [shapes]}
                )
        with modes.use(gradients=False):
            super().export(  # type: ignore[misc]
                filepath, format, verbose, input_signature, **kwargs
            )

    def _input_specs(self):
        return {
            name: keras.InputSpec(shape=(None, None), dtype="int32", name=name)
            for name in INPUT_NAMES[:3]
        }

    def quantize(self, mode: Any = None, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise `InputError`: Keras would quantize no layer of the model."""
        raise InputError(
            f"{type(self).__name__}.quantize({mode!r}) would change no layer. "
            "For int8 weights export the model: export_saved_model(model, "
            'folder, weights_dtype="int8").'
        )

    def with_dtype(self, policy: Any) -> Self:
        """Return a copy with the same weights under another dtype policy.

        LoRA's matrices are merged into the copy's kernels. Frozen weights stay
        frozen.
        """
        # `copy_weights` replaces all values, so no random values are drawn.
        with modes.use(draw_weights=False):
            copy = self.copy_structure(policy)
        weights.copy_weights(self, copy)
        frozen = weights.get_adaptation(self).get("adaptation", {})
        weights.adapt(copy, frozen.get("frozen", ()))
        self.copy_metadata(copy)
        return copy

    def copy_metadata(self, copy: keras.Model) -> None:
        """Copy metadata that the config lacks, such as license, to `copy`."""
        source: Any = getattr(self, "encoder", self)
        target: Any = getattr(copy, "encoder", copy)
        target.license, target.origin = source.license, source.origin
        target.initializer_range = source.initializer_range
        weights.mark_new_weights(copy, weights.untrained_weights(self))
        if hasattr(self, "sentence_embedding"):
            copy.sentence_embedding = dict(self.sentence_embedding)


def _name_axes(name, shape):
    """Return a shape for JAX, such as "(batch, length)".

    Keras would give the axis T another name in each input.
    """
    last = "masked" if name == "mask_positions" else "length"
    axes = ["batch", *["choices"] * (len(shape) - 2), last]
    pairs = zip(axes, shape, strict=True)
    return f"({', '.join(a if n is None else str(n) for a, n in pairs)})"


def _refuse_batch(error):
    """Raise the `InputError` of a generator that TensorFlow has called."""
    message = getattr(error, "message", "")
    found = re.search(r"\bInputError: (.*?)\n*Traceback", message, re.DOTALL)
    if found:
        raise InputError(found[1]) from None


def _refuse_uneven_batch(error):
    """Raise `InputError` if JAX cannot split a batch among the devices."""
    found = re.search(
        r"array axis 0 is partitioned (\d+) times, but the dimension size is "
        r"(\d+)",
        str(error),
    )
    if found:
        raise InputError(
            f"A batch has {found[2]} rows, which {found[1]} devices cannot "
            f"share equally. Choose a batch size that is a multiple of "
            f"{found[1]}, and leave out the rest of the rows: "
            "dataset.batch(64, drop_remainder=True). For predict, "
            "fill the last batch with copies of a row."
        ) from None
