"""Each option of a script reaches what the script builds or computes."""

import dataclasses
import types

import numpy as np
import pytest

import bert_keras
from bert_keras.modeling.recipes import find_recipe
from official_tasks import pretrain, progress
from official_tasks.engine import models, training
from official_tasks.pretraining import runner
from official_tasks.pretraining.model import compiled_model
from official_tasks.pretraining.objectives import OBJECTIVES
from official_tasks.pretraining.settings import (
    Execution,
    Settings,
    phases,
    sampling_rules,
    split,
)
from official_tasks.tasks import embedding
from tests.support.script_flags import parse_flags
from tests.support.task_samples import save_toy_model, write_csv
from tests.support.toy_pretraining import PIECES, save_pretrainer
from tools import extract_features, mine_negatives, serve

# For each script: option -> a value other than its default.
OPTIONS = {
    pretrain: {
        "data": "d",
        "output": "o",
        "dry_run": True,
        "objectives": "mlm",
        "init": "m",
        "vocabulary": "v",
        "size": "tiny",
        "num_layers": 1,
        "hidden_dim": 16,
        "num_heads": 2,
        "dropout": 0.3,
        "records": True,
        "phase_2_data": "e",
        "packed": True,
        "short_probability": 0.4,
        "mask_rate": 0.2,
        "mask_mix": (60.0, 30.0, 10.0),
        "whole_word": True,
        "sequence_length": 18,
        "max_predictions": 5,
        "batch_size": 6,
        "phase_2_sequence_length": 26,
        "phase_2_max_predictions": 7,
        "phase_2_batch_size": 4,
        "steps": 40,
        "phase_2_steps": 8.0,
        "evaluations": 5,
        "evaluation_steps": 2,
        "optimizer": "lamb",
        "learning_rate": 0.02,
        "warmup": 0.25,
        "schedule": "cosine",
        "bias_correction": True,
        "rematerialize": True,
        "dtype": "mixed_bfloat16",
        "distribution": "tpu",
        "tpu": "t",
        "accumulation": 3,
        "steps_per_execution": 2,
        "save_every": 9,
        "keep": 4,
        "keep_every": 20,
        "seed": 11,
    },
    extract_features: {
        "input": "texts",
        "columns": True,
        "text": "t",
        "model": "m",
        "output": "o.npz",
        "overwrite": True,
        "recipe": "concat:-1,-2",
        "per": "word_first",
        "dtype": "float16",
        "sequence_length": 13,
        "batch_size": 5,
    },
    mine_negatives: {
        "model": "m",
        "output": "o.csv",
        "overwrite": True,
        "train": "t.csv",
        "text": "a",
        "text_pair": "b",
        "label": "l",
        "queries": "q",
        "passages": "p",
        "id": "i",
        "separator": ";",
        "encoding": "latin-1",
        "max_score": 5.0,
        "num_negatives": 2,
        "range_min": 1,
        "range_max": 7,
        "absolute_margin": 0.1,
        "relative_margin": 0.2,
    },
    serve: {
        "model": "m",
        "name": "n",
        "host": "0.0.0.0",
        "port": 1,
        "max_rows": 2,
        "max_bytes": 3,
    },
}


class Reached(Exception):
    """Raised in place of what follows in a script."""


@pytest.fixture
def record(monkeypatch):
    """A function that records a call in place of a function."""

    def replace(owner, name):
        call = types.SimpleNamespace()

        def recorded(*arguments, **named):
            call.arguments, call.named = arguments, named
            raise Reached

        monkeypatch.setattr(owner, name, recorded)
        return call

    return replace


def parse(script, monkeypatch, **values):
    words = [
        f"--{name}={','.join(map(str, v)) if isinstance(v, tuple) else v}"
        for name, v in values.items()
    ]
    return parse_flags(script.define_flags, words, monkeypatch)


