"""Answers the rows of files on the workers of an Apache Beam runner."""

import dataclasses
import glob
import os
from collections.abc import Callable, Iterable

from bert_keras import files
from bert_keras.data.beam import import_beam, open_pipeline
from bert_keras.errors import InputError, format_count
from bert_keras.json_files import json_hash
from bert_keras.serving.many_rows import BATCHES_AT_ONCE
from official_tasks.engine.answer_formats import Table
from official_tasks.engine.answers import Answers, LineFormat
from official_tasks.engine.parts import FINISHED, FIX, open_run
from official_tasks.overwriting import refuse_input_as_output
from official_tasks.tasks.forms.cells import ID

ANSWERED = "answers"  # stage of the run: all shards are in its folder


def list_shards(path: str, count: int) -> list[str]:
    """Return the paths of the shards of an output, as Beam names them."""
    start, end = os.path.splitext(path)
    return [f"{start}-{i:05d}-of-{count:05d}{end}" for i in range(count)]


def answer_files(
    paths: list[str],
    read: Callable[[str], Iterable[list]],
    answers: Answers,
    path: str,
    beam_flags: Iterable[str] = (),
    overwrite: bool = False,
    separator: str | None = None,
) -> list[str]:
    """Write a file with the answers to each input file, as Beam's workers.

    A shard has the content that `Answers.write` would write for its file. The
    workers write shards into the folder of `open_run`. When all are complete,
    they get their final names. The same call makes only the missing shards.

    Args:
        paths: input files, which have the same paths on every machine.
        read: picklable function of a path that yields rows; see
            `Answers.write`.
        answers: how to answer. Its model has the same path on every machine.
        path: the output; `list_shards` names its shards.
        beam_flags: see `open_pipeline`.
        overwrite: see `open_run`.
        separator: see `Answers.write`.

    Returns:
        the paths of the shards.

    Raises:
        InputError: Apache Beam is not installed, a shard would replace an
            input or a file of another command, or a runner lost rows; see also
            `Answers.write` and `open_run`.
    """
    import_beam()
    write = answers.choose_writer(path)
    count = len(paths)
    shards = list_shards(path, count)
    for shard in shards:
        refuse_input_as_output(shard, answers.served.folder, *paths)
    settings = answers.describe(separator)
    versions = [[p, files.describe_version(p)] for p in paths]
    settings["input"] = (
        f"{format_count(count, 'file')}, {json_hash(versions)[:12]}"
    )
    start, end = map(glob.escape, os.path.splitext(path))
    old = files.find(f"{start}-?????-of-?????{end}")
    with open_run(path, settings, overwrite, outputs=shards) as run:
        finished = run.read_results(FINISHED)
        if finished:
            if finished != _describe(shards):
                raise InputError(
                    f"A shard of {path} was changed or removed by another "
                    f"program. {FIX}"
                )
            return shards
        has_answered = run.read_results(ANSWERED) is not None
        if old and not has_answered and not overwrite:
            raise InputError(f"{old[0]} exists. {FIX}")
        made = [run.file(f"{i:06}-of-{count:06}") for i in range(count)]
        if not has_answered:
            todo = [i for i, x in enumerate(made) if not files.exists(x)]
            task = _WriteShard(
                made, write, answers.keep, answers.entry, separator
            )
            with open_pipeline(beam_flags) as (beam, pipeline):
                sources = pipeline | beam.Create([(i, paths[i]) for i in todo])
                _answer(beam, sources, read, answers) | beam.Map(task)
            run.finish(ANSWERED, count)
        for part, shard in zip(made, shards, strict=True):
            if files.exists(part):  # not yet moved by a call that was killed
                with files.atomic_output(shard) as partial:
                    files.copy(part, partial)
                files.remove(part)
        for other in {*old} - {*shards}:  # of another number of files
            files.remove(other)
        run.finish(FINISHED, _describe(shards))
    return shards


def _describe(shards):
    """Return size and time of each shard, or None if one is missing."""
    if not all(map(files.exists, shards)):
        return None
    return [files.describe_version(shard) for shard in shards]


def _answer(beam, sources, read, answers):
    """Return a collection of (number of a file, its numbered lines)."""
    from apache_beam.ml.inference.base import KeyedModelHandler, RunInference

    from bert_keras.serving.beam_handler import SavedModelHandler

    handler = SavedModelHandler(
        answers.served.folder, answers.signature, answers.batch_size
    )
    size = BATCHES_AT_ONCE * answers.batch_size
    lines = (
        sources
        | "Spread files" >> beam.Reshuffle()
        | beam.FlatMap(_ReadGroups(read, answers.format.inputs, size))
        | "Spread rows" >> beam.Reshuffle()
        | RunInference(KeyedModelHandler(handler).with_no_batching())
        | "Format" >> beam.Map(_FormatLine(answers.format))
    )
    counts = sources | "Count" >> beam.Map(_CountRows(read))
    return (lines, counts) | beam.Flatten() | beam.GroupByKey()


@dataclasses.dataclass(frozen=True)
class _ReadGroups:
    """Task that reads a file; it yields lists of (key, dict of inputs).

    A list is a part of `Answers`, so its rows are in the same batches. It is
    one element of the pipeline, because Beam's `BatchElements` loses the last
    rows of each worker on Dask.
    """

    read: Callable[[str], Iterable[list]]
    inputs: list[str]
    size: int

    def __call__(self, item):
        file, path = item
        group = []
        for number, row in enumerate(self.read(path)):
            count = len(self.inputs)
            inputs = dict(zip(self.inputs, row[:count], strict=True))
            group.append(((file, number, row[count:]), inputs))
            if len(group) == self.size:
                yield group
                group = []
        if group:
            yield group


@dataclasses.dataclass(frozen=True)
class _CountRows:
    """Task that counts the rows of a file, for a check of the result."""

    read: Callable[[str], Iterable[list]]

    def __call__(self, item):
        file, path = item
        return file, (-1, sum(1 for _ in self.read(path)), None)


@dataclasses.dataclass(frozen=True)
class _FormatLine:
    """Task that makes a line from a row and the model's outputs."""

    format: LineFormat

    def __call__(self, result):
        (file, number, kept), prediction = result
        row = [*prediction.example.values(), *kept]
        line = self.format(number, row, prediction.inference)
        return file, (number, line.encode(), self.format.has_id(row))


@dataclasses.dataclass(frozen=True)
class _WriteShard:
    """Task that writes the answers to a file."""

    paths: list[str]
    write: Callable
    keep: list[str]
    entry: dict
    separator: str | None

    def __call__(self, result):
        file, items = result
        (_, count, _), *items = sorted(items)
        lines = [line for _, line, _ in items]
        if [number for number, *_ in items] != list(range(count)):
            raise InputError(
                f"Expected the answers to {count} rows of input file "
                f"{file + 1}, got {len(lines)} from Beam's runner. Run the "
                "command again, or with another runner."
            )
        has_column = any(has_id for *_, has_id in items) and ID not in self.keep
        keep = [ID] * has_column + self.keep
        table = Table(keep, self.entry, self.separator)
        with files.atomic_output(self.paths[file]) as partial:
            self.write(lambda: iter(lines), partial, table)
