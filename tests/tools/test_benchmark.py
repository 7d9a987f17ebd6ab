"""Tests of the benchmark tools: timing, order of systems, settings, texts."""

import importlib.util
import json
import py_compile
import types

import numpy as np
import pytest
from baselines import inputs, rows, turns
from baselines import jobs as worker_jobs

from bert_keras.errors import InputError
from bert_keras.serving.load import load_saved_model
from bert_keras.text.vocabulary import write_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS
from bert_keras.training import strategy
from tests.support.run_script import ROOT, call_script
from tests.support.served_samples import VOCABULARY, tokenizer

TINY = {
    "size": "tiny",
    "batch": 2,
    "length": 16,
    "predictions": 2,
    "dtype": "float32",
    "warm": 1,
}


@pytest.mark.long
def test_a_row_measures_steps_and_commands_and_names_what_fails(
    tmp_path, capsys
):
    step = rows.Job("step", TINY)

    def command(*words):
        return rows.Job("command", {"words": ["-c", *words]})

    jobs = {
        rows.THIS: step,
        "command": command(
            "import sys; open(sys.argv[1], 'x'); sum(range(10**6))", "{new}"
        ),
        "fails": command("raise OSError('no disk')"),
        "breaks": rows.Job("dense_rows", {}),
        "missing": command("import no_library"),
    }
    row = rows.Row("a row", jobs, turns=2)
    systems = turns.measure_row(row, inputs.Inputs(tmp_path))[""]
    assert list(systems) == [rows.THIS, "command"]
    shown = capsys.readouterr().out
    for reason in ("no disk", "KeyError", "No module named"):
        assert reason in shown
    for system in systems.values():
        assert 0 < system["least"] <= system["median"] <= system["most"]
        assert system["processor"] > 0 and system["device"] == "cpu"
    assert systems[rows.THIS]["units"] == 2
    assert systems[rows.THIS]["peak"] > systems[rows.THIS]["above"] > 10
    assert systems["command"]["above"] < 0  # it does not import TensorFlow
    with pytest.raises(InputError, match="KeyError"):
        turns.measure_row(
            rows.Row("fails", {rows.THIS: jobs["breaks"]}),
            inputs.Inputs(tmp_path),
        )


def test_the_machine_is_named_with_the_bytecode_of_tensorflow(
    tmp_path, monkeypatch
):
    source = tmp_path / "tensorflow.py"
    source.write_text("")
    spec = types.SimpleNamespace(origin=str(source))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    for has_bytecode in (False, True):
        if has_bytecode:
            py_compile.compile(source)
        for flags, name in (
            ({"avx2", "avx512f", "amx_bf16"}, "amx_bf16"),
            ({"avx2", "avx512f"}, "avx512f"),
            (set(), "other"),
        ):
            monkeypatch.setattr(strategy, "instructions", lambda f=flags: f)
            found = turns.describe_machine()
            assert found["instructions"] == name
            assert found["bytecode"] == has_bytecode


def test_another_system_begins_each_round(capsys):
    asked = []

    def step(name):
        def ask(number):
            asked.append(name)
            if name == "c" and number == 1:
                raise InputError("late")
            return {"seconds": 2.0 * number, "processor": 1.0, "peak": number}

        return ask

    steps = {name: step(name) for name in "abc"}
    answers = turns.take_turns(steps, [[0], [1], [2]])
    assert "".join(asked) == "abc" + "bca" + "ab"
    assert list(answers) == ["a", "b"]
    assert "c is skipped: late" in capsys.readouterr().out
    assert turns.summarize(answers["a"], 2) == {
        "median": 1.0,
        "least": 0.0,
        "most": 2.0,
        "processor": 0.5,
        "peak": 2,
    }


