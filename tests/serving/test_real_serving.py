"""Every signature of models of real size.

Takes some minutes: `-m long` and BERT_KERAS_DATA ask for it.
"""

import every_way
import numpy as np
import pytest
import real_models
import request_bombs
from serving_process import server

from bert_keras.serving.export import export_saved_model
from bert_keras.serving.load import load_saved_model

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not real_models.HOME, reason="BERT_KERAS_DATA is not set"
    ),
]


@pytest.fixture(scope="module")
def models():
    return real_models.all_models()


@pytest.fixture(scope="module")
def folder(models, tmp_path_factory):
    """Portable, verified in a fresh process."""
    return export_saved_model(
        models,
        real_models.preprocessor(),
        tmp_path_factory.mktemp("real") / "served",
        features="concat_last_four",
        portable=True,
        allow_untrained=True,
        verify=True,
    )


@pytest.fixture(scope="module")
def served(folder):
    return load_saved_model(folder)


def test_every_signature_answers_and_the_classifier_has_learned(served):
    assert served.card["operations_outside_core"] == {}
    for name, inputs in every_way.requests(served).items():
        answer = getattr(served, name)(**inputs)
        assert np.isfinite(every_way.numbers(answer)).all()
    texts, labels = real_models.sentiments("dev", 200)
    found = served.classify(texts)["label_index"]
    assert np.mean(found == labels) > 0.7
    tokens = served.embed(["Paul Simon lived in Berlin."])
    assert np.shape(tokens["features"][0]) == (6, 4 * 384)
    assert tokens["pieces"][0][-1] == "."


def test_request_bombs_cost_little(models, tmp_path):
    """Rows of 512, and all logits of a pre-trainer's ids."""
    folder = export_saved_model(
        models,
        real_models.preprocessor(512),
        tmp_path / "served",
        ids_signature="original",
        features="concat_last_four",
        allow_untrained=True,
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
