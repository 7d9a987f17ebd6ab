"""Each option of a script reaches what the script builds or computes."""

import dataclasses
import types

import numpy as np
import pytest

import bert_keras
from bert_keras.data import beam
from bert_keras.data.corpus import Reading
from bert_keras.modeling.recipes import find_recipe
from official_tasks import (
    cli,
    evaluate,
    finetune,
    options,
    predict,
    pretrain,
    progress,
    reproduce,
)
from official_tasks.engine import (
    beam_answers,
    beam_features,
    folds,
    leaderboard,
    masked_lm,
    models,
    prediction,
    runs,
    scoring,
    training,
)
from official_tasks.engine.hyperparameters import Hyperparameters
from official_tasks.options import list_options
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
from official_tasks.tasks import embedding, registry
from tests.support.script_flags import parse_flags
from tests.support.task_samples import save_toy_model, write_csv
from tests.support.toy_pretraining import PIECES, save_pretrainer
from tools import (
    compare,
    convert_checkpoint,
    create_pretraining_data,
    demo,
    export,
    extend_vocabulary,
    extract_features,
    mine_negatives,
    publish,
    serve,
    train_vocabulary,
)

REQUIRED = {
    *("data", "init", "input", "model", "output", "repo_id", "source", "table"),
    *("train", "vocabulary"),
}
TEXT = {
    "input": "i.jsonl",
    "text_field": "t",
    "lowercase": False,
    "strip_accents": False,
}
# For each script: option -> a value other than its default. The options of
# tasks, which three scripts have, are in `registry.OPTIONS`.
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
        "keep_last": 4,
        "keep_every": 20,
        "seed": 11,
    },
    extract_features: {
        "input": "texts",
        "is_split_into_words": True,
        "text": "t",
        "model": "m",
        "output": "o.npz",
        "overwrite": True,
        "recipe": "concat:-1,-2",
        "per": "word_first",
        "vectors_dtype": "float16",
        "sequence_length": 13,
        "batch_size": 5,
        "beam": "--runner=R --x=y",
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
        "max_request_rows": 2,
        "max_request_bytes": 3,
    },
    finetune: {
        "task": "regress",
        "option": "max_score=3",
        "init": "i",
        "from_scratch": True,
        "output": "o",
        "dry_run": True,
        "epochs": 2.5,
        "batch_size": 6,
        "learning_rate": (1e-3, 2e-3),
        "sequence_length": 18,
        "seeds": 2,
        "folds": 3,
        "seed": 11,
        "dtype": "mixed_bfloat16",
        "pad_to_longest": False,
        "distribution": "tpu",
        "tpu": "t",
        "bilstm_dim": 5,
        "warmup": 7.0,
        "schedule": "cosine",
        "ema": 0.9,
        "label_smoothing": 0.2,
        "lora_rank": 2,
        "lora_alpha": 3.0,
        "lora_dropout": 0.25,
        "lora_targets": ("key", "output"),
        "freeze_layers": 1,
        "accumulation": 3,
        "steps_per_execution": 2,
        "save_every": 9,
        "evaluations": 4,
        "max_rows": 22,
        "early_stopping": 8,
        "tune_thresholds": True,
        "min_precision": 0.75,
        "calibrate": True,
        "metric": "loss",
        "layer_decay": 0.5,
        "weight_decay": 0.3,
        "clip_norm": 2.0,
        "dropout": 0.4,
        "optimizer": "lamb",
        "class_weights": "balanced",
        "rematerialize": True,
    },
    evaluate: {
        "task": "mlm",
        "option": "max_score=3",
        "model": "m",
        "input": "texts.txt",
        "sequence_length": 18,
        "seed": 11,
        "predictions": "p.json",
        "split": "test",
        "output": "o",
        "overwrite": True,
    },
    predict: {
        "task": "regress",
        "option": "max_score=3",
        "model": "m",
        "input": "texts.tsv",
        "output": "answers.csv",
        "overwrite": True,
        "input_format": "csv",
        "signature": "s",
        "columns": ("a", "b"),
        "keep": ("c", "d"),
        "batch_size": 5,
        "split": "dev",
        "beam": "--runner=R --x=y",
    },
    reproduce: {
        "table": "5",
        "scale": "small",
        "seeds": 2,
        "output": "o",
        "dry_run": True,
        "data": "d",
        "task_flag": "sst2.data_dir=s",
        "tasks": "sst2",
        "pretrain_flags": "--keep_last=7 --seed=9",
        "finetune_flags": "--ema=0.8",
    },
    create_pretraining_data: {
        **TEXT,
        "layout": "lines",
        "vocabulary": "v.txt",
        "output": "o",
        "sequence_length": 18,
        "max_predictions": 5,
        "short_probability": 0.4,
        "mask_rate": 0.2,
        "mask_mix": (60.0, 30.0, 10.0),
        "whole_word": True,
        "packed": True,
        "records": True,
        "copies": 3,
        "held_out_share": 0.25,
        "held_out": "h",
        "sentences": "lines",
        "workers": 77,
        "seed": 11,
        "beam": "--runner=R --x=y",
    },
    train_vocabulary: {
        **TEXT,
        "output": "v.txt",
        "overwrite": True,
        "vocabulary_size": 30,
        "min_count": 4,
        "unused": 3,
        "workers": 77,
        "beam": "--runner=R --x=y",
    },
    extend_vocabulary: {
        **TEXT,
        "vocabulary": "old.txt",
        "output": "v.txt",
        "overwrite": True,
        "num_words": 6,
        "workers": 77,
    },
    convert_checkpoint: {
        "source": "s",
        "output": "o",
        "overwrite": True,
        "lowercase": False,
    },
    export: {
        "model": "m",
        "output": "o",
        "format": "onnx",
        "weights_dtype": "int8",
        "sequence_length": 18,
        "allow_untrained": True,
        "pair": True,
        "top_k": 3,
        "pooling": "cls",
        "normalize": True,
        "truncate_dim": 4,
        "features": "last",
        "hypothesis": "{}?",
        "long_text": "windows",
        "ids_signature": "original",
        "portable": True,
        "license": "mit",
        "verify": False,
    },
    publish: {
        "model": "m",
        "repo_id": "org/toy",
        "license": "mit",
        "limits": "English only.",
        "private": True,
        "revision": "v2",
        "output": "o",
        "overwrite": True,
    },
    compare: {"worst": 2, "label": "stars", "separator": ";"},
    demo: {"output": "o", "quick": True},
}


