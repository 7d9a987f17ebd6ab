"""Objectives, initial weights and refused settings of pre-training."""

import shutil

import keras
import numpy as np
import pytest

import bert_keras
from bert_keras import InputError, json_files
from bert_keras.errors import UntrainedWarning
from bert_keras.modeling.pretrainer import causal_targets
from bert_keras.modeling.weights import mark_new_weights, untrained_weights
from bert_keras.training.strategy import make_strategy
from official_tasks.pretraining import runner
from official_tasks.pretraining.model import (
    change_examples_per_row,
    compiled_model,
    extension_between,
)
from official_tasks.pretraining.objectives import (
    OBJECTIVES,
    Perplexity,
    TokenAccuracy,
)
from official_tasks.pretraining.plan import plan
from official_tasks.pretraining.settings import Execution, Settings, phases
from official_tasks.pretraining.source import PretrainingSource
from tests.support.model_samples import random_encoder
from tests.support.toy_pretraining import (
    PIECES,
    SMALLEST,
    WORDS,
    save_pretrainer,
    write_data,
)

pytestmark = pytest.mark.heavy

# Settings for runs with --init, which refuses the model sizes in `SMALLEST`.
CONTINUED = {
    name: SMALLEST[name]
    for name in (
        "batch_size",
        "phase_2_sequence_length",
        "phase_2_max_predictions",
        "evaluation_steps",
    )
} | {"steps": 4, "phase_2_steps": 4, "evaluations": 1}
FIGURES = ("mlm_accuracy", "mlm_perplexity", "nsp_accuracy")


def source_of(data, objective="mlm+nsp", **settings):
    settings = Settings(**{**SMALLEST, **settings})
    return PretrainingSource(data, settings, OBJECTIVES[objective])


# Objectives.


@pytest.mark.parametrize("attention", ["left_to_right", "right_to_left"])
def test_a_direction_learns_unmasked_text(data, attention):
    (x, y, w), (masked, truth, weights) = (
        next(iter(source.held_out(phases(source.settings)[0])))
        for source in (source_of(data, attention), source_of(data))
    )
    ids = masked["token_ids"].numpy()
    for row, column in np.argwhere(weights["mlm"].numpy()):
        place = masked["mask_positions"][row, column]
        ids[row, place] = truth["mlm"][row, column]
    assert (x["token_ids"].numpy() == ids).all()
    assert not (x["token_ids"].numpy() == PIECES.index("[MASK]")).any()
    expected = causal_targets({**masked, "token_ids": ids}, attention)
    assert (y.numpy() == expected[0].numpy()).all()
    assert (w.numpy() == expected[1].numpy()).all()
    assert "mask_positions" not in x


def test_rows_that_fill_the_last_batch_count_for_no_direction(data):
    source = source_of(
        data, "left_to_right", batch_size=48, evaluation_steps=1000
    )
    *_, (_, _, weights) = source.held_out(phases(source.settings)[0])
    rows = weights.numpy().max(1)
    assert rows[0] == 1 and rows[-1] == 0


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm", "left_to_right"])
def test_rows_that_fill_the_last_batch_count_for_no_loss(objective, data):
    source = source_of(data, objective, batch_size=48, evaluation_steps=1000)
    encoder = random_encoder(
        vocabulary_size=len(PIECES),
        max_sequence_length=24,
        **source.objective.encoder_arguments,
    )
    model = source.objective.build(encoder)
    model.compile(
        "sgd",
        source.objective.losses(),
        weighted_metrics=source.objective.metrics(),
    )
    run = runner.Run(None, source.settings, source, model, make_strategy())
    metrics, sums = run.evaluate(1), {}
    for x, y, w in source.held_out(phases(source.settings)[0]):
        outputs = model(x)
        if objective == "left_to_right":
            outputs, y, w = {"lm": outputs}, {"lm": y}, {"lm": w}
        for name in {*outputs} - ({"nsp"} if objective == "mlm" else set()):
            logits = outputs[name].numpy().astype("float64")
            logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            logs = np.take_along_axis(logs, y[name].numpy()[..., None], -1)
            some = w[name].numpy()
            part = np.array([-(some * logs[..., 0]).sum(), some.sum()])
            sums[name] = sums.get(name, 0) + part
    losses = {name: loss / count for name, (loss, count) in sums.items()}
    assert metrics["loss"] == pytest.approx(sum(losses.values()), rel=1e-5)
    if "nsp" in losses:
        for name, loss in losses.items():
            assert metrics[f"{name}_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("objective", "new"),
    [
        ("mlm+nsp", []),
        ("mlm", ["encoder/pooler/kernel", "nsp/kernel"]),
        ("left_to_right", ["encoder/pooler/kernel"]),
    ],
)
def test_weights_that_no_step_updates_are_untrained(objective, new, data):
    source = source_of(data, objective)
    model = compiled_model(
        source.settings, source.objective, source, Execution()
    )
    assert untrained_weights(model) == new


