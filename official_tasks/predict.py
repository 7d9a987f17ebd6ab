r"""Runs an exported model on many texts and writes its answer to each text.

    bert-keras predict --model=runs/served --input=texts.txt \
        --output=answers.jsonl

In: --model, the folder of a SavedModel by bert-keras export; and --input,
one of: a text file, with one text on each line; a CSV, TSV, JSONL or Parquet
file, with a column for each input of the signature; a pattern for several
files, such as 'logs/*.csv'; a data set, such as tfds:imdb_reviews#test; or "-",
which reads a pipe. All files but Parquet may be compressed (.gz). --separator
is for CSV, and --encoding is for all text files.

Out: a record for each row, in the order of the rows. A record has the row's
inputs, its "id" if the input has this column, the columns of --keep, and the
answer. The ending of --output decides the format: .jsonl (input of
bert-keras compare), .csv, .tsv, .parquet, and for vectors .npy. --separator=";"
also writes .csv so, with a byte order mark for Excel. With an output
file, the same command resumes an interrupted run by the folder NAME.parts;
after a finished one it ends at once. --beam answers on many machines; see
docs/data.md.
Progress and the fraction of truncated texts go to standard error, so --output=-
can write to a pipe:

    zcat texts.gz | bert-keras predict --model=runs/served \
        --input=- --output=- > answers.jsonl

With --test, --data_dir or --task the script writes the task's official
prediction files. --model then names the folder of a fine-tuning run or its
model/. The task and its options are those of the run, unless flags set them.
--model=A,B,C averages the outputs of several models:

    bert-keras predict --task=mrpc --data_dir=glue \
        --model=runs/mrpc --output=runs/mrpc/submission

The script takes some seconds to start. Then the time depends on the model and
the texts.
"""

import contextlib
import dataclasses
import functools

from bert_keras import files
from bert_keras.data.data_sets import is_data_set
from bert_keras.errors import InputError, format_count
from official_tasks import cli, options, progress, stopping
from official_tasks.engine import prediction
from official_tasks.engine.answer_formats import WRITERS
from official_tasks.engine.answers import Answers
from official_tasks.engine.parts import refuse_inputs
from official_tasks.options import Condition, option
from official_tasks.tasks import registry
from official_tasks.tasks.base import SPLITS
from official_tasks.tasks.forms.text_files import make_dialect

DIALECT = ("separator", "encoding")  # flags that also apply without --task


def _has_task(values):
    """Return True if the files of a task are predicted, not --input."""
    return bool(values.task or values.test or values.data_dir)


def _reads_tables(values):
    if _has_task(values):
        return True  # `predict_task` checks the task
    paths = files.find(values.input) or [values.input]
    kinds = {prediction.find_kind(path, values.input_format) for path in paths}
    return "lines" not in kinds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(registry.TaskOptions):
    """Options of this script."""

    others = {None: DIALECT}
    model: str = option(
        help="Folder of a SavedModel, or of numbered versions. With --task, "
        "folder of a model or run; A,B averages the outputs of A and B."
    )
    input: str = option("-", "Files of texts, or - for standard input.")
    output: str = option(
        "-",
        f"File to write ({', '.join(WRITERS)}), or - for standard output. With "
        "--task: folder of the prediction files.",
    )
    overwrite: bool = options.define_overwrite()
    input_format: str | None = option(
        None,
        "Format of --input. By default, the file's ending decides. A pipe or "
        "an unknown ending means lines, one text each.",
        choices=("lines", "csv", "tsv", "jsonl"),
    )
    signature: str | None = option(
        None, "Signature to call, if not the model's default one."
    )
    columns: tuple[str, ...] | None = option(
        None,
        "Columns to read from a table, one for each input of the signature. "
        "By default, the columns have the names of these inputs.",
    )
    keep: tuple[str, ...] = option(
        (), "Columns of the table to write next to the answers."
    )
    batch_size: int = option(
        32, "Rows in a batch.", at_least=1, at_most=options.LARGEST_BATCH
    )
    beam: str | None = option(
        None,
        "Answer in an Apache Beam pipeline, with these Beam flags: one file of "
        "answers for each file of --input.",
    )
    split: str = option(
        "test", "With --task: split to predict.", choices=SPLITS
    )
    conditions = (
        Condition(
            (
                "input",
                "input_format",
                "signature",
                "columns",
                "batch_size",
                "beam",
            ),
            "without --task, --test and --data_dir, which name a task's files",
            lambda v: not _has_task(v),
        ),
        Condition(
            ("columns", "keep"),
            "to tables, but --input has lines",
            _reads_tables,
        ),
        Condition(
            ("split", "option", *({*registry.OPTIONS} - {*DIALECT})),
            "with --task, or with --test and a run as --model",
            _has_task,
        ),
    )


