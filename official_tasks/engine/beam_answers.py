"""Answers the rows of files on the workers of an Apache Beam runner."""

import dataclasses
import os
from collections.abc import Callable, Iterable

from bert_keras import files
from bert_keras.data.beam import open_pipeline
from bert_keras.errors import InputError
from bert_keras.run_folder import SETTINGS
from bert_keras.serving.many_rows import BATCHES_AT_ONCE
from official_tasks.engine.answer_formats import Table
from official_tasks.engine.answers import Answers, LineFormat
from official_tasks.engine.parts import FIX, PARTS, open_parts
from official_tasks.tasks.forms.cells import ID


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

    A shard has the content that `Answers.write` would write for its file. A
    shard under its final name is complete, so the same call skips its file.

    Args:
        paths: input files, which have the same paths on every machine.
        read: picklable function of a path that yields rows; see
            `Answers.write`.
        answers: how to answer. Its model has the same path on every machine.
        path: the output; `list_shards` names its shards.
        beam_flags: see `open_pipeline`.
        overwrite: see `open_parts`.
        separator: see `Answers.write`.

    Returns:
        the paths of the shards.

    Raises:
        InputError: Apache Beam is not installed, a shard exists that an earlier
            call did not write, or a runner lost rows; see also `Answers.write`
            and `open_parts`.
    """
    write = answers.choose_writer(path)
    shards = list_shards(path, len(paths))
    settings = answers.describe(separator)
    settings["files"] = [[p, files.describe_version(p)] for p in paths]
    is_known = files.is_file(os.path.join(path + PARTS, SETTINGS))
    foreign = [x for x in shards if files.exists(x)]
    if foreign and not is_known and not overwrite:
        raise InputError(f"{foreign[0]} exists already. {FIX}")
    with open_parts(path, settings, overwrite):
        for shard in foreign if overwrite else ():
            files.remove(shard)
        todo = [
            (number, source)
            for number, source in enumerate(paths)
            if not files.exists(shards[number])
        ]
        if todo:
            with open_pipeline(beam_flags) as (beam, pipeline):
                lines = _answer(
                    beam, pipeline | beam.Create(todo), read, answers
                )
                lines | beam.Map(
                    _WriteShard(
                        shards, write, answers.keep, answers.entry, separator
                    )
                )
    return shards


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
        | beam.FlatMap(_ReadGroups(read, len(answers.format.inputs), size))
        | "Spread rows" >> beam.Reshuffle()
        | RunInference(KeyedModelHandler(handler).with_no_batching())
        | "Format" >> beam.Map(_FormatLine(answers.format))
    )
    counts = sources | "Count" >> beam.Map(_CountRows(read))
    return (lines, counts) | beam.Flatten() | beam.GroupByKey()


@dataclasses.dataclass(frozen=True)
class _ReadGroups:
    """Task that reads a file; it yields lists of (key, inputs of a row).

    A list is a part of `Answers`, so its rows are in the same batches. It is
    one element of the pipeline, because Beam's `BatchElements` loses the last
    rows of each worker on Dask.
    """

    read: Callable[[str], Iterable[list]]
    inputs: int
    size: int

    def __call__(self, item):
        file, path = item
        group = []
        for number, row in enumerate(self.read(path)):
            group.append(((file, number, row), row[: self.inputs]))
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
        (file, number, row), prediction = result
        line = self.format(number, row, prediction.inference)
        return file, (number, line.encode(), self.format.has_id(row))


@dataclasses.dataclass(frozen=True)
class _WriteShard:
    """Task that writes the answers to a file."""

    shards: list[str]
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
                f"{self.shards[file]}: expected the answers to {count} rows, "
                f"got {len(lines)} from Beam's runner. Run the command "
                "again, or with another runner."
            )
        has_column = any(has_id for *_, has_id in items) and ID not in self.keep
        keep = [ID] * has_column + self.keep
        table = Table(keep, self.entry, self.separator)
        with files.atomic_output(self.shards[file]) as partial:
            self.write(lambda: iter(lines), partial, table)
