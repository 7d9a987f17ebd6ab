r"""Runs the experiments of a table of the paper and prints their scores.

    bert-keras reproduce --table=5 --scale=small \
        --data=runs/data --task_flag=wikiann.data_dir=wikiann \
        --task_flag=sst2.data_dir=glue/SST-2 \
        --task_flag=stsb.data_dir=glue/STS-B --output=runs/paper --seeds=3

In: pre-training data of bert-keras create_pretraining_data (tables 5, 6, 8 and
figure5), and the official files of each column's task, which --task_flag names.
Out, in --output: a run folder for each pretrain and finetune command, and
tableN.md or figure5.md. The .md file has the paper's scores, and the mean and
standard deviation of the runs' scores over seeds. Tables with the same --output
share equal runs. The same command resumes interrupted runs. It also checks
finished runs, so keep their data and weights.

Tables 1 (GLUE), 2 (SQuAD), 4 (SWAG) and 7 (features) start from released
weights; --finetune_flags=--init=FOLDER names other weights. Tables 5
(pre-training tasks), 6 (model size), 8 (masking) and figure5 (steps) pre-train
first. Only these have --scale=small, for two CPU cores: a model of 4 layers of
width 128 trains for 2,000 steps in ten minutes. --dry_run prints the commands.
"""

import dataclasses
import os
import re
import shlex
import statistics
from pathlib import Path
from typing import NamedTuple

from bert_keras import files, json_files
from bert_keras.errors import InputError
from bert_keras.modeling.recipes import RECIPES
from bert_keras.run_folder import STAGES
from official_tasks import cli
from official_tasks.options import option, split_words


class Row(NamedTuple):
    """A row of a table.

    paper: the paper's scores in percent, in the order of the paper's columns;
        "-" where the paper has no score.
    pretrain: flags of `pretrain`; None if no model is pre-trained.
    finetune: flags of `finetune`, with --init if `pretrain` is None.
    only: name of the only column of this row; None if the row has all columns.
    """

    name: str
    paper: tuple[float | str, ...]
    pretrain: str | None
    finetune: str = ""
    only: str | None = None


class Column(NamedTuple):
    """A column of a table.

    metric: key of the task's score in results.json.
    flags: flags of `finetune`.
    """

    name: str
    task: str
    metric: str = "accuracy"
    flags: str = ""


class Table(NamedTuple):
    """A table of the paper; `small`: its columns at the small scale, if any."""

    title: str
    rows: list[Row]
    columns: list[Column]
    small: tuple[Column, ...] = ()


class Run(NamedTuple):
    """A command, as words, and its run folder; no column for `pretrain`."""

    row: Row
    column: Column | None
    folder: str
    words: list[str]