def main(values):
    if _has_task(values):
        _write_official_files(values)
    else:
        _answer(values)


def _write_official_files(values):
    from official_tasks.engine.scoring import predict_task

    if values.output == "-":
        raise InputError("--output is missing: name a folder for the files")
    progress.show_devices()
    registry.complete_flags(values)
    task, _ = registry.task_from_flags(values)
    models = files.split_paths(values.model)
    predict_task(
        task,
        models,
        values.output,
        values.split,
        values.overwrite,
        values.keep,
    )
    progress.console.print(f"Written to {values.output}")


def _answer(values):
    from bert_keras.serving.load import load_saved_model

    progress.console.stderr = True
    for flag, stream in (("input", "stdin"), ("output", "stdout")):
        if values[flag].value == "-" and stream in stopping.closed:
            raise InputError(
                f"--{flag}=- means {stream}, which is closed. Name a file."
            )
    paths = prediction.find_inputs(values.input)
    refuse_inputs(values.output, values.model, *paths)
    try:
        served = load_saved_model(values.model)
    except InputError as error:
        if "task" not in registry.read_run_record(values.model, "settings"):
            raise
        raise InputError(
            f"{error} To predict with a run, give --test=FILE in place of "
            "--input, and a folder as --output."
        ) from error
    progress.print_version(values.model, served)
    name, entry, columns = prediction.choose_signature(
        served, values.signature, values.columns
    )
    if values.output.lower().endswith((".csv", ".tsv", ".parquet")):
        prediction.check_kept(entry, columns, values.keep)
    notes: list[str] = []
    names = [*columns, *values.keep, *entry["input_order"]]
    ids = prediction.find_id(paths, values.input_format, names)
    kept = [*values.keep, *ids]
    dialect = make_dialect(values.separator, values.encoding)
    separator = None
    if values.output.lower().endswith(".csv"):
        separator = dialect.separator
        kinds = {
            prediction.find_kind(path, values.input_format) for path in paths
        }
        if "csv" not in kinds:
            dialect = dialect._replace(separator=None)
    answers = Answers(served, name, values.keep, values.batch_size)
    wanted = (
        values.input_format,
        [*columns, *kept],
        [*prediction.list_types(entry), *(False for _ in kept)],
        dialect,
    )
    if values.beam is not None:
        _answer_with_beam(values, answers, paths, separator, (wanted, ids))
        return
    rows = prediction.Rows(paths, *wanted, notes, ids)
    progress.print_notes(notes)
    printed = len(notes)
    counts = answers.write(rows, values.output, values.overwrite, separator)
    progress.show_devices()
    with (
        contextlib.closing(counts),
        progress.bar(f"Answers of {name}", rows.total) as update,
    ):
        for done in counts:
            update(done)
    if rows.total is None:  # a pipe or a data set was first read just now
        progress.print_notes(notes[printed:])
    message = format_count(answers.rows, "row")
    message += f", {answers.new_rows:,} of them by this command"
    if "truncated" in entry["outputs"] and answers.new_rows:
        fraction = answers.truncated / answers.new_rows
        message += f", {fraction:.1%} of these truncated"
    progress.console.print(message)


def _answer_with_beam(values, answers, paths, separator, reading):
    from official_tasks.engine.beam_answers import answer_files

    for flag, path in (("--input", paths[0]), ("--output", values.output)):
        if path == "-" or is_data_set(path):
            raise InputError(
                f"{flag} is {path}, but --beam reads and writes files. Name "
                "files, or leave --beam out."
            )
    shards = answer_files(
        paths,
        functools.partial(_read_file, *reading),
        answers,
        values.output,
        options.split_words("beam", values.beam),
        values.overwrite,
        separator,
    )
    last = f" to {shards[-1]}" if len(shards) > 1 else ""
    progress.console.print(f"Written to {shards[0]}{last}")


def _read_file(wanted, ids, path):
    return prediction.read_inputs([path], *wanted, optional=ids)


if __name__ == "__main__":
    cli.start(main, Options)