class Reached(Exception):
    """Raised in place of what follows in a script."""


@pytest.fixture(autouse=True)
def console_stream(monkeypatch):
    """Scripts that write answers to standard output change the stream."""
    monkeypatch.setattr(progress.console, "stderr", False)


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


def parse(script, **values):
    words = [
        f"--{name}={','.join(map(str, v)) if isinstance(v, tuple) else v}"
        for name, v in values.items()
    ]
    return parse_flags(script.Options, words)


def test_the_table_has_every_script():
    names = {script.__name__.split(".")[-1] for script in OPTIONS}
    assert names == cli.find_commands().keys()


def test_a_flag_means_the_same_in_all_scripts():
    kinds, choices = {}, {}
    for script in OPTIONS:
        for name, option in list_options(script.Options).items():
            kinds.setdefault(name, set()).add(option.kind)
            if option.choices:
                choices.setdefault(name, set()).add(tuple(option.choices))
    assert len(kinds) > 100
    for values in (kinds, choices):
        assert [name for name in values if len(values[name]) > 1] == []


@pytest.fixture
def without_limits(monkeypatch):
    """Flags that exclude each other may be parsed together."""
    monkeypatch.setattr(options, "check_conditions", lambda *_: None)


@pytest.mark.parametrize("script", OPTIONS, ids=lambda s: s.__name__)
def test_the_table_has_every_option_with_another_value(script, without_limits):
    given = {k: v for k, v in OPTIONS[script].items() if k in REQUIRED}
    values = parse(script, **given)
    of_tasks = {*registry.OPTIONS} if "task" in values else set()
    assert set(values) - of_tasks == set(OPTIONS[script])
    for name, value in OPTIONS[script].items():
        value = list(value) if isinstance(value, tuple) else value
        assert values[name].default != value, name


