"""Export a model to LiteRT or ONNX.

`keras.Model.export` writes the model. For int8, TensorFlow or ONNX Runtime
converts the weights. Then LiteRT or ONNX Runtime runs the file. If the outputs
differ too much from the live model's outputs, no file is left. The exported
model takes token ids, in batches of any size and in rows of any length up to
the model's `max_sequence_length`.
"""

import importlib
import os

import keras
import numpy as np

from bert_keras import files, json_files
from bert_keras.comparison import greatest_difference
from bert_keras.errors import (
    InputError,
    install_command,
    require_tensorflow,
)
from bert_keras.interop.convert import real_outputs, sample_inputs
from bert_keras.interop.text_settings import check_fits
from bert_keras.modeling import modes
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_base import TaskModel
from bert_keras.modeling.task_models import BertChooser
from bert_keras.modeling.weights import drop_unused_pooler, untrained_weights
from bert_keras.serving.quantize import TOLERANCES, convert_weights
from bert_keras.serving.signatures import refuse_random_weights
from bert_keras.serving.tokens import ID_INPUTS, OUTPUTS, output_names
from bert_keras.text.vocabulary import write_vocabulary

MODEL = {"litert": "model.tflite", "onnx": "model.onnx"}
NEEDS = {"litert": ["ai_edge_litert"], "onnx": ["tf2onnx", "onnxruntime"]}
DTYPES = ("float32", "int8")
# Largest allowed RMS difference between an output and the live model's output,
# in standard deviations of the live output. The limit is wide, because ONNX
# Runtime and LiteRT also round the inputs of matrix products. On random ids,
# all-MiniLM-L6-v2 differs by 0.17 in ONNX and by 0.13 in LiteRT.
INT8_TOLERANCE = 0.5
SETTINGS, VOCABULARY = "tokenizer_settings.json", "vocab.txt"


def export_on_ids(
    model,
    preprocessor,
    folder,
    format,
    allow_untrained=False,
    weights_dtype="float32",
):
    """Write `model.tflite` or `model.onnx`, the vocabulary and the settings.

    `tokenizer_settings.json` has the tokenizer's settings, the labels and the
    names of inputs and outputs. The model's caller must put the file's `prompt`
    before each text. If `long_text` is "windows", the caller must also cut long
    texts into windows.

    Args:
        model: a `BertEncoder` or a task model.
        preprocessor: the `BertPreprocessor` that the model was trained with.
        folder: path of a new folder.
        format: "litert" or "onnx".
        allow_untrained: True to export random weights of a loaded model.
        weights_dtype: "float32" or "int8". For "int8", ONNX uses dynamic
            quantization and LiteRT dynamic-range quantization.

    Returns:
        float, the greatest difference from the live model in float32. For
        "float32", it is the absolute difference of an output, divided by
        the output's greatest absolute value or 1, whichever is greater. For
        "int8", it is the RMS difference of an output, in standard deviations.

    Raises:
        InputError: Keras does not run on TensorFlow, the format or dtype is
            unknown, the folder exists, a package is missing, the preprocessor
            does not fit the model, its prompt is not pooled, weights are
            random, not finite or already int8, or the difference is above 1e-5
            (0.5 for "int8").
    """
    _check_request(model, preprocessor, folder, format, weights_dtype)
    random = drop_unused_pooler(model, untrained_weights(model))
    if random and not allow_untrained:
        refuse_random_weights(model, random)
    _check_packages(format)
    model = convert_weights(model, "float32")
    with files.atomic_output(folder, overwrite=False) as partial:
        os.mkdir(partial)
        path = os.path.join(partial, MODEL[format])
        _write(model, path, format, weights_dtype)
        run, names = RUNTIMES[format](path)
        is_int8 = weights_dtype == "int8"
        difference = compare_with_model(
            run, model, _root_mean_square if is_int8 else _greatest_difference
        )
        most = INT8_TOLERANCE if is_int8 else TOLERANCES[weights_dtype]
        if not difference <= most:
            unit = " standard deviations" if is_int8 else ""
            raise InputError(
                f"{MODEL[format]} differs from the live model by "
                f"{difference:.3g}{unit}, more than {most}. Nothing was "
                "written."
            )
        settings = _settings(model, preprocessor, names)
        settings["dtype"] = weights_dtype
        json_files.write_json(settings, os.path.join(partial, SETTINGS))
        write_vocabulary(
            preprocessor.tokenizer.vocabulary,
            os.path.join(partial, VOCABULARY),
        )
    return difference


def _check_request(model, preprocessor, folder, format, dtype):
    require_tensorflow("An export")
    if format not in MODEL:
        raise InputError(
            f"`format` is {format!r}. Expected one of {', '.join(MODEL)}."
        )
    if dtype not in DTYPES:
        raise InputError(
            f"`weights_dtype` is {dtype!r}. For the format {format}, expected "
            f"{' or '.join(DTYPES)}."
        )
    files.check_name(folder)
    if os.path.lexists(folder) or files.exists(folder):
        raise InputError(f"{folder} already exists. Name a new folder.")
    check_fits(model, preprocessor)
    prompt = preprocessor.prompts.get(preprocessor.prompt)
    if prompt and not preprocessor.include_prompt:
        raise InputError(
            f"The prompt {prompt!r} is not pooled, but the exported model "
            "pools all tokens. Pass preprocessor.with_prompt(None)."
        )


