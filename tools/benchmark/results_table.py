"""Fine-tunes on many tasks and fills the results table of docs/tasks.md.

    python tools/benchmark/results_table.py --data=DATA \
        --init=all-MiniLM-L6-v2 --output=runs/results \
        --peer_python=/path/to/torch/bin/python --quick

In: a folder with glue/, squad/, multiple_choice/, wnut17/ and wikiann_en/ in
it; weights to start from. Out, in --output: a folder and a JSON file a run, and
table.md: each task's score, the best constant guess, with --words that of a bag
of words (scikit-learn) on the same rows and, with --peer_python (an interpreter
that has torch, transformers and accelerate), the score of
tools/benchmark/peer_trainer.py on the same batches, weights and
hyper-parameters. Where both sides have several seeds, a column gives the
probability that equal means lie so far apart, by Welch's t-test; of 20 tasks
one is below 0.05 by chance.

Every run is one task with one seed; the first seed of all tasks comes first.
The same command resumes an interrupted table, --tasks=rte,mrpc takes some of
the tasks, and --jobs=2 makes two runs at once. With a model of 6 layers of 384
and the peer, --quick takes three to five hours of one CPU core, all rows some
twelve or more.
"""

import functools
import hashlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import flags

import bert_keras
from bert_keras import files
from bert_keras.errors import InputError
from official_tasks import script
from official_tasks.engine import processes
from official_tasks.tasks.multiple_choice import ChoiceTask
from official_tasks.tasks.registry import find_task
from official_tasks.tasks.squad import SquadTask
from official_tasks.tasks.tagging import NerTask
from official_tasks.tasks.text_task import TextTask

PEER = Path(__file__).resolve().parent / "peer_trainer.py"
IGNORED = -100  # label that the peer's loss leaves out


class Plan(NamedTuple):
    """One line of the table.

    Attributes:
        data: folder of the task's files, below the one of all data sets.
        files: option of the task -> its file, or files with commas between,
            in place of the folder's; in `data`.
        held_out: a field of the examples; a fifth of dev, drawn by a hash of
            what it says, is scored, and no training example has the same.
            None where train and dev are apart as they are.
        rows, dev_rows: how many at most, the first of those in the order of
            a hash; None takes all.
        quick_rows: `rows` of the quick table, and twice its `dev_rows`: fewer
            where rows are long.
        seeds: how many runs: one where a run of all rows takes long.
    """

    task: str
    data: str
    files: dict[str, str] = {}
    held_out: str | None = None
    rows: int | None = None
    dev_rows: int | None = None
    quick_rows: int = 2000
    seeds: int = 3

    def quick(self):
        """The same with so few rows that a run takes minutes."""
        rows, dev_rows = self.quick_rows, self.quick_rows // 2
        return self._replace(rows=rows, dev_rows=dev_rows)


SQUAD_1 = {
    "train": "train-v1.1.subset4000.json,dev-v1.1.reconstructed.json",
    "dev": "dev-v1.1.reconstructed.json",
    "skip_ids": "train-v1.1.subset4000.ambiguous_start_ids.txt,"
    "dev-v1.1.ambiguous_start_ids.txt",
}
SQUAD_2 = {
    "train": "dev-v2.0.reconstructed.json",
    "dev": "dev-v2.0.reconstructed.json",
    "skip_ids": "dev-v2.0.ambiguous_start_ids.txt",
}
PLANS = (
    Plan("wnli", "glue/WNLI"),
    Plan("cola", "glue/CoLA"),
    Plan("sst2", "glue/SST-2", rows=8000),
    Plan("stsb", "glue/STS-B"),
    Plan("wikiann", "wikiann_en", rows=5000),
    Plan("wnut17", "wnut17"),
    Plan("mrpc", "glue/MRPC", quick_rows=1000),
    Plan("comve", "multiple_choice/comve", rows=3000, quick_rows=800),
    Plan("squad1", "squad", SQUAD_1, "title", 4000, quick_rows=800, seeds=1),
    Plan("squad2", "squad", SQUAD_2, "title", quick_rows=800, seeds=1),
    Plan("qnli", "glue/QNLI", {"train": "dev.tsv"}, "text", quick_rows=1000),
    Plan("rte", "glue/RTE", quick_rows=1000),
    Plan(
        "cosmosqa",
        "multiple_choice/cosmosqa",
        {"train": "valid.csv"},
        held_out="prompt",
        quick_rows=300,
        seeds=1,
    ),
)


