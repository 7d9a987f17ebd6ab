"""The demo on a toy corpus: every stage, every figure, and going on."""

import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
import types

import pytest
import tensorflow as tf

from bert_keras import InputError
from official_tasks.demo import stages, whole_job
from official_tasks.engine import finetuning, processes

TINY = whole_job.QUICK._replace(
    vocabulary_size=150,
    hidden_dim=64,
    batch_size=8,
    steps=8,
    labels=40,
    dev_rows=80,
)
WORDS = "wind rain snow storm cloud river stone field tower candle".split()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(40):
        lines = [
            f"In book {number} the {a} met the {b} near the old {c} and slept."
            for a in WORDS[number % 7 :: 2]
            for b in WORDS[::3]
            for c in WORDS[number % 3 :: 3]
        ]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def report(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "run"
    whole_job.run(folder, str(corpus), 3, TINY)
    return folder


def test_the_report_has_every_figure(report):
    figures = json.loads((report / "report.json").read_text())
    named = (
        "mlm_accuracy mlm_unigram_baseline nsp_accuracy "
        "classify_accuracy_pretrained classify_accuracy_scratch "
        "classify_majority_baseline export_max_difference documents "
        "classify_deviation_pretrained classify_deviation_scratch "
        "classify_rate_pretrained classify_rate_scratch classify_seeds dtype "
        "sentences tokens parameters seconds seed corpus_hash versions"
    ).split()
    assert set(named) <= set(figures)
    assert set(figures["seconds"]) == set(whole_job.STAGES)
    assert figures["documents"] == 40
    assert figures["seed"] == 3
    assert figures["export_max_difference"] <= 1e-5
    assert 0 < figures["mlm_unigram_baseline"] < 0.5


def test_both_sides_get_the_best_of_the_same_rates_and_several_seeds(
    monkeypatch,
):
    """Accuracy rises with the rate from scratch, and falls pre-trained."""
    began = []

    def run(task, init, output, *, from_scratch, learning_rate, seed, **same):
        began.append((from_scratch, learning_rate, seed, tuple(same.items())))
        sign = 1 if from_scratch else -1
        return {"accuracy": 0.5 + sign * learning_rate + seed / 100}

    monkeypatch.setattr(finetuning, "run", run)
    monkeypatch.setattr(
        processes, "in_a_process", lambda f, *, jobs, quiet: f()
    )
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    settings = TINY._replace(rates=(0.1, 0.2, 0.3), seeds=3)
    folder = types.SimpleNamespace(file=lambda *names: "/".join(names))
    tried = stages.Demo(folder, "", 5, settings, "float32")
    fair = stages.best_of_rates(tried, None)
    assert fair["pretrained"]["rate"] == 0.1
    assert fair["scratch"]["rate"] == 0.3
    assert fair["pretrained"]["accuracies"] == pytest.approx([0.45, 0.46, 0.47])
    assert fair["scratch"]["accuracy"] == pytest.approx(0.86)
    assert fair["scratch"]["deviation"] == pytest.approx(0.01)
    assert fair["scratch"]["model"] == "finetune/scratch/rate-0.3_seed-5/model"
    assert stages.share(fair["scratch"]) == "86.0% ± 1.0"
    assert [one[1:3] for one in began if one[0]] == [
        (0.1, 5),
        (0.2, 5),
        (0.3, 5),
        (0.3, 6),
        (0.3, 7),
    ]
    assert len(began) == 10
    assert len({one[3] for one in began}) == 1  # else all alike


def test_the_page_needs_nothing_from_elsewhere(report):
    page = (report / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    assert not re.search(r"url\((?!#)|(src|href)\s*=\s*.?https?:", page)
    assert "official_tasks.finetune --task=custom" in page
    assert "library" not in page


def test_the_packaged_model_guesses_at_the_same_masks(report):
    figures = json.loads((report / "report.json").read_text())
    masks = [m for guess in figures["guesses"] for m in guess["masks"]]
    assert masks
    for mask in masks:
        assert len(mask["packaged"]) == len(mask["guesses"])
        assert sum(share for _, share in mask["packaged"]) <= 1 + 1e-6
    # Words that the toy corpus does not have.
    assert {piece for m in masks for piece, _ in m["packaged"]} - {
        piece for m in masks for piece, _ in m["guesses"]
    }
    page = (report / "report.html").read_text(encoding="utf-8")
    assert "the packaged model guesses" in page


def test_versions_are_told_where_tensorflow_is_called_otherwise(monkeypatch):
    def version(name):  # as where tensorflow-cpu is installed
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert whole_job._versions()["tensorflow"] == tf.__version__


def test_the_same_command_goes_on_and_other_settings_are_refused(
    report, corpus, monkeypatch
):
    before = json.loads((report / "report.json").read_text())
    stages._read.cache_clear()
    assert whole_job.run(report, str(corpus), 3, TINY) == before
    with pytest.raises(InputError, match="seed was 3 and is now 4"):
        whole_job.run(report, str(corpus), 4, TINY)
    other = {"float32": "mixed_bfloat16"}.get(before["dtype"], "float32")
    with monkeypatch.context() as patch:
        patch.setattr(whole_job, "choose_dtype", lambda: other)
        told = f'dtype was "{before["dtype"]}" and is now "{other}"'
        with pytest.raises(InputError, match=told):
            whole_job.run(report, str(corpus), 3, TINY)
    text = (corpus / "7.txt").read_text()
    (corpus / "7.txt").write_text(text.replace("slept", "ran"))
    stages._read.cache_clear()
    with pytest.raises(InputError, match=f"another corpus: {corpus} changed"):
        whole_job.run(report, str(corpus), 3, TINY)
    (corpus / "7.txt").write_text(text)
    stages._read.cache_clear()


def test_the_closing_command_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my runs"
    run = types.SimpleNamespace(
        folder=types.SimpleNamespace(file=folder.joinpath)
    )
    for python, told in (
        (tmp_path / ".venv/bin/python", ".venv/bin/python"),
        (tmp_path.parent / "bin/python", str(tmp_path.parent / "bin/python")),
    ):
        monkeypatch.setattr(sys, "executable", str(python))
        commands = whole_job._command(run).splitlines()
        tuned, exported = map(shlex.split, commands)
        assert tuned[:3] == [told, "-m", "official_tasks.finetune"]
        assert "--init=my runs/pretrain/model" in tuned
        assert exported[:3] == [told, "-m", "official_tasks.tools.export"]


def test_a_run_without_matplotlib_is_told_before_it_begins(
    report, corpus, tmp_path, monkeypatch, capsys
):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "matplotlib" else found(name),
    )
    run = tmp_path / "run"
    shutil.copytree(report, run)
    (run / "report.html").unlink()
    whole_job.run(run, str(corpus), 3, TINY)
    assert not (run / "report.html").exists()
    said = capsys.readouterr().out
    assert said.index("no report.html") < said.index("1. Corpus")