def test_settings_get_what_this_machine_has(tmp_path, monkeypatch):
    machine = inputs.Inputs(tmp_path, init="weights", batch=2)
    step, examples = worker_jobs.step(machine.fill(TINY | {"batch": 32}))
    step()
    assert examples == 2
    words = machine.fill({"words": ["--model={init}", "-c"]})["words"]
    assert words == ["--model=weights", "-c"]
    for flags, dtype in (
        ({"avx2"}, "float32"),
        ({"AuthenticAMD", "avx512_bf16"}, "mixed_bfloat16"),
    ):
        monkeypatch.setattr(strategy, "instructions", lambda f=flags: f)
        assert machine.fill({"dtype": "auto"})["dtype"] == dtype
    with pytest.raises(InputError, match="--data"):
        machine.fill({"words": ["--train={data}/train.tsv"]})


def test_texts_have_as_many_tokens_as_they_should():
    made = inputs.make_texts(VOCABULARY, 16, 5)
    assert len(set(made)) == 5
    lengths = tokenizer()(made).row_lengths().numpy()
    assert (lengths == 14).all()  # plus [CLS] and [SEP]


def test_natural_texts_come_in_the_order_of_their_file(tmp_path):
    path = tmp_path / "dev.tsv"
    lines = [f"text {i}\t{i % 2}" for i in range(70)]
    path.write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    found = inputs.Inputs(
        tmp_path,
        init="bert_keras_mini_en",
        lengths=(16,),
        texts=(f"{path}:sentence",),
    )
    cases = found.make_batches(2)
    assert list(map(len, cases.values())) == [2, 2, 3]
    batches = [batch for (batch,) in cases["dev.tsv"]]
    assert list(map(len, batches)) == [32, 32, 6]
    assert batches[1][0] == "text 32"


@pytest.mark.parametrize(
    ("name", "result", "is_near"),
    [
        ("onnxruntime", [0.2501, 0.7499], True),
        ("onnxruntime", [0.26, 0.74], False),
        ("bert_keras, bfloat16", [0.26, 0.74], True),
    ],
)
def test_systems_that_answer_differently_are_refused(name, result, is_near):
    answers = {rows.THIS: [{"result": [0.25, 0.75]}]}
    answers[name] = [{"result": result}]
    if is_near:
        turns.check_results(answers)
    else:
        with pytest.raises(InputError, match=name):
            turns.check_results(answers)


@pytest.mark.long
def test_a_worker_answers_what_the_export_answers(classifier_export):
    texts = ["an hour", "bad film"]
    settings = {"folder": str(classifier_export)}
    job = {rows.THIS: rows.Job("classify", settings)}
    with turns.start_workers(job) as workers:
        answer = workers[rows.THIS](texts)
    served = load_saved_model(classifier_export)
    expected = served.classify(texts)["probabilities"][0]
    np.testing.assert_allclose(answer["result"], expected, atol=1e-6)


@pytest.mark.long
def test_lines_with_other_ids_are_not_timed(tmp_path):
    pieces = [*SPECIAL_TOKENS, *"abehlnopru.", "##able", "un", "##b", "hear"]
    write_vocabulary(pieces, tmp_path / "vocab.txt")
    for name in "ab":
        (tmp_path / f"{name}.text").write_text("an hour\n\na b\n\n" * 40)
    # `tokenizers` reads [MASK] in a text as one token; bert_keras does not.
    (tmp_path / "c.text").write_text("un\u2026\n\n[MASK]\n", "utf-8")
    done = call_script(
        *(ROOT / "tools/benchmark/steps.py", "--turns=1"),
        "--rows=tokenize,records",
        *("--input=*.text", "--vocabulary=vocab.txt", "--output=speed.json"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "speed.json").read_text())["rows"]
    lines = 80 * len("an hour\n") + 80 * len("a b\n") + len("un...\n")
    for system in report["tokenize"][""].values():
        assert system["units"] == lines / 1e6
        assert 0 < system["least"] <= system["most"]
    (made,) = report["records"][""].values()
    assert made["units"] == (160 * 5 + len("un\u2026[MASK]")) / 1e6
    assert made["processor"] > 0
