"""Texts as inputs of task models: a model's preprocessor makes ids of them."""

import inspect
import itertools
import sys
import types
from typing import Any

import keras
import numpy as np

from bert_keras.errors import InputError
from bert_keras.modeling import modes
from bert_keras.modeling.gradients import tf
from bert_keras.modeling.inputs import contains_text, read_labels
from bert_keras.modeling.keras_adapter import CACHED_EVALUATION

# tf.data.AUTOTUNE, without an import of TensorFlow
_AUTOTUNE = -1


class ReadsTexts:
    """Mixin of a model whose `preprocessor` turns texts into ids.

    `fit`, `evaluate`, `predict`, the methods for one batch and a call then take
    texts: what the preprocessor takes, and data sets, generators and
    `PyDataset`s of it. Other inputs stay as they are.
    """

    # False for a model whose rows the preprocessor cannot make.
    reads_texts = True

    @property
    def preprocessor(self) -> Any:
        """The `BertPreprocessor` of this model, or None for a model of ids.

        `from_preset` sets it. It is loaded when it is first read, and it is
        saved with the model.
        """
        holder = self._find_holder()
        if holder.load is not None:
            from bert_keras.text import preprocessor as text

            holder.preprocessor = holder.load(
                text.BertPreprocessor, text.WordPieceTokenizer
            )
            holder.load = None
        return holder.preprocessor

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "preprocessor":
            super().__setattr__(name, value)
            return
        if value is not None:
            from bert_keras.interop.text_settings import check_fits

            check_fits(self, value)
        holder = self._find_holder()
        holder.preprocessor, holder.load = value, None

    def load_preprocessor_with(self, load: Any) -> None:
        """Make the preprocessor by `load` when it is first read.

        Args:
            load: function of the classes of the preprocessor and its tokenizer.
        """
        self._find_holder().load = load

    def _find_holder(self):
        # A namespace, because Keras would track the preprocessor as a layer.
        holder = self.__dict__.get("_text")
        if holder is None:
            holder = types.SimpleNamespace(preprocessor=None, load=None)
            object.__setattr__(self, "_text", holder)
        return holder

    def reads_pairs(self) -> bool:
        """Return True if each row is made of two texts."""
        return getattr(self, "pair", False)

    def encode_texts(
        self, x: Any, y: Any = None, sample_weight: Any = None
    ) -> Any:
        """Return the ids of a batch of texts, as the preprocessor does."""
        return self.preprocessor(x, y, sample_weight)

    def export(
        self,
        filepath: Any,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Export the model, like `keras.Model.export`.

        With a `preprocessor`, a SavedModel without `input_signature` takes
        strings: `serve(text)`, or `serve(text, text_pair)` for a model of
        pairs. Otherwise it takes ids: a dict of int32 arrays, with any number
        of rows of up to `max_sequence_length` tokens. For answers with labels,
        call `export_saved_model`.
        """
        takes_text = (
            format == "tf_saved_model"
            and input_signature is None
            and keras.backend.backend() == "tensorflow"
            and self.reads_texts
            and self.preprocessor is not None
        )
        if not takes_text:
            super().export(  # type: ignore[misc]
                filepath, format, verbose, input_signature, **kwargs
            )
            return
        archive = keras.export.ExportArchive()
        archive.track(self)
        archive.track(self.preprocessor)
        signature = [
            tf.TensorSpec([None], tf.string, name)
            for name in ["text", "text_pair"][: 1 + self.reads_pairs()]
        ]
        with modes.use(gradients=False):
            # AutoGraph cannot convert a method that calls `super`.
            serve = tf.autograph.experimental.do_not_convert(self._serve)
            archive.add_endpoint("serve", serve, signature)
        archive.write_out(filepath, verbose=verbose is not False)

    def _serve(self, *texts):
        rows = self.encode_texts(texts[0] if len(texts) == 1 else texts)
        return self(rows, training=False)  # type: ignore[operator]

    def _reads(self, x):
        return (
            self.reads_texts
            and contains_text(x)
            and self.preprocessor is not None
        )

    def _encode_call(self, texts):
        """Return the ids for a call of the model."""
        rows, *_ = _split(self.encode_texts(texts))
        _check_batch(rows)
        if keras.backend.backend() == "tensorflow":
            return rows
        if isinstance(rows["token_ids"], keras.KerasTensor):
            raise InputError(
                "The texts are symbolic, but only TensorFlow's graphs have "
                "strings. Expected texts, or ids that the preprocessor made."
            )
        return {name: np.asarray(value) for name, value in rows.items()}

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> Any:
        config = dict(config)
        stored = config.pop("preprocessor", None)
        model = super().from_config(config, custom_objects)  # type: ignore[misc]
        if stored is not None:
            # The import registers the class.
            from bert_keras.text import preprocessor  # noqa: F401

            model.preprocessor = keras.saving.deserialize_keras_object(stored)
        return model

    def copy_metadata(self, copy: Any) -> None:
        super().copy_metadata(copy)  # type: ignore[misc]
        vars(copy._find_holder()).update(vars(self._find_holder()))

    def describe_preprocessor(self) -> dict[str, Any]:
        """Return the entry of the preprocessor in the model's config, or {}."""
        try:
            preprocessor = self.preprocessor
        except ImportError:  # it needs TensorFlow, which JAX's users may lack
            return {}
        if preprocessor is None:
            return {}
        config = keras.saving.serialize_keras_object(preprocessor)
        return {"preprocessor": config}

    def _encode_arguments(self, loop, *args, **kwargs):
        """Return the arguments of `fit` and others with ids for texts."""
        signature = inspect.signature(loop)
        values = signature.bind(*args, **kwargs).arguments
        named = values.pop("kwargs", {})  # `evaluate` has **kwargs
        if named.get(CACHED_EVALUATION):  # its data are encoded already
            return {**values, **named}
        data = [values.get(name) for name in ("x", "y", "sample_weight")]
        x, y, sample_weight = self._encode_data(*data)
        values |= {"x": x}
        values |= {} if y is None else {"y": y}
        if sample_weight is not None:
            values["sample_weight"] = sample_weight
        dev = values.get("validation_data")
        if isinstance(dev, tuple | list) and 1 <= len(dev) <= 3:
            values["validation_data"] = self._encode_dev(*dev)
        elif dev is not None:
            values["validation_data"] = self._encode_dev(dev)
        return {**values, **named}

    def _encode_dev(self, x, *rest):
        is_several = len(rest) > 0
        rest = (*rest, *[None] * (2 - len(rest)))
        x, y, sample_weight = self._encode_data(x, *rest)
        if y is None and not is_several:
            return x  # such as a data set
        return (x, y) if sample_weight is None else (x, y, sample_weight)

    def _encode_data(self, x, y, sample_weight):
        """Return (x, y, sample_weight) with ids in place of texts."""
        if isinstance(x, types.GeneratorType):
            first = next(x, None)
            x = _continue(first, x)
            if first is not None and self._reads(_first_of(first)):
                x = (self._encode_element(element) for element in x)
        elif isinstance(x, keras.utils.PyDataset):
            if x.num_batches != 0 and self._reads(_first_of(x[0])):
                x = _TextDataset(x, self._encode_element)
        elif hasattr(x, "element_spec"):
            if self._reads(x):
                x = self._map_data_set(x)
        elif self._reads(x):
            return self._encode_element((x, y, sample_weight), 3)
        return x, y, sample_weight

    def _read_list(self, labels):
        """Return a batch of labels as an array, if it is a list or names."""
        classes = self._class_names()
        if classes is not None:
            labels = read_labels(labels, classes)
        return np.asarray(labels) if isinstance(labels, list) else labels

    def _map_data_set(self, data):
        texts = keras.tree.flatten(_first_of(data.element_spec))
        if any(getattr(spec.shape, "rank", 1) == 0 for spec in texts):
            raise InputError(
                "The data set has one text in an element. Expected batches: "
                "give dataset.batch(32)."
            )

        # The data set's module is loaded, although Keras may run on JAX.
        # AutoGraph would turn an InputError into an error of its own.
        @sys.modules["tensorflow"].autograph.experimental.do_not_convert
        def encode(*element):
            return self.encode_texts(*element)

        return data.map(encode, num_parallel_calls=_AUTOTUNE).prefetch(
            _AUTOTUNE
        )

    def _encode_element(self, element, length=None):
        """Return a batch of arrays as a tuple; `length` fills it with None."""
        x, *rest = _split(self.encode_texts(*_split(element)))
        _check_batch(x)
        x = {name: np.asarray(value) for name, value in x.items()}
        if rest and rest[0] is not None:
            rest[0] = self._read_list(rest[0])
        if len(rest) > 1 and isinstance(rest[1], list):
            rest[1] = np.asarray(rest[1])
        filled = [None] * ((length or 0) - len(rest) - 1)
        return (x, *rest, *filled)


def _check_batch(rows):
    if len(rows["token_ids"].shape) < 2:
        raise InputError(
            "The input is one text. Expected a batch of texts: give a list, "
            "[text]."
        )


def _first_of(element):
    return _split(element)[0]


def _split(element):
    """Return (x,), (x, y) or (x, y, sample_weight), as Keras splits it."""
    if isinstance(element, tuple):
        return element
    # A list of texts is one batch.
    is_list = isinstance(element, list) and len(element) > 0
    if is_list and not isinstance(element[0], str | bytes):
        return tuple(element)
    return (element,)


def _continue(first, rest):
    """Return a generator of `first` and of the rest."""
    if first is not None:
        yield from itertools.chain([first], rest)


class _TextDataset(keras.utils.PyDataset):
    """A `PyDataset` whose batches of texts are turned into ids.

    Its workers are threads, because TensorFlow hangs in a forked process.
    """

    def __init__(self, source, encode):
        super().__init__(
            workers=source.workers, max_queue_size=source.max_queue_size
        )
        self.source, self.encode = source, encode

    def __getitem__(self, index):
        return self.encode(self.source[index])

    def __len__(self):
        return len(self.source)

    @property
    def num_batches(self):
        return self.source.num_batches

    def on_epoch_begin(self):
        self.source.on_epoch_begin()

    def on_epoch_end(self):
        self.source.on_epoch_end()
