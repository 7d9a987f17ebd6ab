"""Texts as inputs of task models: a model's preprocessor makes ids of them."""

import itertools
import types
from typing import Any

import keras
import numpy as np

from bert_keras.errors import InputError
from bert_keras.modeling import modes
from bert_keras.modeling.gradients import tf
from bert_keras.modeling.inputs import contains_text, read_labels
from bert_keras.modeling.keras_adapter import batch_arrays, split_arrays

# tf.data.AUTOTUNE, without an import of TensorFlow
_AUTOTUNE = -1


class ReadsTexts:
    """Mixin of a model whose `preprocessor` turns texts into ids.

    `fit`, `evaluate`, `predict`, the methods for one batch and a call then take
    texts: what the preprocessor takes, and data sets, generators and
    `PyDataset`s of it. Other inputs stay as they are.

    The preprocessor makes the ids while the model trains: those of data sets
    and of arrays in a pipeline of `tf.data`, those of generators and
    `PyDataset`s where Keras reads them. If it has `pad_to_longest`, the ids of
    arrays are made before, so that all rows have one length.
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
        load = holder.load  # another thread may set it to None
        if load is not None:
            from bert_keras.text import preprocessor as text

            holder.preprocessor = load(
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

    def encode_batch(self, *batch: Any) -> tuple[Any, ...]:
        """Return a batch (x,), (x, y) or (x, y, sample_weight) with ids."""
        on_tensorflow = keras.backend.backend() == "tensorflow"
        texts = keras.tree.flatten(batch[0])
        if not any(isinstance(text, keras.KerasTensor) for text in texts):
            batch = self.read_arrays(*batch)
        elif not on_tensorflow:
            raise InputError(
                "The texts are symbolic, but only TensorFlow's graphs have "
                "strings. Expected texts, or ids that the preprocessor made."
            )
        rows, *rest = _split(self.encode_texts(*batch))
        if not on_tensorflow:
            rows = {name: np.asarray(value) for name, value in rows.items()}
        return (rows, *rest)

    def read_arrays(
        self, x: Any, y: Any = None, sample_weight: Any = None
    ) -> tuple[Any, Any, Any]:
        """Return texts as string tensors, and labels and weights as arrays.

        Names of labels become numbers. A label of a dict is taken out of it.
        """
        texts, y = self.preprocessor.read(x, y)
        if not texts[0].shape.rank:
            raise InputError(
                "The input is one text. Expected a batch of texts: give a "
                "list, [text]."
            )
        if texts[0].shape[0] == 0:
            raise InputError("The input has no texts. Expected at least one.")
        # A tuple of one text stays a tuple, which an embedder distinguishes.
        x = texts if isinstance(x, tuple) or len(texts) > 1 else texts[0]
        classes = self._class_names()  # type: ignore[attr-defined]
        y = y if classes is None else read_labels(y, classes)
        y, sample_weight = (
            np.asarray(values) if isinstance(values, list) else values
            for values in (y, sample_weight)
        )
        return x, y, sample_weight

    def encode_arguments(self, values: dict, data: tuple, dev: Any) -> None:
        """Put ids in place of texts into the arguments of a loop.

        Args:
            values: dict of the arguments by name, which is changed.
            data: x, y and sample_weight, arrays of texts as `read_arrays`
                returns them.
            dev: the same of the validation data, or None.
        """
        is_arrays = self._reads_arrays(data[0])
        if "batch_size" not in values:  # a method for one batch
            if is_arrays:
                data = (*self.encode_batch(*data), None, None)
            values |= _name_data(values, data)
            return
        if is_arrays and dev is None and values.get("validation_split"):
            data, dev = split_arrays(data, values["validation_split"])
            values["validation_split"] = 0.0
        data = self.encode_data(
            *data,
            batch_size=values["batch_size"],
            steps=values.get("steps_per_epoch") or values.get("steps"),
            shuffle=values.get("shuffle", False),
            class_weight=values.get("class_weight"),
        )
        values |= _name_data(values, data)
        if is_arrays and hasattr(data[0], "element_spec"):
            # The data set is shuffled and has the weights.
            done = {"shuffle": False, "class_weight": None}
            values |= {name: done[name] for name in done if name in values}
        if dev is not None:
            values["validation_data"] = self.encode_data(
                *dev,
                batch_size=values["validation_batch_size"]
                or values["batch_size"],
                steps=values["validation_steps"],
            )

    def encode_data(
        self, x: Any, y: Any, sample_weight: Any, **batching: Any
    ) -> tuple[Any, Any, Any]:
        """Return the data of `fit`, `evaluate` or `predict` with ids.

        Args:
            x: texts or other inputs, or a data set of them.
            y: labels, or None.
            sample_weight: weights, or None.
            **batching: arguments of `batch_arrays`.
        """
        if isinstance(x, types.GeneratorType):
            first = next(x, None)
            x = _continue(first, x)
            if first is not None and self._reads(_first_of(first)):
                x = (self.encode_batch(*_split(element)) for element in x)
        elif isinstance(x, keras.utils.PyDataset):
            if x.num_batches != 0 and self._reads(_first_of(x[0])):
                x = _TextDataset(x, self.encode_batch)
        elif hasattr(x, "element_spec"):
            if self._reads(x):
                x = self._map_data_set(x)
        elif self._reads(x) and self.preprocessor.pad_to_longest:
            x, *rest = self.encode_batch(x, y, sample_weight)
            y, sample_weight = (*rest, None, None)[:2]
        elif self._reads(x):
            arrays = (x, y, sample_weight)
            x = self._map_data_set(batch_arrays(arrays, **batching))
            y = sample_weight = None
        return x, y, sample_weight

    def _map_data_set(self, data):
        texts = keras.tree.flatten(_first_of(data.element_spec))
        if any(getattr(spec.shape, "rank", 1) == 0 for spec in texts):
            raise InputError(
                "The data set has one text in an element. Expected batches: "
                "give dataset.batch(32)."
            )
        ids = data.map(self.encode_texts, num_parallel_calls=_AUTOTUNE)
        return ids.prefetch(_AUTOTUNE)

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
        texts = texts[0] if len(texts) == 1 else texts
        return self(texts, training=False)  # type: ignore[operator]

    def _reads(self, x):
        return (
            self.reads_texts
            and contains_text(x)
            and self.preprocessor is not None
        )

    def _reads_arrays(self, x):
        return not hasattr(x, "element_spec") and self._reads(x)

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


def _name_data(values, data):
    """Return the arguments of a loop for x, y and sample_weight, by name."""
    names = ("x", "y", "sample_weight")
    named = zip(names, data, strict=False)
    return {name: part for name, part in named if name in values}


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
        return self.encode(*_split(self.source[index]))

    def __len__(self):
        return len(self.source)

    @property
    def num_batches(self):
        return self.source.num_batches

    def on_epoch_begin(self):
        self.source.on_epoch_begin()

    def on_epoch_end(self):
        self.source.on_epoch_end()
