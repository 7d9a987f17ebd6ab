"""Answers the rows of files on the workers of an Apache Beam runner."""

import dataclasses
from collections.abc import Callable, Iterable

from bert_keras.data.beam import import_beam
from bert_keras.serving.many_rows import BATCHES_AT_ONCE
from official_tasks.engine.answer_formats import Table
from official_tasks.engine.answers import Answers, LineFormat
from official_tasks.engine.beam_shards import make_shards, sort_results
from official_tasks.tasks.forms.cells import ID


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

    A shard has the content that `Answers.write` would write for its file.

    Args:
        paths: see `make_shards`.
        read: picklable function of a path that yields rows; see
            `Answers.write`.
        answers: how to answer. Its model has the same path on every machine.
        path: see `make_shards`.
        beam_flags: see `open_pipeline`.
        overwrite: see `open_run`.
        separator: see `Answers.write`.

    Returns:
        the paths of the shards.

    Raises:
        InputError: see `Answers.write` and `make_shards`.
    """
    import_beam()
    write = answers.choose_writer(path)
    return make_shards(
        paths,
        path,
        answers.describe(separator),
        lambda beam, sources, *_: _answer(beam, sources, read, answers),
        _WriteAnswers(write, answers.keep, answers.entry, separator),
        beam_flags=beam_flags,
        overwrite=overwrite,
        model=answers.served.folder,
    )


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
class _WriteAnswers:
    """Task that writes the answers to a file."""

    write: Callable
    keep: list[str]
    entry: dict
    separator: str | None

    def __call__(self, file, items, path):
        items = sort_results(file, items, "answers")
        lines = [line for _, line, _ in items]
        has_column = any(has_id for *_, has_id in items) and ID not in self.keep
        keep = [ID] * has_column + self.keep
        table = Table(keep, self.entry, self.separator)
        self.write(lambda: iter(lines), path, table)
