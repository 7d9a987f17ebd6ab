"""Makes our classes known to Keras, which loads files with them by name.

Keras imports what a file needs from its own packages only; so ours must be
there before. `import bert_keras` alone imports neither Keras nor TensorFlow:
where Keras is not there yet, it is waited for.
"""

import contextlib
import importlib
import sys

# With what they import, all modules that have registered classes.
_WITH_KERAS = (
    "modeling.causal",
    "modeling.chooser",
    "modeling.classifier",
    "modeling.encoder",
    "modeling.pretrainer",
    "modeling.span",
    "modeling.tagger",
    "training.optimizers",
)
_WITH_TENSORFLOW = ("text.preprocessor", "text.tokenizer")


def register_classes():
    """Registers all that can be, where Keras is there; else does nothing.

    What cannot be imported is left: it may be half imported at this moment,
    and where it is used by name, Python tells what it lacks. The text layers
    are left where nothing has imported TensorFlow, as on the JAX backend.
    """
    modules = _WITH_KERAS if "keras" in sys.modules else ()
    if modules and "tensorflow" in sys.modules:
        modules += _WITH_TENSORFLOW
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(f"bert_keras.{module}")


def register_with_keras():
    """Registers now, or as soon as somebody has imported Keras."""
    if "keras" in sys.modules:
        register_classes()
    else:
        sys.meta_path.insert(0, _KerasWatch())


class _KerasWatch:
    """Finds Keras as the finders after it do, and is told when it is there."""

    def find_spec(self, name, path=None, target=None):
        if name != "keras":
            return None
        after = sys.meta_path[sys.meta_path.index(self) + 1 :]
        for finder in after:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        if hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader:
    """Keras's own loader, which the module keeps; then registers."""

    def __init__(self, loader, watch):
        self._loader = loader
        self._watch = watch

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._watch in sys.meta_path:
            sys.meta_path.remove(self._watch)
        register_classes()
