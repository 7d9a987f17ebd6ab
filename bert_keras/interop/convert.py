"""Weights of any readable format into any writable one, and the proof.

It stands above the models and the formats; what reads and writes a format is
in the file of that format.
"""

import dataclasses
import os
import re
import warnings

import numpy as np
from keras import ops

from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interop import huggingface
from bert_keras.interop.google import save_google
from bert_keras.interop.huggingface import has_weights, places, save_huggingface
from bert_keras.interop.keras_hub import save_keras_hub
from bert_keras.interop.native import save_native
from bert_keras.interop.presets import listed, open_checkpoint
from bert_keras.interop.sentence_transformers import (
    save_sentence_transformers,
)
from bert_keras.interop.tensor_files import pickles_in, unpickle_folder
from bert_keras.interop.tensors import COMPUTES, SAME_HEAD
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertCausalModel, BertPretrainer
from bert_keras.modeling.task_models import (
    BertChooser,
    BertClassifier,
    BertEmbedder,
    BertSpanPredictor,
    BertTagger,
)
from bert_keras.modeling.weights import published_weights, untrained_weights

WRITERS = {
    "bert_keras": save_native,
    "huggingface": save_huggingface,
    "google": save_google,
    "keras_hub": save_keras_hub,
    "sentence_transformers": save_sentence_transformers,
}
CLASSES = {
    cls.__name__: cls
    for cls in (
        BertEncoder,
        BertPretrainer,
        BertCausalModel,
        BertClassifier,
        BertEmbedder,
        BertSpanPredictor,
        BertTagger,
        BertChooser,
    )
}
# What files hold next to the weights: slots of optimizers, counters, position
# numbers, and the output table of masked words, which is the token table.
SPARE = (
    r"(adam|lamb|slot|optimizer)",
    r"(global_step|save_counter|iterations?|good_steps|loss_scale)",
    r"position_ids$",
    r"cls\.predictions\.decoder\.(weight|bias)$",
)


@dataclasses.dataclass
class Conversion:
    """What became of one source.

    Args:
        source: what was converted.
        format: the format that it had.
        task: the class of its head.
        difference: the greatest absolute difference between an output of the
            source's model and one of the converted folder's.
        left_out: weights that are not in the folder: the format has no place
            for them, or the source did not have them.
        at_random: weights in the folder that no one ever trained.
        skipped: tensors of the source that no model here has a place for.
        dropped: other things that the format has no place for.
    """

    source: str
    format: str
    task: str
    difference: float
    left_out: list
    at_random: list
    skipped: list
    dropped: list

    @property
    def remark(self):
        """What the folder lacks; empty where it lacks nothing."""
        parts = []
        lost = self.left_out + self.dropped
        if lost:
            parts.append(f"without {', '.join(lost)}")
        if self.at_random:
            parts.append(f"at random: {', '.join(self.at_random)}")
        if self.skipped:
            parts.append(f"not taken along: {listed(self.skipped)}")
        return "; ".join(parts)


def convert(
    source,
    folder,
    format="bert_keras",
    accept_difference=False,
    lowercase=None,
):
    """Converts one preset, loads the result and compares the outputs.

    Args:
        source: any preset.
        folder: where the converted one goes.
        format: a key of `WRITERS`.
        accept_difference: write the weights even where the format's home
            computes with other settings (its form of GELU, its epsilon).
        lowercase: settles the case of the text where the source does not.
    """
    if format not in WRITERS:
        raise InputError(
            f"The format is {format!r}. Expected {', '.join(WRITERS)}."
        )
    checkpoint = open_checkpoint(source)
    cls = model_class(checkpoint)
    model = _load(cls, checkpoint)
    written = model
    if accept_difference:
        settings = {
            name: value
            for name, value in COMPUTES[format].items()
            if name not in SAME_HEAD or cls is BertPretrainer
        }
        written = _load(cls, checkpoint, **settings)
    text = None
    if checkpoint.read_text or lowercase is not None:
        # Only here, and not for a preset without text: it needs TensorFlow.
        from bert_keras.text.preprocessor import BertPreprocessor

        text = BertPreprocessor.from_preset(checkpoint, lowercase=lowercase)
    missing = model.load_report.initialised
    left_out = WRITERS[format](folder, written, text, missing)
    again = _load(cls, open_checkpoint(folder))
    dropped = []
    keeps = ("bert_keras", "sentence_transformers")
    if checkpoint.embedding is not None and format not in keeps:
        settings = [f"{k} {v}" for k, v in checkpoint.embedding.items()]
        dropped = [f"how sentences are embedded ({', '.join(settings)})"]
    for name in ("problem", "pair", "may_be_none"):  # what answers mean
        meant = getattr(model, name, None)
        if meant != getattr(again, name, None):
            dropped.append(f"{name} {meant}")
    return Conversion(
        source=checkpoint.source,
        format=checkpoint.format,
        task=checkpoint.head,
        difference=greatest_difference(model, again),
        left_out=left_out,
        at_random=sorted({*missing, *untrained_weights(model)} - set(left_out)),
        skipped=[n for n in model.load_report.skipped if not _is_spare(n)],
        dropped=dropped,
    )


