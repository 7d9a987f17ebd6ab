"""Memory of the server (tools/serve.py) with a model of real size.

Takes some minutes. Runs with `-m long` if BERT_KERAS_DATA is set.
"""

import os

import pytest

import bert_keras
from tests.support import request_bombs
from tests.support.serving_process import server

HOME = os.environ.get("BERT_KERAS_DATA", "")
PRESET = os.path.join(HOME, "weights", "all-MiniLM-L6-v2")


@pytest.mark.long
@pytest.mark.skipif(not HOME, reason="BERT_KERAS_DATA is not set")
@pytest.mark.filterwarnings("ignore::bert_keras.errors.UntrainedWarning")
def test_request_bombs_cost_little(tmp_path):
    """Rows have 512 positions, and `ids` returns the logits of all tokens."""
    folder = bert_keras.export_saved_model(
        [
            bert_keras.BertPretrainer.from_preset(PRESET),
            bert_keras.BertClassifier.from_preset(PRESET, labels=["no", "yes"]),
            bert_keras.BertSpanPredictor.from_preset(PRESET),
            bert_keras.BertTagger.from_preset(PRESET, labels=["O", "B-X"]),
            bert_keras.BertChooser.from_preset(PRESET),
        ],
        tmp_path / "served",
        bert_keras.BertPreprocessor.from_preset(PRESET, sequence_length=512),
        ids_signature="original",
        features="concat_last_four",
        allow_untrained=True,
    )
    with server(folder) as (port, process):
        outcomes = request_bombs.exploded(port, process, patience=600)
    for name, (*_, grown) in outcomes.items():
        # Without a limit on work, masks took 3.9 GB and choices over 18 GB.
        assert grown < 2500, (name, outcomes)
    statuses = {name: outcome[0] for name, outcome in outcomes.items()}
    refused = {name for name, status in statuses.items() if status == 413}
    assert refused >= {"many choices", "empty choices", "a long context", "ids"}
    assert statuses["masks"] == statuses["one long list of choices"] == 200
