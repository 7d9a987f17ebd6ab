"""Writes a task's official prediction files, and the zip file for GLUE."""

import contextlib
import csv
import functools
import os
import shutil
import tempfile
import zipfile

import rich.table

from bert_keras import files, json_files
from bert_keras.errors import InputError
from official_tasks import progress
from official_tasks.engine import runs
from official_tasks.engine.answer_formats import WRITERS
from official_tasks.engine.models import predict_split
from official_tasks.overwriting import refuse_input_as_output
from official_tasks.tasks import own_data
from official_tasks.tasks.base import SPLITS
from official_tasks.tasks.forms.cells import ID
from official_tasks.tasks.forms.delimited import write_csv
from official_tasks.tasks.glue import AX, BENCHMARK, MNLI, WNLI
from official_tasks.tasks.source import Source

ZIP = "glue.zip"


def predict_task(task, models, output, split="test", overwrite=False, keep=()):
    """Write the official prediction files of a split to the folder `output`.

    Args:
        task: a `Task`.
        models: model or run folders; outputs of several models are averaged.
        output: folder, made if it is missing.
        split: one of `SPLITS`.
        overwrite: True to replace existing files.
        keep: columns of the test table to add to predictions.csv.

    Raises:
        InputError: the split is unknown, a file would replace an input, a
            file exists with other content and `overwrite` is False, or the
            columns of `keep` cannot be read or added.
    """
    if split not in SPLITS:
        raise InputError(
            f"`split` is {split!r}: expected one of {', '.join(SPLITS)}"
        )
    refuse_file_name(output)
    kept = _read_kept(task, split, keep) if keep else []
    examples, predictions = predict_split(task, models, split)
    progress.print_notes(getattr(examples, "notes", ()))
    with new_files(output, overwrite, input_files(task)) as folder:
        task.write(examples, predictions, folder)
        if keep:
            _add_columns(folder, keep, kept)


def refuse_file_name(output):
    """Raise `InputError` if the name of an output folder is that of a file."""
    is_name = os.path.splitext(output or "")[1].lower() in WRITERS
    if is_name and not files.is_folder(output):
        raise InputError(
            f"--output={output} has the name of a file, but several files are "
            "written. Name a folder."
        )


def _read_kept(task, split, keep):
    source = getattr(task, "source", None)
    if not isinstance(source, own_data.Table) or split != "test":
        raise InputError(
            "--keep only applies to the rows of a table that --test names. "
            "Leave --keep out."
        )
    return source.read_columns("test", keep)


def _add_columns(folder, names, rows):
    """Put columns in front of those of predictions.csv.

    A column of the file that has the same name gets the prefix "predicted_",
    unless it repeats the input.
    """
    path = os.path.join(folder, "predictions.csv")
    found: list = []
    if os.path.isfile(path):
        with open(path, encoding="utf-8", newline="") as file:
            found = list(csv.reader(file))
    if len(found) != 1 + len(rows):
        raise InputError(
            "This task does not write one row of predictions for each row of "
            "--test. Leave --keep out."
        )
    header = found[0]
    inputs = {ID, "text", "text_pair", "label"} & {*names}
    others = [i for i, name in enumerate(header) if name not in inputs]
    header = [f"predicted_{n}" if n in names else n for n in header]
    cells = [header, *found[1:]]
    write_csv(
        path,
        (
            [*kept, *(row[i] for i in others)]
            for kept, row in zip([names, *rows], cells, strict=True)
        ),
    )


def input_files(task) -> list:
    """Return the files that a task reads, including its test files."""
    source = getattr(task, "source", None)
    is_ours = isinstance(source, Source)  # a user's task may have no `Source`
    test = source.existing_files("test") if is_ours else []
    return [*task.data_files(), *test]


@contextlib.contextmanager
def new_files(folder, overwrite, inputs=()):
    """Yield a temporary folder; move its files into `folder` at the end.

    If a file exists with other content and `overwrite` is False, raise an
    InputError and move no file.

    Args:
        folder: the folder; it is made if it is missing.
        overwrite: True to replace existing files.
        inputs: files that are never replaced; an InputError is raised instead.
    """
    with tempfile.TemporaryDirectory() as written:
        yield written
        paths = {
            path: os.path.join(folder, os.path.relpath(path, written))
            for path in files.walk(written)
        }
        for path, target in paths.items():
            refuse_input_as_output(target, *inputs)
            is_same = files.same_content(path, target)
            if files.exists(target) and not is_same and not overwrite:
                raise InputError(
                    f"{target} exists, with other content. Name another "
                    "--output, or add --overwrite to replace it."
                )
        with contextlib.ExitStack() as stack:
            for path, target in paths.items():
                partial = stack.enter_context(files.atomic_output(target))
                shutil.copyfile(path, partial)


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
    """Pack the eleven files of a submission; raise if one is missing."""
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
