"""Fine-tunes on many tasks and fills the results table of docs/tasks.md.

    python tools/results_table.py --data=DATA --init=all-MiniLM-L6-v2 \
        --output=runs/results --peer_python=/path/to/torch/bin/python

In: a folder with glue/, squad/, multiple_choice/, wnut17/ and wikiann_en/ in
it; weights to start from. Out, in --output: a folder and a JSON file a run,
and table.md: each task's score beside the best constant guess and, with
--peer_python (an interpreter that has torch and transformers), beside
tools/peer_trainer.py on the same rows, weights and hyper-parameters.

Every run is one task with one seed; the same command goes on where it was
broken off, and --tasks=rte,mrpc takes a part. Takes hours on two CPU cores.
"""

import functools
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from absl import flags

from official_tasks import script


class Plan(NamedTuple):
    """One line of the table.

    data: the option that says where, under --data; see `--data_dir`.
    train_rows: training rows at most, the first of those in the order of a
        hash; None takes all.
    dev_split: whether there is no train file: the dev file is split by a
        hash, four fifths to learn from.
    epochs, learning_rate, sequence_length: the task's defaults where None.
    """

    task: str
    data: str
    train_rows: int | None = None
    dev_split: bool = False
    seeds: int = 3
    epochs: float | None = None
    learning_rate: float | None = None
    sequence_length: int | None = None
    peer: bool = True


PLANS = (
    Plan("wnli", "glue"),
    Plan("rte", "glue"),
    Plan("mrpc", "glue"),
    Plan("stsb", "glue"),
    Plan("cola", "glue"),
    Plan("sst2", "glue", train_rows=8000),
    Plan("qnli", "glue", dev_split=True),
    Plan("comve", "multiple_choice/comve", train_rows=3000, peer=False),
    Plan("cosmosqa", "multiple_choice/cosmosqa", dev_split=True, peer=False),
    Plan("wnut17", "wnut17", peer=False),
    Plan("wikiann", "wikiann_en", train_rows=5000, peer=False),
    Plan("squad1", "squad", seeds=1, dev_split=True, peer=False),
    Plan("squad2", "squad", seeds=1, dev_split=True, peer=False),
)
PEER = Path(__file__).resolve().parent / "peer_trainer.py"


def define_flags():
    flags.DEFINE_string("data", None, "Folder of the data sets.")
    flags.DEFINE_string("init", None, "Weights to start from.")
    flags.DEFINE_string("output", None, "Folder of all runs.")
    flags.DEFINE_string("peer_python", None, "Interpreter with torch.")
    names = ", ".join(plan.task for plan in PLANS)
    flags.DEFINE_list("tasks", None, f"A part of {names}.")
    flags.DEFINE_integer("seeds", None, "Runs of each task, at most.", 1)
    flags.mark_flags_as_required(["data", "init", "output"])


