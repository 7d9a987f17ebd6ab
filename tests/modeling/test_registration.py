"""Keras loads saved models if `bert_keras` is imported."""

import itertools
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bert_keras
from tests.support.model_samples import make_inputs, make_model
from tests.support.run_script import WITHOUT_TENSORFLOW

PACKAGE = Path(bert_keras.__file__).parent


OPTIMIZERS = {"chooser": bert_keras.lamb, "causal": bert_keras.adamw}


def save(name, folder):
    """Write a compiled model as `.keras` and as a pickle, and its outputs."""
    model, x = make_model(name), make_inputs(name)
    model.compile(OPTIMIZERS[name](1e-3, steps=3), "mse")
    model.optimizer.build(model.trainable_variables)
    model.save(folder / "model.keras")
    (folder / "model.pickle").write_bytes(pickle.dumps(model))
    (folder / "answer").write_bytes(pickle.dumps((x, np.array(model(x)))))


LOAD = """
import pathlib, pickle, sys
for name in sys.argv[2:]:
    __import__(name)
import keras, numpy as np

folder = pathlib.Path(sys.argv[1])
x, expected = pickle.loads((folder / "answer").read_bytes())
model = keras.saving.load_model(folder / "model.keras")
np.testing.assert_allclose(model(x), expected, atol=1e-6)
assert type(model.optimizer).__module__.startswith("bert_keras")
model = pickle.loads((folder / "model.pickle").read_bytes())
np.testing.assert_allclose(model(x), expected, atol=1e-6)
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
    """Yield the registered names of all classes that the package registers."""
    for path in PACKAGE.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for line, below in itertools.pairwise(lines):
            if line.startswith("@keras.saving.register_keras_serializable"):
                name = below.removeprefix("class ").partition("(")[0]
                yield f"bert_keras>{name}"


@pytest.mark.parametrize(
    ("name", "imports"),
    [
        ("chooser", ("bert_keras", "keras")),
        ("causal", ("keras", "bert_keras")),
    ],
)
@pytest.mark.release
def test_a_new_process_loads_what_keras_saved(name, imports, tmp_path):
    """test_task_models.py tests all models, but in one process."""
    save(name, tmp_path)
    known = python(LOAD, tmp_path, *imports)
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


@pytest.mark.release
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
import bert_keras.interop.presets
from bert_keras import *
print(*[name for name in sys.argv[1:] if name in globals()])
"""


@pytest.mark.release
def test_everything_is_imported_that_runs_without_tensorflow(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    names = python(WITHOUT, "BertClassifier", "InputError", "BertPreprocessor")
    assert names == ["BertClassifier", "InputError"]