def _write(model, path, format, dtype):
    spec = {name: _spec(model, name) for name in _input_names(model)}
    options = {"verbose": False, "input_signature": [spec]}
    if dtype == "int8" and format == "litert":
        from tensorflow import lite

        options["optimizations"] = [lite.Optimize.DEFAULT]
    is_task = isinstance(model, TaskModel)  # an encoder returns a dict
    is_single = is_task and not isinstance(model.output, dict)
    named = _NamesOutput(model) if is_single else model
    with modes.use(gradients=False):
        named.export(path, format, **options)
    if dtype == "int8" and format == "onnx":
        exact = f"{path}.float32"
        os.rename(path, exact)
        from onnxruntime.quantization import QuantType, quantize_dynamic

        # `per_channel` gives each column a scale. Processors without VNNI add
        # two products in int16, which overflows with weights of 8 bits.
        # `reduce_range` limits the weights to 7 bits.
        quantize_dynamic(
            exact,
            path,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
        os.remove(exact)
    if format == "onnx":
        _name_axes(model, path)


class _NamesOutput(keras.Model):
    """A model of one output that returns a dict, as the formats need names."""

    def __init__(self, model):
        super().__init__(name=model.name)
        self.model = model
        # A user's own task model has no row in the table of signatures.
        is_known = type(model) in OUTPUTS
        names = output_names(model, "bert_keras") if is_known else ("logits",)
        (self.output_name,) = names
        self.built = True

    def call(self, inputs, training=False):
        return {self.output_name: self.model(inputs, training=training)}


def _name_axes(model, path):
    """Name the free axes of an ONNX file's inputs and outputs."""
    import onnx

    file = onnx.load(path)
    choices = "choices" if isinstance(model, BertChooser) else None
    for value in (*file.graph.input, *file.graph.output):
        masks = "masks" if value.name in ("mask_positions", "mlm") else None
        axes = "batch", masks or choices or "length", "length"
        shape = value.type.tensor_type.shape.dim
        for name, axis in zip(axes, shape, strict=False):
            if not axis.dim_value:
                axis.dim_param = name
    onnx.save(file, path)


def _check_packages(format):
    for package in NEEDS[format]:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            raise InputError(
                f"The format {format} needs {package}: "
                f"{install_command(format)}."
            ) from None


def _input_names(model):
    masks = isinstance(model, BertPretrainer)
    return (*ID_INPUTS, "mask_positions") if masks else ID_INPUTS


def _spec(model, name):
    rank = 3 if isinstance(model, BertChooser) else 2
    return keras.InputSpec(shape=(None,) * rank, dtype="int32", name=name)


def open_onnx(path):
    """Return (function from input dict to output dict, output names)."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        path, providers=["CPUExecutionProvider"]
    )
    names = [node.name for node in session.get_outputs()]

    def run(inputs):
        return dict(zip(names, session.run(None, inputs), strict=True))

    return run, names


def open_litert(path):
    """Return (function from input dict to output dict, output names)."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(path).get_signature_runner()
    return lambda inputs: runner(**inputs), sorted(runner.get_output_details())


RUNTIMES = {"litert": open_litert, "onnx": open_onnx}


def _greatest_difference(batches):
    return max(
        greatest_difference(live, found, relative=True)
        for live, found in batches
    )


def _root_mean_square(batches):
    """Return the greatest ratio of RMS difference to std among the outputs.

    Both are computed over all batches, because a batch of one row may have a
    single number, whose std is 0.
    """
    differences = []
    for name in batches[0][0]:
        live, found = (
            np.concatenate([outputs[name].ravel() for outputs in side])
            for side in zip(*batches, strict=True)
        )
        distance = np.sqrt(np.mean((live - found) ** 2))
        differences.append(distance / live.std())
    return np.inf if np.isnan(differences).any() else float(max(differences))


def compare_with_model(run, model, compare=_greatest_difference):
    """Return the difference between the outputs of `run` and `model`.

    `run` and `model` get three batches of random tokens. Outputs at padding are
    not compared. `run` also gets an empty batch. If an output of the empty
    batch has rows, the difference is infinite.

    Args:
        run: function of a dict of input arrays; returns a dict of outputs.
        model: the live model.
        compare: function of a list with a pair for each batch: the outputs of
            `model` and those of `run`, both dicts of arrays. Returns a float.
    """
    # The empty batch must come first. After a batch with rows, LiteRT cannot
    # read the output of an empty batch.
    empty = run(sample_inputs(model, 0, 5))
    if any(len(value) for value in empty.values()):
        return np.inf
    batches = []
    for batch, length in ((1, 5), (3, 128), (2, 33)):
        inputs = sample_inputs(model, batch, length)
        found = run(inputs)
        if len(found) == 1:  # ignore its name, which the format chooses
            (found,) = found.values()
        live = real_outputs(model, inputs, model(inputs))
        batches.append((live, real_outputs(model, inputs, found)))
    return compare(batches)


def _settings(model, preprocessor, names):
    tokenizer = preprocessor.tokenizer
    special = ("pad", "unk", "cls", "sep", "mask")
    return {
        "class": type(model).__name__,
        "labels": list(getattr(model, "labels", None) or []),
        "inputs": list(_input_names(model)),
        "outputs": {name: name for name in names},
        "sequence_length": preprocessor.sequence_length,
        "long_text": getattr(model, "long_text", "truncate"),
        "prompt": preprocessor.prompts.get(preprocessor.prompt, ""),
        "lowercase": tokenizer.lowercase,
        "strip_accents": tokenizer.strip_accents,
        "max_word_length": tokenizer.max_word_length,
        "ids": {name: getattr(tokenizer, f"{name}_id") for name in special},
    }