@pytest.mark.parametrize("script", OPTIONS, ids=lambda s: s.__name__)
def test_the_table_has_every_option_with_another_value(script, monkeypatch):
    required = ("data", "input", "model", "output", "train")
    given = {k: v for k, v in OPTIONS[script].items() if k in required}
    values = parse(script, monkeypatch, **given)
    assert set(values) == set(OPTIONS[script])
    for name, value in OPTIONS[script].items():
        assert values[name].default != value, name


@pytest.mark.parametrize(
    "left_out",
    [("init", "bias_correction"), ("size", "optimizer")],
    ids=["new", "init"],
)
def test_every_option_of_pretrain_reaches_the_run(
    left_out, monkeypatch, record
):
    """Some options exclude others."""
    given = dict(OPTIONS[pretrain])
    for name in (*left_out, "dry_run"):
        del given[name]
    called = record(pretrain, "run")
    with pytest.raises(Reached):
        pretrain.main(parse(pretrain, monkeypatch, **given))
    assert called.arguments == (given.pop("data"), given.pop("output"))
    assert {k: v for k, v in called.named.items() if k in given} == given
    planned = record(pretrain, "plan")
    arguments = {"data": "d", "output": "o", "dry_run": True, **given}
    with pytest.raises(Reached):
        pretrain.main(parse(pretrain, monkeypatch, **arguments))
    assert planned.arguments == ("d",) and planned.named == called.named


@pytest.mark.parametrize("init", [False, True], ids=["new", "init"])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_the_settings_of_pretrain_reach_its_model(optimizer, init, tmp_path):
    given = {**OPTIONS[pretrain], "optimizer": optimizer}
    sizes = ("num_layers", "hidden_dim", "num_heads")
    if init:  # the weights fix the sizes
        given |= dict.fromkeys(sizes)
        given["init"] = save_pretrainer(tmp_path / "model")
    else:
        given |= {"init": None, "size": "base"}
    names = *Settings._fields, *Execution._fields
    settings, execution = split({n: given[n] for n in names})
    source = types.SimpleNamespace(
        examples_per_row=3,
        vocabulary=PIECES,
        tokenizer={"lowercase": True, "strip_accents": True},
    )
    model = compiled_model(settings, OBJECTIVES["mlm+nsp"], source, execution)
    rate = {"steps": 40, "warmup": 0.25, "schedule": "cosine", "accumulate": 3}
    if optimizer == "lamb":
        expected = bert_keras.lamb(0.02, **rate)
    else:
        expected = bert_keras.adamw(0.02, **rate, bias_correction=True)
    assert type(model.optimizer) is type(expected)
    assert model.optimizer.get_config() == expected.get_config()
    assert model.steps_per_execution == 2
    config = model.encoder.get_config()
    assert config["dropout"] == config["attention_dropout"] == 0.3
    assert config["rematerialize"]
    assert model.encoder.dtype_policy.name == "mixed_bfloat16"
    assert model.examples_per_row == 3
    assert [config[name] for name in sizes] == [1, 16, 2]


def test_the_settings_of_pretrain_reach_its_batches_and_checkpoints(
    monkeypatch, record
):
    names = *Settings._fields, *Execution._fields
    given = {name: OPTIONS[pretrain][name] for name in names}
    settings, execution = split(given)
    rules = [sampling_rules(settings, phase) for phase in phases(settings)]
    rest = 0.4, 0.2, (60.0, 30.0, 10.0), True, True
    assert [dataclasses.astuple(rule) for rule in rules] == [
        (18, 5, *rest),
        (26, 7, *rest),
    ]
    bounds = [(p.first, p.last, p.batch_size) for p in phases(settings)]
    assert bounds == [(0, 32, 6), (32, 40, 4)]
    stored = record(training, "training_state")
    run = runner.Run(None, settings, None, None, None)
    with pytest.raises(Reached):
        run.train(execution)
    assert stored.arguments[2:] == (9,)
    kept = {name: stored.named[name] for name in ("keep", "keep_every")}
    assert kept == {"keep": 4, "keep_every": 20}
    monkeypatch.setattr(training, "training_state", lambda *_, **__: None)
    trained = record(training, "train")
    with pytest.raises(Reached):
        run.train(execution)
    named = trained.named
    assert (named["steps"], named["boundaries"]) == (40, [32, 40])
    assert [*named["epoch_ends"]] == [8, 16, 24, 32]
    strategy = record(runner, "prepare")
    with pytest.raises(Reached):
        runner.run("d", "o", **given)
    assert strategy.arguments == (given, "o")