@pytest.mark.parametrize("name", registry.TASKS)
def test_every_option_of_a_task_reaches_the_task(
    name, monkeypatch, without_limits
):
    entry, made = registry.TASKS[name], types.SimpleNamespace(name=name)
    given = {}
    for option, field in entry.fields.items():
        default = field.default
        if isinstance(default, bool):
            given[option] = not default
        elif isinstance(default, int | float):
            given[option] = default + 1
        else:
            given[option] = f"{option}-x"
    called = {}
    entry = entry._replace(make=lambda **named: called.update(named) or made)
    monkeypatch.setitem(registry.TASKS, name, entry)
    for command in (finetune, evaluate, predict):
        required = {"init": "i", "output": "o", "model": "m"}
        required = {k: v for k, v in required.items() if k in OPTIONS[command]}
        values = parse(command, task=name, **required, **given)
        found = registry.task_from_flags(values)
        assert found == (made, given) and called == given
        called.clear()


@pytest.mark.parametrize(
    "left_out",
    [("init", "bias_correction"), ("size", "optimizer")],
    ids=["new", "init"],
)
def test_every_option_of_pretrain_reaches_the_run(left_out, record):
    """Some options exclude others."""
    given = dict(OPTIONS[pretrain])
    for name in (*left_out, "dry_run"):
        del given[name]
    called = record(pretrain, "run")
    with pytest.raises(Reached):
        pretrain.main(parse(pretrain, **given))
    assert called.arguments == (given.pop("data"), given.pop("output"))
    assert {k: v for k, v in called.named.items() if k in given} == given
    planned = record(pretrain, "plan")
    arguments = {"data": "d", "output": "o", "dry_run": True, **given}
    with pytest.raises(Reached):
        pretrain.main(parse(pretrain, **arguments))
    assert planned.arguments == ("d",) and planned.named == called.named


@pytest.mark.parametrize("init", [False, True], ids=["new", "init"])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_the_settings_of_pretrain_reach_its_model(optimizer, init, tmp_path):
    given = {**OPTIONS[pretrain], "optimizer": optimizer}
    given["bias_correction"] = optimizer == "adamw"
    sizes = ("num_layers", "hidden_dim", "num_heads")
    if init:  # the weights fix the sizes
        given |= dict.fromkeys(sizes)
        given["init"] = save_pretrainer(tmp_path / "model")
    else:
        given |= {"init": None, "size": "base"}
    names = *list_options(Settings), *list_options(Execution)
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
    names = *list_options(Settings), *list_options(Execution)
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
    assert named["epoch_ends"] == [8, 16, 24, 32, 40]
    strategy = record(runner, "prepare")
    with pytest.raises(Reached):
        runner.run("d", "o", **given)
    assert strategy.arguments == (given, "o")


