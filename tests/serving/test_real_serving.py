"""Every signature, of models trained on real data, asked in every way.

Takes some minutes: BERT_KERAS_LONG=1 and BERT_KERAS_DATA ask for it.
"""

import json
import os
import subprocess
import sys

import every_way
import numpy as np
import pytest
import real_models
import request_bombs
from run_script import run_script

from bert_keras.serving.export import export_saved_model
from bert_keras.serving.load import load_saved_model
from tools.benchmark.load_test import server

pytestmark = pytest.mark.skipif(
    not (os.environ.get("BERT_KERAS_LONG") and real_models.HOME),
    reason="BERT_KERAS_LONG and BERT_KERAS_DATA are not both set",
)
# Export -> its models, its options, what it answers beside `tokenize`.
EXPORTS = {
    "all": (
        real_models.all_models,
        {"features": "concat_last_four"},
        "answer choose classify embed fill_mask next_sentence tag",
    ),
    "pair": (real_models.pair_classifier, {"pair": True}, "classify"),
    "score": (real_models.scorer, {"pair": True}, "classify"),
    "several labels": (real_models.several_labels, {}, "classify"),
}


@pytest.fixture(scope="module", params=EXPORTS)
def export(request, tmp_path_factory):
    """(its name, its folder): portable, verified in a fresh process."""
    make, options, answers = EXPORTS[request.param]
    folder = export_saved_model(
        make(),
        real_models.preprocessor(),
        tmp_path_factory.mktemp("real") / "served",
        portable=True,
        verify=True,
        **options,
    )
    served = load_saved_model(folder)
    assert served.signatures == sorted([*answers.split(), "tokenize"])
    assert served.card["operations_outside_core"] == {}
    return request.param, folder


@pytest.fixture(scope="module")
def folder(export):
    return export[1]


@pytest.fixture(scope="module")
def served(folder):
    return load_saved_model(folder)


def test_the_models_learned_and_every_signature_answers(export, served):
    LEARNED[export[0]](served)
    for name, inputs in every_way.requests(served).items():
        answer = getattr(served, name)(**inputs)
        assert np.isfinite(every_way.numbers(answer)).all()


def test_request_bombs_cost_little(tmp_path):
    """Rows of 512, and all logits of a pre-trainer's ids."""
    *others, pretrainer = real_models.all_models()
    folder = export_saved_model(
        [pretrainer, *others],  # `ids` is of the first
        real_models.preprocessor(512),
        tmp_path / "served",
        ids_signature="original",
        features="concat_last_four",
    )
    with server(folder) as (port, process):
        outcomes = request_bombs.exploded(
            port, process, request_bombs.BOMBS, patience=600
        )
    for name, (*_, grown) in outcomes.items():
        # Before its work was counted: 3.9 GB of masks, over 18 GB of choices.
        assert grown < 2500, (name, outcomes)
    statuses = {name: outcome[0] for name, outcome in outcomes.items()}
    refused = {name for name, status in statuses.items() if status == 413}
    assert refused >= {"many choices", "empty choices", "a long context", "ids"}
    assert statuses["masks"] == statuses["one long list of choices"] == 200


def all_learned(served):
    texts, labels = real_models.sentiments("dev", 200)
    found = served.classify(texts)["label_index"]
    assert np.mean(found == labels) > 0.7
    entities = served.tag(["Paul Simon lived in Berlin , Germany ."])
    assert entities["count"][0] > 0
    tokens = served.embed(["Paul Simon lived in Berlin."])
    assert np.shape(tokens["features"][0]) == (6, 4 * 384)
    assert tokens["pieces"][0][-1] == "."


def score_learned(served):
    alike = ["A man is playing a guitar."], ["A man plays the guitar."]
    unlike = ["A man is playing a guitar."], ["The stock market fell."]
    apart = served.classify(*alike)["score"] - served.classify(*unlike)["score"]
    assert apart[0] > 0.5


def several_learned(served):
    found = served.classify(["Berlin is the capital of Germany ."])
    assert found["label"][0][0] == "LOC"


LEARNED = {
    "all": all_learned,
    "pair": lambda served: None,  # too few steps to learn it
    "score": score_learned,
    "several labels": several_learned,
}


def test_saved_model_cli_answers(served, folder):
    """A process without tensorflow_text, and none of ours."""
    every_way.check_cli(folder, served)


def test_the_command_itself_answers(served, folder):
    name = served.card["default"]
    asked = every_way.expressions(every_way.requests(served)[name])
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
    for name, inputs in every_way.requests(served).items():
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
        for name, inputs in every_way.requests(served).items():
            outputs = every_way.told_by_http(port, served, name, inputs)
            live = getattr(served, name)(**inputs)
            np.testing.assert_allclose(
                every_way.numbers(outputs), every_way.numbers(live), atol=1e-5
            )
