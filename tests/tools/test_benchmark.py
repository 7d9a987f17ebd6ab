"""The benchmark against peers: turns, ratios, the check, the chart."""

import importlib
import math
import sys
import types

import numpy as np
import ours
import pytest
import tiny
from contenders import inputs, rows, turns
from run_script import ROOT
from worker import SIZES, VOCABULARY

from bert_keras.errors import InputError
from bert_keras.files import read_json, write_json
from bert_keras.training import strategy
from tools.benchmark import steps

TINY = {
    "size": "tiny",
    "batch": 2,
    "length": 16,
    "predictions": 2,
    "dropout": 0.0,
    "dtype": "float32",
    "warm": 1,
}


def results(**medians):
    figures = {
        name: {
            "median": m,
            "least": m,
            "most": m,
            "processor": m,
            "examples": 1,
            "peak_megabytes": 1,
        }
        for name, m in medians.items()
    }
    row = {"title": "a row", "goal": 1.1, "contenders": figures}
    return {"machine": {}, "rows": {"a": row}}


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    """Tiny weights and official files of SST-2."""
    folder = tmp_path_factory.mktemp("preset")
    encoder = tiny.encoder(max_sequence_length=128)
    encoder.save_preset(folder / "weights", tiny.preprocessor())
    texts = ["good", "bad", "good bad goodly", "badly good good bad"] * 3
    lines = [f"{text}\t{i % 2}" for i, text in enumerate(texts)]
    (folder / "glue" / "SST-2").mkdir(parents=True)
    path = folder / "glue" / "SST-2" / "train.tsv"
    path.write_text("\n".join(["sentence\tlabel", *lines, ""]))
    return folder


def test_contenders_take_turns_in_processes():
    replicas = {**TINY, "batch": 1, "steps": 1, "jit": False, "cpu_devices": 2}
    replicas |= {"backend": "tensorflow", "distribution": "mirrored"}
    figures, left_out = turns.measure(
        {
            "fit": (sys.executable, "ours", "fit", replicas),
            "limit": (sys.executable, "ours", "limit", TINY),
        },
        turns=2,
    )
    assert not left_out
    for figure in figures.values():
        assert 0 < figure["least"] <= figure["median"] <= figure["most"] < 10
        assert figure["peak_megabytes"] > 100
        assert "tensorflow" in figure["versions"]
        assert figure["examples"] == 2
    assert figures["fit"]["replicas"] == 2


@pytest.mark.parametrize("job", ["step", "packed_step"])
def test_a_job_takes_a_step_of_pretraining(job):
    lengths = [3, 9, 16, 5, 4, 7]
    step, examples = getattr(ours, job)({**TINY, "lengths": lengths})
    assert np.isfinite(step()).all()
    # Six examples fill four rows of 16; a batch is two of these.
    assert examples == pytest.approx(2 if job == "step" else 3)


def test_jobs_get_what_only_the_driver_can_find(preset):
    filled = inputs.Inputs(
        preset, data=str(preset), init=str(preset / "weights")
    )
    filled.base = lambda: str(preset / "weights")  # no model of base size
    part = {"task": "SST-2", "rows": 8, "batch": 2, "steps": 2, "padded": 16}
    settings = filled.fill({**part, "dtype": "float32"})
    step, examples = ours.finetune(settings)
    step()
    assert examples == 4
    step, _, facts = ours.load(filled.fill({"base": True}))
    step()
    assert facts["megabytes_before"] > 100


def test_packed_rows_take_the_precision_that_the_processor_is_faster_in(
    tmp_path, monkeypatch
):
    fill = inputs.Inputs(tmp_path).fill
    for flags, dtype in (
        ({"avx2"}, "float32"),
        ({"AuthenticAMD", "avx512_bf16"}, "mixed_bfloat16"),
    ):
        monkeypatch.setattr(strategy, "instructions", lambda f=flags: f)
        assert fill({"dtype": rows.FASTEST})["dtype"] == dtype
        assert fill({"dtype": rows.PLAIN})["dtype"] == "float32"


def test_a_contender_that_fails_is_named_with_its_error():
    arguments = (sys.executable, "worker", "dense_rows", {})
    message = r"dense_rows of worker.py ended (.|\n)*KeyError"
    with pytest.raises(InputError, match=message):
        turns.measure({"a": arguments}, turns=1)


def test_rows_of_a_task_are_drawn_by_the_seed_and_keep_their_labels(preset):
    def drawn(seed):
        path = preset / f"rows-{seed}.json"
        weights = str(preset / "weights")
        return read_json(
            inputs.write_rows("SST-2", str(preset), weights, 8, path, seed)
        )

    rows_drawn = drawn(0)
    assert rows_drawn == drawn(0) != drawn(1)
    assert len(rows_drawn["token_ids"]) == len(rows_drawn["labels"]) == 8
    # Rows 0 and 2 of each four have label 0: "good" alone and three words.
    pairs = zip(rows_drawn["token_ids"], rows_drawn["labels"], strict=True)
    for ids, label in pairs:
        assert (len(ids) in (3, 6) and ids[1] == 5) == (label == 0)
    with pytest.raises(InputError, match="needs --data"):
        inputs.Inputs(preset, init="weights").rows("SST-2", 8)


