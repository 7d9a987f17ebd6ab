"""Makes a file for each input file on the workers of an Apache Beam runner."""

import dataclasses
import glob
import os
import re
from collections.abc import Callable, Iterable

from bert_keras import files
from bert_keras.data.beam import import_beam, open_pipeline
from bert_keras.errors import InputError, format_count
from bert_keras.json_files import json_hash
from official_tasks.engine.parts import FINISHED, FIX, open_run
from official_tasks.outputs import refuse_input_as_output

_PART = re.compile(r"\d{6,}-part-\d{6,}-[0-9a-f]{12}")
WRITTEN = "shards"  # stage of the run: all shards are in its folder


def list_shards(path: str, count: int) -> list[str]:
    """Return the paths of the shards of an output, as Beam names them."""
    start, end = os.path.splitext(path)
    return [f"{start}-{i:05d}-of-{count:05d}{end}" for i in range(count)]


def name_part(file: int, number: int, key: str) -> str:
    """Return the name of a part of a shard; see `make_shards` for `key`."""
    return f"{file:06}-part-{number:06}-{key}"


def make_shards(
    paths: list[str],
    path: str,
    settings: dict,
    compute: Callable,
    write: Callable,
    *,
    model: str,
    beam_flags: Iterable[str] = (),
    overwrite: bool = False,
    model_files: Iterable[str] = (),
) -> list[str]:
    """Make a file, called a shard, for each input file, as Beam's workers.

    The workers write shards into the folder of `open_run`, and may write parts
    of shards there, under names of `name_part`. When all shards are complete,
    they get their final names, and the parts are removed. The same call makes
    only the missing shards.

    Args:
        paths: input files, which have the same paths on every machine.
        path: the output; `list_shards` names its shards.
        settings: see `open_run`; the input files are added.
        compute: function of the module `apache_beam`, a collection of (number
            of a file, its path), the folder of `open_run` and a key, a hash of
            all that the shards depend on. It returns a collection of (number of
            a file, its results). Names have the key, because workers of a call
            that was killed may still write.
        write: picklable function of the number of a file, its results and a
            path, which writes the shard.
        model: path of the model, which no shard may replace.
        beam_flags: see `open_pipeline`.
        overwrite: see `open_run`.
        model_files: see `open_run`.

    Returns:
        the paths of the shards.

    Raises:
        InputError: Apache Beam is not installed, a shard would replace an
            input or a file of another command, or an input changed; see also
            `open_run`.
    """
    import_beam()
    count = len(paths)
    shards = list_shards(path, count)
    for shard in shards:
        refuse_input_as_output(shard, model, *paths)
    versions = _list_versions(paths)
    inputs = f"{format_count(count, 'file')}, {json_hash(versions)[:12]}"
    models = _list_versions(model_files)
    key = json_hash([settings, versions, models])[:12]
    start, end = map(glob.escape, os.path.splitext(path))
    old = files.find(f"{start}-?????-of-?????{end}")
    with open_run(
        path, {**settings, "input": inputs}, overwrite, model_files, shards
    ) as run:
        finished = run.read_results(FINISHED)
        if finished:
            if finished != _describe(shards):
                raise InputError(
                    f"A shard of {path} was changed or removed by another "
                    f"program. {FIX}"
                )
            return shards
        are_written = run.read_results(WRITTEN) is not None
        if old and not are_written and not overwrite:
            raise InputError(f"{old[0]} exists. {FIX}")
        made = [run.file(f"{i:06}-of-{count:06}-{key}") for i in range(count)]
        if not are_written:
            todo = [i for i, x in enumerate(made) if not files.exists(x)]
            with open_pipeline(beam_flags) as (beam, pipeline):
                sources = pipeline | beam.Create([(i, paths[i]) for i in todo])
                results = compute(beam, sources, run.path, key)
                results | "Write" >> beam.Map(_WriteShard(made, write))
            for before, now in zip(
                versions, _list_versions(paths), strict=True
            ):
                if now != before:
                    raise InputError(
                        f"{before[0]} changed while it was read. Run the "
                        "command again with --overwrite."
                    )
            run.finish(WRITTEN, count)
        for name in filter(_PART.fullmatch, files.list_folder(run.path)):
            files.remove(run.file(name))
        for part, shard in zip(made, shards, strict=True):
            if files.exists(part):  # not yet moved by a call that was killed
                with files.atomic_output(shard) as partial:
                    files.copy(part, partial)
                files.remove(part)
        for other in {*old} - {*shards}:  # of another number of files
            files.remove(other)
        run.finish(FINISHED, _describe(shards))
    return shards


def _list_versions(paths):
    return [[path, files.describe_version(path)] for path in paths]


def _describe(shards):
    """Return size and time of each shard, or None if one is missing."""
    if not all(map(files.exists, shards)):
        return None
    return [files.describe_version(shard) for shard in shards]


@dataclasses.dataclass(frozen=True)
class _WriteShard:
    """Task that writes a shard from the results of a file."""

    paths: list[str]
    write: Callable

    def __call__(self, result):
        file, items = result
        with files.atomic_output(self.paths[file]) as partial:
            self.write(file, items, partial)


def sort_results(file, items, what) -> list[tuple]:
    """Return the numbered results of a file in order.

    Args:
        file: number of the file.
        items: results, which begin with their number; and (-1, count, ...) with
            the number of results that were read.
        what: word for the results in a message, such as "answers".

    Raises:
        InputError: a result is missing, because the runner lost it.
    """
    (_, count, *_), *found = sorted(items)
    if [number for number, *_ in found] != list(range(count)):
        raise InputError(
            f"Expected {count} {what} of input file {file + 1}, got "
            f"{len(found)} from Beam's runner. Run the command again, or with "
            "another runner."
        )
    return found
