"""Paths of the tests' helpers, and toy folders that are made once a worker.

Nobody writes into the folders that the fixtures give: a test that changes
one copies it first (`shutil.copytree`). Each is made when a test first asks
for it, and so is the import of TensorFlow, which takes some seconds.
"""

import os
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
HELPERS = (
    "",
    "samples",
    "oracles",
    "devices",
    "docs",
    "fuzz",
    "interop",
    "frozen",
)


def pytest_configure():
    """Processes that tests start find the checkout and the helpers as well."""
    paths = [str(TESTS.parent), *(str(TESTS / name) for name in HELPERS)]
    if "PYTHONPATH" in os.environ:
        paths.append(os.environ["PYTHONPATH"])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


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
def toy_export(tmp_path_factory):
    """A SavedModel of `served_samples.task_models()`: its folder, a str.

    Portable; it answers every signature, with features of the last layer and
    `ids` under the names of transformers. Its default is `classify`.
    """
    from served_samples import preprocessor, task_models

    from bert_keras.serving.export import export_saved_model

    return export_saved_model(
        task_models(),
        preprocessor(),
        tmp_path_factory.mktemp("toy_export") / "served",
        portable=True,
        features="last",
        ids_signature="transformers",
    )


@pytest.fixture(scope="session")
def toy_served(toy_export):
    """The `ServedModel` of `toy_export`."""
    from bert_keras.serving.load import load_saved_model

    return load_saved_model(toy_export)


@pytest.fixture(scope="session")
def classifier_export(tmp_path_factory):
    """A portable SavedModel of a classifier of "bad" and "good": its folder."""
    from served_samples import encoder, preprocessor, spread

    from bert_keras.modeling.task_models import BertClassifier
    from bert_keras.serving.export import export_saved_model

    return export_saved_model(
        spread(BertClassifier(encoder(), labels=["bad", "good"])),
        preprocessor(),
        tmp_path_factory.mktemp("classifier_export") / "served",
        portable=True,
    )