SMALL_PRETRAIN = (
    "--num_layers=4 --hidden_dim=128 --num_heads=4 --sequence_length=16 "
    "--max_predictions=3 --batch_size=128 --steps=2000 --phase_2_steps=0.5 "
    "--phase_2_sequence_length=64 --phase_2_max_predictions=10 "
    "--phase_2_batch_size=32 --learning_rate=1.5e-3 --warmup=0.1 "
    "--bias_correction --dropout=0 --evaluations=2 --evaluation_steps=50 "
    "--dtype=mixed_bfloat16"
)
SMALL_FINETUNE = (
    "--batch_size=32 --learning_rate=5e-4 --sequence_length=64 "
    "--dtype=mixed_bfloat16"
)
# Defaults of `pretrain`. They are removed from the flags of a row, so that two
# tables have one name for the same run.
SIZE_AND_STEPS = (
    "--num_layers=12 --hidden_dim=768 --num_heads=12 --steps=1000000"
)
DEFAULT_MASKS = "--mask_mix=80,10,10"
# `pretrain` refuses these flags if the objective has no [MASK].
MASK_FLAG = re.compile(
    "--?(phase_2_)?(max_predictions|mask_rate|mask_mix|(no)?whole_word)"
)
# Columns of GLUE need no flags, because the paper's batch size 32 and 3 epochs
# (section 4.1) are the defaults of `finetune`. Table 1 tries the four learning
# rates of that section. It leaves out MNLI-mm.
MNLI, QNLI = Column("MNLI-m", "mnli"), Column("QNLI", "qnli")
MRPC, SST_2 = Column("MRPC", "mrpc"), Column("SST-2", "sst2")
QQP, MRPC_F1 = Column("QQP", "qqp", "f1"), Column("MRPC", "mrpc", "f1")
COLA = Column("CoLA", "cola", "matthews")
STS_B, RTE = Column("STS-B", "stsb", "spearman"), Column("RTE", "rte")
GLUE = [MNLI, QQP, QNLI, SST_2, COLA, STS_B, MRPC_F1, RTE]
GLUE_BASE = 84.6, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4
GLUE_LARGE = 86.7, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1
GLUE_RATES = "--learning_rate=5e-5,4e-5,3e-5,2e-5"
SQUAD = Column("SQuAD 1.1", "squad1", "f1")
SQUAD_2 = Column("SQuAD 2.0", "squad2", "f1", "--batch_size=48 --epochs=2")
SWAG = Column("SWAG", "swag", flags="--batch_size=16")
NER = Column("NER", "conll2003", "f1", "--document_context")
ENTITIES = Column("WikiANN", "wikiann", "f1", "--epochs=3")
SENTIMENT = Column("SST-2", "sst2", flags="--epochs=2")
SMALL = ENTITIES, SENTIMENT, Column("STS-B", "stsb", "pearson", "--epochs=2")
# (layers, width, heads) in the paper -> (the paper's scores, (layers, width,
# heads) at the small scale).
SIZES = {
    (3, 768, 12): ((77.9, 79.8, 88.4), (1, 128, 4)),
    (6, 768, 3): ((80.6, 82.2, 90.7), (2, 128, 1)),
    (6, 768, 12): ((81.9, 84.8, 91.3), (2, 128, 4)),
    (12, 768, 12): ((84.4, 86.7, 92.9), (4, 128, 4)),
    (12, 1024, 16): ((85.7, 86.9, 93.3), (4, 160, 5)),
    (24, 1024, 16): ((86.6, 87.8, 93.7), (8, 160, 5)),
}
# (MASK, same, random) in percent -> the paper's scores: MNLI fine-tuned, NER
# fine-tuned, NER on features.
MASKS = {
    (80, 10, 10): (84.2, 95.4, 94.9),
    (100, 0, 0): (84.3, 94.9, 94.0),
    (80, 0, 20): (84.1, 95.2, 94.6),
    (80, 20, 0): (84.4, 95.2, 94.7),
    (0, 20, 80): (83.7, 94.8, 94.6),
    (0, 0, 100): (83.6, 94.9, 94.6),
}
FEATURES = 91.0, 95.6, 94.9, 95.9, 96.1, 95.5  # NER F1 for each of `RECIPES`


def list_released(base, large, more=""):
    init = "--init=hf://google-bert/bert-{}-uncased "
    scores = {"base": base, "large": large}
    return [Row(n, scores[n], None, init.format(n) + more) for n in scores]


def list_objectives(is_small):
    one_way = "--objectives=left_to_right"
    bilstm = f"--bilstm_dim={128 if is_small else 768}"
    return [
        Row("BERT", (84.4, 88.4, 86.7, 92.7, 88.5), ""),
        Row("no NSP", (83.9, 84.9, 86.5, 92.6, 87.9), "--objectives=mlm"),
        Row("LTR, no NSP", (82.1, 84.3, 77.5, 92.1, 77.8), one_way),
        Row("LTR + BiLSTM", (82.1, 84.1, 75.7, 91.6, 84.9), one_way, bilstm),
    ]


def list_sizes(is_small):
    rows = []
    for size, (scores, small) in SIZES.items():
        size = small if is_small else size
        words = "--num_layers={} --hidden_dim={} --num_heads={}".format(*size)
        rows.append(Row("{} x {} x {}".format(*size), scores, words))
    return rows


def list_masks(is_small):
    rows, tags = [], (ENTITIES if is_small else NER).name
    for (mask, same, random), (mnli, tuned, features) in MASKS.items():
        # Unlike the paper, the flag has the order masked, replaced, kept.
        mix = f"--mask_mix={mask},{random},{same}"
        name = f"{mask} / {same} / {random}"
        recipe = "--recipe=concat_last_four"
        rows.append(Row(name, (mnli, tuned), mix))
        scores = "-", features
        rows.append(Row(f"{name}, features", scores, mix, recipe, tags))
    return rows


def list_steps(is_small):
    most = 2_000 if is_small else 1_000_000
    return [
        Row(
            f"{objective}, {most // part:,} steps",
            ("-",),
            f"--objectives={objective} --steps={most // part}",
        )
        for objective in ("mlm", "left_to_right")
        for part in (8, 4, 2, 1)
    ]


