"""What each objective learns, and from what of a batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_pretraining import PIECES, SMALLEST, write_data

import bert_keras
from bert_keras import files
from bert_keras.errors import UntrainedWarning
from bert_keras.modeling.causal import causal_targets
from official_tasks import pretrain
from official_tasks.pretraining.objectives import (
    OBJECTIVES,
    Perplexity,
    PieceAccuracy,
)
from official_tasks.pretraining.settings import Settings, phases
from official_tasks.pretraining.source import PretrainingSource


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def held_out_batch(data, objective, **settings):
    settings = Settings(**{**SMALLEST, **settings})
    source = PretrainingSource(data, settings, OBJECTIVES[objective])
    drawn = PretrainingSource(data, settings, OBJECTIVES["mlm+nsp"])
    phase = phases(settings)[0]
    take = tf.data.Dataset.get_single_element
    return tuple(take(one.held_out(phase).take(1)) for one in (source, drawn))


@pytest.mark.parametrize("attention", ["left_to_right", "right_to_left"])
def test_a_direction_learns_unmasked_text(data, attention):
    (x, y, w), (masked, truth, weights) = held_out_batch(data, attention)
    ids = masked["token_ids"].numpy()
    for row, column in np.argwhere(weights["mlm"].numpy()):
        place = masked["mask_positions"][row, column]
        ids[row, place] = truth["mlm"][row, column]
    assert (x["token_ids"].numpy() == ids).all()
    assert not (x["token_ids"].numpy() == PIECES.index("[MASK]")).any()
    wanted = causal_targets({**masked, "token_ids": ids}, attention)
    assert (y.numpy() == wanted[0].numpy()).all()
    assert (w.numpy() == wanted[1].numpy()).all()
    assert "mask_positions" not in x


def test_rows_that_fill_the_last_batch_count_for_no_direction(data):
    settings = Settings(**{**SMALLEST, "batch_size": 48})
    settings = settings._replace(evaluation_steps=1000)
    objective = OBJECTIVES["left_to_right"]
    source = PretrainingSource(data, settings, objective)
    *_, (_, _, weights) = source.held_out(phases(settings)[0])
    rows = weights.numpy().max(1)
    assert rows[0] == 1 and rows[-1] == 0


def test_figures_of_pieces_are_keras_own():
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 3, 50, 9)).astype("float32") * 4
    logits[0, 0, :9] = np.round(logits[0, 0, :9] / 4)  # ties
    truth = random.integers(0, 9, (2, 3, 50)).astype("int32")
    weights = random.integers(0, 2, (2, 3, 50)).astype("float32")
    accuracy, perplexity = PieceAccuracy(), Perplexity()
    same = keras.metrics.SparseCategoricalAccuracy()
    entropy = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    for batch in zip(truth, logits, weights, strict=True):
        for metric in (accuracy, perplexity, same, entropy):
            metric.update_state(*batch)
    assert float(accuracy.result()) == float(same.result())
    expected = np.exp(entropy.result())
    np.testing.assert_allclose(perplexity.result(), expected, rtol=1e-6)


def test_baselines_are_those_of_the_simplest_guesses(data):
    settings = Settings(**SMALLEST)._replace(evaluation_steps=1000)
    source = PretrainingSource(data, settings, OBJECTIVES["mlm+nsp"])
    (phase, _) = phases(settings)
    ids, labels = [], []
    for _, y, w in source.held_out(phase):
        ids += list(y["mlm"].numpy()[w["mlm"].numpy() > 0])
        labels += list(y["nsp"].numpy()[w["nsp"].numpy() > 0])
    commonest = np.bincount(source.store.tokens).argmax()
    share = np.mean(labels)
    assert source.baselines(phase) == {
        "unigram": pytest.approx(np.mean(np.array(ids) == commonest)),
        "nsp_majority": pytest.approx(max(share, 1 - share)),
    }


def test_perplexity_is_e_to_the_mean_cross_entropy():
    random = np.random.default_rng(0)
    metric, losses, weights = Perplexity(), [], []
    for _ in range(2):
        logits = random.normal(size=(3, 5)).astype("float32")
        truth, weight = random.integers(0, 5, 3), random.integers(0, 2, 3)
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        losses += list(-np.log(shares[range(3), truth]))
        weights += list(weight)
        metric.update_state(truth, logits, weight)
    mean = np.average(losses, weights=weights)
    assert float(metric.result()) == pytest.approx(np.exp(mean), rel=1e-5)


@pytest.mark.parametrize("objectives", ["mlm", "left_to_right"])
def test_other_objectives_train_what_they_learn_only(
    data, tmp_path, objectives
):
    settings = {**SMALLEST, "steps": 6, "phase_2_steps": 0, "evaluations": 1}
    results = pretrain.run(data, tmp_path, objectives=objectives, **settings)
    name = "lm" if objectives == "left_to_right" else "mlm"
    assert {f"{name}_accuracy", f"{name}_perplexity"} <= set(results)
    assert "nsp_accuracy" not in results
    assert results[f"{name}_unigram_baseline"] < 0.5
    assert results["guesses"]
    config = files.read_json(tmp_path / "model" / "config.json")
    if name == "lm":
        assert config["encoder"]["attention"] == "left_to_right"
        return
    keras.utils.set_random_seed(0)
    encoder = bert_keras.BertEncoder(len(PIECES), 1, 2, 16, 64)
    begun = bert_keras.BertPretrainer(encoder)
    with pytest.warns(UntrainedWarning, match="pooler/kernel, nsp/kernel"):
        ended = bert_keras.BertPretrainer.from_preset(tmp_path / "model")
    for get in (lambda m: m.nsp, lambda m: m.encoder.pooler):
        before, after = get(begun).get_weights(), get(ended).get_weights()
        np.testing.assert_array_equal(before[0], after[0])
    table = [m.encoder.embeddings.get_weights()[0] for m in (begun, ended)]
    assert (table[0] != table[1]).any()


def test_packed_rows_train_and_leave_a_plain_model(data, tmp_path):
    settings = {**SMALLEST, "phase_2_sequence_length": 48}
    results = pretrain.run(data, tmp_path, packed=True, **settings)
    config = files.read_json(tmp_path / "model" / "config.json")
    assert config.get("arguments", {}).get("examples_per_row") is None
    assert results["data"]["padding"] < 0.2
    assert 0 <= results["nsp_accuracy"] <= 1
