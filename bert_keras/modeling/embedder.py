"""The model whose output is a vector for each text."""

import types
from numbers import Integral
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_keras.errors import InputError, require_tensorflow
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import (
    Pooling,
    check_truncate_dim,
    logits_dtype,
)
from bert_keras.modeling.inputs import POOLING_MASK
from bert_keras.modeling.task_base import (
    TaskModel,
    encode,
    fold,
    symbolic_inputs,
    unfold,
)
from bert_keras.parallel import answer_at_once


@keras.saving.register_keras_serializable("bert_keras")
class BertEmbedder(TaskModel):
    """One pooled vector for each text, for comparison by cosine similarity.

    The head has no weights. Equals `Transformer`, `Pooling` and `Normalize` of
    sentence-transformers (Reimers and Gurevych 2019, section 3). Losses for
    pairs and groups of texts are in `bert_keras.training.similarity`.

    Weights, by path: the encoder's.

    Args:
        encoder: a `BertEncoder`.
        pooling: "mean" or "max" over all tokens, including [CLS] and [SEP];
            "cls" for the vector of [CLS], "last" for the vector of the last
            token, or "pooled" for the pooler's output.
        normalize: True to scale each vector to length 1.
        truncate_dim: number of values to keep from the beginning of a vector,
            after normalization.

    If an argument is None, the preset of the encoder sets it. If the preset
    does not, the defaults are `pooling="mean"`, `normalize=True` and no
    truncation.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`, int32
            (B, T), or (B, K, T) for examples of K texts; or only the token
            ids. The optional `pooling_mask` is 1 at tokens to pool, and "cls"
            reads the first such token. "last" and "pooled" do not use the mask.
            A preprocessor with a prompt and `include_prompt=False` adds
            `pooling_mask`.

    Returns:
        float32 (B, D), or (B, K, D); D is `truncate_dim` if it is set.

    Raises:
        InputError: the pooling is unknown, or `truncate_dim` is below 1 or
            above `hidden_dim` of the encoder.

    Examples:
        >>> from bert_keras import BertEmbedder, BertPreprocessor
        >>> model = BertEmbedder.from_preset("bert_keras_mini_en")
        >>> preprocess = BertPreprocessor.from_preset("bert_keras_mini_en")
        >>> print(model(preprocess(["A goat.", "The ship sailed."])).shape)
        (2, 256)
    """

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
        check_truncate_dim(self.truncate_dim, encoder.hidden_dim)
        pool = Pooling(
            self.pooling,
            self.normalize,
            self.truncate_dim,
            name="pooling",
            # Half precision would make the cosine less precise.
            dtype=logits_dtype(encoder.dtype_policy),
        )
        self.pools = self.pooling == "pooled"
        # `save_preset` and the export read this dict.
        self.sentence_embedding = self.arguments()
        inputs = symbolic_inputs(optional=(POOLING_MASK,))
        encoded = encode(encoder, inputs)
        # (B, D)
        vectors = pool(encoded, inputs["padding_mask"], inputs[POOLING_MASK])
        super().__init__(inputs, vectors, encoder, name)
        self._axes: set[int] = set()  # ranks of the last `predict`'s inputs
        self._trace: types.SimpleNamespace | None = None

    def default_losses(self) -> dict[str, Any]:
        from bert_keras.training.similarity import InBatchNegatives

        return {"loss": InBatchNegatives()}

    def encode_texts(
        self, x: Any, y: Any = None, sample_weight: Any = None
    ) -> Any:
        """Return ids (B, T) of texts, or (B, K, T) of a tuple of K batches."""
        encode = self.preprocessor
        keys = encode.text_keys if isinstance(x, dict) else None
        is_several = isinstance(x, tuple) or len(keys or ()) > 1
        return (encode.each if is_several else encode)(x, y, sample_weight)

    def read_arguments(self, values: dict[str, Any]) -> None:
        super().read_arguments(values)
        x = values["x"]
        x = getattr(x, "element_spec", (x,))  # of a data set, with labels
        parts = keras.tree.flatten(x[0] if isinstance(x, tuple) else x)
        axes = {len(part.shape) for part in parts if hasattr(part, "shape")}
        if "y" not in values and axes != self._axes:
            # A change of rank needs a new graph, because `_call_rows` needs a
            # known rank.
            self._axes, self.predict_function = axes, None

    def encode(
        self, texts: Any, preprocessor: Any = None, batch_size: int = 64
    ) -> Any:
        """Return the vectors of many texts, at the speed of an exported model.

        Texts are sorted by length and batched. Padding is skipped. Long texts
        are cut to `sequence_length` tokens. The first call traces a graph.
        Later calls with the same tokenizer and `sequence_length` reuse it,
        unless `enable_lora` was called in between.

        Args:
            texts: N strings, as a list, an array, a tensor or a column.
            preprocessor: a `BertPreprocessor`; None: the model's. Its prompt
                is put before each text.
            batch_size: number of texts in a batch. If a CPU is the only
                device, two batches are computed at the same time.

        Returns:
            NumPy array, float32 (N, D), in the order of the texts.

        Raises:
            InputError: Keras does not run on TensorFlow, `texts` is one string
                or contains a value that is not a string, or `batch_size` is
                below 1.
        """
        require_tensorflow("BertEmbedder.encode")
        from bert_keras.serving.embedding import count_unpooled
        from bert_keras.text.tokenizer import as_strings

        if not isinstance(batch_size, Integral) or batch_size < 1:
            raise InputError(
                f"`batch_size` is {batch_size!r}. Expected a whole number, 1 "
                "or more."
            )
        preprocessor = preprocessor or self.preprocessor
        if preprocessor is None:
            raise InputError(
                "The model has no preprocessor. Pass the BertPreprocessor of "
                "the model: encode(texts, preprocess)."
            )
        texts = as_strings(texts)
        if texts.shape.rank != 1:
            raise InputError(
                f"texts has the shape {texts.shape}. Expected (N,), such as a "
                "list of strings: encode([text], preprocessor)."
            )
        prompt = preprocessor.prompts.get(preprocessor.prompt, "")
        unpooled = count_unpooled(preprocessor, prompt)
        prompt = ops.convert_to_tensor(prompt, "string")
        unpooled = ops.convert_to_tensor(unpooled, "int32")
        texts = texts.numpy()  # bytes
        width = self.output.shape[-1]
        vectors: Any = np.zeros((len(texts), width), "float32")
        embed = self._trace_texts(preprocessor)
        lengths = [len(text) for text in texts]
        # The longest texts come first, so that a lack of memory shows at once.
        order = np.argsort(lengths, kind="stable")[::-1]
        batches = [
            order[start : start + batch_size]
            for start in range(0, len(order), batch_size)
        ]

        def answer(rows):
            batch = ops.convert_to_tensor(texts[rows], "string")
            return embed(batch, prompt, unpooled)

        found = answer_at_once(answer, batches)
        for rows, values in zip(batches, found, strict=True):
            vectors[rows] = values
        return vectors

    def _trace_texts(self, preprocessor):
        from bert_keras.serving.embedding import trace_embedder
        from bert_keras.serving.texts import copy_for_serving

        tokenizer = preprocessor.tokenizer
        # `enable_lora` adds weights, which an older trace does not read.
        key = id(tokenizer), preprocessor.sequence_length, len(self.weights)
        if self._trace is None or self._trace.key != key:
            function = trace_embedder(self, copy_for_serving(preprocessor))
            # Keep the tokenizer alive: `key` contains its id, and Python gives
            # the id of a freed object to a new one. Use a namespace: in a
            # tuple, Keras would track the tokenizer as a layer.
            self._trace = types.SimpleNamespace(
                key=key, tokenizer=tokenizer, function=function
            )
        return self._trace.function

    def _call_rows(self, call, inputs, *args, **kwargs):
        """Apply a function of (B, T) rows to (B, T) or (B, K, T) inputs."""
        ids = inputs["token_ids"]
        if len(ids.shape) == 2:
            return call(inputs, *args, **kwargs)
        vectors = call(fold(inputs), *args, **kwargs)  # (B K, D)
        return unfold(vectors, ids, self.output.shape[-1])  # (B, K, D)