def test_every_option_of_extract_features_reaches_the_extractor(
    tmp_path, record
):
    given = dict(OPTIONS[extract_features])
    given["model"] = save_toy_model(tmp_path / "model")
    given["output"] = tmp_path / "o.npz"
    given["input"] = tmp_path / "texts"
    for path in (given["input"], given["output"]):  # which is overwritten
        path.write_text("the\nship\n")
    by_beam = record(beam_features, "extract_files")
    file = {name: given[name] for name in given if name != "text"}
    with pytest.raises(Reached):
        extract_features.main(parse(extract_features, **file))
    paths, read, make, output, settings, *others = by_beam.arguments
    assert (paths, output) == ([str(given["input"])], str(given["output"]))
    assert read.keywords == {"columns": True, "text": None}
    made = given["model"], 13, "concat:-1,-2", "word_first", "float16", 5
    assert make.args == (str(made[0]), *made[1:])
    assert {*settings.values()} == {*make.args, True}
    assert others[:2] == [["--runner=R", "--x=y"], True]
    del given["beam"], file["beam"]
    extractor = record(extract_features, "Extractor")
    with pytest.raises(Reached):
        extract_features.main(parse(extract_features, **file))
    _, preprocess, *rest = extractor.arguments
    assert preprocess.sequence_length == 13
    recipe = find_recipe("concat:-1,-2")
    assert rest == [recipe, "word_first", "float16", 5]
    read = record(extract_features, "read_words")
    with pytest.raises(Reached):
        extract_features.main(parse(extract_features, **given))
    assert read.arguments == (str(given["input"]),)
    assert read.named == {"columns": True, "text": "t"}


def test_every_option_of_mine_negatives_reaches_the_search(
    tmp_path, monkeypatch, record
):
    given = dict(OPTIONS[mine_negatives])
    given["output"] = tmp_path / "o.csv"
    given["output"].write_text("is overwritten")
    task = record(embedding, "embed_task")
    with pytest.raises(Reached):
        mine_negatives.main(parse(mine_negatives, **given))
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
        mine_negatives.main(parse(mine_negatives, **arguments, **rest))
    assert told == [
        ("m", "query", ["one", "two"]),
        ("m", "document", ["the", "ship"]),
    ]
    assert mine.named == rest


def test_every_option_of_serve_reaches_the_server(monkeypatch, record):
    given = OPTIONS[serve]
    values = parse(serve, **given)
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


def test_every_option_of_finetune_reaches_the_run(monkeypatch, without_limits):
    task, settings = types.SimpleNamespace(), {"max_score": 3.0}
    monkeypatch.setattr(
        finetune, "task_from_flags", lambda values, *name: (task, settings)
    )
    calls = []

    def call(*arguments, **named):
        calls.append((arguments, named))
        return {}

    monkeypatch.setattr(runs, "run", call)
    monkeypatch.setattr(folds, "cross_validate", call)
    monkeypatch.setattr(leaderboard, "run_glue", call)
    given = dict(OPTIONS[finetune])
    sets = {name: given.pop(name) for name in ("dry_run", "folds", "seeds")}
    target = given["init"], given["output"]
    for name in ("task", "option", "init", "output"):
        del given[name]
    given["learning_rate"] = tuple(given["learning_rate"])

    def run(**more):
        calls.clear()
        words = {"init": "i", "output": "o", **given, **more}
        finetune.main(parse(finetune, **words))
        (call,) = calls
        return call

    named = {**given, "seeds": 2, "settings": settings}
    assert run(seeds=2) == ((task, *target), named)
    named["seeds"] = 1
    assert run(dry_run=True) == ((task, "i", None), named)
    del named["seeds"]
    arguments = (task, *target, sets["folds"])
    assert run(folds=3) == (arguments, named)
    (make, *arguments), named = run(task="glue", seeds=2)
    assert arguments == [*target] and named == {**given, "seeds": 2}
    assert make("mnli") == (task, settings)
    assert list_options(Hyperparameters).keys() <= given.keys()