def list_features():
    init = "--init=hf://google-bert/bert-base-cased"
    rows = [Row("fine-tuning, base", (96.4,), None, init)]
    for recipe, score in zip(RECIPES, FEATURES, strict=True):
        rows.append(Row(recipe, (score,), None, f"{init} --recipe={recipe}"))
    return rows


def make_tables(is_small):
    """Return a dict: name of a table -> `Table`."""
    glue = list_released(GLUE_BASE, GLUE_LARGE, GLUE_RATES)
    squad = list_released((88.5, "-"), (90.9, 81.9), "--sequence_length=384")
    swag = list_released((81.6,), (86.6,))
    tasks, sizes = list_objectives(is_small), list_sizes(is_small)
    masks, steps = list_masks(is_small), list_steps(is_small)
    five, two = [MNLI, QNLI, MRPC, SST_2, SQUAD], (SENTIMENT, ENTITIES)
    title = "GLUE (table 1; the paper's scores are on test)"
    return {
        "1": Table(title, glue, GLUE),
        "2": Table("SQuAD, dev (tables 2 and 3)", squad, [SQUAD, SQUAD_2]),
        "4": Table("SWAG, dev (table 4)", swag, [SWAG]),
        "5": Table("Pre-training (table 5)", tasks, five, SMALL),
        "6": Table("Size (table 6)", sizes, [MNLI, MRPC, SST_2], SMALL),
        "7": Table("Features, dev (table 7)", list_features(), [NER]),
        "8": Table("Masks (table 8)", masks, [MNLI, NER], two),
        "figure5": Table("Steps (figure 5)", steps, [MNLI], two),
    }


def select_table(values):
    """Check the flags; return the `Table` of --table and its columns to run."""
    table = make_tables(values.scale == "small")[values.table]
    columns = table.small if values.scale == "small" else table.columns
    pretrains = table.rows[0].pretrain is not None
    for is_wrong, fix in (
        (not columns, "leave out --scale=small, which the table lacks"),
        (pretrains and not values.data, "add --data"),
        (
            not pretrains and (values.data or values.pretrain_flags),
            "leave out --data and --pretrain_flags, because the table has no "
            "pretrain command",
        ),
    ):
        if is_wrong:
            raise InputError(f"Table {values.table}: {fix}.")
    tasks = [column.task for column in columns]
    for text in values.task_flag:
        if not re.fullmatch(r"[^.=]+\.\w+(=.*)?", text, re.DOTALL):
            raise InputError(
                f"--task_flag={text}: expected TASK.FLAG=VALUE, such as "
                "--task_flag=mnli.data_dir=glue/MNLI."
            )
    named = {text.partition(".")[0] for text in values.task_flag}
    for task in {*named, *(values.tasks or ())} - {*tasks}:
        raise InputError(
            f"--tasks or --task_flag names the task {task!r}; expected one of "
            f"{', '.join(tasks)}."
        )
    return table, [c for c in columns if c.task in (values.tasks or tasks)]


def list_runs(values):
    """Return a list of `Run`s, in the order to run them.

    The flags of a run are the name of its folder, so equal runs of a table or
    of two tables have one folder.
    """
    table, columns = select_table(values)
    return [
        run
        for seed in range(values.seeds)
        for row in table.rows
        for run in _list_row(values, row, columns, seed)
    ]


def _list_row(values, row, columns, seed):
    """Yield the runs of a row with one seed."""
    is_small, own, init = values.scale == "small", [], []
    if row.pretrain is not None:
        known = SMALL_PRETRAIN if is_small else SIZE_AND_STEPS
        known = [DEFAULT_MASKS, *known.split()]
        own = [word for word in row.pretrain.split() if word not in known]
        scale = SMALL_PRETRAIN.split() if is_small else []
        words = [
            *scale,
            *own,
            *split_words("pretrain_flags", values.pretrain_flags),
        ]
        if "left_to_right" in row.pretrain:
            words = [word for word in words if not MASK_FLAG.match(word)]
        words.insert(0, f"--data={values.data}")
        run = _make_run(values, "pretrain", row, None, own, seed, words)
        init = [f"--init={run.folder}"]
        yield run
    for column in columns:
        if row.only not in (None, column.name):
            continue
        start = f"{column.task}."
        more = f"{column.flags} {row.finetune}"
        words = [
            f"--task={column.task}",
            *init,
            *(SMALL_FINETUNE.split() if is_small else ()),
            *shlex.split(more),
            *split_words("finetune_flags", values.finetune_flags),
            *(
                f"--{text.removeprefix(start)}"
                for text in values.task_flag
                if text.startswith(start)
            ),
        ]
        names = [*own, *row.finetune.split(), column.task]
        yield _make_run(values, "finetune", row, column, names, seed, words)


