"""The model on token ids for LiteRT and ONNX, its tokenizer next to it.

Keras's own `export` writes the model; its runtime then answers as the live
model does, or nothing is written. Any batch size, any length.
"""

import importlib
import os

import keras
import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.text_settings import check_fits, write_pieces
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_models import BertChooser
from bert_keras.modeling.weights import in_use, untrained_weights
from bert_keras.serving.ids import OURS
from bert_keras.serving.quantize import TOLERANCES, narrowed
from bert_keras.serving.signatures import refuse_untrained

MODEL = {"litert": "model.tflite", "onnx": "model.onnx"}
NEEDS = {"litert": ["ai_edge_litert"], "onnx": ["tf2onnx", "onnxruntime"]}
SETTINGS, VOCABULARY = "tokenizer_settings.json", "vocab.txt"


def export_on_ids(model, preprocessor, folder, format, allow_untrained=False):
    """Writes `model.tflite` or `model.onnx`, the vocabulary and the settings.

    `tokenizer_settings.json` says how text becomes ids and what goes in and
    comes out.

    Args:
        model: a `BertEncoder` or a task model.
        preprocessor: the `BertPreprocessor` that it was trained with.
        folder: a new one.
        format: "litert" or "onnx".
        allow_untrained: export weights of a loaded model that are random
            still; without, they are refused.

    Returns:
        float, the greatest difference from the live model in float32.

    Raises:
        InputError: a folder that is there, a package that is not, another
            model's preprocessor, random weights, a difference above 1e-5.
    """
    if format not in MODEL:
        raise InputError(
            f"format is {format!r}. Expected one of {', '.join(MODEL)}."
        )
    if os.path.lexists(folder) or files.exists(folder):
        raise InputError(f"{folder} is there. Name a new folder.")
    check_fits(model, preprocessor)
    random = in_use(model, untrained_weights(model))
    if random and not allow_untrained:
        refuse_untrained(model, random)
    _check_packages(format)
    model = narrowed(model, "float32")
    with files.written_beside(folder) as partial:
        os.mkdir(partial)
        path = os.path.join(partial, MODEL[format])
        spec = {name: _spec(model, name) for name in _input_names(model)}
        model.export(path, format, verbose=False, input_signature=[spec])
        runtime = RUNTIMES[format](path)
        difference = greatest_difference(runtime, model)
        if not difference <= TOLERANCES["float32"]:
            raise InputError(
                f"{MODEL[format]} differs from the live model by "
                f"{difference:.3g}, more than {TOLERANCES['float32']}; "
                "nothing was written."
            )
        settings = _settings(model, preprocessor, runtime)
        files.write_json(settings, os.path.join(partial, SETTINGS))
        write_pieces(preprocessor, os.path.join(partial, VOCABULARY))
    return difference


def _check_packages(format):
    for package in NEEDS[format]:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            raise InputError(
                f"The format {format} needs {package}: "
                f"pip install 'bert_keras[{format}]'"
            ) from None


def _input_names(model):
    masks = isinstance(model, BertPretrainer)
    return (*OURS, "mask_positions") if masks else OURS


def _spec(model, name):
    rank = 3 if isinstance(model, BertChooser) else 2
    return keras.InputSpec(shape=(None,) * rank, dtype="int32", name=name)


class OnnxModel:
    """`model.onnx` in ONNX Runtime; called with a dict of arrays."""

    def __init__(self, path):
        import onnxruntime

        self._session = onnxruntime.InferenceSession(
            path, providers=["CPUExecutionProvider"]
        )
        self.outputs = [node.name for node in self._session.get_outputs()]

    def __call__(self, inputs):
        return dict(
            zip(self.outputs, self._session.run(None, inputs), strict=True)
        )


class LiteRtModel:
    """`model.tflite` in LiteRT; called with a dict of arrays."""

    def __init__(self, path):
        from ai_edge_litert.interpreter import Interpreter

        self._run = Interpreter(path).get_signature_runner()
        self.outputs = sorted(self._run.get_output_details())

    def __call__(self, inputs):
        return self._run(**inputs)


RUNTIMES = {"litert": LiteRtModel, "onnx": OnnxModel}


def greatest_difference(runtime, model):
    """Of all outputs at real tokens, for some random rows of some lengths."""
    generator = np.random.default_rng(0)
    vocabulary = getattr(model, "encoder", model).vocabulary_size
    longest = getattr(model, "encoder", model).max_sequence_length
    per_token = model.token_outputs
    worst = 0.0
    for batch, length in (
        (1, 5),
        (3, min(longest, 128)),
        (2, min(longest, 33)),
    ):
        choices = (2,) if isinstance(model, BertChooser) else ()
        shape = (batch, *choices, length)
        mask = np.ones(shape, "int32")
        mask[-1, ..., length // 2 :] = 0
        inputs = {
            "token_ids": generator.integers(0, vocabulary, shape, "int32"),
            "segment_ids": np.cumsum(mask, -1, dtype="int32") % 2,
            "padding_mask": mask,
            "mask_positions": np.full((batch, 2), length // 3, "int32"),
        }
        inputs = {name: inputs[name] for name in _input_names(model)}
        outputs = _by_name(runtime(inputs))
        for name, value in _by_name(model(inputs)).items():
            apart = np.abs(np.asarray(value) - outputs[name])
            if name in per_token:
                apart = apart[mask.astype(bool)]
            worst = float(np.maximum(worst, apart.max()))  # keeps NaN
    return worst


def _by_name(outputs):
    """Outputs by our names; the only output of a model is `logits`."""
    if not isinstance(outputs, dict):
        return {"logits": outputs}
    if len(outputs) == 1:
        return {"logits": next(iter(outputs.values()))}
    return outputs


def _settings(model, preprocessor, runtime):
    tokenizer = preprocessor.tokenizer
    special = ("pad", "unk", "cls", "sep", "mask")
    have_names = len(runtime.outputs) > 1
    return {
        "class": type(model).__name__,
        "labels": list(getattr(model, "labels", None) or []),
        "inputs": list(_input_names(model)),
        "outputs": {n if have_names else "logits": n for n in runtime.outputs},
        "sequence_length": preprocessor.sequence_length,
        "lowercase": tokenizer.lowercase,
        "strip_accents": tokenizer.strip_accents,
        "max_word_length": tokenizer.max_word_length,
        "ids": {name: getattr(tokenizer, f"{name}_id") for name in special},
    }
