"""Run tasks and count words on many machines with Apache Beam."""

import collections
import contextlib
import dataclasses
import os
import uuid
import zlib
from collections.abc import Callable, Iterable

from bert_keras import files
from bert_keras.data.corpus import Reading, find_files, paragraphs, read_file
from bert_keras.data.data_sets import is_data_set
from bert_keras.errors import InputError, install_command
from bert_keras.json_files import read_json, write_json
from bert_keras.text.learning import count_words

COUNT_SHARDS = 64  # files that the counts of words are written to


def import_beam():
    """Return the module `apache_beam`.

    Raises:
        InputError: Apache Beam is not installed.
    """
    try:
        import apache_beam as beam
    except ImportError as error:
        raise InputError(
            f"Apache Beam is not installed: {install_command('beam')}."
        ) from error
    return beam


@contextlib.contextmanager
def open_pipeline(flags: Iterable[str] = ()):
    """Yield `apache_beam` and a pipeline that runs at the end of the context.

    Args:
        flags: pipeline options of Beam, such as `--runner=FlinkRunner`.

    Raises:
        InputError: Apache Beam is not installed, refuses its flags, or a worker
            raised this error.
    """
    beam = import_beam()
    from apache_beam.options.pipeline_options import PipelineOptions

    try:
        pipeline = beam.Pipeline(options=PipelineOptions(list(flags)))
    except ValueError as error:
        raise InputError(f"Beam refuses its flags: {error}") from None
    try:
        with pipeline:
            yield beam, pipeline
    except InputError as error:  # of a worker: Beam adds the step's name
        text, step, _ = str(error).partition(" [while running ")
        raise InputError(text) from error if step else None


def make_runner(flags: Iterable[str] = ()) -> Callable:
    """Return a function of a picklable task and a list of items.

    It calls the task for each item on the workers of a Beam runner, and returns
    an empty tuple. The workers write their results to files in a folder that
    all machines share; see `create_from_files`.

    Args:
        flags: see `open_pipeline`.
    """

    def run(task, items):
        if items:
            with open_pipeline(flags) as (beam, pipeline):
                (
                    pipeline
                    | beam.Create(items)
                    | beam.Reshuffle()  # spread the items over workers
                    | beam.Map(task)
                )
        return ()

    return run


@dataclasses.dataclass(frozen=True)
class CountFile:
    """Task that counts the words of a file; it yields (word, count).

    Args:
        reading: see `read_documents`.
        lowercase: see `learn_vocabulary`.
        strip_accents: see `learn_vocabulary`.
    """

    reading: Reading
    lowercase: bool
    strip_accents: bool

    def __call__(self, path: str):
        texts = paragraphs(read_file(path, path, self.reading))
        counts = count_words(texts, self.lowercase, self.strip_accents)
        yield from counts.items()


@dataclasses.dataclass(frozen=True)
class WriteCounts:
    """Task that writes a shard of counts to a file of `folder`.

    Beam's `WriteToText` is not used: on Dask it loses the lines that a worker
    holds at the end.
    """

    folder: str

    def __call__(self, shard):
        number, counts = shard
        with files.atomic_output(_name_shard(self.folder, number)) as path:
            write_json(dict(counts), path)


def _name_shard(folder, number):
    return os.path.join(folder, f"{number:03d}.json")


def _find_shard(pair):
    return zlib.crc32(pair[0].encode()) % COUNT_SHARDS, pair


def count_words_of_files(
    source: str,
    reading: Reading,
    lowercase: bool,
    strip_accents: bool,
    prefix: str,
    flags: Iterable[str] = (),
) -> collections.Counter:
    """Count the words of text files on the workers of a Beam runner.

    The counts equal those of `count_words` if there are at most `MAX_WORDS`
    distinct words.

    Args:
        source: files; see `read_documents`. They must have the same paths on
            every machine, like `prefix`.
        reading: see `read_documents`.
        lowercase: see `learn_vocabulary`.
        strip_accents: see `learn_vocabulary`.
        prefix: start of the path of a new folder for the workers' files, which
            is removed at the end.
        flags: see `open_pipeline`.

    Raises:
        InputError: Apache Beam is not installed, or `source` is a data set or
            has no files.
    """
    if is_data_set(source):
        raise InputError(
            f"With Beam, words are counted in files, but {source} is a data "
            "set. Write its texts to files, or count without Beam."
        )
    count = CountFile(reading, lowercase, strip_accents)
    _, paths = find_files(source)
    counts: collections.Counter = collections.Counter()
    folder = f"{prefix}-{uuid.uuid4().hex[:12]}"
    try:
        with open_pipeline(flags) as (beam, pipeline):
            (
                pipeline
                | beam.Create(paths)
                | beam.Reshuffle()
                | beam.FlatMap(count)
                | beam.CombinePerKey(sum)
                | beam.Map(_find_shard)
                | beam.GroupByKey()
                | beam.Map(WriteCounts(folder))
            )
        # Partial files of workers that were killed have other names.
        paths = (_name_shard(folder, n) for n in range(COUNT_SHARDS))
        for path in filter(files.is_file, paths):
            counts.update(read_json(path, most=None))
    finally:
        files.remove(folder)
    return counts
