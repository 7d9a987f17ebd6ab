"""What must not move: values of transformers, and our own where none exist.

record.py and behaviour.py next to this file record them.
"""

import json
from pathlib import Path

import behaviour
import numpy as np
import pytest

import bert_keras

HERE = Path(__file__).parent
THEIRS = json.loads((HERE / "transformers.json").read_text("utf-8"))
OURS = json.loads((HERE / "behaviour.json").read_text("utf-8"))
PACKAGED = "bert_keras_mini_en"


@pytest.mark.parametrize(
    ("name", "lowercase", "strip_accents"),
    [
        ("uncased", True, True),
        ("cased", False, False),
        ("lower case with accents", True, False),
        ("cased without accents", False, True),
    ],
)
def test_hard_strings_get_the_ids_of_transformers(
    name, lowercase, strip_accents
):
    tokenizer = bert_keras.WordPieceTokenizer(
        bert_keras.BertPreprocessor.from_preset(PACKAGED).tokenizer.vocabulary,
        lowercase=lowercase,
        strip_accents=strip_accents,
        max_word_length=100,  # the limit of the library tokenizers
        keep_special_tokens=True,
    )
    found = tokenizer(THEIRS["strings"]).to_list()
    assert found == THEIRS["token_ids"][name]


@pytest.mark.parametrize(
    ("recorded", "preset"),
    [(THEIRS["toy"], HERE / "toy"), (THEIRS["packaged"], PACKAGED)],
    ids=["toy", "packaged"],
)
def test_logits_equal_those_of_transformers(recorded, preset):
    model = bert_keras.BertPretrainer.from_preset(preset)
    x = {name: np.array(rows) for name, rows in recorded["rows"].items()}
    pooled = model.encoder(x)["pooled_output"]
    length = x["token_ids"].shape[1]
    # The toy's are recorded at every position, and for every piece.
    positions = recorded.get("mask_positions", [[*range(length)]] * 2)
    outputs = model({**x, "mask_positions": np.array(positions)})
    stride = 500 if "mask_positions" in recorded else 1
    width = np.shape(recorded["pooled_output"])[1]
    for found, expected in (
        (outputs["mlm"][..., ::stride], recorded["mlm"]),
        (outputs["nsp"], recorded["nsp"]),
        (pooled[:, :width], recorded["pooled_output"]),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_store_its_rows_and_masks_are_those_recorded(tmp_path):
    assert behaviour.draw_data(tmp_path) == OURS["data"]


@pytest.mark.parametrize("name", OURS["losses"])
def test_twenty_steps_have_the_recorded_losses(name):
    behaviour.keras.utils.set_random_seed(4)
    losses = behaviour.train(*behaviour.objectives()[name]())
    # Other processors add in another order.
    np.testing.assert_allclose(losses, OURS["losses"][name], rtol=2e-6)
