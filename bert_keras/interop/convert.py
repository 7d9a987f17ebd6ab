"""Many conversions at once, and the one table about them."""

import dataclasses
import os
import re
import tempfile
import warnings

import numpy as np
from keras import ops

from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interop import huggingface
from bert_keras.interop.google import save_google
from bert_keras.interop.huggingface import has_weights, places, save_huggingface
from bert_keras.interop.keras_hub import save_keras_hub
from bert_keras.interop.native import save_own
from bert_keras.interop.presets import (
    build_model,
    listed,
    load_preprocessor,
    open_checkpoint,
)
from bert_keras.interop.tensors import COMPUTES, SAME_HEAD
from bert_keras.interop.torch_pickle import pickles_in, unpickle_folder
from bert_keras.modeling.causal import BertCausalModel
from bert_keras.modeling.chooser import BertChooser
from bert_keras.modeling.classifier import BertClassifier
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.span import BertSpanPredictor
from bert_keras.modeling.tagger import BertTagger
from bert_keras.modeling.weights import published_weights, untrained_weights

# Weights of any readable format into any writable one, and the proof.

WRITERS = {
    "bert_keras": save_own,
    "huggingface": save_huggingface,
    "google": save_google,
    "keras_hub": save_keras_hub,
}
CLASSES = {
    cls.__name__: cls
    for cls in (
        BertEncoder,
        BertPretrainer,
        BertCausalModel,
        BertClassifier,
        BertSpanPredictor,
        BertTagger,
        BertChooser,
    )
}


# What files hold beside the weights: slots of optimizers, counters, position
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
        labels: names of its classes, if it has any.
        difference: the greatest absolute difference between an output of the
            source's model and one of the converted folder's.
        left_out: weights that are not in the folder: the format has no place
            for them, or the source did not have them.
        at_random: weights in the folder that no one ever trained.
        skipped: tensors of the source that no model here has a place for.
        dropped: other things that the format has no place for.
        refused: why nothing was written, or None.
    """

    source: str
    format: str = ""
    task: str = ""
    labels: list = dataclasses.field(default_factory=list)
    difference: float | None = None
    left_out: list = dataclasses.field(default_factory=list)
    at_random: list = dataclasses.field(default_factory=list)
    skipped: list = dataclasses.field(default_factory=list)
    dropped: list = dataclasses.field(default_factory=list)
    refused: str | None = None


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
    model = _loaded(cls, checkpoint)
    written = model
    if accept_difference:
        written = _loaded(cls, checkpoint, **_settings_of(format, cls))
    text = None
    if checkpoint.read_text or lowercase is not None:
        text = load_preprocessor(checkpoint, lowercase=lowercase)
    missing = model.load_report.initialised
    left_out = WRITERS[format](folder, written, text, missing)
    again = _loaded(cls, open_checkpoint(folder))
    return Conversion(
        source=checkpoint.source,
        format=checkpoint.format,
        task=checkpoint.head,
        labels=list(getattr(model, "labels", None) or []),
        difference=greatest_difference(model, again),
        left_out=left_out,
        at_random=sorted({*missing, *untrained_weights(model)} - set(left_out)),
        skipped=[n for n in model.load_report.skipped if not _spare(n)],
        dropped=_dropped(checkpoint, format),
    )


def _loaded(cls, checkpoint, **arguments):
    """The model; the conversion itself says what is new in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)
        return build_model(cls, checkpoint, arguments)


def _spare(name):
    """Whether a tensor is an optimizer's, a counter, or a second copy."""
    return any(re.search(pattern, name, re.IGNORECASE) for pattern in SPARE)


def _dropped(checkpoint, format):
    if checkpoint.embedding is None or format == "bert_keras":
        return []
    settings = [f"{k} {v}" for k, v in checkpoint.embedding.items()]
    return [f"how sentences are embedded ({', '.join(settings)})"]


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


def _settings_of(format, cls):
    """Those of the format's home, as far as the class has them."""
    return {
        name: value
        for name, value in COMPUTES[format].items()
        if name not in SAME_HEAD or cls is BertPretrainer
    }


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
    places = np.arange(length)
    lengths = length - np.arange(4)[:, None] * (length // 8)
    inputs = {
        "token_ids": ids,
        "segment_ids": np.broadcast_to(
            (places >= length // 2) * (encoder.num_segments > 1), shape
        ).astype("int32"),
        "padding_mask": (places < lengths).astype("int32"),
    }
    if isinstance(model, BertChooser):  # two choices for each of two rows
        return {k: v.reshape(2, 2, length) for k, v in inputs.items()}
    if isinstance(model, BertPretrainer):
        inputs["mask_positions"] = np.tile(places[: length // 2], (4, 1))
    return inputs


# Many conversions at once, and the one table about them.


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


def convert_all(
    folder,
    target,
    format="bert_keras",
    allow_torch=False,
    accept_difference=False,
    lowercase=None,
):
    """Converts every preset in a folder; returns a list of `Conversion`.

    One that cannot be converted is a row with its reason; the rest go on.

    Args:
        folder: each folder and file in it is a source.
        target: gets a folder for each, of the same name.
        format: a key of `WRITERS`.
        allow_torch: read pickles, by PyTorch's restricted loader.
        accept_difference, lowercase: as `convert` takes them.
    """
    if not os.path.isdir(folder):
        raise InputError(f"{folder} is no folder. Name one that holds presets.")
    rows = []
    for name in sorted(os.listdir(folder)):
        source = os.path.join(folder, name)
        stem = name.removesuffix(".zip")
        try:
            if stem != name and os.path.exists(os.path.join(folder, stem)):
                raise InputError(
                    f"{source} would go where {stem} goes. Rename one of them."
                )
            with tempfile.TemporaryDirectory() as beside:
                plain = (
                    without_pickle(source, beside) if allow_torch else source
                )
                row = convert(
                    plain,
                    os.path.join(target, stem),
                    format,
                    accept_difference,
                    lowercase,
                )
        except InputError as error:
            row = Conversion(source, refused=str(error))
        row.source = source
        rows.append(row)
    return rows


def table(rows):
    """The rows as one Markdown table."""
    lines = [
        "| source | format | task | labels | greatest difference | remark |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        difference = "" if row.refused else f"{row.difference:.1e}"
        cells = [
            row.source,
            row.format,
            row.task,
            ", ".join(row.labels),
            difference,
            remark(row),
        ]
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines) + "\n"


def remark(row):
    """Why it was refused, or what it lacks; empty for a whole one."""
    if row.refused:
        return row.refused
    parts = []
    lost = row.left_out + row.dropped
    if lost:
        parts.append(f"without {', '.join(lost)}")
    if row.at_random:
        parts.append(f"at random: {', '.join(row.at_random)}")
    if row.skipped:
        parts.append(f"not taken along: {listed(row.skipped)}")
    return "; ".join(parts)


def _cell(text):
    return text.replace("|", "\\|").replace("\n", " ")
