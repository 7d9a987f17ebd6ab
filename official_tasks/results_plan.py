"""The lines of the results table: which task, on which rows of its files."""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from official_tasks.tasks import find_task


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
    Plan("squad1", "squad", SQUAD_1, "title", quick_rows=800, seeds=1),
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
    """So many of the examples, in the order in which they stand."""
    numbers = sorted(range(len(examples)), key=lambda i: hashed(examples[i]))
    return [examples[i] for i in sorted(numbers[:most])]


def hashed(said) -> float:
    """A number from 0 to 1 that depends on what is said alone."""
    values = [said] if isinstance(said, str) else list(map(str, said))
    text = json.dumps(values, ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
