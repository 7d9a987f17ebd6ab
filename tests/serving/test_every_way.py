"""Every signature of toy models: fresh process, command line, predict, HTTP.

The same on models that learned from real data is in `test_real_serving.py`.
"""

import json
import os

import every_way
import numpy as np
import pytest
from served_samples import encoder, preprocessor, spread, task_models

from bert_keras.modeling.classifier import BertClassifier
from bert_keras.serving.export import export_saved_model
from bert_keras.serving.load import load_saved_model
from bert_keras.serving.verify import answer_in_fresh_process
from official_tasks.engine.prediction import Answers


def classifier(**arguments):
    return [spread(BertClassifier(encoder(), **arguments))]


LONG = os.environ.get("BERT_KERAS_LONG")
LABELS = ["bad", "fine", "good"]
EXPORTS = {
    "all": lambda: (task_models(), {"features": "last"}),
    "pair": lambda: (classifier(labels=LABELS), {"pair": True}),
    "several labels": lambda: (
        classifier(labels=LABELS, problem="multi"),
        {},
    ),
    "score": lambda: (classifier(problem="regression"), {"pair": True}),
}


@pytest.fixture(scope="module", params=EXPORTS)
def folder(request, tmp_path_factory):
    models, options = EXPORTS[request.param]()
    path = tmp_path_factory.mktemp("way") / "served"
    if request.param == "all":
        options["ids_signature"] = "transformers"
    return export_saved_model(
        models, preprocessor(), path, portable=True, **options
    )


@pytest.fixture(scope="module")
def served(folder):
    return load_saved_model(folder)


def answers(served):
    asked = every_way.requests(served)
    return {name: getattr(served, name)(**asked[name]) for name in asked}


def check(found, expected):
    found, expected = every_way.numbers(found), every_way.numbers(expected)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def is_small(served):
    return len(served.signatures) == 2


def test_a_fresh_process_answers(folder, served):
    """Of the small ones, saved_model_cli's below is one."""
    if is_small(served) and not LONG:
        pytest.skip("BERT_KERAS_LONG is not set")
    asked = every_way.requests(served)
    fresh = answer_in_fresh_process(folder, list(asked.items()))
    for (name, expected), found in zip(
        answers(served).items(), fresh, strict=True
    ):
        assert set(found) == set(served.card["signatures"][name]["outputs"])
        if not served.card["signatures"][name]["padded"]:
            check(found, expected)


def test_saved_model_cli_answers(folder, served):
    """It reads the folder anew for each signature."""
    if not is_small(served) and not LONG:
        pytest.skip("BERT_KERAS_LONG is not set")
    every_way.check_cli(folder, served)


def test_predict_answers(served, tmp_path):
    for name, expected in answers(served).items():
        inputs = every_way.requests(served)[name]
        order = served.card["signatures"][name]["input_order"]
        row = [inputs[key][0] for key in order]
        path = tmp_path / f"{name}.jsonl"
        done = Answers(str(path), served, name).answered(iter([row] * 3), 2)
        assert list(done) == [3]
        lines = path.read_text().splitlines()
        for line in lines:
            found = json.loads(line)["answer"]
            check(found, {key: rows[0] for key, rows in expected.items()})


def test_the_server_answers(served):
    pytest.importorskip("starlette", reason="needs the extra `serve`")
    with every_way.address(served) as port:
        for name, expected in answers(served).items():
            inputs = every_way.requests(served)[name]
            found = every_way.told_by_http(port, served, name, inputs)
            assert set(found) == set(served.card["signatures"][name]["outputs"])
            check(found, expected)
