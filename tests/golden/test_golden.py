"""Results equal recorded values of transformers, or else of this package.

record.py and behaviour.py next to this file record them.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import bert_keras
from bert_keras.modeling.pretrainer import pretraining_losses
from bert_keras.modeling.task_models import span_losses
from bert_keras.modeling.weights import published_weights, split_trainable
from tests.golden import behaviour

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "transformers.json").read_text("utf-8"))
BEHAVIOUR = json.loads((HERE / "behaviour.json").read_text("utf-8"))
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
        max_word_length=100,  # the limit in Hugging Face tokenizers
        keep_special_tokens=True,
    )
    found = tokenizer(RECORDED["strings"]).to_list()
    assert found == RECORDED["token_ids"][name]


@pytest.mark.parametrize(
    ("recorded", "preset"),
    [(RECORDED["toy"], HERE / "toy"), (RECORDED["packaged"], PACKAGED)],
    ids=["toy", "packaged"],
)
def test_logits_equal_those_of_transformers(recorded, preset):
    model = bert_keras.BertPretrainer.from_preset(preset)
    x = {name: np.array(rows) for name, rows in recorded["rows"].items()}
    pooled = model.encoder(x)["pooled_output"]
    length = x["token_ids"].shape[1]
    # The toy's logits are recorded at all positions for the whole vocabulary.
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


def test_attention_probabilities_equal_those_of_transformers():
    encoder = bert_keras.BertEncoder.from_preset(HERE / "toy")
    x = {k: np.array(v) for k, v in RECORDED["toy"]["rows"].items()}
    found = encoder(x, attention_probabilities=True)["attention_probabilities"]
    expected = RECORDED["toy"]["attention_probabilities"]
    np.testing.assert_allclose(np.stack(found), expected, atol=1e-5)


def test_a_store_its_rows_and_masks_are_those_recorded(tmp_path):
    assert behaviour.draw_data(tmp_path) == BEHAVIOUR["data"]


@pytest.mark.parametrize("name", BEHAVIOUR["losses"])
def test_steps_have_the_recorded_losses(name):
    """One objective runs all 20 steps, traced; the others run 3, eager."""
    behaviour.keras.utils.set_random_seed(4)
    is_whole = name == "pretraining with dropout"
    losses = behaviour.train(
        *behaviour.objectives()[name](),
        steps=behaviour.STEPS if is_whole else 3,
        eager=not is_whole,
    )
    expected = BEHAVIOUR["losses"][name][: len(losses)]
    # Results differ slightly between CPU types.
    np.testing.assert_allclose(losses, expected, rtol=2e-6)


def mask_targets(labels):
    """Return labels and weights; transformers ignores the label -100."""
    labels = np.array(labels)
    return np.where(labels < 0, 0, labels), (labels >= 0).astype("float32")


def make_head(name, targets):
    """Return class, `compile` arguments, y and sample weights of a head."""
    if name == "spans":
        y = {
            end: np.array(targets[f"{end}_positions"])
            for end in ("start", "end")
        }
        # The loss of transformers is the mean of the two losses.
        halves = {"start": 0.5, "end": 0.5}
        arguments = {"loss": span_losses(), "loss_weights": halves}
        return bert_keras.BertSpanPredictor, arguments, y, None
    if name == "pretraining":
        labels = targets["labels"]
        positions = [[i for i, x in enumerate(r) if x >= 0] for r in labels]
        y = {
            "mlm": np.take_along_axis(np.array(labels), np.array(positions), 1),
            "nsp": np.array(targets["next_sentence_label"]),
        }
        arguments = {"loss": pretraining_losses()}
        return bert_keras.BertPretrainer, arguments, y, None
    entropy = behaviour.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    y, weights = mask_targets(targets["labels"])
    cls = {
        "classes": bert_keras.BertClassifier,
        "tags": bert_keras.BertTagger,
        "choices": bert_keras.BertChooser,
    }[name]
    return cls, {"loss": entropy}, y, weights if name == "tags" else None


@pytest.mark.parametrize(
    ("name", "jit"),
    [
        pytest.param(
            name,
            jit,
            id=f"{name}-{'XLA' if jit else 'eager'}",
            marks=pytest.mark.long if jit and name != "pretraining" else (),
        )
        for jit in (False, True)
        for name in RECORDED["heads"]
    ],
)
def test_a_training_step_has_the_loss_and_gradients_of_transformers(name, jit):
    recorded = RECORDED["heads"][name]
    cls, arguments, y, weights = make_head(name, recorded["targets"])
    model = cls.from_preset(HERE / "heads" / name)
    gradients = cls.from_preset(HERE / "heads" / name / "gradients")
    x = {
        key: np.array(rows)[None] if name == "choices" else np.array(rows)
        for key, rows in RECORDED["toy"]["rows"].items()
    }
    expected = [np.array(logits) for logits in recorded["logits"]]
    if name == "pretraining":
        labels = np.array(recorded["targets"]["labels"])
        positions = np.array([np.flatnonzero(row >= 0) for row in labels])
        x["mask_positions"] = positions
        expected[0] = np.take_along_axis(expected[0], positions[..., None], 1)
    outputs = model(x)
    found = outputs.values() if isinstance(outputs, dict) else [outputs]
    for outputs_found, logits in zip(found, expected, strict=True):
        np.testing.assert_allclose(outputs_found, logits, rtol=1e-5, atol=1e-5)
    # With a learning rate of 1, SGD subtracts the gradient from each weight.
    descent = behaviour.keras.optimizers.SGD(1.0)
    model.compile(descent, jit_compile=jit, run_eagerly=not jit, **arguments)
    before = {v.path: v.numpy() for v in split_trainable(model)[0]}
    loss = model.train_on_batch(x, y, weights, return_dict=True)["loss"]
    np.testing.assert_allclose(loss, recorded["loss"], rtol=2e-6)
    theirs, left_out = published_weights(gradients), set()
    for path, weight in published_weights(model).items():
        if weight.path not in before:
            left_out.add(path)
            continue
        step = before[weight.path] - weight.numpy()
        np.testing.assert_allclose(
            step, theirs[path].numpy(), rtol=1e-4, atol=2e-6, err_msg=path
        )
    unused = {"encoder/pooler/kernel", "encoder/pooler/bias"}
    assert left_out == (unused if name in ("tags", "spans") else set())