def model_class(checkpoint):
    """The class of a checkpoint's model, one of `CLASSES`."""
    if checkpoint.of_class:
        fits = " or ".join(
            theirs
            for theirs, ours in huggingface.CLASSES.items()
            if ours in checkpoint.of_class
        )
        raise InputError(
            f"{checkpoint.source} has a head whose tensors fit {fits}, and "
            "its config.json names no class. Write the right one into it, as "
            'in "architectures": ["BertForSequenceClassification"].'
        )
    if checkpoint.head not in CLASSES:
        raise InputError(
            f"{checkpoint.source} is a {checkpoint.head}, which only its own "
            f"task knows. Expected one of {', '.join(CLASSES)}."
        )
    return CLASSES[checkpoint.head]


def _load(cls, checkpoint, **arguments):
    """The model; the conversion itself says what is new in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)
        return cls.from_preset(checkpoint, **arguments)


def _is_spare(name):
    """Whether a tensor is an optimizer's, a counter, or a second copy."""
    return any(re.search(pattern, name, re.IGNORECASE) for pattern in SPARE)


def without_pickle(source, folder):
    """The source, or `folder` with safetensors in place of its pickle.

    Args:
        source: any preset.
        folder: an empty one, for a source whose only weights are a pickle.
    """
    for inner in places(source):
        place = os.path.join(source, inner)
        if has_weights(place):
            break
        if pickles_in(place):
            unpickle_folder(source, folder, inner)
            return folder
    return source


# The proof: outputs of both models on the same rows.


def greatest_difference(first, second):
    """Over all outputs, on fixed rows of random tokens with padding.

    What the second model had no weights for is copied from the first.
    """
    weights = published_weights(first)
    for name, weight in published_weights(second).items():
        if name in second.load_report.initialised:
            weight.assign(weights[name])
    inputs = sample_inputs(first)
    real = inputs["padding_mask"].astype(bool)
    ones, others = _outputs(first, inputs), _outputs(second, inputs)
    worst = 0.0
    for name, one in ones.items():
        apart = np.abs(one - others[name])
        if name in first.token_outputs:
            apart = apart[real]
        worst = float(np.maximum(worst, apart.max()))  # keeps NaN
    return worst


def _outputs(model, inputs):
    """The outputs by name; the only one of a model is `logits`."""
    outputs = model(inputs)
    if not isinstance(outputs, dict):
        outputs = {"logits": outputs}
    return {k: ops.convert_to_numpy(v) for k, v in outputs.items()}


def sample_inputs(model):
    """Four rows of random tokens in two segments, each with more padding."""
    encoder = getattr(model, "encoder", model)
    length = min(32, encoder.max_sequence_length)
    random = np.random.default_rng(0)
    shape = (4, length)
    ids = random.integers(0, encoder.vocabulary_size, shape, "int32")
    positions = np.arange(length)
    lengths = length - np.arange(4)[:, None] * (length // 8)  # (4, 1)
    inputs = {
        "token_ids": ids,
        "segment_ids": np.broadcast_to(
            (positions >= length // 2) * (encoder.num_segments > 1), shape
        ).astype("int32"),
        "padding_mask": (positions < lengths).astype("int32"),
    }
    if isinstance(model, BertChooser):  # two choices for each of two rows
        return {k: v.reshape(2, 2, length) for k, v in inputs.items()}
    if isinstance(model, BertPretrainer):
        inputs["mask_positions"] = np.tile(positions[: length // 2], (4, 1))
    return inputs
