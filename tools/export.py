"""Exports a trained model as a SavedModel that takes raw strings.

    bert-keras export --model=runs/reviews/model --output=runs/served

In: a model folder; --model=A,B exports several models. Out: one SavedModel
with the tokenizer in its graph, signatures such as `classify` for a classifier
and `fill_mask` for a pre-trained model, and a card that names the inputs and
outputs. By default the SavedModel computes in float32, also after training in
another dtype. A program that loads it needs only tensorflow and tensorflow_text
(with --portable, only tensorflow). Unless --noverify is set, the script loads
the SavedModel in a new process and compares its answers with those of the model
in the same dtype. It refuses differences above 1e-5 (bfloat16: 0.05). Weights
that a model folder lacks are random, and are refused unless --allow_untrained
is set.

--weights_dtype=bfloat16 halves the size, --weights_dtype=int8 quarters it.
bert-keras compare compares the export's answers with recorded ones.

--format=litert or --format=onnx writes another format, in float32 or int8. Its
inputs are token ids; the vocabulary and the tokenizer settings are next to it.
The script runs this model in the format's runtime and compares the outputs with
the outputs of the Keras model. Needs the extra `litert` or
`onnx`.

Takes about half a minute for a small model, more for BERT base.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses
import functools
import warnings

from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.files import split_paths
from official_tasks import cli, options
from official_tasks.options import Condition, option

_saved_model = functools.partial(option, group="SavedModel")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedModelOptions:
    """Options of --format=saved_model: arguments of `export_saved_model`."""

    pair: bool | None = _saved_model(
        None,
        "The classifier reads text pairs. The default is the model's setting.",
    )
    top_k: int | None = _saved_model(
        None,
        "Number of predictions for each mask (fill_mask) or question (answer); "
        "by default 5.",
        at_least=1,
    )
    pooling: str | None = _saved_model(
        None,
        "Pooling of the signature embed. The default is the model's setting. "
        "If the model has none, the default is mean.",
        choices=("mean", "max", "cls", "last", "pooled"),
    )
    normalize: bool | None = _saved_model(
        None,
        "Scale the vectors of the signature embed to length 1. The default is "
        "the model's setting. If the model has none, the default is False.",
    )
    truncate_dim: int | None = _saved_model(
        None,
        "Number of values to keep of each vector of the signature embed, after "
        "--normalize. The default is the model's setting, or all.",
        at_least=1,
    )
    features: str | None = _saved_model(
        None,
        "Layers from which the signature embed also returns a vector for each "
        "token: last, concat_last_four, sum_last_four, ...",
    )
    hypothesis: str | None = _saved_model(
        None,
        "Sentence that the signature entail compares with a text. {} stands "
        "for a candidate label. The default is 'This example is {}.'.",
    )
    long_text: str | None = _saved_model(
        None,
        "Truncate a text longer than a row, or read it in windows. By default, "
        "a classifier does as it was trained, and other models truncate.",
        choices=("truncate", "windows"),
    )
    ids_signature: str | None = _saved_model(
        None,
        "Add a signature that takes token ids, with the input and output names "
        "of the chosen library.",
        choices=("bert_keras", "original", "transformers", "model_garden"),
    )
    portable: bool = _saved_model(
        False, "Export for servers without tensorflow_text."
    )
    license: str | None = _saved_model(
        None, "License of the weights. The default is the license of --model."
    )
    verify: bool = _saved_model(
        True, "Load the export in a new process and compare answers."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SavedModelOptions):
    """Options of this script."""

    model: str = option(help="Model folder. A,B exports the models A and B.")
    output: str = option(help="Folder to write.")
    format: str = option(
        "saved_model",
        "Format to write.",
        choices=("saved_model", "litert", "onnx"),
    )
    weights_dtype: str = option(
        "float32",
        "Type of the weights.",
        choices=("float32", "bfloat16", "int8"),
    )
    sequence_length: int | None = option(None, "Maximum tokens of a row.")
    allow_untrained: bool = option(
        False, "Export weights that are still random."
    )
    conditions = (
        Condition(
            tuple(options.list_options(SavedModelOptions)),
            "with --format=saved_model; in other formats, models take token "
            "ids",
            lambda v: v.format == "saved_model",
        ),
    )


def main(values):
    from bert_keras.interop.opening import open_checkpoint

    # Open each once, so that model and preprocessor come from the same save.
    presets = [open_checkpoint(folder) for folder in split_paths(values.model)]
    models = [load_model(preset, values.allow_untrained) for preset in presets]
    preprocess = load_preprocessor(presets, values.sequence_length)
    if values.format == "saved_model":
        export(models, preprocess, values)
    else:
        convert(models, preprocess, values)


def load_model(checkpoint, allow_untrained):
    """Load the model of a `Checkpoint`, in the class that it names."""
    from bert_keras.interop.convert import model_class

    with warnings.catch_warnings():
        # Without --allow_untrained, the export raises an error, so do not warn.
        if not allow_untrained:
            warnings.simplefilter("ignore", UntrainedWarning)
        return model_class(checkpoint).from_preset(checkpoint)


def load_preprocessor(presets, sequence_length=None):
    """Load the first preset's preprocessor; raise if another preset's differs.

    Another model may lack the first model's prompts if the first preprocessor
    puts no prompt before text by default.
    """
    import bert_keras
    from bert_keras.interop.opening import open_checkpoint

    checkpoints = [open_checkpoint(preset) for preset in presets]
    first, *others = (
        bert_keras.BertPreprocessor.from_preset(
            checkpoint, sequence_length=sequence_length
        )
        for checkpoint in checkpoints
    )
    settings = _list_settings(first)
    for checkpoint, other in zip(checkpoints[1:], others, strict=True):
        others_settings = _list_settings(other)
        different = [n for n in settings if others_settings[n] != settings[n]]
        if first.prompt is None and not other.prompts:
            different = [n for n in different if "prompt" not in n]
        if different:
            is_length = different == ["sequence_length"]
            fix = "Set --sequence_length, or export" if is_length else "Export"
            raise InputError(
                f"The preprocessors of {checkpoints[0].source} and "
                f"{checkpoint.source} differ in {', '.join(different)}; "
                f"expected one preprocessor in an export. {fix} the models to "
                "two folders."
            )
    return first


def _list_settings(preprocess):
    names = ("sequence_length", "prompts", "prompt", "include_prompt")
    settings = {name: getattr(preprocess, name) for name in names}
    settings |= preprocess.tokenizer.get_config()
    del settings["name"]
    return settings


def export(models, preprocess, values):
    """Write the SavedModel; print its signatures and custom operations."""
    import bert_keras
    from official_tasks import progress

    arguments = dataclasses.asdict(options.read(SavedModelOptions, values))
    folder = bert_keras.export_saved_model(
        models,
        values.output,
        preprocess,
        weights_dtype=values.weights_dtype,
        allow_untrained=values.allow_untrained,
        **arguments,
    )
    served = bert_keras.load_saved_model(folder)
    operations = ", ".join(
        f"{name} ({count})"
        for name, count in served.card["operations_outside_core"].items()
    )
    progress.console.print(
        f"{folder} has the signatures {', '.join(served.signatures)}"
    )
    progress.console.print(
        f"operations outside TensorFlow: {operations or 'none'}"
    )


def convert(models, preprocess, values):
    """Write the model as ONNX or LiteRT, with token ids as inputs."""
    from bert_keras.serving.onnx_litert import export_on_ids
    from official_tasks import progress

    if len(models) > 1:
        raise InputError(
            f"--format={values.format} exports one model; got {len(models)}. "
            "Name one model."
        )
    difference = export_on_ids(
        models[0],
        preprocess,
        values.output,
        values.format,
        values.allow_untrained,
        values.weights_dtype,
    )
    unit = " standard deviations" if values.weights_dtype == "int8" else ""
    progress.console.print(
        f"{values.output} differs from the model by {difference:.2g}{unit}"
    )


if __name__ == "__main__":
    cli.start(main, Options)
