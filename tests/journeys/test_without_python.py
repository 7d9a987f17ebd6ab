"""A SavedModel called from C with the library in TensorFlow's wheel.

The program has no Python, like TensorFlow Serving. tensorflow-text's operations
come from shared libraries. The first comment of ask_saved_model.c has the
commands.
"""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.modeling.task_models import BertClassifier
from bert_keras.serving.export import export_saved_model
from bert_keras.serving.load import load_saved_model
from tests.support.model_samples import fill
from tests.support.run_script import ROOT
from tests.support.served_samples import encoder, preprocessor

COMMENT = (ROOT / "tests" / "serving" / "ask_saved_model.c").read_text()
COMMENT = COMMENT.split("*/")[0].replace("\\\n", " ")
SITE, BUILD, ASK, LIBRARY_FOLDER, LIBRARIES, ASK_DEFAULT = re.findall(
    r"^ {5}(\S.*)", COMMENT, re.M
)
TEXTS = [
    *["an hour well spent", "bad film!", "good", "", "\u4eca\u65e5"],
    *["Film. Bad hour , another !", "good\u0301 FILM " * 20, "i", "spent"],
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder with the built program; the commands of `COMMENT` run there."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    library = os.path.join(tf.sysconfig.get_lib(), "libtensorflow_cc.so.2")
    if not os.path.exists(library):
        pytest.skip(f"{library} is missing; the Linux wheel has it")
    folder = tmp_path_factory.mktemp("without_python")
    (folder / "tests").symlink_to(ROOT / "tests")
    (folder / "runs").mkdir()
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    linker = "-fuse-ld=gold" if shutil.which("ld.gold") else ""
    done = run(folder, SITE, BUILD.replace("-fuse-ld=gold", linker))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(built, tmp_path):
    return shutil.copytree(built, tmp_path / "built", symlinks=True)


def run(folder, *commands):
    """Run commands in bash with the tests' `python`; return the process."""
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    return subprocess.run(
        ["bash", "-ec", "\n".join(commands)],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )


def check(done, served):
    """Assert that the program printed the answers of `served`."""
    assert done.returncode == 0, done.stderr[-2000:]
    answer = served.classify(TEXTS)
    lines = done.stdout.splitlines()
    labels, numbers = lines[: len(TEXTS)], lines[len(TEXTS) :]
    assert labels == answer["label"]
    expected = answer["probabilities"]
    assert np.ptp(expected[:, 0]) > 0.05  # the answers depend on the text
    numbers = np.array(numbers, float).reshape(expected.shape)
    np.testing.assert_allclose(numbers, expected, atol=1e-6)


def test_a_portable_export_answers_without_python(folder, classifier_export):
    (folder / "runs" / "served").symlink_to(classifier_export)
    done = run(folder, ASK)
    check(done, load_saved_model(classifier_export))


@pytest.mark.long
def test_the_default_export_needs_two_libraries_of_tensorflow_text(folder):
    model = fill(BertClassifier(encoder(), labels=["bad", "good"]))
    export_saved_model(model, folder / "runs" / "default", preprocessor())
    served = load_saved_model(folder / "runs" / "default")
    assert set(served.card["operations_outside_core"]) == {
        "FastBertNormalize",
        "FastWordpieceTokenizeWithOffsets",
    }
    done = run(folder, SITE, LIBRARY_FOLDER, LIBRARIES, ASK_DEFAULT)
    check(done, served)
    refused = run(folder, "LIBRARIES=", ASK_DEFAULT)
    assert refused.returncode == 1
    assert "not registered" in refused.stderr
