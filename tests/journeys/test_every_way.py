"""Answers of toy exports by saved_model_cli, predict.py and the server.

`test_export.py` tests an export in a fresh process.
"""

import json
import types

import numpy as np
import pytest
from starlette.testclient import TestClient

from bert_keras.modeling.task_models import BertClassifier
from bert_keras.serving.export import export_saved_model
from bert_keras.serving.load import load_saved_model, read_card
from bert_keras.serving.server import create_app
from official_tasks.engine.answers import Answers
from tests.support import every_way
from tests.support.model_samples import fill
from tests.support.served_samples import encoder, preprocessor

LABELS = ["bad", "fine", "good"]
# Name -> (arguments of the classifier, `pair` of the export).
CLASSIFIERS = {
    "several labels": ({"labels": LABELS, "problem": "multi"}, None),
    "pair": ({"labels": LABELS}, True),
    "score": ({"problem": "regression"}, True),
    "entail": ({"labels": ["neutral", "entailment"], "pair": True}, None),
}
# `entail` runs always, because `toy_served` lacks it; the others are long.
EACH = [
    name if name == "entail" else pytest.param(name, marks=pytest.mark.long)
    for name in CLASSIFIERS
]


@pytest.fixture(scope="module", params=["all", *EACH])
def served(request, tmp_path_factory, toy_served):
    if request.param == "all":
        return toy_served
    arguments, pair = CLASSIFIERS[request.param]
    folder = export_saved_model(
        fill(BertClassifier(encoder(), **arguments)),
        tmp_path_factory.mktemp("way") / "served",
        preprocessor(),
        portable=True,
        pair=pair,
    )
    return load_saved_model(folder)


def answers(served):
    asked = every_way.requests(served)
    return {name: getattr(served, name)(**asked[name]) for name in asked}


def check(found, expected):
    """Compare floats to 1e-5, and other values exactly."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        value, other = np.array(value), np.array(found[name])
        if value.dtype.kind == "f":
            assert other == pytest.approx(value, abs=1e-5), name
        else:
            assert other.tolist() == value.tolist(), name


def test_saved_model_cli_answers_a_small_export(classifier_export):
    served = types.SimpleNamespace(card=read_card(classifier_export))
    every_way.check_cli(classifier_export, served)


@pytest.mark.long
def test_saved_model_cli_answers(served):
    """The test is slow: the tool loads the folder for each signature."""
    every_way.check_cli(served.folder, served)


def test_predict_and_the_server_answer(served, tmp_path):
    every = answers(served)
    for name, expected in every.items():
        inputs = every_way.requests(served)[name]
        order = served.card["signatures"][name]["input_order"]
        row = [inputs[key][0] for key in order]
        path = tmp_path / f"{name}.jsonl"
        batched = Answers(served, name, batch_size=2)
        written = batched.write([row] * 3, str(path))
        assert list(written) == [3]
        lines = path.read_text().splitlines()
        for line in lines:
            found = json.loads(line)["answer"]
            check(found, {key: rows[0] for key, rows in expected.items()})
    client = TestClient(create_app(served))
    for name, expected in every.items():
        inputs = every_way.requests(served)[name]
        found = every_way.answered_by_server(client, served, name, inputs)
        check(found, expected)


def test_no_rows_get_no_answers(toy_served):
    """The embedding of no rows keeps its second axis."""
    for name, entry in toy_served.card["signatures"].items():
        nothing = [[] for _ in entry["input_order"]]
        answer = getattr(toy_served, name)(*nothing)
        assert set(answer) == set(entry["outputs"])
        assert {len(value) for value in answer.values()} == {0}
    assert toy_served.embed([])["embedding"].shape == (0, 16)