def test_figures_of_pieces_are_keras_own():
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 3, 50, 9)).astype("float32") * 4
    logits[0, 0, :9] = np.round(logits[0, 0, :9] / 4)  # ties
    truth = random.integers(0, 9, (2, 3, 50)).astype("int32")
    weights = random.integers(0, 2, (2, 3, 50)).astype("float32")
    accuracy, perplexity = TokenAccuracy(), Perplexity()
    same = keras.metrics.SparseCategoricalAccuracy()
    entropy = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    for batch in zip(truth, logits, weights, strict=True):
        for metric in (accuracy, perplexity, same, entropy):
            metric.update_state(*batch)
    assert float(accuracy.result()) == float(same.result())
    expected = np.exp(entropy.result())
    np.testing.assert_allclose(perplexity.result(), expected, rtol=1e-6)


def test_masked_pieces_alone_leave_next_sentence_as_it_began(data, tmp_path):
    settings = {**SMALLEST, "steps": 2, "phase_2_steps": 0, "evaluations": 1}
    results = runner.run(data, tmp_path, objectives="mlm", **settings)
    assert {"mlm_accuracy", "mlm_perplexity"} <= set(results)
    assert "nsp_accuracy" not in results
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
    settings |= {"steps": 4, "phase_2_steps": 2, "evaluations": 1}
    results = runner.run(data, tmp_path, packed=True, **settings)
    config = json_files.read_json(tmp_path / "model" / "config.json")
    assert config["bert_keras"]["arguments"]["examples_per_row"] is None
    assert results["data"]["padding"] < 0.2


@pytest.mark.parametrize(("before", "after"), [(3, None), (None, 3)])
def test_weights_are_new_in_a_copy_for_other_rows_too(before, after):
    model = bert_keras.BertPretrainer(
        bert_keras.BertEncoder(len(PIECES), 1, 2, 16, 64), before
    )
    new = ["encoder/pooler/kernel", "nsp/kernel"]
    mark_new_weights(model, new)
    copy = change_examples_per_row(model, after)
    assert copy.examples_per_row == after
    assert untrained_weights(copy) == new
    model.encoder.load_report = {}  # as if loaded without pre-training heads
    assert untrained_weights(change_examples_per_row(model, after)) == new


# Initial weights.


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return save_pretrainer(tmp_path_factory.mktemp("weights") / "model")


def test_a_run_starts_from_weights_with_their_heads(weights, data, tmp_path):
    init = shutil.copytree(weights, tmp_path / "init")
    # The run has two phases. All metrics use sequences of the last phase.
    settings = {**CONTINUED, "sequence_length": 16, "max_predictions": 3}
    settings |= {"phase_2_steps": 2, "learning_rate": 0.0, "init": str(init)}
    results = runner.run(data, tmp_path / "run", **settings)
    source = source_of(data, steps=4, phase_2_steps=4)
    model = bert_keras.BertPretrainer.from_preset(weights)
    model.compile(
        "sgd",
        OBJECTIVES["mlm+nsp"].losses(),
        weighted_metrics=OBJECTIVES["mlm+nsp"].metrics(),
    )
    # Keras evaluates the same weights on the same batches.
    expected = model.evaluate(
        source.held_out(phases(source.settings)[0]),
        verbose=0,
        return_dict=True,
    )
    for name in FIGURES:
        assert results["before"][name] == pytest.approx(results[name], rel=1e-5)
        value = pytest.approx(expected[name], rel=1e-5)
        assert results["before"][name] == value
    with open(init / "model.safetensors", "ab") as file:
        file.write(b" ")
    with pytest.raises(InputError, match="model.safetensors changed since"):
        runner.run(data, tmp_path / "run", **settings)