def hashed(example) -> float:
    """A number from 0 to 1 that depends on what an example says alone."""
    said = json.dumps([str(value) for value in example], ensure_ascii=False)
    digest = hashlib.sha256(said.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def with_plan(task, plan):
    """The task, reading the plan's rows: a subset, or a dev file split."""
    read = task.read

    def planned(split):
        if plan.dev_split and split in ("train", "dev"):
            to_learn = split == "train"
            return [e for e in read("dev") if (hashed(e) < 0.8) == to_learn]
        examples = read(split)
        if split == "train" and plan.train_rows is not None:
            chosen = sorted(range(len(examples)), key=_by_hash(examples))
            examples = [examples[i] for i in sorted(chosen[: plan.train_rows])]
        return examples

    task.read = planned
    return task


def _by_hash(examples):
    return lambda index: hashed(examples[index])


def run_ours(plan, seed, data, init, output) -> dict:
    """One run of this package: its scores, minutes and rows."""
    from official_tasks import finetuning
    from official_tasks.tasks import find_task

    cls, fixed = find_task(plan.task)
    task = with_plan(cls(**fixed, data_dir=str(Path(data) / plan.data)), plan)
    began, cpu = time.monotonic(), time.process_time()
    results = finetuning.run(
        task,
        init,
        Path(output) / f"{plan.task}-{seed}",
        epochs=plan.epochs,
        learning_rate=plan.learning_rate,
        sequence_length=plan.sequence_length,
        seed=seed,
        settings={"plan": list(plan)},
    )
    return {
        "metric": task.metric,
        "score": results[task.metric],
        "baseline": results.get("majority_baseline"),
        "rows": results["rows"],
        "dev_rows": results["dev_rows"],
        "scores": finetuning.scalars(results),
        "minutes": (time.monotonic() - began) / 60,
        "cpu_minutes": (time.process_time() - cpu) / 60,
    }


def run_peer(plan, seed, data, init, output, python) -> dict:
    """The same rows, weights and hyper-parameters in transformers."""
    import numpy as np

    import bert_keras
    from official_tasks.tasks import find_task

    cls, fixed = find_task(plan.task)
    task = with_plan(cls(**fixed, data_dir=str(Path(data) / plan.data)), plan)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        init,
        sequence_length=plan.sequence_length or task.defaults.sequence_length,
        pad_to_longest=True,
    )
    folder = Path(output) / f"{plan.task}-{seed}-peer"
    folder.mkdir(parents=True, exist_ok=True)
    examples = {split: task.read(split) for split in ("train", "dev")}
    for split, chosen in examples.items():
        _write_rows(task.encode(chosen, preprocess), folder / f"{split}.json")
    settings = {
        "init": str(init),
        "seed": seed,
        "epochs": plan.epochs or task.defaults.epochs,
        "learning_rate": plan.learning_rate or task.defaults.learning_rate,
        "batch_size": task.defaults.batch_size,
        "classes": len(task.labels or [0]),
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    began = time.monotonic()
    subprocess.run([python, str(PEER), str(folder)], check=True)
    epochs = np.load(folder / "outputs.npy")  # (epochs, R, C)
    scores = [task.score(examples["dev"], each) for each in epochs]
    best = max(scores, key=lambda score: score[task.metric])
    return {
        "score": best[task.metric],
        "minutes": (time.monotonic() - began) / 60,
    }


def _write_rows(encoded, path):
    rows = {
        "token_ids": encoded.inputs["token_ids"].to_list(),
        "segment_ids": encoded.inputs["segment_ids"].to_list(),
        "labels": encoded.targets.tolist(),
    }
    path.write_text(json.dumps(rows))


def table(plans, output) -> str:
    """The runs that are done, a line a task, as Markdown."""
    import numpy as np

    lines = [
        "| task | rows: train, dev | metric | score | constant guess | "
        "transformers | seeds | CPU minutes a run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for plan in plans:
        ours = _records(output, f"{plan.task}-*.ours.json")
        if not ours:
            continue
        peers = _records(output, f"{plan.task}-*.peer.json")
        baseline = ours[0]["baseline"]
        lines.append(
            f"| {plan.task} | {ours[0]['rows']:,}, {ours[0]['dev_rows']:,} | "
            f"{ours[0]['metric']} | {_spread(ours)} | "
            f"{'' if baseline is None else f'{baseline:.3f}'} | "
            f"{_spread(peers)} | {len(ours)} | "
            f"{np.mean([run['cpu_minutes'] for run in ours]):.0f} |"
        )
    return "\n".join(lines) + "\n"


def _records(output, pattern):
    return [
        json.loads(path.read_text())
        for path in sorted(Path(output).glob(pattern))
    ]


def _spread(runs):
    """Mean, and standard deviation where there are several."""
    import numpy as np

    scores = [run["score"] for run in runs]
    if len(scores) < 2:
        return "".join(f"{score:.3f}" for score in scores)
    return f"{np.mean(scores):.3f} ± {np.std(scores, ddof=1):.3f}"


def main(values):
    from bert_keras import files

    plans = [p for p in PLANS if values.tasks is None or p.task in values.tasks]
    os.makedirs(values.output, exist_ok=True)
    place = (values.data, values.init, values.output)
    most = values.seeds or max(plan.seeds for plan in plans)
    for seed in range(most):
        for plan in plans:
            if seed >= plan.seeds:
                continue
            jobs = {"ours": functools.partial(run_ours, plan, seed, *place)}
            if values.peer_python and plan.peer:
                jobs["peer"] = functools.partial(
                    run_peer, plan, seed, *place, values.peer_python
                )
            for who, job in jobs.items():
                name = f"{plan.task}-{seed}.{who}.json"
                path = os.path.join(values.output, name)
                if not os.path.exists(path):
                    record = job()
                    with files.written_beside(path) as partial:
                        files.write_json(record, partial)
            text = table(plans, values.output)
            Path(values.output, "table.md").write_text(text)
    sys.stdout.write(table(plans, values.output))


if __name__ == "__main__":
    script.start(main, define_flags)