def test_every_option_of_evaluate_reaches_the_score(
    tmp_path, monkeypatch, record
):
    given = dict(OPTIONS[evaluate])
    path = tmp_path / "texts.txt"
    path.write_text("the ship")
    given["input"] = str(path)
    mlm = ("task", "model", "input", "sequence_length", "seed")
    mlm = {name: given.pop(name) for name in mlm}
    scored = record(masked_lm, "score_masked_lm")
    with pytest.raises(Reached):
        evaluate.main(parse(evaluate, **mlm))
    model, texts, length = scored.arguments
    assert (model, [*texts], length) == ("m", ["the ship"], 18)
    assert scored.named == {"seed": 11}
    monkeypatch.setattr(masked_lm, "score_masked_lm", lambda *_, **__: {"a": 1})
    files = record(scoring, "new_files")
    output = {"output": "o", "overwrite": True}
    with pytest.raises(Reached):
        evaluate.main(parse(evaluate, **mlm, **output))
    assert files.arguments == ("o", True, [str(path)])
    del given["option"]
    task = types.SimpleNamespace(name="toy")
    monkeypatch.setattr(registry, "task_from_flags", lambda _: (task, {}))
    monkeypatch.setattr(registry, "complete_flags", lambda _: None)
    called = record(evaluate, "evaluate")
    rest = {"split": "test", **output}
    for folders, file in ((["a", "b"], None), ([""], "p.json")):
        named = {"predictions": file} if file else {"model": "a,b"}
        with pytest.raises(Reached):
            evaluate.main(parse(evaluate, **named, **rest))
        assert called.arguments == (task, folders, file, "test", "o", True)


def test_every_option_of_predict_reaches_the_answers(monkeypatch, record):
    given = dict(OPTIONS[predict])
    task = types.SimpleNamespace()
    monkeypatch.setattr(registry, "task_from_flags", lambda _: (task, {}))
    monkeypatch.setattr(registry, "complete_flags", lambda _: None)
    called = record(scoring, "predict_task")
    names = ("task", "output", "overwrite", "split", "keep")
    words = {name: given[name] for name in names}
    with pytest.raises(Reached):
        predict.main(parse(predict, model="a,b", **words))
    keep = ["c", "d"]
    assert called.arguments == (
        *(task, ["a", "b"], "answers.csv", "dev", True),
        keep,
    )
    for name in ("task", "option", "split"):
        del given[name]
    from bert_keras.serving import load

    loaded = record(load, "load_saved_model")
    monkeypatch.setattr(prediction, "find_inputs", lambda pattern: [pattern])
    dialect = {"separator": ";", "encoding": "latin-1"}

    def run():
        values = parse(predict, **given, **dialect)
        with pytest.raises(Reached):
            predict.main(values)

    run()
    assert loaded.arguments == ("m",)
    monkeypatch.setattr(load, "load_saved_model", lambda _: "served")
    monkeypatch.setattr(progress, "print_version", lambda *_: None)
    chosen = record(prediction, "choose_signature")
    run()
    assert chosen.arguments == ("served", "s", ["a", "b"])
    spec = {"dtype": "string", "shape": ["batch"]}
    request = {"x": ["a"], "y": ["b"]}
    entry = {"input_order": ["x", "y"], "outputs": {}, "request": request}
    entry["inputs"] = {"x": spec, "y": spec}
    monkeypatch.setattr(
        prediction, "choose_signature", lambda *_: ("s", entry, ["a", "b"])
    )
    answers = record(predict, "Answers")
    run()
    assert answers.arguments == ("served", "s", keep, 5)
    monkeypatch.setattr(predict, "Answers", FakeAnswers)
    by_beam = record(beam_answers, "answer_files")
    run()
    paths, read, made, *others = by_beam.arguments
    assert isinstance(made, FakeAnswers) and paths == ["texts.tsv"]
    others_given = ["--runner=R", "--x=y"], True, ";"
    assert others == ["answers.csv", *others_given]
    del given["beam"]
    rows = record(prediction, "Rows")
    run()
    paths, kind, columns, lists, dialect_read, *_ = rows.arguments
    assert (paths, kind) == (["texts.tsv"], "csv")
    assert columns == ["a", "b", *keep, "id"] and lists == [False] * 5
    assert dialect_read == (";", "iso8859-1")
    assert read.args == ((kind, columns, lists, dialect_read), ["id"])
    monkeypatch.setattr(prediction, "Rows", FakeRows)
    written = record(FakeAnswers, "write")
    run()
    assert written.arguments[-3:] == ("answers.csv", True, ";")