def define_flags():
    flags.DEFINE_string("data", None, "Folder of the data sets.")
    flags.DEFINE_string("init", None, "Weights to start from.")
    flags.DEFINE_string("output", None, "Folder of all runs.")
    flags.DEFINE_string("peer_python", None, "Interpreter with torch.")
    names = ", ".join(plan.task for plan in PLANS)
    flags.DEFINE_list("tasks", None, f"A part of {names}.")
    flags.DEFINE_integer(
        "seeds", None, "Runs of each task; by default three, one if long.", 1
    )
    flags.DEFINE_float("learning_rate", 1e-4, "Of all; suits a small model.")
    flags.DEFINE_bool("from_scratch", False, "Random weights, as a baseline.")
    flags.DEFINE_enum("dtype", "float32", script.AUTO_DTYPES, script.DTYPE_HELP)
    flags.DEFINE_bool("words", False, "Also a bag of words, as a baseline.")
    flags.DEFINE_bool("quick", False, "At most 2,000 training rows a task.")
    flags.DEFINE_integer("jobs", 1, "Runs at once; they share the cores.", 1)
    flags.mark_flags_as_required(["data", "init", "output"])
    script.applies_only(
        "without --peer_python, which has neither",
        lambda values: not values.peer_python,
        "from_scratch",
        "dtype",
    )


def main(values):
    plans = chosen(values.tasks)
    if values.quick:
        plans = [plan.quick() for plan in plans]
    os.makedirs(values.output, exist_ok=True)

    def make(run):
        kept(*run)
        text = table(plans, values.output)
        Path(values.output, "table.md").write_text(text)

    with processes.workers(values.jobs) as start:
        for made in [start(make, run) for run in runs(plans, values)]:
            made.result()
    sys.stdout.write(table(plans, values.output))


def chosen(tasks) -> tuple:
    """The plans of the named tasks; of all where `tasks` is None."""
    if tasks is None:
        return PLANS
    known = [plan.task for plan in PLANS]
    unknown = [name for name in tasks if name not in known]
    if unknown:
        raise InputError(
            f"The table has no task {unknown[0]!r}: expected some of "
            f"{', '.join(known)}."
        )
    return tuple(plan for plan in PLANS if plan.task in tasks)


def runs(plans, values):
    """What `kept` takes for each run: the first seed of all tasks first."""
    place = (values.learning_rate, values.data, values.init, values.output)
    seeds = {plan.task: values.seeds or plan.seeds for plan in plans}
    numerics = {"from_scratch": values.from_scratch, "dtype": values.dtype}
    pairs = [
        (seed, plan)
        for seed in range(max(seeds.values()))
        for plan in plans
        if seed < seeds[plan.task]
    ]
    for seed, plan in pairs:
        jobs = {
            "ours": functools.partial(run_ours, plan, seed, *place, **numerics)
        }
        if values.words and seed == 0 and has_words(plan):
            jobs["words"] = functools.partial(run_words, plan, values.data)
        if values.peer_python:
            jobs["peer"] = functools.partial(
                run_peer, plan, seed, *place, values.peer_python
            )
        for who, job in jobs.items():
            name = f"{plan.task}-{seed}.{who}.json"
            decided = list(plan)
            if who != "words":
                decided += [values.learning_rate, values.init]
                decided += numerics.values()
            alone = functools.partial(
                processes.in_a_process,
                job,
                jobs=values.jobs,
                quiet=values.jobs > 1,
            )
            yield os.path.join(values.output, name), decided, alone


def kept(path, decided, job):
    """Writes the job's record to `path`, unless it is there.

    Raises:
        InputError: the record is of other rows or another learning rate.
    """
    if os.path.exists(path):
        before = files.read_json(path)["decided"]
        if before != decided:
            raise InputError(
                f"{path} is of {before}, not {decided}: give another --output"
            )
        return
    record = {**job(), "decided": decided}
    with files.written_beside(path) as partial:
        files.write_json(record, partial)


def run_ours(plan, seed, rate, data, init, output, **arguments) -> dict:
    """One run of this package: its scores, minutes and rows."""
    from official_tasks.engine import finetuning

    task = planned_task(plan, data)
    began = _cpu_seconds(resource.RUSAGE_SELF)
    results = finetuning.run(
        task,
        init,
        Path(output) / f"{plan.task}-{seed}",
        learning_rate=rate,
        seed=seed,
        settings={"plan": list(plan)},
        **arguments,
    )
    return {
        "metric": task.metric,
        "score": results[task.metric],
        "baseline": results.get("majority_baseline"),
        "rows": results["rows"],
        "dev_rows": results["dev_rows"],
        "scores": finetuning.scalars(results),
        "cpu_minutes": (_cpu_seconds(resource.RUSAGE_SELF) - began) / 60,
    }


