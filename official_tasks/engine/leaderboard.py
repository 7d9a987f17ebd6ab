"""Fine-tunes all tasks of GLUE, and writes the zip file of a submission."""

import functools
import os
import zipfile

import rich.table

from bert_keras import files, json_files
from bert_keras.errors import InputError
from official_tasks import progress
from official_tasks.engine import runs
from official_tasks.engine.scoring import predict_task
from official_tasks.tasks.base import SPLITS
from official_tasks.tasks.glue import AX, BENCHMARK, MNLI, WNLI

ZIP = "glue.zip"


def run_glue(make_task, init, output, **arguments) -> dict:
    """Fine-tune all nine GLUE tasks; write the zip file for the leaderboard.

    Args:
        make_task: function of a task's name; returns the task and its
            settings, see `task_from_flags`.
        init: see `runs.run`.
        output: folder for submission/, glue.zip, results.json and a subfolder
            for each fine-tuned task, named after the task.
        **arguments: further arguments of `runs.run`.

    Returns:
        dict with "scores" (task -> results on dev), "average" (mean of the
        nine scores of table 1 in BERT's paper, which has no WNLI) and "errors"
        (task or TASK/RUN -> message of a failed run). If no run of a task
        succeeds, "average" is None, and the zip file is not written.
    """
    runs.refuse_several_hosts(arguments.get("distribution", "off"))
    tasks = {row.name: make_task(row.name) for row in BENCHMARK}
    for name, (task, _) in tasks.items():
        # Read all files now: a missing one would stop the run days later.
        for split in ("test",) if name == AX.name else SPLITS:
            task.read(split)
    trained = runs.run_all(
        {
            name: functools.partial(
                runs.run,
                task,
                init,
                os.path.join(output, name),
                settings=settings,
                **arguments,
            )
            for name, (task, settings) in tasks.items()
            if name != AX.name
        }
    )
    errors = runs.list_errors(trained)
    scores = {name: x for name, x in trained.items() if name not in errors}
    for name, (task, _) in tasks.items():
        owner = MNLI.name if name == AX.name else name
        if owner not in scores:
            continue
        predict_task(
            task,
            [os.path.join(output, owner)],
            os.path.join(output, "submission"),
            # A resumed command replaces its own submission files.
            overwrite=True,
        )
    is_complete = len(scores) == len(tasks) - (AX.name in tasks)
    if is_complete:
        write_zip(output)
    results = {
        "scores": scores,
        "average": average(scores) if is_complete else None,
        "errors": errors,
    }
    with files.atomic_output(os.path.join(output, "results.json")) as path:
        json_files.write_json(json_files.without_nan(results), path)
    _show(results)
    return results


def columns(scores) -> dict[str, float]:
    """Return a dict: column of table 1 in BERT's paper -> score."""
    values = {}
    for row in BENCHMARK:
        if row in (WNLI, AX) or row.name not in scores:
            continue
        metrics = scores[row.name]
        values[row.folder] = metrics[row.paper]
        if row is MNLI:
            values["MNLI-mm"] = metrics[f"mismatched_{row.paper}"]
    return values


def average(scores) -> float:
    """Return the mean over the paper's columns; MNLI has two columns."""
    values = list(columns(scores).values())
    return sum(values) / len(values)


def write_zip(output):
    """Zip the eleven files of a submission; raise if one is missing."""
    folder = os.path.join(output, "submission")
    names = [name for row in BENCHMARK for name in row.submission]
    missing = [name for name in names if not os.path.isfile(f"{folder}/{name}")]
    if missing:
        raise InputError(
            f"{folder} has no {', '.join(missing)}: the leaderboard needs "
            "all eleven files"
        )
    with (
        files.atomic_output(os.path.join(output, ZIP)) as path,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in names:
            # With a fixed date, equal files make equal archives.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            with open(f"{folder}/{name}", "rb") as file:
                archive.writestr(entry, file.read(), zipfile.ZIP_DEFLATED)


def _show(results):
    shown = rich.table.Table(title="GLUE, on dev", title_justify="left")
    shown.add_column("task")
    shown.add_column("score", justify="right")
    for name, value in columns(results["scores"]).items():
        shown.add_row(name, f"{100 * value:.1f}")
    if results["average"] is not None:
        shown.add_row("average", f"{100 * results['average']:.1f}")
    progress.console.print(shown)
