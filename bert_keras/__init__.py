"""The complete BERT on Keras 3 and TensorFlow.

A public name is imported at its first use, so `import bert_keras` imports
neither Keras nor TensorFlow. When Keras loads a saved model, it finds the
classes by their registered names. This package registers its classes as soon as
both Keras and this package are imported, in either order. The text layers are
registered only when TensorFlow is imported too.
"""

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_MODULES = {
    "BertCausalModel": "modeling.pretrainer",
    "BertChooser": "modeling.task_models",
    "BertClassifier": "modeling.task_models",
    "BertEmbedder": "modeling.embedder",
    "BertEncoder": "modeling.encoder",
    "BertPretrainer": "modeling.pretrainer",
    "BertSpanPredictor": "modeling.task_models",
    "BertTagger": "modeling.task_models",
    "BertPreprocessor": "text.preprocessor",
    "SegmentPacker": "text.packing",
    "TokenMasker": "text.masking",
    "WordPieceTokenizer": "text.tokenizer",
    "InputError": "errors",
    "enable_lora": "modeling.weights",
    "save_lora": "interop.peft",
    "load_lora": "interop.peft",
    "adamw": "training.optimizers",
    "lamb": "training.optimizers",
    "make_strategy": "training.strategy",
    "CoSENT": "training.similarity",
    "CosineRegression": "training.similarity",
    "InBatchNegatives": "training.similarity",
    "Matryoshka": "training.similarity",
    "Triplet": "training.similarity",
    "align_words": "text.words",
    "learn_vocabulary": "text.learning",
    "extend_vocabulary": "text.extension",
    "extend_model": "text.extension",
    "export_saved_model": "serving.export",
    "load_saved_model": "serving.load",
    "SavedModelHandler": "serving.beam_handler",
    "push_to_hub": "interop.publishing",
    "presets": "interop.downloads",
}

# Packages that some names need and that may be missing.
OPTIONAL = ("apache_beam", "keras", "tensorflow", "tensorflow_text")

if TYPE_CHECKING:  # editors and type checkers read these imports
    from bert_keras.errors import InputError as InputError
    from bert_keras.interop.downloads import presets as presets
    from bert_keras.interop.peft import load_lora as load_lora
    from bert_keras.interop.peft import save_lora as save_lora
    from bert_keras.interop.publishing import push_to_hub as push_to_hub
    from bert_keras.modeling.embedder import BertEmbedder as BertEmbedder
    from bert_keras.modeling.encoder import BertEncoder as BertEncoder
    from bert_keras.modeling.pretrainer import (
        BertCausalModel as BertCausalModel,
    )
    from bert_keras.modeling.pretrainer import BertPretrainer as BertPretrainer
    from bert_keras.modeling.task_models import BertChooser as BertChooser
    from bert_keras.modeling.task_models import BertClassifier as BertClassifier
    from bert_keras.modeling.task_models import (
        BertSpanPredictor as BertSpanPredictor,
    )
    from bert_keras.modeling.task_models import BertTagger as BertTagger
    from bert_keras.modeling.weights import enable_lora as enable_lora
    from bert_keras.serving.beam_handler import (
        SavedModelHandler as SavedModelHandler,
    )
    from bert_keras.serving.export import (
        export_saved_model as export_saved_model,
    )
    from bert_keras.serving.load import load_saved_model as load_saved_model
    from bert_keras.text.extension import extend_model as extend_model
    from bert_keras.text.extension import extend_vocabulary as extend_vocabulary
    from bert_keras.text.learning import learn_vocabulary as learn_vocabulary
    from bert_keras.text.masking import TokenMasker as TokenMasker
    from bert_keras.text.packing import SegmentPacker as SegmentPacker
    from bert_keras.text.preprocessor import (
        BertPreprocessor as BertPreprocessor,
    )
    from bert_keras.text.tokenizer import (
        WordPieceTokenizer as WordPieceTokenizer,
    )
    from bert_keras.text.words import align_words as align_words
    from bert_keras.training.optimizers import adamw as adamw
    from bert_keras.training.optimizers import lamb as lamb
    from bert_keras.training.similarity import CoSENT as CoSENT
    from bert_keras.training.similarity import (
        CosineRegression as CosineRegression,
    )
    from bert_keras.training.similarity import (
        InBatchNegatives as InBatchNegatives,
    )
    from bert_keras.training.similarity import Matryoshka as Matryoshka
    from bert_keras.training.similarity import Triplet as Triplet
    from bert_keras.training.strategy import make_strategy as make_strategy


def _load(name):
    if name == "__all__":
        return _loadable()
    if name not in _MODULES:
        raise AttributeError(f"module 'bert_keras' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in OPTIONAL:
            raise
        package = package.replace("_", "-")
        command = f"pip install {package}"
        if package == "apache-beam":
            from bert_keras.errors import install_command

            command = install_command("beam")
        raise ImportError(
            f"bert_keras.{name} needs {package}, which is not installed: "
            f"{command}"
        ) from error
    _register_classes()  # an earlier call may have skipped some modules
    return getattr(module, name)


def _loadable():
    """Return the public names whose dependencies are installed.

    `SavedModelHandler` is left out, because it imports all of Apache Beam.
    """
    names = []
    for name in sorted(_MODULES.keys() - {"SavedModelHandler"}):
        with contextlib.suppress(ImportError):
            _load(name)
            names.append(name)
    return names


# Hide `__getattr__` from type checkers. With it, they would accept any name.
if not TYPE_CHECKING:
    __getattr__ = _load


def __dir__():
    return sorted([*_MODULES, "__version__"])


# The modules with classes that register with Keras, except those that one of
# these modules imports.
_REGISTERING = (
    "modeling.embedder",
    "modeling.pretrainer",
    "modeling.task_models",
    "training.optimizers",
    "training.similarity",
    "text.preprocessor",
)


def _register_classes():
    """Import the modules with classes that register with Keras.

    A module that fails to import is skipped, because it may need a module whose
    import has not ended yet. If a module is broken, the first use of one of its
    names raises the error. The text layers need TensorFlow, so they are skipped
    until TensorFlow is imported.
    """
    if "keras" not in sys.modules:  # registration must not import Keras
        return
    for module in _REGISTERING:
        if "tensorflow" in sys.modules or not module.startswith("text."):
            with contextlib.suppress(Exception):
                importlib.import_module(f"{__name__}.{module}")


class _KerasWatch:
    """Import finder that registers the classes once Keras is imported.

    `keras.models.load_model` finds only registered classes. Without this
    finder, it fails after `import bert_keras, keras`, the order of isort:
    "Could not locate class 'BertClassifier'". An import of Keras here would
    make `import bert_keras` take 9 s in place of 0.01 s, because Keras imports
    its backend. Python has no other hook for the import of another package.
    """

    def find_spec(self, name, path=None, target=None):
        if name != "keras":
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (other.find_spec(name, path, target) for other in others)
        spec = next(filter(None, specs), None)
        loader = getattr(spec, "loader", None)  # None for a namespace package
        load = getattr(loader, "exec_module", None)
        if load is not None:

            def load_and_register(module):
                del loader.exec_module  # undoes the replacement below
                load(module)
                with contextlib.suppress(ValueError):
                    sys.meta_path.remove(self)
                _register_classes()

            loader.exec_module = load_and_register
        return spec


if "keras" in sys.modules:
    _register_classes()
else:
    sys.meta_path.insert(0, _KerasWatch())
