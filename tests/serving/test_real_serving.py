"""Memory of the trial server with a model of real size.

Takes some minutes: `-m long` and BERT_KERAS_DATA ask for it.
"""

import os

import pytest
import request_bombs
from serving_process import server

import bert_keras

HOME = os.environ.get("BERT_KERAS_DATA", "")
PRESET = os.path.join(HOME, "weights", "all-MiniLM-L6-v2")


@pytest.mark.long
@pytest.mark.skipif(not HOME, reason="BERT_KERAS_DATA is not set")
@pytest.mark.filterwarnings("ignore::bert_keras.errors.UntrainedWarning")
def test_request_bombs_cost_little(tmp_path):
    """Rows of 512, and all logits of a pre-trainer's ids."""
    folder = bert_keras.export_saved_model(
        [
            bert_keras.BertPretrainer.from_preset(PRESET),
            bert_keras.BertClassifier.from_preset(PRESET, labels=["no", "yes"]),
            bert_keras.BertSpanPredictor.from_preset(PRESET),
            bert_keras.BertTagger.from_preset(PRESET, labels=["O", "B-X"]),
            bert_keras.BertChooser.from_preset(PRESET),
        ],
        bert_keras.BertPreprocessor.from_preset(PRESET, sequence_length=512),
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
