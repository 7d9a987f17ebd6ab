"""Paths of the tests' helpers, and toy folders that are made once a worker.

Nobody writes into the folders that the fixtures give: a test that changes
one copies it first (`shutil.copytree`). Each is made when a test first asks
for it, and so is the import of TensorFlow, which takes some seconds.
"""

import contextlib
import fcntl
import gc
import multiprocessing.process
import os
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import pytest
from proofs import Proofs

TESTS = Path(__file__).parent
HELPERS = (
    "",
    "samples",
    "oracles",
    "devices",
    "docs",
    "fuzz",
    "interop",
    "golden",
)
# Files whose tests start no process and fit nothing, which `no_process_no_fit`
# holds them to: `-m fast` reads these alone.
FAST = """
data/test_corpus data/test_examples data/test_record_files
data/test_data_refusals data/test_sampling data/test_sentences
engine/test_task_report interop/test_keras_hub_format interop/test_names
interop/test_presets interop/test_sentence_transformers modeling/test_encoder
modeling/test_layers
serving/test_signatures tasks/test_encoding tasks/test_task_source
tasks/test_glue tasks/test_metrics tasks/test_multiple_choice
tasks/test_registry tasks/test_retrieval
tasks/test_table tasks/test_tagging text/test_masking text/test_packing
text/test_text_refusals text/test_vocabulary
text/test_wordpiece tools/test_arrows
training/test_checkpoint training/test_files training/test_similarity
""".split()
# What takes longest begins first, and the files of FAST come last, so that no
# worker ends long after the other.
LONGEST = """
devices/test_devices test_plain_keras serving/test_export tools/test_scripts
tools/test_benchmark engine/test_finetuning
serving/test_every_way docs/test_notebook
golden/test_golden devices/test_jax pretraining/test_model
pretraining/test_pretrain modeling/test_task_models
engine/test_hyperparameters modeling/test_pretrainer
modeling/test_registration tools/test_packaging engine/test_family_runs
serving/test_server
""".split()


def _name(path):
    """A test file's path below `tests`, without its ending."""
    return Path(path).relative_to(TESTS).with_suffix("").as_posix()


def pytest_configure(config):
    """Processes that tests start find the checkout and the helpers as well."""
    gc.set_threshold(20_000)  # as the scripts do
    if config.option.markexpr == "long":
        config.pluginmanager.register(Proofs())
    else:  # compiling is most of the time of a toy that XLA runs
        flags = "--xla_backend_optimization_level=0"
        os.environ.setdefault("XLA_FLAGS", flags)
    paths = [str(TESTS.parent), *(str(TESTS / name) for name in HELPERS)]
    if "PYTHONPATH" in os.environ:
        paths.append(os.environ["PYTHONPATH"])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def pytest_ignore_collect(collection_path, config):
    """`-m fast` does not import the other files."""
    is_left_out = (
        config.option.markexpr == "fast"
        and collection_path.suffix == ".py"
        and _name(collection_path) not in FAST
    )
    return True if is_left_out else None


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config, items):
    for item in items:
        if not item.get_closest_marker("long") and _name(item.path) in FAST:
            item.add_marker("fast")
    place = dict.fromkeys(FAST, len(LONGEST) + 1)
    place |= {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(_name(item.path), len(LONGEST)))


def pytest_collection_finish(session):
    _set_aside(session.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    result = yield
    if nextitem is None or nextitem.path != item.path:
        _set_aside(item.config)
    return result


def _set_aside(config):
    """What is there by now mostly stays: imports, models, traced graphs.

    Python then need not look through it at each collection, which took up to
    two seconds late in the suite; Keras collects often. Cycles among it that
    die later are never freed, so that long proofs do without: they are one
    process for hours.
    """
    gc.collect()
    if config.option.markexpr != "long":
        gc.freeze()


@pytest.fixture(autouse=True)
def no_process_no_fit(request):
    """A test marked `fast` fails where it starts a process or fits a model."""
    if not request.node.get_closest_marker("fast"):
        yield
        return

    def refuse(*_, **__):
        raise AssertionError(
            "A fast test starts a process or fits a model: take its file out "
            "of FAST in tests/conftest.py, or the test out of the file."
        )

    places = [(subprocess.Popen, "__init__")]
    places.append((multiprocessing.process.BaseProcess, "start"))
    if "keras" in sys.modules:
        places.append((sys.modules["keras"].Model, "fit"))
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(mock.patch.object(*place, refuse))
        yield


@pytest.fixture(scope="session", autouse=True)
def verified_by_forks():
    """Exports are verified in forks; one test takes a new interpreter."""
    import forks

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
    """`made_once(name, make)`: a folder that `make(folder)` wrote, a str.

    The first worker that asks for the name makes it, another one waits.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of all workers

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
    """A model folder of one small layer that knows `task_samples.WORDS`."""
    from task_samples import save_toy_model

    return save_toy_model(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory):
    """Pre-training data of `toy_pretraining.documents()`, 0.3 held out: str."""
    from toy_pretraining import write_data

    return write_data(tmp_path_factory.mktemp("toy_data") / "data")


@pytest.fixture(scope="session")
def toy_export(made_once):
    """A SavedModel of `served_samples.task_models()`: its folder, a str.

    Portable; it answers every signature, with features of the last layer and
    `ids` under the names of transformers. Its default is `classify`.
    """
    from served_samples import preprocessor, task_models

    from bert_keras.serving.export import export_saved_model

    def make(folder):
        export_saved_model(
            task_models(),
            preprocessor(),
            folder,
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
    """A portable SavedModel of a classifier of "bad" and "good": its folder."""
    from served_samples import encoder, preprocessor, spread

    from bert_keras.modeling.task_models import BertClassifier
    from bert_keras.serving.export import export_saved_model

    def make(folder):
        model = spread(BertClassifier(encoder(), labels=["bad", "good"]))
        export_saved_model(model, preprocessor(), folder, portable=True)

    return made_once("classifier_export", make)
