"""Convert raw documents to token stores and to shards of examples.

Only one process at a time can write to a folder.
"""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterable

import tensorflow as tf

from bert_keras import files
from bert_keras.data import record_files
from bert_keras.data.building import build_stores, work_folder
from bert_keras.data.corpus import Document
from bert_keras.data.examples import DrawnExamples
from bert_keras.data.record_files import serialize
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.token_store import VOCABULARY, TokenStore
from bert_keras.data.workers import in_order
from bert_keras.errors import InputError
from bert_keras.folder_lock import LOCK, FolderLock
from bert_keras.manifest import (
    check_fields,
    check_same_settings,
    describe_file,
    find_fault,
    read_manifest,
    unfinished_build,
    write_manifest,
)
from bert_keras.text.vocabulary import write_vocabulary

_CHECKED_EVERY = 10  # seconds between checks of the lock
_MIN_SHARDS = 4  # minimum number of shards to start workers; a shard takes 2 s
_BATCH = 1_024  # examples that are gathered, masked and serialized at once
_FROM_STORE = (
    "side documents sentences tokens corpus_hash vocabulary_hash "
    "vocabulary_size lowercase".split()
)


def create_pretraining_data(
    documents: Iterable[Document],
    tokenizer,
    folder: str,
    rules: SamplingRules | None = None,
    seed: int = 0,
    copies: int = 1,
    held_out_share: float = 0.05,
    sentences: str = "split",
    workers: int = 1,
    progress: Callable[[str, int, int | None], None] | None = None,
    records: bool = False,
    held_out: Iterable[Document] = (),
) -> dict[str, dict]:
    """Convert raw documents to records for training and for evaluation.

    `folder` gets the token stores `tokens/train` and `tokens/held_out`. With
    `records`, it also gets the records `train` and `held_out`, which are drawn
    from the stores. After an interruption, a second call resumes the work.

    Args:
        documents: iterable of `Document`, such as from `read_documents`.
        tokenizer: a `WordPieceTokenizer`.
        folder: output folder; created if it is missing. May be remote; see
            `build_stores`.
        rules: how pairs and masks of records are drawn; None for
            `SamplingRules()`. Like `seed` and `copies`, it has no effect
            without `records`.
        seed: seed of pairs and masks, at least 0.
        copies: number of times that the training text is used, each time with
            different pairs and masks (`dupe_factor` of the original BERT).
            Held-out text is used once.
        held_out_share: approximate fraction of the documents for `held_out`,
            chosen by the hash of their text; 0 for none.
        sentences: "split" or "lines"; see `build_stores`.
        workers: number of processes; see `build_stores`.
        progress: function of the stage ("tokens", "train" or "held_out"), the
            number of finished documents or shards, and their total number
            (None if unknown).
        records: True to write records, too. Without them, training draws new
            examples from the stores in each epoch, by its own rules.
        held_out: see `build_stores`. Needs `held_out_share=0`.

    Returns:
        Dict with the manifests of "train" and, if documents are held out, of
        "held_out". They describe the records or, without records, the stores.

    Raises:
        InputError: an argument is out of range, `train` or `held_out` has fewer
            than two documents, the folder has data of other documents or
            settings, or another process writes to the folder.
    """
    with one_writer(folder, copies, progress) as progress:
        stores = build_stores(
            documents,
            tokenizer,
            os.path.join(folder, "tokens"),
            held_out_share,
            sentences,
            workers,
            lambda done, _: progress("tokens", done, None),
            held_out,
        )
        run = functools.partial(
            in_order, workers=workers, min_items=_MIN_SHARDS
        )
        return finish_data(
            stores, folder, rules, seed, copies, records, run, progress
        )


@contextlib.contextmanager
def one_writer(folder: str, copies: int, progress: Callable | None = None):
    """Hold a folder's lock; yield a `progress` function that checks the lock.

    If the folder is new and still empty after an `InputError`, the folder and
    its new parents are removed.

    Raises:
        InputError: another process holds the lock or took it over, or
            `copies` is below 1.
    """
    if copies < 1:
        raise InputError(f"`copies` must be at least 1; got {copies}.")
    made = files.make_folder(folder)
    lock = FolderLock(folder)
    checked = time.monotonic()

    def checking(*done):
        nonlocal checked
        if time.monotonic() > checked + _CHECKED_EVERY:
            lock.check()
            checked = time.monotonic()
        if progress:
            progress(*done)

    try:
        yield checking
    except InputError:
        if made and set(files.walk(folder)) <= {os.path.join(folder, LOCK)}:
            lock.remove()
            files.remove_made(made)
        raise
    finally:
        lock.release()