class FakeRows(types.SimpleNamespace):
    total = 0

    def __init__(self, *_):
        pass


class FakeAnswers:
    write = None

    def __init__(self, *_):
        pass


def test_every_option_of_reproduce_reaches_the_commands(
    tmp_path, monkeypatch, capsys
):
    given = {**OPTIONS[reproduce], "output": str(tmp_path / "o")}
    reproduce.main(parse(reproduce, **given))
    printed = capsys.readouterr().out.splitlines()
    ran = []
    monkeypatch.setattr(cli, "run_module", ran.append)
    given["dry_run"] = False
    (tmp_path / "o").mkdir()
    reproduce.main(parse(reproduce, **given))
    assert [" ".join(words) for words in ran] == [
        line.replace("bert-keras ", "official_tasks.", 1) for line in printed
    ]
    assert (tmp_path / "o" / "table5.md").is_file()
    kinds = {"pretrain": [], "finetune": []}
    for name, *words in ran:
        kinds[name.split(".")[-1]].append(words)
        assert any(
            word.startswith(f"--output={given['output']}/") for word in words
        )
    rows = reproduce.make_tables(True)["5"].rows
    assert len(kinds["finetune"]) == 2 * len(rows)  # two seeds, one task
    for words in kinds["pretrain"]:
        assert {
            "--data=d",
            "--keep_last=7",
            "--seed=9",
            "--hidden_dim=128",
        } <= {*words}
    for words in kinds["finetune"]:
        assert {"--task=sst2", "--data_dir=s", "--ema=0.8"} <= {*words}
    assert {"--seed=0", "--seed=1"} <= {*sum(kinds["finetune"], [])}


def test_every_option_of_create_pretraining_data_reaches_the_build(
    monkeypatch, record
):
    from bert_keras.data import pretraining_data
    from bert_keras.data.corpus import Reading
    from bert_keras.data.sampling import SamplingRules

    given = dict(OPTIONS[create_pretraining_data])
    told = []

    def tokenizer(values):
        names = ("vocabulary", "lowercase", "strip_accents")
        return tuple(getattr(values, name) for name in names)

    monkeypatch.setattr(options, "load_tokenizer", tokenizer)
    monkeypatch.setattr(
        create_pretraining_data, "read_documents", lambda *words: words
    )
    reading = Reading("lines", "t", False)
    rules = SamplingRules(18, 5, 0.4, 0.2, (60.0, 30.0, 10.0), True, True)
    settings = ("lines", True, rules, 11, 3)
    read = ("v.txt", False, False)

    def run(without):
        named = {k: v for k, v in given.items() if k not in without}
        values = parse(create_pretraining_data, **named)
        with pytest.raises(Reached):
            create_pretraining_data.main(values)

    made = record(pretraining_data, "create_pretraining_data")
    run(("beam", "held_out_share"))
    expected = pretraining_data.BuildOptions(0, *settings)
    assert made.arguments == (("i.jsonl", reading), read, "o", expected)
    assert made.named["held_out"] == ("h", reading)
    assert made.named["workers"] == 77
    run(("beam", "held_out"))
    expected = pretraining_data.BuildOptions(0.25, *settings)
    assert made.arguments[3] == expected and made.named["held_out"] == ()
    monkeypatch.setattr(beam, "make_runner", told.append)
    built = record(pretraining_data, "create_from_files")
    run(("held_out", "workers"))
    assert told == [["--runner=R", "--x=y"]]
    assert built.arguments == ("i.jsonl", read, "o", expected, reading, None)


