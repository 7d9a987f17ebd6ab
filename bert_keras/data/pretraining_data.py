"""Raw documents to token stores and record shards, by one process at a time."""

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
from bert_keras.journal import PROGRESS, Journal
from bert_keras.manifest import describe_file
from bert_keras.text.vocabulary import write_vocabulary

_CHECKED_EVERY = 10  # seconds
_WORTH = 4  # shards, of two seconds each, are worth starting processes
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
    records: bool = True,
    held_out: Iterable[Document] = (),
) -> dict[str, dict]:
    """Raw documents to records for training and for evaluation.

    Writes under `folder` the records `train` and `held_out`, and the token
    stores that they were drawn from, `tokens/train` and `tokens/held_out`.
    Called again after an interruption, it resumes where it stopped.

    Args:
        documents: from `read_documents`.
        tokenizer: a `WordPieceTokenizer`.
        folder: where to write; made where it is missing. May be remote; see
            `build_stores`.
        rules: how pairs and masks are drawn; the paper's by default.
        seed: int.
        copies: how often the training text is used, with other pairs and
            masks (the original's `dupe_factor`); held-out text is used once.
        held_out_share: about this share of the documents, chosen by the hash
            of their content, goes to `held_out`; 0 for none.
        sentences: "split" or "lines"; see `build_stores`.
        workers: processes; see `build_stores`.
        progress: called with the stage ("tokens", "train" or "held_out"),
            how much of it is done (documents or shards) and how much there
            is, None if unknown.
        records: whether to write them; the stores alone are enough to draw
            other examples in each epoch.
        held_out: see `build_stores`.

    Returns:
        The manifests of `train` and, unless the share is 0, `held_out`: of
        the records, or of the stores where no records are written.

    Raises:
        InputError: fewer than two documents on either side, the folder
            holds data of other documents or settings, or another process
            writes to it.
    """
    rules = rules or SamplingRules()
    tokens = os.path.join(folder, "tokens")
    with one_writer(folder, progress) as progress:
        stores = build_stores(
            documents,
            tokenizer,
            tokens,
            held_out_share,
            sentences,
            workers,
            lambda done, _: progress("tokens", done, None),
            held_out,
        )

        def write(name, store, copies):
            target = os.path.join(folder, name)
            report = functools.partial(progress, name)
            return write_records(
                store, target, rules, seed, copies, workers, report
            )

        manifests = manifests_of(stores, copies, write if records else None)
    if files.is_remote(folder):
        for part in ("tokens", *manifests):
            files.remove(work_folder(os.path.join(folder, part)))
    return manifests


@contextlib.contextmanager
def one_writer(folder: str, progress: Callable | None = None):
    """Hold a folder's lock; yield `progress`, which checks it too.

    After a mistake that left nothing in a new folder, the folder goes.

    Raises:
        InputError: another process has the folder, or took it over.
    """
    made = _missing(folder)
    files.make_folder(folder)
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
        if set(files.list_folder(folder)) <= {LOCK}:
            lock.remove()
            _remove_empty(made)
        else:
            lock.release()
        raise
    except BaseException:
        lock.release()
        raise
    lock.release()


def _missing(folder: str) -> list[str]:
    """Return the folders that making this one makes, the innermost first."""
    missing = []
    folder = files.absolute(folder)
    while not files.is_remote(folder) and not os.path.exists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing


def _remove_empty(folders: list[str]):
    with contextlib.suppress(OSError):
        for folder in folders:
            os.rmdir(folder)


def manifests_of(
    stores: dict[str, TokenStore],
    copies: int,
    write: Callable[[str, TokenStore, int], dict] | None,
) -> dict[str, dict]:
    """Return manifests of stores, or of the records `write` makes of each.

    Args:
        copies: how often training uses the text; held-out text is used once.
        write: function of name, store and copies; None for no records.

    Raises:
        InputError: no copy.
    """
    if copies < 1:
        raise InputError(f"copies must be at least 1; got {copies}.")
    if write is None:
        return {name: store.manifest for name, store in stores.items()}
    return {
        name: write(name, store, copies if name == "train" else 1)
        for name, store in stores.items()
    }


def write_records(
    store: TokenStore,
    folder: str,
    rules: SamplingRules,
    seed: int,
    copies: int = 1,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict:
    """Write a store's examples as record shards with a manifest.

    Each shard holds a window of one of the copies and is a function of the
    store, the rules, the seed and its number alone, so the bytes are the same
    for any number of workers. Shards that an earlier call finished stay,
    if their bytes are still those that it wrote.

    Args:
        store: where the text comes from.
        folder: where to write; made where it is missing.
        rules: how pairs and masks are drawn.
        seed: int.
        copies: how often the text is used, with other pairs and masks.
        workers: processes; see `build_stores`.
        progress: called with the shards done and their number, at first
            with what an earlier call did.

    Returns:
        The manifest.

    Raises:
        InputError: the folder holds records of other settings.
    """
    facts = record_facts(store, rules, seed, copies)
    record_files.refuse_other(folder, facts)
    work = work_folder(folder)
    files.make_folder(work)
    journal = Journal(os.path.join(work, PROGRESS), facts)
    write = begin_shards(store, folder, rules, seed, copies)
    done = {
        entry["name"]: entry
        for entry in journal.entries
        if record_files.is_intact(folder, entry)
    }
    missing = [n for n in range(len(write.names)) if write.names[n] not in done]
    if progress:
        progress(len(done), len(write.names))
    for entry in in_order(write, missing, workers, _WORTH):
        journal.add(entry)
        done[entry["name"]] = entry
        if progress:
            progress(len(done), len(write.names))
    entries = [done[name] for name in write.names]
    return record_files.write_manifest(folder, {"shards": entries, **facts})


def record_facts(
    store: TokenStore, rules: SamplingRules, seed: int, copies: int
):
    """Return how records were made, for their manifest."""
    return {
        "rules": dataclasses.asdict(rules),
        "seed": seed,
        "copies": copies,
        **{name: store.manifest[name] for name in _FROM_STORE},
    }


def begin_shards(store: TokenStore, folder: str, *recipe) -> "WriteShard":
    """Make the folder, without shards of other builds, for a `WriteShard`."""
    files.make_folder(folder)
    files.remove_partials(folder)  # of writers that were killed
    write_vocabulary(store.vocabulary, os.path.join(folder, VOCABULARY))
    write = WriteShard(store, folder, *recipe)
    record_files.remove_others(folder, write.names)
    return write


class WriteShard:
    """A function of a shard's number: writes it, returns its entry.

    May be sent to another process, which opens the store for itself.

    Args:
        shared: folder of the store for other processes, `store.folder` by
            default.
    """

    def __init__(self, store, folder, rules, seed, copies, shared=None):
        self._recipe = folder, rules, seed, copies
        self._shared = shared or store.folder
        self._folder = folder
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
        return self._shared, self._recipe

    def __setstate__(self, state):
        shared, recipe = state
        self.__init__(TokenStore(shared), *recipe, shared)

    def __call__(self, number: int) -> dict:
        copy, window = self._windows[number]
        path = os.path.join(self._folder, self.names[number])
        pairs = self._examples.draw(copy, window)
        with files.atomic_output(path) as partial:
            with tf.io.TFRecordWriter(partial) as writer:
                for start in range(0, pairs.count, _BATCH):
                    batch = pairs[start : start + _BATCH]
                    rows = self._examples.rows(batch, copy, window, start)
                    for record in serialize(rows):
                        writer.write(record)
            shard = {"name": self.names[number], "examples": pairs.count}
            return shard | describe_file(partial)
