"""Hooks of pytest for all tests, and fixtures that several files use.

No test writes into the folders of these fixtures: a test that changes a folder
copies it first (`shutil.copytree`). A fixture makes its folder, and imports
TensorFlow, only when a test first needs it. This import takes some seconds.
"""

import atexit
import contextlib
import fcntl
import gc
import multiprocessing.process
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

TESTS = Path(__file__).parent
# Libraries write into these folders, which are in the home by default. They
# read the variables on import, also on that of another conftest.py.
CACHES = (
    "HF_DATASETS_CACHE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "KERAS_HOME",
    "TFDS_DATA_DIR",
    "XDG_CACHE_HOME",  # ONNX Runtime and others
)
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not IS_WORKER:  # a worker has the variables of the main process
    CACHE = tempfile.mkdtemp(prefix="caches_")
    atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
    for name in CACHES:
        os.environ[name] = os.path.join(CACHE, name.lower())


def _restore_signals():
    """Restore the handlers of signals that `&` and `nohup` disable.

    Otherwise, processes that tests start would ignore these signals, too. Only
    workers of pytest-xdist restore SIGHUP, so that a run survives a logout.
    """
    handlers = {signal.SIGINT: signal.default_int_handler}
    if IS_WORKER:
        handlers[signal.SIGHUP] = signal.SIG_DFL
    for number, handler in handlers.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_configure(config):
    """Set signals, garbage collection, XLA flags and PYTHONPATH for tests."""
    _restore_signals()
    # As a hook of this file, it would not see the fixtures of a session.
    config.pluginmanager.register(SharedFixtures())
    gc.set_threshold(20_000)  # as the scripts do
    if config.option.markexpr != "long":
        # XLA takes longer to compile a toy model than to run it.
        flags = "--xla_backend_optimization_level=0"
        os.environ.setdefault("XLA_FLAGS", flags)
    paths = [str(TESTS.parent), str(TESTS / "support" / "startup")]
    if "PYTHONPATH" in os.environ:
        paths.append(os.environ["PYTHONPATH"])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def pytest_ignore_collect(collection_path, config):
    """Ignore files without the mark under `-m "fast and not long"`.

    This saves their imports.
    """
    is_left_out = (
        config.option.markexpr in ("fast", "fast and not long")
        and collection_path.suffix == ".py"
        and "pytest.mark.fast" not in collection_path.read_text("utf-8")
    )
    return True if is_left_out else None


def pytest_collection_modifyitems(config, items):
    """Sort files: `heavy` first and `fast` last.

    So no worker ends long after the others.
    """

    def place(item):
        module = item.getparent(pytest.Module)
        marks = {mark.name for mark in module.iter_markers()}
        return ("fast" in marks) - ("heavy" in marks)

    items.sort(key=place)


