"""Tests of the benchmark tools: timing, order of systems, settings, texts."""

import numpy as np
import pytest
from baselines import inputs, rows, turns
from baselines import jobs as worker_jobs

from bert_keras.errors import InputError
from bert_keras.serving.load import load_saved_model
from bert_keras.training import strategy
from tests.support.served_samples import VOCABULARY, tokenizer
from tools.benchmark import serving

TINY = {
    "size": "tiny",
    "batch": 2,
    "length": 16,
    "predictions": 2,
    "dtype": "float32",
    "warm": 1,
}


@pytest.mark.long
def test_a_row_measures_steps_and_commands_and_names_what_fails(tmp_path):
    step = rows.Job("step", TINY)
    loads = ["-c", "print('x' * 9); sum(range(10**6))"]
    command = rows.Job("command", {"words": loads, "warm": 0})
    jobs = {
        turns.THIS: step,
        "bert_keras, JAX": rows._extend(
            step, environment={"KERAS_BACKEND": "jax"}
        ),
        "command": command,
        "fails": rows._extend(
            command, words=["-c", "raise OSError('no disk')"]
        ),
        "breaks": rows.Job("dense_rows", {}),
        "missing": rows.Job("command", {"words": ["-c", "import no_library"]}),
    }
    row = rows.Row("a row", jobs, turns=2)
    measured = turns.measure_row(row, inputs.Inputs(tmp_path), 9)
    systems, left_out = measured["systems"], measured["left_out"]
    assert list(systems) == [turns.THIS, "bert_keras, JAX", "command"]
    assert "no disk" in left_out["fails"]
    assert "KeyError" in left_out["breaks"]
    assert "No module named" in left_out["missing"]
    for system in systems.values():
        assert 0 < system["least"] <= system["median"] <= system["most"]
        assert system["processor"] > 0 and system["device"] == "cpu"
    assert systems[turns.THIS]["examples"] == 2
    assert systems[turns.THIS]["peak_megabytes"] > 100
    assert "jax" in systems["bert_keras, JAX"]["versions"]
    with pytest.raises(InputError, match="KeyError"):
        turns.measure_row(
            rows.Row("fails", {turns.THIS: jobs["breaks"]}),
            inputs.Inputs(tmp_path),
            1,
        )


def test_another_system_begins_each_round():
    asked = []

    def step(name):
        def ask(number):
            asked.append(name)
            if name == "c" and number == 1:
                raise InputError("late")
            return {"seconds": 2.0 * number, "processor": 1.0}

        return ask

    steps = {name: step(name) for name in "abc"}
    answers, left_out = turns.take_turns(steps, [[0], [1], [2]])
    assert "".join(asked) == "abc" + "bca" + "ab"
    assert list(answers) == ["a", "b"] and left_out == {"c": "late"}
    assert turns.summarize(answers["a"], 2) == {
        "median": 1.0,
        "least": 0.0,
        "most": 2.0,
        "processor": 0.5,
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
    made = serving.make_texts(VOCABULARY, 16, 5)
    assert len(set(made)) == 5
    lengths = tokenizer()(made).row_lengths().numpy()
    assert (lengths == 14).all()  # plus [CLS] and [SEP]


def test_natural_texts_come_in_the_order_of_their_file(tmp_path):
    path = tmp_path / "dev.tsv"
    lines = [f"text {i}\t{i % 2}" for i in range(70)]
    path.write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    batches = serving.read_batches(f"{path}:sentence")
    assert list(map(len, batches)) == [32, 32, 6]
    assert batches[1][0] == "text 32"


def test_systems_that_answer_differently_are_refused():
    def step(result):
        return lambda texts: {
            "seconds": 1.0,
            "processor": 0.5 if result[0] == 0.25 else 1.0,
            "result": result,
        }

    steps = {serving.FULL: step([0.25, 0.75])}
    near = steps | {"onnxruntime": step([0.2501, 0.7499])}
    measured = serving.measure_case("a case", near, [["a", "b"]] * 2)
    assert measured["onnxruntime"]["processor"] == 0.5
    assert measured[serving.FULL]["median"] == 0.5
    wrong = steps | {"onnxruntime": step([0.26, 0.74])}
    with pytest.raises(InputError, match="onnxruntime"):
        serving.measure_case("a case", wrong, [["a"]])


@pytest.mark.long
def test_a_worker_answers_what_the_export_answers(classifier_export):
    texts = ["an hour", "bad film"]
    settings = {"folder": str(classifier_export), "warm": 0}
    job = {turns.THIS: rows.Job("classify", settings)}
    with turns.start_workers(job) as (workers, _):
        answer = workers[turns.THIS].ask(texts)
    served = load_saved_model(classifier_export)
    expected = served.classify(texts)["probabilities"][0]
    np.testing.assert_allclose(answer["result"], expected, atol=1e-6)
