"""The layer that turns raw text into model inputs: tokenizer and packer."""

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

import keras
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.files import PathLike
from bert_keras.text.packing import SegmentPacker
from bert_keras.text.tokenizer import (
    TokenizerArguments,
    WordPieceTokenizer,
    as_strings,
)

# Side of a search -> names that its prompt may have. The first match is used.
PROMPTS = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


class PreprocessorArguments(TokenizerArguments, total=False):
    """Keyword arguments of `from_preset`."""

    sequence_length: int
    pad_to_longest: bool
    prompts: dict[str, str]
    prompt: str | None
    include_prompt: bool
    text_keys: str | Sequence[str] | None
    label_key: str | None


@keras.saving.register_keras_serializable(package="bert_keras")
class BertPreprocessor(keras.layers.Layer):
    """Layer that turns strings or pairs of strings into inputs of BERT models.

    The layer works eagerly, in `tf.function` and in `Dataset.map`, whose
    elements may be strings, `(strings, labels)` or `((first, second), labels)`.

    Args:
        tokenizer: a `WordPieceTokenizer`.
        sequence_length: maximum number of tokens in a row, special tokens
            included. `SegmentPacker` cuts longer texts.
        pad_to_longest: True to pad to the batch's longest row, as serving
            does; False to pad to `sequence_length`.
        prompts: dict of name -> prompt, a string to put before a text that
            is embedded, such as {"query": "query: "}.
        prompt: name of the prompt to put before each text; None for no
            prompt. Pairs get no prompt.
        include_prompt: False to leave [CLS] and the prompt out of the pooling
            of `BertEmbedder`.
        text_keys: if elements are dicts, as `tfds.load` gives them: the name
            of the text, or a tuple of names, one for each segment.
        label_key: name of the label in such dicts, where they have one; None
            for no label.

    Call arguments:
        x: strings `(B,)` (a tensor, an array, a column or a list), one string,
            or a tuple of these, one for each segment. A list is a batch, but a
            list of tensors `(B,)` counts as a tuple. With `text_keys`, a dict
            of these.
        y: labels, passed on.
        sample_weight: weights, passed on.

    Returns:
        A dict of `token_ids`, `segment_ids` and `padding_mask`, `int32 (B, T)`,
        or `(T,)` for one string. With `include_prompt=False` and a prompt, the
        dict also has `pooling_mask`, 1 at the tokens after the prompt. With
        `y`, a tuple of the dict, `y` and, if given, `sample_weight`.

    Raises:
        InputError: an argument is invalid, or the segments of a call have
            different sizes.

    Examples:
        >>> from bert_keras import BertPreprocessor
        >>> preset = "bert_keras_mini_en"
        >>> preprocess = BertPreprocessor.from_preset(preset, sequence_length=8)
        >>> preprocess(["An hour."])["token_ids"].numpy().tolist()
        [[2, 282, 979, 109, 3, 0, 0, 0]]
    """

    def __init__(
        self,
        tokenizer: WordPieceTokenizer,
        sequence_length: int = 128,
        pad_to_longest: bool = False,
        prompts: dict[str, str] | None = None,
        prompt: str | None = None,
        include_prompt: bool = True,
        text_keys: str | Sequence[str] | None = None,
        label_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        # A namespace, because Keras would replace a dict that is an attribute
        # by a `TrackedDict`.
        self._prompts = types.SimpleNamespace(texts=dict(prompts or {}))
        if prompt is not None and prompt not in self.prompts:
            raise InputError(
                f"There is no prompt {prompt!r}. Expected None or a name in "
                f"`prompts`, which has {', '.join(self.prompts) or 'no names'}."
            )
        self.prompt = prompt
        self.include_prompt = include_prompt
        if label_key is not None and not text_keys:
            raise InputError(
                f"label_key is {label_key!r}, but text_keys is {text_keys!r}. "
                "Name the texts too, such as text_keys=('sentence1', "
                "'sentence2')."
            )
        names = (text_keys,) if isinstance(text_keys, str) else text_keys
        self.text_keys = tuple(names) if names else None
        self.label_key = label_key
        if not hasattr(tokenizer, "cls_id"):
            raise InputError(
                f"tokenizer is {tokenizer!r:.60}. Expected a "
                "WordPieceTokenizer. For the tokenizer of a saved or published "
                "model, call BertPreprocessor.from_preset(...)."
            )
        self.tokenizer = tokenizer
        self.pad_to_longest = pad_to_longest
        self.packer = SegmentPacker(
            sequence_length,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
            pad_id=tokenizer.pad_id,
            pad_to_longest=pad_to_longest,
        )
        self.sequence_length = self.packer.sequence_length
        self._unpooled = 0  # tokens at the start of a row that are not pooled
        if prompt is not None and not include_prompt:
            self._unpooled = count_prompt(
                tokenizer, self.prompts[prompt], sequence_length
            )
        self.built = True

    @property
    def prompts(self) -> dict[str, str]:
        """Dict of name -> prompt."""
        return self._prompts.texts

    def with_prompt(self, prompt: str | None) -> Self:
        """Return a copy that puts this prompt before each text.

        `prompt` is a name in `prompts`, or None for no prompt.
        """
        return type(self)(**{**self.arguments(), "prompt": prompt})

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `BertPreprocessor`, by name."""
        names = (
            *("tokenizer", "sequence_length", "pad_to_longest", "prompts"),
            *("prompt", "include_prompt", "text_keys", "label_key"),
        )
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_preset(
        cls,
        preset: PathLike,
        *,
        revision: str | None = None,
        **arguments: Unpack[PreprocessorArguments],
    ) -> Self:
        """Load the preprocessor of published or saved weights.

        `arguments` of this class or of `WordPieceTokenizer` override the
        preset's values. But a `lowercase` that contradicts the preset raises
        `InputError`. `revision` is a branch, tag or commit on the Hub.
        """
        from bert_keras.interop.presets import load_preprocessor

        return load_preprocessor(
            cls, WordPieceTokenizer, preset, revision, arguments
        )

    if TYPE_CHECKING:  # the return type depends on `y`

        @overload
        def __call__(self, x: Any) -> dict[str, tf.Tensor]: ...
        @overload
        def __call__(
            self, x: Any, y: Any, sample_weight: Any = None
        ) -> tuple[Any, ...]: ...
        def __call__(self, *arguments: Any, **named: Any) -> Any: ...

    def call(
        self, x: Any, y: Any = None, sample_weight: Any = None
    ) -> dict[str, tf.Tensor] | tuple[Any, ...]:
        texts, y = self.read(x, y)
        if len(texts) == 1:
            texts = (self._add_prompt(texts[0]),)
        segments = tuple(map(self.tokenizer, texts))
        return _with_labels(self._pack(segments), y, sample_weight)

    def read(self, x: Any, y: Any = None) -> tuple[tuple[Any, ...], Any]:
        """Return the segments, each a tensor of strings, and the labels."""
        x, y = self._read_keys(x, y)
        texts = tuple(_texts(segment) for segment in _segments(x))
        _check_rows(texts)
        return texts, y

    def _read_keys(self, x, y):
        """Return the texts and the labels of an element that is a dict."""
        if not isinstance(x, dict):
            return x, y
        if self.text_keys is None:
            strings = [key for key, value in x.items() if _is_text(value)]
            named, label = "the texts", ""
            if y is None:
                named, label = "the texts and the label", ", label_key='label'"
            raise InputError(
                f"The texts are a dict with {', '.join(map(repr, x))}, and "
                f"text_keys is None. Name {named}, as in "
                f"BertPreprocessor.from_preset(preset, text_keys="
                f"{tuple(strings)}{label}). A model takes it as "
                "from_preset(..., preprocessor=preprocessor)."
            )
        missing = [name for name in self.text_keys if name not in x]
        if missing:
            raise InputError(
                f"The texts are a dict without {missing[0]!r}. Expected "
                f"{', '.join(map(repr, self.text_keys))}, got "
                f"{', '.join(map(repr, x))}. Change text_keys."
            )
        # Rows to predict may have no label.
        label = x.get(self.label_key, y)
        texts = tuple(x[name] for name in self.text_keys)
        return texts[0] if len(texts) == 1 else texts, label

    def _pack(self, segments):
        rows = self.packer(segments)
        if self._unpooled and len(segments) == 1:
            mask = leave_out(rows["padding_mask"], self._unpooled)
            rows = {**rows, "pooling_mask": mask}
        return rows

    def _add_prompt(self, texts):
        prompt = self.prompts.get(self.prompt, "")
        return tf.strings.join([prompt, texts]) if prompt else texts

    def each(
        self, x: Any, y: Any = None, sample_weight: Any = None
    ) -> dict[str, tf.Tensor] | tuple[Any, ...]:
        """Pack each text of an example into its own row, for `BertEmbedder`.

        Args:
            x: a tuple of K batches of strings `(B,)`, such as `(anchors,
                positives)`. Batch k has text k of each example.
            y: labels, passed on.
            sample_weight: weights, passed on.

        Returns:
            The same as calling the preprocessor, but with tensors
            `int32 (B, K, T)`, and with the prompt before every text.
        """
        texts, y = self.read(x, y)
        if texts[0].shape.rank == 0:
            raise InputError(
                "The texts are single strings. Expected batches of strings "
                "(B,), such as each(([first], [second]))."
            )
        texts_in_one = self._add_prompt(tf.concat(texts, axis=0))
        packed = self._pack((self.tokenizer(texts_in_one),))

        def side_by_side(rows):  # (K B, T) to (B, K, T)
            shape = (len(texts), -1, tf.shape(rows)[1])
            return tf.transpose(tf.reshape(rows, shape), (1, 0, 2))

        rows = {name: side_by_side(value) for name, value in packed.items()}
        return _with_labels(rows, y, sample_weight)

    def compute_output_spec(
        self, x: Any, y: Any = None, sample_weight: Any = None
    ) -> dict[str, keras.KerasTensor] | tuple[Any, ...]:
        x, y = self._read_keys(x, y)
        segments = _segments(x)
        rows = self.packer.rows_spec(segments[0].shape)
        if self._unpooled and len(segments) == 1:
            rows["pooling_mask"] = rows["padding_mask"]
        return _with_labels(rows, y, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            **self.arguments(),
            "tokenizer": keras.saving.serialize_keras_object(self.tokenizer),
            "prompts": dict(self.prompts),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        tokenizer = keras.saving.deserialize_keras_object(config["tokenizer"])
        return cls(**{**config, "tokenizer": tokenizer})


def find_prompt(prompts, kind):
    """Return the name of the prompt for a side of a search; None if none fits.

    Args:
        prompts: dict of name -> prompt.
        kind: "query" or "document".
    """
    return next((name for name in PROMPTS[kind] if name in prompts), None)


def with_search_prompt(preprocess, kind):
    """Return `preprocess` with its prompt for queries or documents.

    Without such a prompt, return `preprocess` unchanged. For `kind`, see
    `find_prompt`.
    """
    name = find_prompt(preprocess.prompts, kind)
    return preprocess if name is None else preprocess.with_prompt(name)


def count_prompt(tokenizer, prompt, sequence_length):
    """Count the tokens of [CLS] and a prompt; return 0 for an empty prompt.

    Raises:
        InputError: `sequence_length` tokens have no room for the prompt, [CLS]
            and [SEP].
    """
    with tf.init_scope():  # eager, even while a graph is traced
        tokens = int(tf.size(tokenizer(prompt))) if prompt else 0
    if tokens + 2 > sequence_length:
        raise InputError(
            f"The prompt {prompt!r} has {tokens} tokens. Expected at most "
            f"{sequence_length - 2}, because `sequence_length` is "
            f"{sequence_length}, and [CLS] and [SEP] need two."
        )
    return tokens + 1 if prompt else 0


def leave_out(mask, count):
    """Return the mask (..., T) with 0 at the first `count` positions."""
    positions = tf.range(tf.shape(mask)[-1])
    return mask * tf.cast(positions >= count, mask.dtype)


def _segments(x):
    """Return a tuple of segments, each a batch of strings.

    A list is one segment. Only a list of tensors `(B,)` counts as a tuple,
    because a model's saved configuration stores tuples as lists.
    """
    if isinstance(x, tuple) and not x:
        raise InputError(
            "The texts are an empty tuple. Expected strings, or a tuple of "
            "strings, one for each segment."
        )
    is_list = isinstance(x, list) and len(x) > 0
    if isinstance(x, tuple) or is_list and all(map(_is_vector, x)):
        return tuple(x)
    if is_list and isinstance(x[0], keras.KerasTensor):
        raise InputError(
            f"The texts are a list of Keras tensors of shape {x[0].shape}. "
            "Expected (B,): make the inputs with keras.Input((), "
            'dtype="string").'
        )
    return (x,)


def _is_vector(value):
    if isinstance(value, keras.KerasTensor):
        return len(value.shape) == 1
    return keras.ops.is_tensor(value) and value.shape.rank == 1


def _is_text(value):
    if isinstance(value, list | tuple):
        return bool(value) and _is_text(value[0])
    dtype = getattr(value, "dtype", None)
    return (
        isinstance(value, str | bytes)
        or dtype in (tf.string, "string")
        or getattr(dtype, "kind", None) in tuple("OSU")
    )


def _texts(segment):
    texts = as_strings(segment)
    if texts.shape.rank is not None and texts.shape.rank > 1:
        raise InputError(
            f"The texts are of shape {texts.shape}. Expected (B,), with one "
            "string for each row. For pairs, give a tuple (firsts, seconds)."
        )
    return texts


def _check_rows(texts):
    shapes = [segment.shape for segment in texts]
    if not all(shapes[0].is_compatible_with(shape) for shape in shapes):
        counts = " and ".join(
            f"{shape[0]} texts" if shape.rank else "one text"
            for shape in shapes
        )
        raise InputError(
            f"The segments have different sizes: {counts}. Expected the same "
            "number of texts in each segment, one for each row."
        )


def _with_labels(rows, y, sample_weight):
    if y is None:
        return rows
    return (rows, y) if sample_weight is None else (rows, y, sample_weight)