def _make_run(values, name, row, column, names, seed, words):
    """Return a `Run` of the script `name`; its folder's name has `names`."""
    slug = "-".join(re.findall(r"[A-Za-z0-9.]+", " ".join(names))) or "bert"
    folder = f"{values.scale}-{slug}-{seed}"
    folder = os.path.join(values.output, name, folder)
    first = f"official_tasks.{name}", f"--output={folder}", f"--seed={seed}"
    return Run(row, column, folder, [*first, *words])


def format_scores(runs):
    """Return mean ± standard deviation of finished runs, in percent.

    Return "-" if there are no runs, "not run" if none has finished, and
    "failed" if one has no finite score. One run has no "±".
    """
    scores = []
    for run in runs:
        path = os.path.join(run.folder, "results.json")
        if files.is_file(path):
            scores.append(json_files.read_json(path)[run.column.metric])
        elif files.is_file(os.path.join(run.folder, STAGES, "failed.json")):
            scores.append(None)
    if not scores:
        return "not run" if runs else "-"
    if None in scores:  # not finite, or training failed
        return "failed"
    scores = [100 * score for score in scores]
    std = f" ± {statistics.stdev(scores):.1f}" if scores[1:] else ""
    return f"{statistics.mean(scores):.1f}{std}"


def format_table(values, runs):
    """Return the table in Markdown."""
    table, columns = select_table(values)
    head = ["", f"paper: {', '.join(c.name for c in table.columns)}"]
    head += [f"run: {column.name}" for column in columns]
    rows = [head, ["---"] * len(head)]
    for row in table.rows:
        cells = [[r for r in runs if r[:2] == (row, c)] for c in columns]
        scores = map(format_scores, cells)
        rows.append([row.name, ", ".join(map(str, row.paper)), *scores])
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    scale = f"{values.scale} scale, {values.seeds} seeds"
    return "\n".join([f"{table.title}; {scale}", "", *lines, ""])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    table: str = option(
        help="Table of the paper.", choices=tuple(make_tables(False))
    )
    scale: str = option(
        "paper",
        "Size of the runs: as in the paper, or small for two CPU cores.",
        choices=("paper", "small"),
    )
    seeds: int = option(
        1, "Number of runs of each row, with different seeds.", at_least=1
    )
    output: str = option(help="Folder of all runs.")
    dry_run: bool = option(False, "Print the commands; run nothing.")
    data: str | None = option(None, "Folder of pre-training data.")
    tasks: tuple[str, ...] | None = option(
        None, "Tasks of the table to run; default: all."
    )
    pretrain_flags: str = option(
        "",
        "More flags of pretrain commands, in one string, with blanks between: "
        "'--NAME=VALUE --NAME'.",
    )
    finetune_flags: str = option("", "More flags of finetune commands.")
    task_flag: tuple[str, ...] = option(
        (),
        "TASK.FLAG=VALUE: finetune flag of one task; repeatable.",
        is_repeated=True,
    )


def main(values):
    runs = list_runs(values)
    name = f"table{values.table}" if values.table.isdigit() else values.table
    path = os.path.join(values.output, name)
    if files.is_folder(path):
        raise InputError(
            f"{path} holds runs of an earlier version, which named their "
            "folders in another way. Move it away to run them again, or name "
            "another --output."
        )
    for words in {run.folder: run.words for run in runs}.values():
        command = shlex.join(words).removeprefix("official_tasks.")
        print(f"bert-keras {command}", flush=True)
        if not values.dry_run:
            # For a finished run, the command only checks settings and files.
            try:
                cli.run_module(words)
            except SystemExit as error:
                if error.code != cli.FAILED_RUN:
                    raise
    if not values.dry_run:
        text = format_table(values, runs)
        with files.atomic_output(f"{path}.md") as partial:
            Path(partial).write_text(text, encoding="utf-8")
        print(text, end="")


if __name__ == "__main__":
    cli.start(main, Options)