def test_every_option_of_a_vocabulary_reaches_its_computation(
    tmp_path, monkeypatch, record
):
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("i.jsonl").write_text('{"t": "Été à la mer"}\n')
    tmp_path.joinpath("old.txt").write_text("[PAD]\n")
    tmp_path.joinpath("v.txt").write_text("is overwritten")
    given = dict(OPTIONS[train_vocabulary])
    by_beam = record(beam, "count_words_of_files")
    del given["workers"]
    with pytest.raises(Reached):
        train_vocabulary.main(parse(train_vocabulary, **given))
    assert by_beam.arguments == (
        *("i.jsonl", Reading(text_field="t"), False, False, "v.txt.counts"),
        ["--runner=R", "--x=y"],
    )
    given["workers"] = 77
    del given["beam"]
    values = parse(train_vocabulary, **given)
    counted = record(train_vocabulary.learning, "count_words")
    with pytest.raises(Reached):
        train_vocabulary.main(values)
    texts, *settings, in_workers = counted.arguments
    assert [*texts] == ["Été à la mer"] and settings == [False, False]
    assert in_workers.keywords == {"workers": 77}
    monkeypatch.setattr(
        train_vocabulary.learning, "count_words", lambda *_: {"a": 1}
    )
    learned = record(train_vocabulary.learning, "learn_pieces")
    with pytest.raises(Reached):
        train_vocabulary.main(values)
    counts, first, *limits, _ = learned.arguments
    assert (counts, limits) == ({"a": 1}, [30, 4])
    assert sum("unused" in token for token in first) == 3
    monkeypatch.setattr(
        train_vocabulary.learning, "learn_pieces", lambda *_: ["a"]
    )
    written = record(train_vocabulary, "write_with_settings")
    with pytest.raises(Reached):
        train_vocabulary.main(values)
    assert written.arguments == (["a"], "v.txt", False, False)
    values = parse(extend_vocabulary, **OPTIONS[extend_vocabulary])
    loaded = types.SimpleNamespace()

    def tokenizer(values):
        for name in ("vocabulary", "lowercase", "strip_accents"):
            setattr(loaded, name, getattr(values, name))
        return loaded

    monkeypatch.setattr(options, "load_tokenizer", tokenizer)
    found = record(extend_vocabulary.extension, "domain_words")
    with pytest.raises(Reached):
        extend_vocabulary.main(values)
    vocabulary, texts, number, lowercase, in_workers, strip = found.arguments
    assert (vocabulary, [*texts]) == ("old.txt", ["Été à la mer"])
    assert (number, lowercase, strip) == (6, False, False)
    assert in_workers.keywords == {"workers": 77}
    monkeypatch.setattr(
        extend_vocabulary.extension, "domain_words", lambda *_: []
    )
    monkeypatch.setattr(
        extend_vocabulary.extension,
        "extend_vocabulary",
        lambda *_: types.SimpleNamespace(vocabulary=["a"]),
    )
    written = record(extend_vocabulary, "write_with_settings")
    with pytest.raises(Reached):
        extend_vocabulary.main(values)
    assert written.arguments == (["a"], "v.txt", False, False)


def test_every_option_of_convert_checkpoint_reaches_the_conversion(
    tmp_path, monkeypatch, record
):
    from bert_keras.interop import convert

    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("o").mkdir()
    tmp_path.joinpath("o", "old").write_text("is overwritten")
    values = parse(convert_checkpoint, **OPTIONS[convert_checkpoint])
    called = record(convert, "convert")
    with pytest.raises(Reached):
        convert_checkpoint.main(values)
    assert called.arguments == ("s", "o", False, True)


