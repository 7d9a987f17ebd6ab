"""The complete BERT on Keras 3 and TensorFlow.

Public names load when they are first used, so that `import bert_keras`
imports neither Keras nor TensorFlow.
"""

import contextlib
import importlib

from bert_keras.registration import register_classes, register_with_keras

__version__ = "0.1.0"

_HOME = {
    "BertCausalModel": "modeling.causal",
    "BertChooser": "modeling.chooser",
    "BertClassifier": "modeling.classifier",
    "BertEncoder": "modeling.encoder",
    "BertPretrainer": "modeling.pretrainer",
    "BertSpanPredictor": "modeling.span",
    "BertTagger": "modeling.tagger",
    "BertPreprocessor": "text.preprocessor",
    "SegmentPacker": "text.packing",
    "TokenMasker": "text.masking",
    "WordPieceTokenizer": "text.tokenizer",
    "InputError": "errors",
    "adamw": "training.optimizers",
    "lamb": "training.optimizers",
    "learn_vocabulary": "text.learning",
    "export_saved_model": "serving.export",
    "load_saved_model": "serving.load",
}


def __getattr__(name):
    if name == "__all__":
        return _loadable()
    if name not in _HOME:
        raise AttributeError(f"module 'bert_keras' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in ("keras", "tensorflow", "tensorflow_text"):
            raise
        raise ImportError(
            f"bert_keras.{name} needs {package.replace('_', '-')}, which is "
            f"not installed: pip install {package.replace('_', '-')}"
        ) from error
    register_classes()
    return getattr(module, name)


def _loadable():
    """The public names whose packages are installed.

    `from bert_keras import *` takes them: on JAX, without TensorFlow, the
    models; the rest says what it lacks when it is used by name.
    """
    names = []
    for name in sorted(_HOME):
        with contextlib.suppress(ImportError):
            __getattr__(name)
            names.append(name)
    return names


def __dir__():
    return sorted({*globals(), *_HOME})


register_with_keras()
