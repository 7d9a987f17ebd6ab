"""Official prediction files, and all of GLUE with the leaderboard's zip."""

import contextlib
import filecmp
import os
import shutil
import tempfile
import zipfile

from rich.table import Table

from bert_keras import files
from bert_keras.errors import InputError
from official_tasks import progress
from official_tasks.engine import grid
from official_tasks.engine.models import ensemble_outputs, take_arguments
from official_tasks.tasks.base import SPLITS
from official_tasks.tasks.glue import AX, MNLI, ROWS, WNLI

# Official prediction files from trained models: one, or several averaged.


@contextlib.contextmanager
def new_files(folder, overwrite):
    """Yields a folder whose files are put into `folder` at the end.

    A file that is there with other bytes is refused unless `overwrite`.
    """
    with tempfile.TemporaryDirectory() as written:
        yield written
        paths = {
            path: os.path.join(folder, os.path.relpath(path, written))
            for path in files.walk(written)
        }
        others = [
            there
            for path, there in paths.items()
            if os.path.exists(there)
            and not (os.path.isfile(there) and filecmp.cmp(path, there, False))
        ]
        if others and not overwrite:
            raise InputError(
                f"{others[0]} is there already, with other content. Name "
                "another --output, or give --overwrite to replace it."
            )
        for path, there in paths.items():
            files.make_folder(os.path.dirname(there))
            shutil.copyfile(path, there)


def predict_task(task, models, output, split="test", overwrite=False):
    """Writes the task's official files of a split to the folder `output`.

    Args:
        task: a `Task`.
        models: model or run folders; the outputs of several are averaged.
        overwrite: whether to replace files that are there.

    Returns:
        The predictions, as the task's `decode` gives them.
    """
    if split not in SPLITS:
        raise InputError(
            f"split is {split!r}: expected one of {', '.join(SPLITS)}"
        )
    take_arguments(task, models[0])
    examples = task.read(split)
    encoded, outputs = ensemble_outputs(task, models, examples)
    predictions = task.decode(examples, encoded, outputs)
    with new_files(output, overwrite) as folder:
        task.write(examples, predictions, folder)
    return predictions


def run_submission(values):
    """As a script: --task, its options, --model=A[,B], --split, --output."""
    from official_tasks.tasks.registry import task_from_flags

    if values.output == "-":
        raise InputError("--output is missing: give a folder for the files")
    task, _ = task_from_flags(values)
    predict_task(
        task,
        values.model.split(","),
        values.output,
        values.split,
        values.overwrite,
    )
    progress.console.print(f"Written to {values.output}")


# All of GLUE: nine tasks, the paper's average, the leaderboard's zip.

ZIP = "glue.zip"


def run_glue(make_task, init, output, **arguments) -> dict:
    """Fine-tunes all nine tasks and writes what the leaderboard takes.

    Args:
        make_task: function of a task's name; returns the task and its
            settings, as `task_from_flags` does.
        init, arguments: as for `several.run`.
        output: folder; each task has one in it, under its name.

    Returns:
        dict of "scores", task -> results on dev, and "average", the paper's:
        the mean of the nine columns of its table, WNLI left out.
    """
    grid.refuse_several_hosts(arguments.get("distribution", "off"))
    tasks = {row.name: make_task(row.name) for row in ROWS}
    _check_files({name: task for name, (task, _) in tasks.items()})
    scores = {}
    for name, (task, settings) in tasks.items():
        if name == AX.name:
            continue
        folder = os.path.join(output, name)
        scores[name] = grid.run(
            task, init, folder, settings=settings, **arguments
        )
    for name, (task, _) in tasks.items():
        trained = MNLI.name if name == AX.name else name
        predict_task(
            task,
            [os.path.join(output, trained)],
            os.path.join(output, "submission"),
            overwrite=True,  # its own, of the same runs
        )
    write_zip(output)
    results = {"scores": scores, "average": average(scores)}
    files.write_json(results, os.path.join(output, "results.json"))
    _show(results)
    return results


def columns(scores) -> dict[str, float]:
    """The columns of the paper's table 1 that there are scores for."""
    found = {}
    for row in ROWS:
        if row in (WNLI, AX) or row.name not in scores:
            continue
        figures = scores[row.name]
        found[row.folder] = figures[row.paper]
        if row is MNLI:
            found["MNLI-mm"] = figures[f"mismatched_{row.paper}"]
    return found


def average(scores) -> float:
    """The paper's: each column counts once, MNLI has two of them."""
    values = list(columns(scores).values())
    return sum(values) / len(values)


def write_zip(output):
    """Packs the eleven files of a submission, and refuses to pack fewer."""
    folder = os.path.join(output, "submission")
    names = [name for row in ROWS for name in row.submission]
    missing = [name for name in names if not os.path.isfile(f"{folder}/{name}")]
    if missing:
        raise InputError(
            f"{folder} has no {', '.join(missing)}: the leaderboard takes "
            "all eleven files or none"
        )
    with (
        files.written_beside(os.path.join(output, ZIP)) as path,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in names:
            # One date in all, so that equal files make equal archives.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            with open(f"{folder}/{name}", "rb") as file:
                archive.writestr(entry, file.read(), zipfile.ZIP_DEFLATED)


def _check_files(tasks):
    """Reads every split now: a missing one would end the run days later."""
    for name, task in tasks.items():
        splits = ("test",) if name == AX.name else ("train", "dev", "test")
        for split in splits:
            task.read(split)


def _show(results):
    table = Table(title="GLUE, on dev", title_justify="left")
    table.add_column("task")
    table.add_column("score", justify="right")
    for name, value in columns(results["scores"]).items():
        table.add_row(name, f"{100 * value:.1f}")
    table.add_row("average", f"{100 * results['average']:.1f}")
    progress.console.print(table)