def test_every_option_of_export_reaches_the_export(monkeypatch, record):
    from bert_keras.interop import opening
    from bert_keras.serving import onnx_litert

    given = dict(OPTIONS[export])
    monkeypatch.setattr(opening, "open_checkpoint", lambda path: path)
    loaded = record(export, "load_model")
    ids = ("model", "output", "format", "weights_dtype", "allow_untrained")
    words = {name: given.pop(name) for name in ids}
    words["sequence_length"] = given.pop("sequence_length")
    values = parse(export, **words)
    with pytest.raises(Reached):
        export.main(values)
    assert loaded.arguments == ("m", True)
    monkeypatch.setattr(export, "load_model", lambda *_: "model")
    monkeypatch.setattr(export, "load_preprocessor", lambda *words: words)
    written = record(onnx_litert, "export_on_ids")
    with pytest.raises(Reached):
        export.main(values)
    preprocess = (["m"], 18)
    assert written.arguments == (
        *("model", preprocess, "o", "onnx", True, "int8"),
    )
    del words["format"]
    saved = record(bert_keras, "export_saved_model")
    with pytest.raises(Reached):
        export.main(parse(export, **words, **given))
    assert saved.arguments == (["model"], "o", preprocess)
    assert saved.named == {
        **given,
        "weights_dtype": "int8",
        "allow_untrained": True,
    }


def test_every_option_of_publish_reaches_the_hub(tmp_path, monkeypatch, record):
    from bert_keras.interop import publishing

    given = dict(OPTIONS[publish])
    given["model"] = save_toy_model(tmp_path / "model")
    given["output"] = tmp_path / "o"
    given["output"].mkdir()
    (given["output"] / "old").write_text("is overwritten")
    cards = []

    def card(model, name, **named):
        cards.append((name, named["license"], named["sections"]))
        return "the card"

    monkeypatch.setattr(publishing, "model_card", card)

    def run(*without):
        named = {k: v for k, v in given.items() if k not in without}
        with pytest.raises(Reached):
            publish.main(parse(publish, **named))

    pushed = record(publishing, "push_to_hub")
    run("output", "overwrite")
    assert pushed.arguments[2:] == ("org/toy",)
    assert pushed.named == {
        "card": "the card",
        "private": True,
        "revision": "v2",
    }
    written = record(publishing, "write_model_and_card")
    run("private", "revision")
    folder, _, _, *rest = written.arguments
    assert folder == str(given["output"])
    assert rest == ["org/toy", "the card", True]
    expected = ("org/toy", "mit", [("Limits", "English only.")])
    assert cards == [expected] * 2


def test_every_option_of_compare_reaches_the_comparison(monkeypatch, record):
    from bert_keras.serving import load

    card = {"default": "s", "signatures": {"s": {}}}
    served = types.SimpleNamespace(card=card)
    monkeypatch.setattr(load, "load_saved_model", lambda _: served)
    monkeypatch.setattr(progress, "print_version", lambda *_: None)
    monkeypatch.setattr(compare, "read_records", lambda *words: words)
    monkeypatch.setattr(compare, "note_labels", lambda *_: [])
    called = record(compare, "compare")
    with pytest.raises(Reached):
        values = parse(compare, **OPTIONS[compare])
        compare.main(values, "old.jsonl", "served")
    read = ("old.jsonl", card, ";")
    assert called.arguments == (read, served, 2, "stars")


@pytest.mark.parametrize("quick", [False, True])
def test_every_option_of_the_demo_reaches_its_stages(
    tmp_path, monkeypatch, quick
):
    monkeypatch.chdir(tmp_path)
    ran = []

    def run(words):
        ran.append(words)
        if words[0].endswith(".finetune"):
            raise Reached

    monkeypatch.setattr(cli, "run_module", run)
    monkeypatch.setattr(demo, "write_inputs", lambda folder: None)
    with pytest.raises(Reached):
        demo.main(parse(demo, output="o", quick=quick))
    stages = {words[0].split(".")[-1]: words[1:] for words in ran}
    for name, few in demo.QUICK.items():
        assert ({*few.split()} <= {*stages[name]}) == quick
    assert tmp_path.joinpath("o").is_dir()
    assert all("o/" in " ".join(words) for words in stages.values())
