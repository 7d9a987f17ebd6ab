"""Conversion of a preset to a Hugging Face folder, with a check of outputs."""

import dataclasses
import warnings

import numpy as np
from keras import ops

import bert_keras
from bert_keras.comparison import greatest_difference
from bert_keras.errors import InputError
from bert_keras.interop.head_table import BY_ARCHITECTURE, HEADS
from bert_keras.interop.load_report import is_spare, list_names
from bert_keras.interop.opening import open_checkpoint, read_text
from bert_keras.interop.saving import save_model
from bert_keras.modeling.weights import published_weights, untrained_weights


@dataclasses.dataclass
class Conversion:
    """The report on one conversion.

    Attributes:
        source: path or name of the preset.
        format: format of the preset, such as "huggingface".
        task: name of the model class.
        difference: the greatest absolute difference between the outputs of
            the source model and of the converted model.
        left_out: names of the model's weights that the source lacks. The
            output folder lacks them, too.
        untrained: names of weights in the output folder that are still random.
        skipped: names of tensors in the source that the model lacks; see
            `is_spare` for exceptions.
    """

    source: str
    format: str
    task: str
    difference: float
    left_out: list
    untrained: list
    skipped: list

    @property
    def remark(self):
        """Text that lists missing, untrained and skipped weights; may be ""."""
        parts = []
        if self.left_out:
            parts.append(f"without {', '.join(self.left_out)}")
        if self.untrained:
            parts.append(f"untrained: {', '.join(self.untrained)}")
        if self.skipped:
            parts.append(f"skipped: {list_names(self.skipped)}")
        return "; ".join(parts)


def convert(source, folder, lowercase=None, overwrite=True):
    """Convert one preset, load the result and compare the outputs.

    Args:
        source: path or name of a preset; see `open_checkpoint`.
        folder: the output folder; see `save_model`.
        lowercase: True to lower-case texts, False to keep their case, None for
            the setting of the source.
        overwrite: see `atomic_output`.

    Returns:
        The `Conversion`.
    """
    checkpoint = open_checkpoint(source)
    cls = model_class(checkpoint)
    model = _load(cls, checkpoint)
    text = None
    if read_text(checkpoint) is not None or lowercase is not None:
        # This import loads TensorFlow. Only presets with a vocabulary need it.
        from bert_keras.text.preprocessor import BertPreprocessor

        text = BertPreprocessor.from_preset(checkpoint, lowercase=lowercase)
    missing = model.load_report.initialised
    save_model(folder, model, text, missing, overwrite=overwrite)
    again = _load(cls, open_checkpoint(folder))
    return Conversion(
        source=checkpoint.source,
        format=checkpoint.format,
        task=checkpoint.head,
        difference=compare_models(model, again),
        left_out=missing,
        untrained=sorted(set(untrained_weights(model)) - set(missing)),
        skipped=[n for n in model.load_report.skipped if not is_spare(n)],
    )


def model_class(checkpoint):
    """Return the checkpoint's model class.

    Raise `InputError` if the class is unclear or its name is not in `HEADS`.
    """
    if checkpoint.head_fault is not None:
        raise checkpoint.head_fault
    if checkpoint.fitting_heads:
        fits = " or ".join(
            architecture
            for architecture, head in BY_ARCHITECTURE.items()
            if head in checkpoint.fitting_heads
        )
        raise InputError(
            f"The head's tensors in {checkpoint.source} fit {fits}, but "
            "config.json names no class. Add the right class to config.json, "
            'such as "architectures": ["BertForSequenceClassification"].'
        )
    if checkpoint.head not in HEADS:
        raise InputError(
            f"{checkpoint.source} is a {checkpoint.head}, which cannot be "
            f"converted. Expected one of {', '.join(HEADS)}."
        )
    return getattr(bert_keras, checkpoint.head)


def _load(cls, checkpoint, **arguments):
    """Load a model. Give no warning: `Conversion` lists the new weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return cls.from_preset(checkpoint, **arguments)


def compare_models(first, second):
    """Return the greatest absolute difference between two models' outputs.

    Both models get the same random inputs. Outputs at padding are ignored. A
    weight that the preset of `second` lacks is copied from `first`.
    """
    weights = published_weights(first)
    for name, weight in published_weights(second).items():
        if name in second.load_report.initialised:
            weight.assign(weights[name])
    inputs = sample_inputs(first)
    return greatest_difference(
        *(
            real_outputs(first, inputs, model(inputs))
            for model in (first, second)
        )
    )


def real_outputs(model, inputs, outputs):
    """Return dict of output name -> array, without the positions of padding.

    Args:
        model: the model that computed `outputs`, or one with the same output
            names. Its `token_outputs` names the outputs with a token axis.
        inputs: the model's inputs, from `sample_inputs`.
        outputs: dict of output name -> array, or one array, which gets the
            name "logits".
    """
    if not isinstance(outputs, dict):
        outputs = {"logits": outputs}
    outputs = {k: ops.convert_to_numpy(v) for k, v in outputs.items()}
    is_real = inputs["padding_mask"].astype(bool)
    for name in {*model.token_outputs} & {*outputs}:
        outputs[name] = outputs[name][is_real]
    return outputs


def sample_inputs(model, batch=4, length=32):
    """Return dict of input name -> int32 array (B, T), with random tokens.

    The first row has no padding. Each row has more padding than the row before
    it, until one token is left. A `BertChooser` gets two choices for each
    example, (B, 2, T). A `BertPretrainer` also gets `mask_positions`.
    """
    encoder = getattr(model, "encoder", model)
    length = min(length, encoder.max_sequence_length)
    is_chooser = isinstance(model, bert_keras.BertChooser)
    shape = (2 * batch if is_chooser else batch, length)
    ids = np.random.default_rng(0).integers(
        0, encoder.vocabulary_size, shape, "int32"
    )
    positions = np.arange(length, dtype="int32")
    padding = np.arange(shape[0])[:, None] * max(1, length // 8)  # (B, 1)
    lengths = np.maximum(1, length - padding)
    segments = (positions >= length // 2) * (encoder.num_segments > 1)
    inputs = {
        "token_ids": ids,
        "segment_ids": np.broadcast_to(segments, shape).astype("int32"),
        "padding_mask": (positions < lengths).astype("int32"),
    }
    if is_chooser:
        return {k: v.reshape(batch, 2, length) for k, v in inputs.items()}
    if isinstance(model, bert_keras.BertPretrainer):
        inputs["mask_positions"] = np.tile(positions[: length // 2], (batch, 1))
    return inputs