def has_words(plan) -> bool:
    """Whether the task is one of texts or pairs, of one label each."""
    return issubclass(find_task(plan.task)[0], TextTask)


def run_words(plan, data) -> dict:
    """The same rows as words without order."""
    import bag_of_words

    task = planned_task(plan, data)
    began = _cpu_seconds(resource.RUSAGE_SELF)
    scores = bag_of_words.score(task)
    spent = _cpu_seconds(resource.RUSAGE_SELF) - began
    return {"score": scores[task.metric], "cpu_minutes": spent / 60}


def run_peer(plan, seed, rate, data, init, output, python) -> dict:
    """The same rows, weights and hyper-parameters in transformers."""
    task = planned_task(plan, data)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        init, sequence_length=task.defaults.sequence_length, pad_to_longest=True
    )
    folder = Path(output) / f"{plan.task}-{seed}-peer"
    folder.mkdir(parents=True, exist_ok=True)
    examples = {split: task.read(split) for split in ("train", "dev")}
    encoded = {
        split: task.encode(chosen, preprocess)
        for split, chosen in examples.items()
    }
    write_run(
        folder,
        task,
        encoded,
        init,
        seed,
        epochs=task.defaults.epochs,
        batch_size=task.defaults.batch_size,
        learning_rate=rate,
    )
    began = _cpu_seconds(resource.RUSAGE_CHILDREN)
    subprocess.run([python, str(PEER), str(folder)], check=True)
    spent = _cpu_seconds(resource.RUSAGE_CHILDREN) - began
    scores = [
        task.score(
            examples["dev"],
            task.decode(
                examples["dev"],
                encoded["dev"],
                peer_outputs(path, encoded["dev"], task.per_token),
            ),
        )
        for path in sorted(folder.glob("outputs-*.npz"))
    ]
    best = max(scores, key=lambda score: score[task.metric])
    return {"score": best[task.metric], "cpu_minutes": spent / 60}


def _cpu_seconds(who):
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def planned_task(plan, data):
    """The plan's task, reading the plan's rows of the files below `data`."""
    cls, fixed = find_task(plan.task)
    folder = Path(data) / plan.data
    files = {
        option: ",".join(str(folder / name) for name in names.split(","))
        for option, names in plan.files.items()
    }
    task = cls(**fixed, data_dir=str(folder), **files)
    return with_plan(task, plan)


def with_plan(task, plan):
    """The task, reading the plan's rows only."""
    read = task.read

    def planned(split):
        most = plan.rows if split == "train" else plan.dev_rows
        if plan.held_out is None:
            return _first_by_hash(read(split), most)
        dev = [e for e in read("dev") if hashed(group(e)) >= 0.8]
        if split == "dev":
            return _first_by_hash(dev, most)
        taken = {group(e) for e in dev}
        rest = [e for e in read("train") if group(e) not in taken]
        return _first_by_hash(rest, most)

    def group(example):
        return getattr(example, plan.held_out)

    task.read = planned
    return task


def _first_by_hash(examples, most):
    """The `most` examples of the smallest hashes, in their order."""
    numbers = sorted(range(len(examples)), key=lambda i: hashed(examples[i]))
    return [examples[i] for i in sorted(numbers[:most])]