def test_lengths_are_those_of_documents_or_of_their_paragraphs(tmp_path):
    (tmp_path / "a.txt").write_text(f"{'a' * 40}\n\n{'b' * 480}\n")
    (tmp_path / "b.txt").write_text(f"{'c' * 8}\n")
    source = str(tmp_path)
    assert inputs.natural_lengths(source, 103) == [103, 33, 5]
    by_paragraph = inputs.natural_lengths(source, 103, by="paragraphs")
    assert by_paragraph == [13, 103, 23, 5]


def test_a_contender_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "def job(settings):\n"
        "    time.sleep(settings['ready'])\n"
        "    return (lambda seconds: time.sleep(seconds)), 1\n"
    )
    monkeypatch.setattr(turns, "environment", lambda _: environment)
    environment = {"PYTHONPATH": str(tmp_path)}
    command = sys.executable, "slow", "job"
    with pytest.raises(turns.LeftOutError, match="slow.py.* within 0.1 sec"):
        turns.Worker(*command, {"ready": 60, "warm": 0}, limit=0.1)
    worker = turns.Worker(*command, {"ready": 0, "warm": 0}, limit=60)
    assert worker.ask(0)["seconds"] < 60
    worker._limit = 0.1
    with pytest.raises(turns.LeftOutError, match="within 0.1 seconds"):
        worker.ask(60)
    with pytest.raises(InputError, match="slow.py ended before its turn"):
        worker.ask(0)  # as after the system ended it for want of memory
    worker.close()


def test_peers_that_take_too_long_are_left_out_with_a_line(monkeypatch):
    class Worker:
        """Is late at its preparation or at its step, by its name."""

        def __init__(self, python, name, *_, limit):
            self.name = name
            self.ask("late")

        def ask(self, late="slow"):
            if self.name == late:
                raise turns.LeftOutError(f"{late} had no answer.")

        def figures(self):
            names = "median", "least", "most", "processor"
            return dict.fromkeys(names, 1.0) | {"peak_megabytes": 1}

        def close(self):
            pass

    def measured(**names):
        given = {k: rows.Contender("ours", v, "", {}) for k, v in names.items()}
        row = {"title": "a row", "goal": 1.1, "contenders": given}
        inputs = types.SimpleNamespace(environments="", fill=dict)
        return row | turns.measure_row(row, inputs, 2, limit=9)

    monkeypatch.setattr(turns, "Worker", Worker)
    row = measured(ours="a", b="late", c="slow", d="d")
    assert list(row["contenders"]) == ["ours", "d"]
    text = steps.as_text({"rows": {"a": row}})
    assert "b is left out: late had no answer." in text
    assert "c is left out: slow had no answer." in text
    with pytest.raises(turns.LeftOutError, match="late had no"):
        measured(ours="late", d="d")


def test_rows_that_the_processor_would_emulate_are_left_out(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(strategy, "instructions", lambda: {"avx2", "fma"})
    assert turns.kind() == "avx2"
    given = dict.fromkeys(("environments", "input", "data", "init"))
    given |= {"vocabulary": None, "turns": 1, "limit": 9.0}
    steps.main(values(tmp_path, rows=["base_fastest"], **given))
    assert "base_fastest is left out: This processor is not" in (
        capsys.readouterr().out
    )


def test_the_limit_counts_the_products_of_the_model():
    # Of a dense layer: 2 operations a weight and token, three times a step.
    layers, width, _ = SIZES["tiny"]
    dense = 12 * width**2 * layers * 2 * 16
    head = (width**2 + width * VOCABULARY) * 2 * 2
    attention = 2 * 16 * 16 * width * layers * 2
    products = [math.prod(product) for product in ours.products(TINY)]
    assert 2 * sum(products) == 3 * 2 * (dense + head + attention)


def test_the_ratio_is_to_the_fastest_peer():
    times, best = steps.ratio(
        results(ours=2.0, a=5.0, b=3.0, limit=1.0)["rows"]["a"]
    )
    assert (times, best) == (1.5, "b")
    alone = results(ours=2.0, limit=1.0, **{"padded to 128": 4.0})
    assert steps.ratio(alone["rows"]["a"]) is None


def test_the_check_compares_ratios_and_names_what_fell():
    recorded = results(ours=1.0, a=2.0, limit=0.5)
    # A machine half as fast, and the same ratio.
    steps.check(results(ours=2.0, a=4.0, limit=1.0), recorded, 0.15)
    with pytest.raises(InputError, match=r"a from 2.00 to 1.50"):
        steps.check(results(ours=2.0, a=3.0, limit=1.0), recorded, 0.15)


def test_rows_that_nothing_compares_are_named():
    (measured,) = results(ours=1.0, a=2.0)["rows"].values()
    (alone,) = results(ours=1.0)["rows"].values()
    now = {"rows": {"a": measured, "b": measured, "c": alone}}
    then = {"rows": {"a": measured, "c": measured}}
    assert steps.check(now, then, 0.15) == ["b", "c"]
    assert steps.check({"rows": then["rows"]}, now, 0.15) == ["c"]
    for other in ({}, {"d": measured}, {"a": alone}):
        with pytest.raises(InputError, match="Nothing to compare"):
            steps.check(now, {"rows": other}, 0.15)


def values(folder, **given):
    """The flags of `steps`, as absl hands them to `main`."""
    usual = {"check": None, "overwrite": False, "rows": []}
    usual["output"] = str(folder / "o.json")
    return types.SimpleNamespace(**usual | given)


def test_an_unknown_row_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(InputError, match="No row 'large': expected small, ba"):
        steps.main(values(tmp_path, rows=["large"]))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"rows": 3}', ""])
