"""Going on from weights: what is taken over, and what is refused."""

import shutil

import numpy as np
import pytest
from model_samples import fill
from toy_pretraining import PIECES, SMALLEST, WORDS, write_data

import bert_keras
from bert_keras import InputError
from official_tasks import pretrain
from official_tasks.pretraining.model import extension_between
from official_tasks.pretraining.objectives import OBJECTIVES
from official_tasks.pretraining.settings import Settings, phases
from official_tasks.pretraining.source import PretrainingSource

# Settings that go with --init: of `SMALLEST`, what is of no model.
CONTINUED = {
    name: SMALLEST[name]
    for name in (
        "batch_size",
        "phase_2_sequence_length",
        "phase_2_max_predictions",
        "evaluation_steps",
    )
} | {"steps": 4, "phase_2_steps": 4, "evaluations": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A pre-trainer at random, with its vocabulary."""
    folder = tmp_path_factory.mktemp("weights") / "model"
    encoder = bert_keras.BertEncoder(len(PIECES), 1, 2, 16, 64)
    tokenizer = bert_keras.WordPieceTokenizer(PIECES, lowercase=True)
    preprocess = bert_keras.BertPreprocessor(tokenizer, 24)
    fill(bert_keras.BertPretrainer(encoder)).save_preset(folder, preprocess)
    return folder


def test_weights_are_gone_on_from_with_their_heads(weights, data, tmp_path):
    figures = pretrain.run(data, tmp_path, init=str(weights), **CONTINUED)
    # The same batches of the same length, by the same weights.
    settings = Settings(**SMALLEST)._replace(steps=4, phase_2_steps=4)
    source = PretrainingSource(data, settings, OBJECTIVES["mlm+nsp"])
    model = bert_keras.BertPretrainer.from_preset(weights)
    model.compile(
        "sgd",
        OBJECTIVES["mlm+nsp"].losses(),
        weighted_metrics=OBJECTIVES["mlm+nsp"].metrics(),
    )
    wanted = model.evaluate(
        source.held_out(phases(settings)[0]), verbose=0, return_dict=True
    )
    for name in ("mlm_accuracy", "mlm_perplexity", "nsp_accuracy"):
        assert figures["before"][name] == pytest.approx(wanted[name], rel=1e-5)


def test_figures_before_and_after_are_of_one_length(weights, data, tmp_path):
    settings = {**CONTINUED, "sequence_length": 16, "max_predictions": 3}
    settings |= {"phase_2_steps": 2, "learning_rate": 0.0}
    results = pretrain.run(data, tmp_path, init=str(weights), **settings)
    for name in ("mlm_accuracy", "mlm_perplexity", "nsp_accuracy"):
        assert results["before"][name] == pytest.approx(results[name], rel=1e-5)


def test_a_run_goes_on_with_the_weights_that_it_began_with(
    weights, data, tmp_path
):
    init = shutil.copytree(weights, tmp_path / "init")
    settings = {**CONTINUED, "init": str(init)}
    pretrain.run(data, tmp_path / "run", **settings)
    with open(init / "model.safetensors", "ab") as file:
        file.write(b" ")
    with pytest.raises(InputError, match="model.safetensors changed since"):
        pretrain.run(data, tmp_path / "run", **settings)


def test_an_extended_vocabulary_grows_the_table(weights, tmp_path):
    pieces = [piece.replace("[unused0]", "tinker") for piece in PIECES]
    data = write_data(tmp_path / "data", [*pieces, "zoe"])
    pretrain.run(
        data,
        tmp_path / "run",
        init=str(weights),
        **{**CONTINUED, "learning_rate": 0.0},
    )
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
    with pytest.raises(InputError, match=f"line {line} is 'ship' there and"):
        extension_between(PIECES, changed, "weights")
    last = len(PIECES)
    with pytest.raises(InputError, match=f"line {last} is '##ker' there and"):
        extension_between(PIECES, PIECES[:-1], "weights")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 2}, "weights decide the sizes"),
        ({"objectives": "left_to_right"}, "see bidirectional"),
        ({"phase_2_sequence_length": 600}, "512 positions"),
        ({"init": None, "size": "huge"}, "Expected one of tiny"),
        ({"records": True, "phase_2_steps": 0}, "sequence_length 16"),
        ({"vocabulary": "other"}, "line 8 is 'a' there"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_no_folder(
    weights, data, tmp_path, arguments, message
):
    if "vocabulary" in arguments:
        arguments = {"vocabulary": str(tmp_path / "vocab.txt")}
        pieces = [*PIECES[:7], "a", *WORDS]
        (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    settings = {**CONTINUED, "init": str(weights), **arguments}
    with pytest.raises(InputError, match=message):
        pretrain.run(data, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"lowercase": False}, "lowercase=False.*--lowercase"),
        ({"strip_accents": False}, "strip_accents=False.*--strip_accents"),
    ],
    ids=str,
)
def test_case_and_accents_of_weights_and_data_must_agree(
    weights, tmp_path, made, message
):
    data = write_data(tmp_path / "data", **made)
    with pytest.raises(InputError, match=message):
        pretrain.run(data, tmp_path / "run", init=str(weights), **CONTINUED)


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
        (made, tmp_path / "model", text),
        (made, None, {"strip_accents": False, "max_word_length": 200}),
        (data, None, {"strip_accents": True, "keep_special_tokens": False}),
    ):
        settings = Settings(**SMALLEST, init=init and str(init))
        source = PretrainingSource(folder, settings, OBJECTIVES["mlm+nsp"])
        config = source.preprocessor().tokenizer.get_config()
        assert expected.items() <= config.items()
