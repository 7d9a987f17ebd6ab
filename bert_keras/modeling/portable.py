"""What every model can do: come from a preset, go into one, change dtype."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self

import keras

from bert_keras.errors import InputError
from bert_keras.files import PathLike
from bert_keras.modeling.inputs import refuse_text
from bert_keras.modeling.layers import skip_initialization
from bert_keras.modeling.lora import adapt, adaptation
from bert_keras.modeling.weights import (
    copy_weights,
    mark_untrained,
    untrained_weights,
)


class Portable:
    """Loading, saving and copying, for `BertEncoder` and every task model."""

    _rebuilt: Callable[[Any], Any]  # a new model of the same settings

    @classmethod
    def from_preset(cls, preset: PathLike, **arguments: Any) -> Self:
        """A model with the weights of a preset: a folder or a name.

        `arguments` go to the constructor, over what the preset says.
        """
        # When it is called: interop builds on this room.
        from bert_keras.interop.presets import load_model

        return load_model(cls, preset, **arguments)

    def save_preset(self, folder: PathLike, preprocessor: Any = None) -> None:
        """Writes configuration, weights and vocabulary to `folder`.

        The optimizer's state does not go into it.

        Args:
            folder: made.
            preprocessor: the `BertPreprocessor` that the model was trained
                with, from which comes the vocabulary.

        Raises:
            InputError: no preprocessor, or it does not fit the model.
        """
        if preprocessor is None:
            raise InputError(
                "save_preset got no preprocessor, but a preset has a "
                "vocabulary too. Give the BertPreprocessor that the model was "
                "trained with: save_preset(folder, preprocess)."
            )
        from bert_keras.interop.native import save_native

        save_native(folder, self, preprocessor)

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        custom_objects: dict[str, Any] | None = None,
    ) -> Self:
        config = dict(config)
        adapted = config.pop("adaptation", {})
        model = cls(**config)
        adapt(model, **adapted)
        return model

    if not TYPE_CHECKING:  # there, Keras's own signatures

        @functools.wraps(keras.Model.fit)
        def fit(self, x=None, *args, **kwargs):
            return self._run(super().fit, x, *args, **kwargs)

        @functools.wraps(keras.Model.evaluate)
        def evaluate(self, x=None, *args, **kwargs):
            return self._run(super().evaluate, x, *args, **kwargs)

        @functools.wraps(keras.Model.predict)
        def predict(self, x, *args, **kwargs):
            return self._run(super().predict, x, *args, **kwargs)

    def _run(self, loop, x, *args, **kwargs):
        """A loop of Keras. After an error the next one is traced again.

        A trace that failed half-way has made variables of the optimizer, and
        a second call of the same function could make none.
        """
        refuse_text(x)
        try:
            return loop(x, *args, **kwargs)
        except Exception:
            # Keras makes them again at the next call.
            self.train_function = None
            self.test_function = None
            self.predict_function = None
            raise

    def quantize(self, mode: Any = None, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses: Keras leaves the layers of this package as they are."""
        raise InputError(
            f"{type(self).__name__}.quantize({mode!r}) is not possible: Keras "
            "would leave every layer as it is. For int8 weights export the "
            "model: export_saved_model(model, preprocessor, folder, "
            'dtype="int8").'
        )

    def with_dtype(self, policy: Any) -> Self:
        """A copy with the same weights under another dtype policy.

        What LoRA added is merged into the copy's weights. What is frozen here
        is frozen there.
        """
        # Zeros cost less than random numbers, and are replaced next.
        with skip_initialization():
            copy = self._rebuilt(policy)
        copy_weights(self, copy)
        # The copy's weights are merged, so LoRA itself is left out.
        adapted = adaptation(self).get("adaptation", {"frozen": ()})
        adapt(copy, adapted["frozen"])
        self.hand_on(copy)
        return copy

    def hand_on(self, copy: keras.Model) -> None:
        """Gives a copy what belongs to the weights besides their numbers."""
        ours: Any = getattr(self, "encoder", self)
        theirs: Any = getattr(copy, "encoder", copy)
        theirs.license, theirs.origin = ours.license, ours.origin
        theirs.initializer_range = ours.initializer_range
        mark_untrained(copy, untrained_weights(self))
        if hasattr(self, "sentence_embedding"):
            copy.sentence_embedding = dict(self.sentence_embedding)