def pytest_collection_finish(session):
    _set_aside(session.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    result = yield
    if nextitem is None or nextitem.path != item.path:
        _set_aside(item.config)
    return result


def _set_aside(config):
    """Exclude existing objects from garbage collection, except in slow tests.

    Most objects live until the process ends: imports, models, traced graphs.
    Late in the suite, a collection that visits them takes up to two seconds,
    and Keras collects often. A cycle of excluded objects is never freed. So
    slow tests, which run for hours in one process, exclude nothing.
    """
    gc.collect()
    if config.option.markexpr != "long":
        gc.freeze()


class SharedFixtures:
    """A plugin that checks that no test changes files of shared fixtures."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        value = yield
        if fixturedef.scope != "function":
            made = _list_files(value)

            def check():
                changed = {path for path, *_ in made ^ _list_files(value)}
                assert not changed, (
                    f"Tests changed files of the shared fixture "
                    f"{fixturedef.argname}: {sorted(changed)}"
                )

            fixturedef.addfinalizer(check)
        return value


def _list_files(value):
    """Return (path, size, time) of each file below the folders in `value`."""
    ignored = {".lock", "__pycache__"}
    values = list(value.values()) if isinstance(value, dict) else value
    values = values if isinstance(values, (list, tuple)) else [values]
    return {
        (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        for folder in values
        if isinstance(folder, (str, Path)) and os.path.isabs(folder)
        if os.path.isdir(folder)
        for path in Path(folder).rglob("*")
        if path.is_file() and ignored.isdisjoint((path.name, path.parent.name))
    }


@pytest.fixture(autouse=True)
def no_process_no_fit(request):
    """A test marked `fast` fails if it starts a process or fits a model.

    A slow test of the same file may.
    """
    marks = {mark.name for mark in request.node.iter_markers()}
    if "fast" not in marks or "long" in marks:
        yield
        return

    def refuse(*_, **__):
        raise AssertionError(
            "A fast test starts a process or fits a model. Remove the mark "
            "`fast` of its file, or move the test to another file."
        )

    places = [(subprocess.Popen, "__init__")]
    places.append((multiprocessing.process.BaseProcess, "start"))
    if "keras" in sys.modules:
        places.append((sys.modules["keras"].Model, "fit"))
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(mock.patch.object(*place, refuse))
        yield


@pytest.fixture
def random():
    """Generator of random numbers, in the same state for each test."""
    return np.random.default_rng(0)


@pytest.fixture(scope="session", autouse=True)
def verified_by_forks():
    """Exports are verified in forks; test_export.py uses a new interpreter."""
    from tests.support import forks

    verify = sys.modules.get("bert_keras.serving.verify")
    if verify is None:
        yield
        return
    with mock.patch.object(
        verify, "subprocess", types.SimpleNamespace(run=forks.run)
    ):
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Function `made_once(name, make)` that returns a folder's path, a str.

    The first worker that needs the folder calls `make(folder)`; others wait.
    """
    base = tmp_path_factory.getbasetemp()
    if IS_WORKER:
        base = base.parent  # all workers share this folder

    def made(name, make):
        folder = str(base / name)
        with open(f"{folder}.done", "a+", encoding="utf-8") as done:
            fcntl.flock(done, fcntl.LOCK_EX)  # until the file is closed
            done.seek(0)
            if not done.read():
                make(folder)
                done.write("done")
        return folder

    return made


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory):
    """Folder of a one-layer model with the vocabulary `task_samples.PIECES`."""
    from tests.support.task_samples import save_toy_model

    return save_toy_model(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory):
    """Folder of pre-training data of `toy_pretraining`, with 30% held out."""
    from tests.support.toy_pretraining import write_data

    return write_data(tmp_path_factory.mktemp("toy_data") / "data")


@pytest.fixture(scope="session")
def toy_export(made_once):
    """Folder of a portable SavedModel of `served_samples.task_models()`.

    It has the signatures of all these models, features of the last layer, and
    `ids` with the input names of transformers. The default signature is
    `classify`.
    """
    from bert_keras.serving.export import export_saved_model
    from tests.support.served_samples import preprocessor, task_models

    def make(folder):
        export_saved_model(
            task_models(),
            folder,
            preprocessor(),
            portable=True,
            features="last",
            ids_signature="transformers",
        )

    return made_once("toy_export", make)


@pytest.fixture(scope="session")
def toy_served(toy_export):
    """The `ServedModel` of `toy_export`."""
    from bert_keras.serving.load import load_saved_model

    return load_saved_model(toy_export)


@pytest.fixture(scope="session")
def classifier_export(made_once):
    """Folder of a portable SavedModel: a classifier into "bad" and "good"."""
    from bert_keras.modeling.task_models import BertClassifier
    from bert_keras.serving.export import export_saved_model
    from tests.support.model_samples import fill
    from tests.support.served_samples import encoder, preprocessor

    def make(folder):
        model = fill(BertClassifier(encoder(), labels=["bad", "good"]))
        export_saved_model(model, folder, preprocessor(), portable=True)

    return made_once("classifier_export", make)
