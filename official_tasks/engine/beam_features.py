"""Extracts features of files on the workers of an Apache Beam runner.

Importing this module needs Apache Beam.
"""

import dataclasses
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable

from apache_beam.ml.inference.base import ModelHandler, RunInference

from bert_keras import files
from bert_keras.errors import InputError
from official_tasks.engine.beam_shards import (
    make_shards,
    name_part,
    sort_results,
)
from official_tasks.engine.features import split_texts, write_features


def extract_files(
    paths: list[str],
    read: Callable[[str], Iterable[list[str]]],
    make_extractor: Callable,
    path: str,
    settings: dict,
    beam_flags: Iterable[str] = (),
    overwrite: bool = False,
    model_files: Iterable[str] = (),
) -> list[str]:
    """Write a file of features for each input file, as Beam's workers.

    A shard has the content that one process would write for its file. The
    workers write the features of 256 texts at a time into the folder of
    `open_run`, so a shard need not fit into memory.

    Args:
        paths: see `make_shards`.
        read: picklable function of a path that yields texts, lists of words.
        make_extractor: picklable function that returns an `Extractor`. Each
            worker calls it once.
        path: see `make_shards`; an output of `write_features`.
        settings: see `make_shards`; "model" is the path of the model.
        beam_flags: see `open_pipeline`.
        overwrite: see `open_run`.
        model_files: see `open_run`.

    Returns:
        the paths of the shards.

    Raises:
        InputError: a file has no text; see also `Extractor` and `make_shards`.
    """

    def compute(beam, sources, folder, key):
        make_extractor()  # a mistake in its arguments is an error at once
        parts = (
            sources
            | "Spread files" >> beam.Reshuffle()
            | beam.FlatMap(_ReadParts(read, folder, key))
            | "Spread parts" >> beam.Reshuffle()
            | RunInference(_ExtractorHandler(make_extractor).with_no_batching())
        )
        counts = sources | "Count" >> beam.Map(_CountParts(read))
        return (parts, counts) | beam.Flatten() | beam.GroupByKey()

    return make_shards(
        paths,
        path,
        settings,
        compute,
        _WriteFeatures(path),
        model=settings["model"],
        beam_flags=beam_flags,
        overwrite=overwrite,
        model_files=model_files,
    )


class _ExtractorHandler(ModelHandler):
    """Model handler of `RunInference` that writes parts; see `_ReadParts`."""

    def __init__(self, make_extractor):
        super().__init__()
        self._make_extractor = make_extractor

    def load_model(self):
        return self._make_extractor()

    def run_inference(self, batch, model, inference_args=None):
        """Return (number of a file, (number of a part, its path)) for each."""
        for _, _, path, texts, before, source in batch:
            if not files.exists(path):  # else of a call that was interrupted
                try:
                    content = model.make_part(texts, before)
                except InputError as error:
                    raise InputError(f"{source}: {error}") from None
                with (
                    files.atomic_output(path) as partial,
                    open(partial, "wb") as stream,
                ):
                    stream.write(content)
        return [(file, (number, path)) for file, number, path, *_ in batch]


@dataclasses.dataclass(frozen=True)
class _ReadParts:
    """Task that reads a file; it yields lists of one part each.

    A part is (number of the file, its own number, path to write, texts, number
    of texts before, path of the file).
    """

    read: Callable[[str], Iterable[list[str]]]
    folder: str
    key: str

    def __call__(self, item):
        file, path = item
        before = 0
        for number, texts in enumerate(split_texts(self.read(path))):
            name = os.path.join(self.folder, name_part(file, number, self.key))
            yield [(file, number, name, texts, before, path)]
            before += len(texts)


@dataclasses.dataclass(frozen=True)
class _CountParts:
    """Task that counts the parts of a file, for a check of the result."""

    read: Callable[[str], Iterable[list[str]]]

    def __call__(self, item):
        file, path = item
        count, has_text = 0, False
        for texts in split_texts(self.read(path)):
            count, has_text = count + 1, has_text or any(texts)
        if not has_text:
            raise InputError(f"{path} has no text. Name files with text.")
        return file, (-1, count)


@dataclasses.dataclass(frozen=True)
class _WriteFeatures:
    """Task that joins the parts of a file."""

    output: str

    def __call__(self, file, items, path):
        parts = [name for _, name in sort_results(file, items, "parts")]
        read = []

        def contents():
            for name in parts:
                read.append(name)
                yield files.read_bytes(name, None)

        try:
            write_features(self.output, contents, path)
        except InputError:
            raise
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError):
            raise InputError(
                f"{read[-1]} was changed after it was written. Remove it, and "
                "run the command again."
            ) from None
