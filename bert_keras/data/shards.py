"""Draw examples from a token store; write them to shards of TFRecords."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterable

import tensorflow as tf

from bert_keras import files
from bert_keras.data import record_files
from bert_keras.data.building import open_build
from bert_keras.data.examples import DrawnExamples
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.token_store import VOCABULARY, TokenStore
from bert_keras.errors import InputError
from bert_keras.manifest import describe_file, find_fault
from bert_keras.text.vocabulary import write_vocabulary

_SHARD = r"examples-\d+-of-\d+\.tfrecord"
_BATCH = 1_024  # examples that are gathered, masked and serialized at once
_FROM_STORE = (
    "side documents sentences tokens corpus_hash vocabulary_hash "
    "vocabulary_size lowercase".split()
)


def write_records(
    store: TokenStore,
    folder: str,
    rules: SamplingRules,
    seed: int,
    copies: int = 1,
    run: Callable[[Callable, list], Iterable] = map,
    progress: Callable[[int, int], None] | None = None,
) -> dict:
    """Write a store's examples as record shards with a manifest.

    The text is used `copies` times. Each time, one shard is written for each
    window (see `EpochWindows`). A shard's bytes depend on the store, the rules,
    the seed and the shard's number, not on the number of workers. Intact shards
    of an earlier call are kept.

    Args:
        store: the `TokenStore` of the text.
        folder: output folder; created if it is missing.
        rules: how pairs and masks are drawn.
        seed: seed of pairs and masks, at least 0.
        copies: number of times that the text is used, each time with other
            examples.
        run: function of a picklable task and a list of items. It may use other
            processes. It returns the results, or an empty iterable.
        progress: function of the number of finished (or kept) shards and the
            number of all shards.

    Returns:
        The manifest.

    Raises:
        InputError: the folder has records, finished or not, made with other
            settings.
    """
    write = WriteShard(store, folder, rules, seed, copies)
    with open_build(folder, write.settings) as build:
        record_files.refuse_other(folder, write.settings)
        write.refuse_foreign()
        write_vocabulary(store.vocabulary, os.path.join(folder, VOCABULARY))
        shards = write.find_done(resumes=not build.is_new)
        write.remove_damaged(shards)
        manifest = _write_missing(write, build, shards, run, progress)
        build.forget()
    return manifest


def _write_missing(write, build, shards, run, progress) -> dict:
    if progress:
        progress(len(shards), len(write.names))
    missing = [n for n, name in enumerate(write.names) if name not in shards]
    for shard in run(write, missing):
        build.check()
        shards[shard["name"]] = shard
        if progress:
            progress(len(shards), len(write.names))
    entries = [
        shards.get(name) or write.describe(number)
        for number, name in enumerate(write.names)
    ]
    if None in entries:
        raise InputError(
            f"{build.file(write.names[entries.index(None)])} is "
            "missing or damaged. Run the command again."
        )
    manifest = {"shards": entries, **write.settings}
    return record_files.write_manifest(build.path, manifest)


class WriteShard:
    """Task that writes a shard.

    A call gets the shard's number and returns the shard's entry in the
    manifest. A shard under its final name is complete.
    """

    def __init__(self, store, folder, rules, seed, copies):
        self._arguments = store.source, folder, rules, seed, copies
        self._folder = folder
        self.settings = {
            "rules": dataclasses.asdict(rules),
            "seed": seed,
            "copies": copies,
            **{name: store.manifest[name] for name in _FROM_STORE},
        }
        self._examples = DrawnExamples(store, rules, seed)
        self._windows = [
            (copy, window)
            for copy in range(copies)
            for window in range(len(self._examples.windows.epoch(copy)[0]))
        ]
        count = len(self._windows)
        self.names = [
            f"examples-{number:05d}-of-{count:05d}.tfrecord"
            for number in range(count)
        ]

    def __getstate__(self):
        return self._arguments

    def __setstate__(self, arguments):
        source, *others = arguments
        self.__init__(TokenStore(source), *others)

    def __call__(self, number: int) -> dict:
        copy, window = self._windows[number]
        name = self.names[number]
        path = os.path.join(self._folder, name)
        pairs = self._examples.draw(copy, window)
        with files.atomic_output(path) as partial:
            with tf.io.TFRecordWriter(partial) as writer:
                for start in range(0, pairs.count, _BATCH):
                    batch = pairs[start : start + _BATCH]
                    rows = self._examples.rows(batch, copy, window, start)
                    for record in record_files.serialize(rows):
                        writer.write(record)
            return _make_entry(name, pairs.count, partial)

    def describe(self, number: int) -> dict | None:
        """Return the entry of a shard, or None if it is missing or damaged."""
        name = self.names[number]
        path = os.path.join(self._folder, name)
        if not files.is_file(path):
            return None
        expected = self._examples.draw(*self._windows[number]).count
        with contextlib.suppress(InputError):
            if record_files.count_records(path) == expected:
                return _make_entry(name, expected, path)
        return None

    def find_done(self, resumes: bool) -> dict[str, dict]:
        """Return a dict of name -> manifest entry, for the intact shards.

        Args:
            resumes: True if the folder has an unfinished build with the same
                settings, so that shards without a manifest are of this build.
        """
        known: dict[str, dict] = {}
        with contextlib.suppress(InputError):
            manifest = record_files.read_manifest(self._folder)
            known = {shard["name"]: shard for shard in manifest["shards"]}
        done = {
            name: entry
            for name, entry in known.items()
            if not find_fault(os.path.join(self._folder, name), entry)
        }
        for number, name in enumerate(self.names) if resumes else ():
            if name not in known and (entry := self.describe(number)):
                done[name] = entry
        return done

    def refuse_foreign(self):
        """Raise InputError if the folder has shards of another build."""
        for name in self._list_shards():
            if name not in self.names:
                raise InputError(
                    f"{self._folder} has {name}, which is not of this build, "
                    "and no manifest of the build that wrote it. Name another "
                    "folder, or delete the file."
                )

    def remove_damaged(self, done: dict[str, dict]):
        """Remove shards that are not in `done`: they are written again."""
        for name in self._list_shards():
            if name not in done:
                files.remove(os.path.join(self._folder, name))

    def _list_shards(self) -> list[str]:
        names = files.list_folder(self._folder)
        return [name for name in names if re.fullmatch(_SHARD, name)]


def _make_entry(name: str, examples: int, path: str) -> dict:
    return {"name": name, "examples": examples, **describe_file(path)}