def test_every_option_of_extract_features_reaches_the_extractor(
    tmp_path, monkeypatch, record
):
    given = dict(OPTIONS[extract_features])
    given["model"] = save_toy_model(tmp_path / "model")
    given["output"] = tmp_path / "o.npz"
    given["input"] = tmp_path / "texts"
    for path in (given["input"], given["output"]):  # which is overwritten
        path.write_text("the\nship\n")
    extractor = record(extract_features, "Extractor")
    file = {name: given[name] for name in given if name != "text"}
    with pytest.raises(Reached):
        extract_features.main(parse(extract_features, monkeypatch, **file))
    _, preprocess, *rest = extractor.arguments
    assert preprocess.sequence_length == 13
    recipe = find_recipe("concat:-1,-2")
    assert rest == [recipe, "word_first", "float16", 5]
    read = record(extract_features, "read_words")
    with pytest.raises(Reached):
        extract_features.main(parse(extract_features, monkeypatch, **given))
    assert read.arguments == (str(given["input"]), True, "t")


def test_every_option_of_mine_negatives_reaches_the_search(
    tmp_path, monkeypatch, record
):
    given = dict(OPTIONS[mine_negatives])
    given["output"] = tmp_path / "o.csv"
    given["output"].write_text("is overwritten")
    task = record(embedding, "embed_task")
    with pytest.raises(Reached):
        mine_negatives.main(parse(mine_negatives, monkeypatch, **given))
    names = (*mine_negatives.COLUMNS, "max_score")
    assert task.named == {
        "objective": "in_batch",
        **{name: given[name] for name in names},
    }
    monkeypatch.undo()
    pairs = [("one", "the"), ("two", "ship")]
    train = write_csv(tmp_path / "pairs.csv", pairs, ("text", "text_pair"))
    names = (*names, "model", "output", "overwrite")
    rest = {name: given[name] for name in given if name not in names}
    told = []

    def embed(model, preprocess, texts, kind):
        told.append((model, kind, list(texts)))
        return np.eye(2)

    monkeypatch.setattr(
        models, "load_trained", lambda _, path: (path, "preprocess")
    )
    monkeypatch.setattr(mine_negatives, "embed", embed)
    mine = record(mine_negatives, "mine")
    arguments = {
        "model": "m",
        "train": train,
        "output": tmp_path / "new.csv",
    }
    with pytest.raises(Reached):
        mine_negatives.main(
            parse(mine_negatives, monkeypatch, **arguments, **rest)
        )
    assert told == [
        ("m", "query", ["one", "two"]),
        ("m", "document", ["the", "ship"]),
    ]
    assert mine.named == rest


def test_every_option_of_serve_reaches_the_server(monkeypatch, record):
    given = OPTIONS[serve]
    values = parse(serve, monkeypatch, **given)
    listening = record(serve, "_listen")
    with pytest.raises(Reached):
        serve.main(values)
    assert listening.arguments == (given["host"], given["port"])
    from bert_keras.serving import load, server

    served = types.SimpleNamespace(card={"signatures": {}})
    monkeypatch.setattr(progress, "print_version", lambda *_: None)
    monkeypatch.setattr(
        load,
        "load_saved_model",
        lambda path: setattr(served, "path", path) or served,
    )
    made = record(server, "create_app")
    with pytest.raises(Reached):
        serve._make_server(values)
    limits = server.Limits(max_rows=2, max_bytes=3)
    assert made.arguments == (served, "n", limits, ["*"])
    assert served.path == "m"
