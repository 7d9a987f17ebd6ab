"""Keras loads our models where `bert_keras` is imported, and nothing more."""

import itertools
import pickle
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from model_samples import MODELS, make_inputs, make_model
from run_script import WITHOUT_TENSORFLOW

import bert_keras

PACKAGE = Path(bert_keras.__file__).parent


def trained(name):
    """A compiled model with a state of the optimizer."""
    model = make_model(name)
    optimizer = bert_keras.lamb if name == "tagger" else bert_keras.adamw
    model.compile(optimizer(1e-3, steps=3), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with each model as `.keras` and pickled, and what it says."""
    folder = tmp_path_factory.mktemp("saved")
    for name in MODELS:
        model, x = trained(name), make_inputs(name)
        model.save(folder / f"{name}.keras")
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(model))
        (folder / f"{name}.x").write_bytes(
            pickle.dumps((x, keras.tree.map_structure(np.array, model(x))))
        )
    return folder


LOAD = """
import pathlib, pickle, sys
for name in sys.argv[3:]:
    __import__(name)
import keras, numpy as np

def close(a, b):
    np.testing.assert_allclose(a, b, atol=1e-6)

for file in sorted(pathlib.Path(sys.argv[1]).glob(sys.argv[2])):
    x, expected = pickle.loads(file.read_bytes())
    model = keras.saving.load_model(file.with_suffix(".keras"))
    keras.tree.map_structure(close, model(x), expected)
    assert type(model.optimizer).__module__.startswith("bert_keras")
    model = pickle.loads(file.with_suffix(".pickle").read_bytes())
    keras.tree.map_structure(close, model(x), expected)
print(*keras.saving.get_custom_objects())
"""


def python(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.split()


def registered_classes():
    """Yield the names of all classes in the package that Keras is to know."""
    for path in PACKAGE.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for line, below in itertools.pairwise(lines):
            if line.startswith("@keras.saving.register_keras_serializable"):
                name = below.removeprefix("class ").partition("(")[0]
                yield f"bert_keras>{name}"


@pytest.mark.parametrize(
    ("files", "names"),
    [("*.x", ("bert_keras", "keras")), ("c*.x", ("keras", "bert_keras"))],
)
def test_a_new_process_loads_what_keras_saved(files, names, saved):
    known = python(LOAD, saved, files, *names)
    assert set(registered_classes()) <= set(known)


WAIT = """
import importlib.util, sys, threading
import bert_keras
calls = []
bert_keras._register_classes = lambda: calls.append("keras")
for part in ("none", "broken"):
    sys.path.insert(0, f"{sys.argv[1]}/{part}")
    importlib.invalidate_caches()
    try:
        import keras
    except Exception as error:
        print(type(error).__name__)
assert not calls
sys.path[0] = f"{sys.argv[1]}/whole"
importlib.invalidate_caches()
assert importlib.util.find_spec("keras")
names = ["keras", "bert_keras.errors"] * 4
threads = [threading.Thread(target=__import__, args=[n]) for n in names]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
import keras
assert keras.__loader__ is keras.__spec__.loader
assert not any("bert_keras" in type(f).__module__ for f in sys.meta_path)
importlib.reload(keras)
print(*set(calls))
"""


def test_keras_comes_as_without_us_whether_late_broken_or_anew(tmp_path):
    for part, code in (("broken", "1 / 0"), ("whole", "")):
        (tmp_path / part / "keras").mkdir(parents=True)
        (tmp_path / part / "keras" / "__init__.py").write_text(code)
    hidden = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-' not in p]"
    )
    calls = python(f"{hidden}\n{WAIT}", tmp_path)
    assert calls == ["ModuleNotFoundError", "ZeroDivisionError", "keras"]


WITHOUT = f"""{WITHOUT_TENSORFLOW}
from bert_keras import *
print(*[name for name in sys.argv[1:] if name in globals()])
"""


def test_everything_is_imported_that_runs_without_tensorflow(monkeypatch):
    pytest.importorskip("jax")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    names = python(WITHOUT, "BertClassifier", "InputError", "BertPreprocessor")
    assert names == ["BertClassifier", "InputError"]