def hashed(content) -> float:
    """A number from 0 to 1 that depends on the content alone."""
    values = [content] if isinstance(content, str) else list(map(str, content))
    text = json.dumps(values, ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def write_run(folder, task, encoded, init, seed, **settings):
    """The files that tools/benchmark/peer_trainer.py reads.

    Args:
        folder: exists.
        encoded: split -> `Encoded`.
        settings: "batch_size", "epochs" and "learning_rate".
    """
    from official_tasks.engine import batches

    batch, epochs = settings["batch_size"], settings.pop("epochs")
    count = len(batches.row_lengths(encoded["train"].inputs))
    steps, steps_per_epoch = batches.training_steps(count, epochs, batch)
    settings |= {
        "init": str(init),
        "seed": seed,
        "steps": steps,
        "steps_per_epoch": steps_per_epoch,
        "labels": len(task.labels or [0]),
        "model": peer_model(task),
    }
    files = {
        "settings": settings,
        "train": peer_rows(encoded["train"]),
        "dev": peer_rows(encoded["dev"]),
        "order": training_order(encoded["train"], batch, seed, steps),
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def training_order(encoded, batch_size, seed, steps) -> list[list[int]]:
    """The number of each row and its padded width, as our batches have it."""
    from official_tasks.engine import batches

    count = len(batches.row_lengths(encoded.inputs))
    numbered = {**encoded.inputs, "row": np.arange(count)}
    drawn = batches.training_batches(
        encoded._replace(inputs=numbered), batch_size, seed, steps
    )
    return [
        [int(row), inputs["token_ids"].shape[-1]]
        for inputs, *_ in drawn
        for row in inputs["row"]
    ]


def peer_model(task) -> str:
    """What transformers calls the model of a task."""
    names = {
        ChoiceTask: "MultipleChoice",
        NerTask: "TokenClassification",
        SquadTask: "QuestionAnswering",
    }
    return names.get(type(task), "SequenceClassification")


def peer_rows(encoded) -> list[dict]:
    """Encoded rows as the peer reads them: ids, segments and target."""
    names = {"input_ids": "token_ids", "token_type_ids": "segment_ids"}
    columns = {
        theirs: encoded.inputs[ours].to_list() for theirs, ours in names.items()
    }
    columns |= _targets(encoded)
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]


def _targets(encoded) -> dict:
    targets = encoded.targets
    if isinstance(targets, dict):  # where an answer begins and ends
        return {f"{k}_positions": v.tolist() for k, v in targets.items()}
    if hasattr(targets, "to_list"):  # a label at some of the tokens
        pairs = zip(targets.to_list(), encoded.weights.to_list(), strict=True)
        return {
            "labels": [
                [y if w else IGNORED for y, w in zip(*pair, strict=True)]
                for pair in pairs
            ]
        }
    return {"labels": targets.reshape(len(targets)).tolist()}


def peer_outputs(path, encoded, per_token):
    """The peer's outputs in the form of `Task.decode`."""
    from official_tasks.engine import batches

    outputs = dict(np.load(path))
    if per_token:  # the tokens of all rows, one after the other
        ends = np.cumsum(batches.row_lengths(encoded.inputs))[:-1]
        outputs = {k: np.split(v, ends) for k, v in outputs.items()}
    return outputs.get("logits", outputs)


def table(plans, output) -> str:
    """The runs that are done, a line a task, as Markdown."""
    lines = [
        "| task | rows: train, dev | metric | constant guess | bag of words | "
        "score | transformers | p that the means are equal | seeds | "
        "CPU minutes a run: ours, theirs |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for plan in plans:
        ours = _records(output, f"{plan.task}-*.ours.json")
        if not ours:
            continue
        peers = _records(output, f"{plan.task}-*.peer.json")
        baseline = ours[0]["baseline"]
        scores = [[run["score"] for run in runs] for runs in (ours, peers)]
        # Empty where either side has one seed only.
        equal = f"{welch(*scores):.2f}" if min(map(len, scores)) > 1 else ""
        lines.append(
            f"| {plan.task} | {ours[0]['rows']:,}, {ours[0]['dev_rows']:,} | "
            f"{ours[0]['metric']} | "
            f"{'' if baseline is None else f'{baseline:.3f}'} | "
            f"{_spread(_records(output, f'{plan.task}-*.words.json'))} | "
            f"{_spread(ours)} | {_spread(peers)} | {equal} | "
            f"{len(ours)}, {len(peers)} | {_cpu(ours)}, {_cpu(peers)} |"
        )
    return "\n".join(lines) + "\n"


def _records(output, pattern):
    return [
        json.loads(path.read_text())
        for path in sorted(Path(output).glob(pattern))
    ]


def _spread(runs):
    """Mean, and standard deviation where there are several."""
    scores = [run["score"] for run in runs]
    if len(scores) < 2:
        return "".join(f"{score:.3f}" for score in scores)
    return f"{np.mean(scores):.3f} ± {np.std(scores, ddof=1):.3f}"


def welch(ours, theirs) -> float:
    """Probability that equal means lie this far apart, by Welch's t-test."""
    from scipy.stats import ttest_ind

    if np.ptp(ours) == np.ptp(theirs) == 0:
        # No variance, such as all seeds on the commoner class.
        return float(np.mean(ours) == np.mean(theirs))
    return float(ttest_ind(ours, theirs, equal_var=False).pvalue)


def _cpu(runs):
    minutes = [run["cpu_minutes"] for run in runs]
    return f"{sum(minutes) / len(minutes):.1f}" if minutes else ""


if __name__ == "__main__":
    script.start(main, define_flags)