def test_broken_results_are_refused_before_measuring(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    given = {"check": str(path), "rows": ["none"]}
    with pytest.raises(InputError, match="r.json holds no results"):
        steps.main(values(tmp_path, **given))


def test_results_are_compared_with_those_of_the_same_kind_of_processor(
    tmp_path,
):
    here, other = results(ours=1.0, a=2.0), results(ours=1.0, a=3.0)
    write_json({"avx2": here, "avx512_bf16": other}, tmp_path / "r.json")
    assert steps.recorded(tmp_path / "r.json", "avx2") == here
    with pytest.raises(InputError, match="no results of a processor with amx"):
        steps.recorded(tmp_path / "r.json", "amx_bf16")
    write_json(here, tmp_path / "one.json")
    assert steps.recorded(tmp_path / "one.json", "amx_bf16") == here


def test_recorded_results_are_of_existing_rows():
    folder = ROOT / "tools" / "benchmark" / "contenders"
    for kind in read_json(folder / "recorded.json"):
        results = steps.recorded(folder / "recorded.json", kind)
        assert {"base", "small", "sst2"} <= set(results["rows"])
        # Its step is bfloat16.
        assert "packed" in results["rows"] or "bf16" not in kind
        for name, row in results["rows"].items():
            assert (
                row["contenders"].keys() == rows.ROWS[name]["contenders"].keys()
            )
            assert steps.ratio(row)
        steps.check(results, results, 0.0)
    for row in rows.ROWS.values():
        for contender in row["contenders"].values():
            text = (folder / f"{contender.module}.py").read_text()
            assert f"def {contender.job}(settings):" in text


def test_an_existing_environment_is_used_as_it_is(tmp_path):
    python = tmp_path / "keras_hub" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert turns.interpreter(str(tmp_path), "keras_hub") == str(python)
    assert turns.interpreter(str(tmp_path), "ours") == sys.executable


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, None])
def test_half_an_environment_is_not_used(tmp_path, monkeypatch, error):
    def made(home, with_pip):
        python = tmp_path / "keras_hub" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()

    def begun():
        raise SystemExit

    def installed(*command, **options):
        if error:
            raise error
        return types.SimpleNamespace(returncode=1, stderr="no such package")

    monkeypatch.setattr(turns.venv, "create", made)
    monkeypatch.setattr(turns.subprocess, "run", installed)
    with pytest.raises(error or InputError):
        turns.interpreter(str(tmp_path), "keras_hub")
    monkeypatch.setattr(turns.venv, "create", lambda *_, **__: begun())
    with pytest.raises(SystemExit):  # it is made again
        turns.interpreter(str(tmp_path), "keras_hub")


@pytest.mark.parametrize(
    "tool",
    "benchmark.steps benchmark.data benchmark.serving "
    "benchmark.tokenizer "
    "maintenance.prove_tokenizer "
    "train_vocabulary extend_vocabulary extract_features".split(),
)
def test_a_place_to_write_is_made_before_anything_is_measured(tool, tmp_path):
    main = importlib.import_module(f"tools.{tool}").main
    (tmp_path / "file").touch()
    for output in ("file/x.json", "", "runs/x.json"):
        given = types.SimpleNamespace(
            output=str(tmp_path / output), overwrite=False
        )
        expected = AttributeError if "runs" in output else InputError
        with pytest.raises(expected):  # it goes on to a flag that is missing
            main(given)
    assert (tmp_path / "runs").is_dir()
    given.output = str(tmp_path / "file")
    with pytest.raises(InputError, match="there already.*--overwrite"):
        main(given)
    given.overwrite = True
    with pytest.raises(AttributeError):
        main(given)


def test_the_machine_is_described_without_git_too(monkeypatch):
    assert turns.machine()["commit"]
    monkeypatch.setenv("PATH", "")
    assert turns.machine()["commit"] == "unknown"
