"""Data and a run under `gs://`, through TensorFlow's file system."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from tests.support.data_samples import contents
from tests.support.storage_server import storage_server
from tests.support.toy_pretraining import SMALLEST

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("openssl") is None, reason="openssl is not installed"
    ),
]

BUILD = """
import sys
import pytest
from bert_keras.data.batches import pretraining_dataset
from tests.support.data_samples import arrays, in_small_parts, same
from tests.support.toy_pretraining import RULES, write_data

in_small_parts(pytest.MonkeyPatch())
read = []
for folder in sys.argv[1:]:
    write_data(folder)
    for kind in ("tokens/train", "train"):
        data = pretraining_dataset(f"{folder}/{kind}", 8, 1, rules=RULES)
        read.append(arrays(data.take(3)))
assert same(read[0], read[2]) and same(read[1], read[3])
"""
TRAIN = [sys.executable, "-m", "official_tasks.pretrain", "--save_every=3"]
TRAIN += [f"--{name}={value}" for name, value in SMALLEST.items()]
MODEL = "model/model.safetensors"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A bucket, a function that starts a process with it, and a local folder.

    The bucket and the folder hold the same data.
    """
    folder = tmp_path_factory.mktemp("storage")
    with storage_server(folder) as (bucket, settings):

        def start(*command):
            return subprocess.Popen(
                command,
                env={**os.environ, **settings, "KERAS_HOME": str(folder)},
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )

        build = start(sys.executable, "-c", BUILD, "gs://bucket/data", "data")
        printed, _ = build.communicate(timeout=600)
        assert build.returncode == 0, printed[-3000:]
        yield bucket, start, folder


def test_data_in_a_bucket_has_the_bytes_of_local_data(served):
    bucket, _, folder = served
    local = contents(folder / "data")
    assert len(local) > 8
    remote = bucket.folder("data")
    remote.pop(".lock", None)
    assert remote == local
    assert any(has_broken for *_, has_broken in bucket.uploads)


def test_a_run_in_a_bucket_that_was_killed_resumes(served):
    bucket, start, folder = served
    flags = ["--data=gs://bucket/data", "--output=gs://bucket/run"]
    saved = "run/state/step-00000003/manifest.json"
    process = start(*TRAIN, *flags)
    limit = time.monotonic() + 300
    while process.poll() is None and saved not in bucket.objects:
        assert time.monotonic() < limit
        time.sleep(0.05)
    process.kill()
    printed, _ = process.communicate()
    assert saved in bucket.objects, printed[-3000:]
    assert MODEL not in bucket.folder("run")
    begun = len(bucket.uploads)
    for more in (flags, ["--data=data", "--output=run"]):
        process = start(*TRAIN, *more)
        printed, _ = process.communicate(timeout=600)
        assert process.returncode == 0, printed[-3000:]
    assert bucket.folder("run")[MODEL] == (folder / "run" / MODEL).read_bytes()
    later = {os.path.dirname(name) for name, *_ in bucket.uploads[begun:]}
    assert "run/state/step-00000006" in later
    assert os.path.dirname(saved) not in later
