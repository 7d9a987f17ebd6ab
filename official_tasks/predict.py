r"""Asks an exported model many texts and writes an answer a line.

    python -m official_tasks.predict --model=runs/served --input=texts.txt \
        --output=answers.jsonl

In: the folder of a SavedModel that tools/export.py made, and a file of lines,
or CSV, TSV or JSONL with a column for each input of the signature (also .gz;
--separator and --encoding as for a task's own files), Parquet, Arrow, a
pattern such as 'logs/*.csv', a data set, hf:NAME[/CONFIG][:SPLIT] or
tfds:NAME, or - for a pipe. Out: an answer a row, in the rows' order, with its
inputs and with the columns of --keep; the format follows from the name: .jsonl
(tools/compare.py asks such a file again), .csv, .tsv, .parquet, and of vectors
.npy. The same command resumes an interrupted file. Progress, and the fraction
of texts that were truncated to what a row holds, go to standard error:

    zcat texts.gz | python -m official_tasks.predict --model=runs/served \
        --input=- --output=- > answers.jsonl

With --task it writes the task's official prediction files instead, from the
folders of fine-tuning runs; of several, --model=A,B,C, the outputs are
averaged:

    python -m official_tasks.predict --task=mrpc --data_dir=glue \
        --model=runs/mrpc --output=runs/mrpc/submission

Takes some seconds and the model's time for the texts, in batches of like
length.
"""

from absl import flags

from bert_keras import files
from bert_keras.errors import InputError
from official_tasks import progress, script
from official_tasks.engine import prediction
from official_tasks.engine.answers import WRITERS, Answers
from official_tasks.tasks import registry
from official_tasks.tasks.base import SPLITS
from official_tasks.tasks.table import make_dialect

OWN = ("separator", "encoding")  # of --input, and of a task's files


def define_flags():
    flags.DEFINE_string("model", None, "Folder of the SavedModel.")
    flags.DEFINE_string("input", "-", "Files of texts, or - for a pipe.")
    flags.DEFINE_string(
        "output", "-", f"File to write, {', '.join(WRITERS)}, or - for a pipe."
    )
    script.define_overwrite()
    flags.DEFINE_enum(
        "format",
        None,
        ("lines", "csv", "tsv", "jsonl"),
        "Format of the input; by default by its name, otherwise lines.",
    )
    flags.DEFINE_string(
        "signature", None, "Signature to ask; by default the first model's own."
    )
    flags.DEFINE_list(
        "columns", None, "Columns of the inputs, if named differently."
    )
    flags.DEFINE_list("keep", [], "Columns to write next to the answers.")
    flags.DEFINE_integer(
        "batch_size", 32, "Rows at once.", 1, script.LARGEST_BATCH
    )
    registry.define_task_flags(more={None: OWN})
    flags.adopt_module_key_flags(registry)
    flags.DEFINE_enum("split", "test", SPLITS, "With --task: what to predict.")
    script.applies_only(
        "without --task, which reads the task's own files",
        lambda v: v.task is None,
        *("input", "format", "signature", "columns", "keep", "batch_size"),
    )
    script.applies_only(
        "to a table, and --input has lines", _reads_tables, "columns", "keep"
    )
    script.applies_only(
        "with --task",
        lambda v: v.task is not None,
        *("split", "option", *(n for n in registry.OPTIONS if n not in OWN)),
    )
    flags.mark_flag_as_required("model")


def _reads_tables(values):
    paths = files.find(values.input) or [values.input]
    kinds = {prediction.kind_of(path, values.format) for path in paths}
    return "lines" not in kinds


def main(values):
    if values.task is None:
        _ask(values)
    else:
        _write_official_files(values)


def _write_official_files(values):
    from official_tasks.engine.leaderboard import predict_task

    if values.output == "-":
        raise InputError("--output is missing: give a folder for the files")
    progress.show_devices()
    task, _ = registry.task_from_flags(values)
    models = files.split_paths(values.model)
    predict_task(task, models, values.output, values.split, values.overwrite)
    progress.console.print(f"Written to {values.output}")


def _ask(values):
    from bert_keras.serving.load import load_saved_model

    progress.console.stderr = True
    paths = prediction.input_paths(values.input)
    if values.output != "-":
        files.refuse_input_as_output(values.output, values.model, *paths)
    served = load_saved_model(values.model)
    name, entry, columns = prediction.asked(
        served, values.signature, values.columns
    )
    rows = (
        paths,
        values.format,
        [*columns, *values.keep],
        [*prediction.lists_of(entry), *(False for _ in values.keep)],
        make_dialect(values.separator, values.encoding),
    )
    total = prediction.count_rows(*rows)
    with Answers(
        values.output, served, name, values.keep, values.overwrite
    ) as answers:
        progress.show_devices()
        before = answers.done
        asked = answers.answered(
            prediction.read_inputs(*rows), values.batch_size
        )
        with progress.bar(f"Asking {name}", total, before) as update:
            for done in asked:
                update(done)
                if values.output == "-" and not script.output_is_read():
                    return  # who reads our output has enough
        answers.finish()
    message = f"{answers.done} rows, {answers.done - before} of them now"
    if answers.counts_truncated and answers.done:
        message += f"; {answers.truncated / answers.done:.1%} truncated"
    progress.console.print(message)


if __name__ == "__main__":
    script.start(main, define_flags)