def finish_data(
    stores: dict[str, TokenStore],
    folder: str,
    rules: SamplingRules | None,
    seed: int,
    copies: int,
    records: bool,
    run: Callable[[Callable, list], Iterable],
    progress: Callable | None = None,
) -> dict[str, dict]:
    """Write the records if `records` is True; return the manifests.

    If `folder` is remote, also remove the local `work_folder` of the stores.
    `stores` is a dict of split ("train" or "held_out") -> `TokenStore`. `run`:
    see `write_records`. Other arguments: see `create_pretraining_data`.
    """
    manifests = {name: store.manifest for name, store in stores.items()}
    for name, store in stores.items() if records else ():
        manifests[name] = write_records(
            store,
            os.path.join(folder, name),
            rules or SamplingRules(),
            seed,
            copies if name == "train" else 1,
            run,
            functools.partial(progress, name) if progress else None,
        )
    if files.is_remote(folder):
        files.remove(work_folder(os.path.join(folder, "tokens")))
    return manifests


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
        run: function like `map`, for a picklable task and a list of items. It
            may use other processes.
        progress: function of the number of finished (or kept) shards and the
            number of all shards.

    Returns:
        The manifest.

    Raises:
        InputError: the folder has records, finished or not, made with other
            settings.
    """
    write = WriteShard(store, folder, rules, seed, copies)
    record_files.refuse_other(folder, write.settings)
    with unfinished_build(folder, write.settings):
        return _write_missing(write, folder, store.vocabulary, run, progress)


def _write_missing(write, folder, vocabulary, run, progress) -> dict:
    files.remove_partials(folder)  # unfinished files of killed writers
    write_vocabulary(vocabulary, os.path.join(folder, VOCABULARY))
    shards = write.find_done()
    if progress:
        progress(len(shards), len(write.names))
    missing = [n for n, name in enumerate(write.names) if name not in shards]
    for number, _ in enumerate(run(write, missing), len(shards) + 1):
        if progress:
            progress(number, len(write.names))
    entries = [
        shards.get(name) or write.read_entry(name) for name in write.names
    ]
    manifest = {"shards": entries, **write.settings}
    manifest = record_files.write_manifest(folder, manifest)
    files.remove(write.entries)
    return manifest


class WriteShard:
    """Task that writes a shard and its manifest entry.

    A call gets the shard's number and returns the shard's name.
    """

    def __init__(self, store, folder, rules, seed, copies):
        self._arguments = store.source, folder, rules, seed, copies
        self._folder = folder
        self.entries = os.path.join(folder, ".entries")
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

    def __call__(self, number: int) -> str:
        copy, window = self._windows[number]
        name = self.names[number]
        path = os.path.join(self._folder, name)
        pairs = self._examples.draw(copy, window)
        with files.atomic_output(path) as partial:
            with tf.io.TFRecordWriter(partial) as writer:
                for start in range(0, pairs.count, _BATCH):
                    batch = pairs[start : start + _BATCH]
                    rows = self._examples.rows(batch, copy, window, start)
                    for record in serialize(rows):
                        writer.write(record)
            shard = {"name": name, "examples": pairs.count}
            shard |= describe_file(partial)
        entry = {"shard": shard, "settings": self.settings}
        write_manifest(self._entry_path(name), entry)
        return name

    def _entry_path(self, name: str) -> str:
        return os.path.join(self.entries, f"{name}.json")

    def read_entry(self, name: str) -> dict:
        """Return the manifest entry of a shard.

        Raises:
            InputError: the entry is missing or damaged, or the shard was
                written with other settings.
        """
        path = self._entry_path(name)
        types = {"shard": dict, "settings": dict}
        entry = read_manifest(path, "shard", lambda e: check_fields(e, types))
        check_same_settings(entry["settings"], self.settings, self._folder)
        return entry["shard"]

    def find_done(self) -> dict[str, dict]:
        """Return a dict of name -> manifest entry, for the intact shards."""
        done = {}
        with contextlib.suppress(InputError):
            manifest = record_files.read_manifest(self._folder)
            done = {shard["name"]: shard for shard in manifest["shards"]}
        for name in self.names:
            with contextlib.suppress(InputError):
                done[name] = done.get(name) or self.read_entry(name)
        return {
            name: entry
            for name, entry in done.items()
            if not find_fault(os.path.join(self._folder, name), entry)
        }