def test_an_extended_vocabulary_grows_the_table(weights, tmp_path):
    pieces = [piece.replace("[unused0]", "tinker") for piece in PIECES]
    data = write_data(tmp_path / "data", [*pieces, "zoe"])
    settings = {**CONTINUED, "learning_rate": 0.0}
    runner.run(data, tmp_path / "run", init=str(weights), **settings)
    old, new = (
        bert_keras.BertPretrainer.from_preset(
            folder
        ).encoder.embeddings.token.get_weights()[0]
        for folder in (weights, tmp_path / "run" / "model")
    )
    assert new.shape[0] == len(PIECES) + 1
    parts = [PIECES.index("tin"), PIECES.index("##ker")]
    place = PIECES.index("[unused0]")
    np.testing.assert_allclose(new[place], old[parts].mean(0), rtol=1e-6)
    kept = [i for i in range(len(PIECES)) if i != place]
    np.testing.assert_array_equal(new[kept], old[kept])


def test_a_vocabulary_that_is_no_extension_is_refused_by_line():
    changed = [piece.replace("ship", "boat") for piece in PIECES]
    line = PIECES.index("ship") + 1
    with pytest.raises(InputError, match=f"line {line} is 'ship' in weights"):
        extension_between(PIECES, changed, "weights")
    last = len(PIECES)
    with pytest.raises(InputError, match=f"line {last} is '##ker' in weights"):
        extension_between(PIECES, PIECES[:-1], "weights")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 2}, "`num_layers` and `init`"),
        ({"objectives": "left_to_right"}, "bidirectional attention"),
        ({"phase_2_sequence_length": 600}, "512 positions"),
        ({"init": None, "size": "huge"}, "Expected one of tiny"),
        ({"records": True, "phase_2_steps": 0}, "sequence_length 16"),
        ({"vocabulary": "other"}, "line 8 is 'a' in "),
        ({"phase_2_max_predictions": 25}, "Phase 2: `max_predictions`"),
        ({"phase_2_sequence_length": 7}, "Phase 2: `sequence_length`"),
        ({"init": None, "hidden_dim": 16, "num_heads": 3}, "num_heads"),
        ({"dropout": 1.5}, "dropout"),
        ({"mask_rate": 2.0}, "mask_rate"),
        ({"warmup": -1.0}, "`warmup` is -1"),
    ],
)
def test_what_does_not_fit_is_refused_by_run_and_plan_and_leaves_no_folder(
    weights, data, tmp_path, monkeypatch, arguments, message
):
    def train(*_):
        raise AssertionError("the training began")

    monkeypatch.setattr(runner.Run, "train", train)
    if "vocabulary" in arguments:
        arguments = {"vocabulary": str(tmp_path / "vocab.txt")}
        pieces = [*PIECES[:7], "a", *WORDS]
        (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    settings = {**CONTINUED, "init": str(weights), **arguments}
    folder = tmp_path / "new" / "run"
    for call in (
        lambda: runner.run(data, folder, **settings),
        lambda: plan(data, **settings),
    ):
        with pytest.raises(InputError, match=message):
            call()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["lowercase", "strip_accents"])
def test_case_and_accents_of_weights_and_data_must_agree(
    weights, tmp_path, name
):
    data = write_data(tmp_path / "data", **{name: False})
    with pytest.raises(InputError, match=f"{name}=False.*--{name}"):
        runner.run(data, tmp_path / "run", init=str(weights), **CONTINUED)


def test_the_model_reads_text_as_the_data_was_made_and_the_weights_do(
    data, tmp_path
):
    text = {"strip_accents": False, "max_word_length": 9}
    text |= {"keep_special_tokens": True}
    tokenizer = bert_keras.WordPieceTokenizer(PIECES, **text)
    encoder = bert_keras.BertEncoder(len(PIECES), 1, 2, 16, 64)
    preprocess = bert_keras.BertPreprocessor(tokenizer, 24)
    encoder.save_preset(tmp_path / "model", preprocess)
    made = write_data(tmp_path / "data", strip_accents=False)
    for folder, init, expected in (
        (made, str(tmp_path / "model"), text),
        (made, None, {"strip_accents": False, "max_word_length": 200}),
        (data, None, {"strip_accents": True, "keep_special_tokens": False}),
    ):
        preprocess = source_of(folder, init=init).preprocessor()
        config = preprocess.tokenizer.get_config()
        assert expected.items() <= config.items()
    keras.backend.clear_session()
