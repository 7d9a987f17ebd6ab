"""Every signature, of models trained on real data, asked in every way.

Takes some minutes: BERT_KERAS_LONG=1 and BERT_KERAS_DATA ask for it.
"""

import http.client
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import real_models
from run_script import run_script

from bert_keras.serving.export import export_saved_model
from bert_keras.serving.loading import load_saved_model
from official_tasks.tools.load_test import server

pytestmark = pytest.mark.skipif(
    not (os.environ.get("BERT_KERAS_LONG") and real_models.HOME),
    reason="BERT_KERAS_LONG and BERT_KERAS_DATA are not both set",
)
SIGNATURES = [
    "answer",
    "choose",
    "classify",
    "embed",
    "fill_mask",
    "next_sentence",
    "tag",
    "tokenize",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All in one portable SavedModel, verified in a fresh process."""
    return export_saved_model(
        real_models.all_models(),
        real_models.preprocessor(),
        tmp_path_factory.mktemp("real") / "served",
        portable=True,
        verify=True,
    )


@pytest.fixture(scope="module")
def served(folder):
    return load_saved_model(folder)


def request(served, name):
    return served.card["signatures"][name]["request"]


def numbers(answer):
    """The floats of an answer, flat, wherever they came from."""
    found = []
    for name in sorted(answer):
        value = np.array(answer[name]).ravel()
        found += [x for x in value.tolist() if isinstance(x, float)]
    return np.array(found)


def test_the_models_learned_and_every_signature_answers(served):
    assert served.signatures == SIGNATURES
    assert served.card["operations_outside_core"] == {}
    texts, labels = real_models.sentiments("dev", 200)
    found = served.classify(texts)["label_index"]
    assert np.mean(found == labels) > 0.7
    entities = served.tag(["Paul Simon lived in Berlin , Germany ."])
    assert entities["count"][0] > 0
    for name in SIGNATURES:
        answer = getattr(served, name)(**request(served, name))
        assert np.isfinite(numbers(answer)).all()


@pytest.mark.parametrize("name", SIGNATURES)
def test_saved_model_cli_answers(served, folder, name):
    """A process without tensorflow_text, and none of ours."""
    asked = ";".join(
        f"{key}={rows!r}" for key, rows in request(served, name).items()
    )
    command = [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli"]
    done = subprocess.run(
        [*command, "run", "--dir", folder, "--tag_set", "serve"]
        + ["--signature_def", name, "--input_exprs", asked],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for output in served.card["signatures"][name]["outputs"]:
        assert f"Result for output key {output}" in done.stdout


def test_predict_answers_every_signature(served, folder, tmp_path):
    for name in SIGNATURES:
        inputs = request(served, name)
        row = {key: rows[0] for key, rows in inputs.items()}
        (tmp_path / "in.jsonl").write_text((json.dumps(row) + "\n") * 3)
        done = run_script(
            "-m",
            "official_tasks.predict",
            f"--model={folder}",
            "--input=in.jsonl",
            f"--output={name}.jsonl",
            f"--signature={name}",
            folder=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        assert len(lines) == 3
        answer = json.loads(lines[0])["answer"]
        assert set(answer) == set(served.card["signatures"][name]["outputs"])


def test_the_server_answers_every_signature(served, folder):
    with server(folder) as (port, _):
        for name in SIGNATURES:
            inputs = request(served, name)
            body = {"signature_name": name, "inputs": inputs}
            connection = http.client.HTTPConnection("127.0.0.1", port)
            path = "/v1/models/model:predict"
            connection.request("POST", path, json.dumps(body))
            reply = connection.getresponse()
            content = json.loads(reply.read())
            assert reply.status == 200, content
            outputs = content["outputs"]
            if not isinstance(outputs, dict):
                (key,) = served.card["signatures"][name]["outputs"]
                outputs = {key: outputs}
            live = getattr(served, name)(**inputs)
            np.testing.assert_allclose(
                numbers(outputs), numbers(live), atol=1e-5
            )
