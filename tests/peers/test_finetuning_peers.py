"""Fine-tuning beside transformers' Trainer, step by step, in float32.

From the same weights, head included, on the same batches, without dropout,
both sides by the code that fills the results table: the loss of every step to
1e-5 of itself, and where the weights have gone to 1 % of their way.

Needs BERT_KERAS_DATA, and torch, transformers and accelerate, here or in the
interpreter that BERT_KERAS_PEER_PYTHON names.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TASKS = "cola", "stsb", "wnut17", "comve", "squad1"
STEPS, BATCH, RATE = 20, 4, 1e-4
LENGTH = 256  # more than the peer takes in one part
PEER = os.environ.get("BERT_KERAS_PEER_PYTHON", sys.executable)
TOOLS = Path(__file__).parents[2] / "tools" / "benchmark"
NEEDED = """
import importlib.util, sys
needed = "torch", "transformers", "accelerate"
sys.exit(not all(map(importlib.util.find_spec, needed)))
"""
TRAIN = """
import pathlib, sys
import peer_trainer
for folder in map(pathlib.Path, sys.argv[1:]):
    trainer = peer_trainer.train(folder)
    trainer.save_model()
    trainer.save_state()
"""


def in_torch(code, *arguments):
    return subprocess.run(
        [PEER, "-c", code, *map(str, arguments)],
        cwd=TOOLS,
        capture_output=True,
        text=True,
    )


def without_dropout(weights, folder):
    shutil.copytree(weights, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def prepared(name, data, init, folder):
    """Our run before its first step; `folder` is the peer's."""
    from bert_keras.interop.huggingface import save_huggingface
    from bert_keras.training.strategy import make_strategy
    from official_tasks.engine.finetuning import _Run
    from tools.benchmark.results_table import (
        PLANS,
        planned_task,
        write_run,
    )

    [plan] = [plan for plan in PLANS if plan.task == name]
    task = planned_task(plan._replace(rows=STEPS * BATCH, dev_rows=2), data)
    settings = {"epochs": 1, "batch_size": BATCH, "learning_rate": RATE}
    run = _Run(
        task,
        None,
        make_strategy("off", "local"),
        init=init,
        seed=3,
        from_scratch=False,
        sequence_length=min(task.defaults.sequence_length, LENGTH),
        dtype="float32",
        pad_to_longest=True,
        **settings,
    )
    head = folder / "head"
    folder.mkdir()
    save_huggingface(head, run.model, run.preprocess)
    write_run(folder, task, run.encoded, head, run.seed, **settings)
    return run


def values(model):
    return {v.path: v.numpy() for v in model.trainable_variables}


def trained(run):
    """Weights before, loss of each step, weights after."""
    before, losses = values(run.model), []
    for batch in run._batches(0):
        run.model.reset_metrics()
        told = run.model.train_on_batch(*batch, return_dict=True)
        losses.append(float(told["loss"]))
    return before, losses, values(run.model)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Task -> ours, as `trained`; the peer's folder; our model's class."""
    if not os.environ.get("BERT_KERAS_DATA"):
        pytest.skip("BERT_KERAS_DATA is not set")
    if in_torch(NEEDED).returncode:
        pytest.skip(f"{PEER} has not torch, transformers and accelerate")
    home = Path(os.environ["BERT_KERAS_DATA"])
    top = tmp_path_factory.mktemp("peers")
    init = without_dropout(home / "weights/all-MiniLM-L6-v2", top / "init")
    found = {}
    for name in TASKS:
        run = prepared(name, home / "data", init, top / name)
        found[name] = trained(run), top / name, type(run.model)
    done = in_torch(TRAIN, *(folder for _, folder, _ in found.values()))
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.parametrize("name", TASKS)
def test_all_losses_and_weights_are_those_of_transformers(name, runs):
    (before, losses, after), folder, cls = runs[name]
    state = json.loads((folder / "trainer_state.json").read_text())
    theirs = [entry["loss"] for entry in state["log_history"][:-1]]
    assert len(losses) >= STEPS
    np.testing.assert_allclose(losses, theirs, rtol=1e-5)
    second = values(cls.from_preset(folder))
    assert second.keys() == after.keys()
    for path, value in after.items():
        moved = np.linalg.norm(value - before[path])
        apart = np.linalg.norm(value - second[path])
        # What moves all scores of a softmax alike gets noise for a gradient.
        noise = 1e-5 * np.sqrt(value.size)
        assert apart <= 0.01 * moved + noise, (path, apart / moved)
