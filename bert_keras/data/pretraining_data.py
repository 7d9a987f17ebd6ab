"""Raw documents to token stores and record shards for pre-training."""

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
from bert_keras.data.examples import DrawnExamples, count_rows
from bert_keras.data.manifests import PROGRESS, Journal
from bert_keras.data.record_files import serialize
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.sources import Document
from bert_keras.data.token_store import VOCABULARY, TokenStore
from bert_keras.data.workers import in_order
from bert_keras.errors import InputError
from bert_keras.run_folder import Lease
from bert_keras.text.vocabulary import write_vocabulary

# A data folder that one process at a time writes to.

LEASE = ".lease"
_CHECKED_EVERY = 10  # seconds


@contextlib.contextmanager
def one_writer(folder: str, progress: Callable | None = None):
    """Holds a folder's lease; yields `progress`, which checks it too.

    After a mistake that left nothing in a new folder, the folder goes.

    Raises:
        InputError: another process holds the lease, or took it over.
    """
    made = _missing(folder)
    files.make_folder(folder)
    lease = Lease(os.path.join(folder, LEASE))
    checked = time.monotonic()

    def checking(*done):
        nonlocal checked
        if time.monotonic() > checked + _CHECKED_EVERY:
            lease.check()
            checked = time.monotonic()
        if progress:
            progress(*done)

    try:
        yield checking
    except InputError:
        if set(files.list_folder(folder)) <= {LEASE}:
            lease.remove()
            _remove_empty(made)
        else:
            lease.release()
        raise
    except BaseException:
        lease.release()
        raise
    lease.release()


def _missing(folder: str) -> list[str]:
    """The folders that making this one makes, the innermost first."""
    found = []
    folder = files.absolute(folder)
    while not files.is_remote(folder) and not os.path.exists(folder):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found


def _remove_empty(folders: list[str]):
    with contextlib.suppress(OSError):
        for folder in folders:
            os.rmdir(folder)


# Raw documents to record shards for pre-training.

_BATCH = 1_024  # examples that are gathered, masked and serialized at once
_FROM_STORE = (
    "side",
    "documents",
    "sentences",
    "tokens",
    "corpus_hash",
    "vocabulary_hash",
    "vocabulary_size",
    "lowercase",
)


def create_pretraining_data(
    documents: Iterable[Document],
    tokenizer,
    folder: str,
    rules: SamplingRules | None = None,
    seed: int = 0,
    copies: int = 1,
    held_out_share: float = 0.05,
    sentences: str | Callable[[str], list[str]] = "split",
    workers: int = 1,
    progress: Callable[[str, int, int | None], None] | None = None,
    records: bool = True,
) -> dict[str, dict]:
    """Raw documents to records for training and for evaluation.

    Writes under `folder` the records `train` and `held_out`, and the token
    stores that they were drawn from, `tokens/train` and `tokens/held_out`.
    Called again after it was broken off, it goes on where it stopped.

    Args:
        documents: from `read_documents` or `installed_documentation`.
        tokenizer: a `WordPieceTokenizer`.
        folder: where to write; made where it is missing. May be remote; see
            `build_stores`.
        rules: how pairs and masks are drawn; the paper's by default.
        seed: int.
        copies: how often the training text is used, with other pairs and
            masks (the original's `dupe_factor`); held-out text is used once.
        held_out_share: about this share of the documents, chosen by the hash
            of their content, goes to `held_out`; 0 for none.
        sentences: "split", "lines" or a function; see `build_stores`.
        workers: processes; see `build_stores`.
        progress: called with the stage ("tokens", "train" or "held_out"),
            how much of it is done (documents or shards) and how much there
            is, None if unknown.
        records: whether to write them; the stores alone are enough to draw
            examples anew.

    Returns:
        The manifests of `train` and, unless the share is 0, `held_out`: of
        the records, or of the stores where there are none.

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
        )

        def write(name, store, copies):
            target = os.path.join(folder, name)
            tell = functools.partial(progress, name)
            return write_records(
                store, target, rules, seed, copies, workers, tell
            )

        manifests = manifests_of(stores, copies, write if records else None)
    if files.is_remote(folder):
        for part in ("tokens", *manifests):
            files.remove(work_folder(os.path.join(folder, part)))
    return manifests


def manifests_of(
    stores: dict[str, TokenStore],
    copies: int,
    write: Callable[[str, TokenStore, int], dict] | None,
) -> dict[str, dict]:
    """The manifests of stores, or of the records that `write` makes of each.

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
    """Writes a store's examples as record shards with a manifest.

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
    files.make_folder(folder)
    files.make_folder(work)
    files.remove_partials(folder)
    journal = Journal(os.path.join(work, PROGRESS), facts)
    write_vocabulary(store.vocabulary, os.path.join(folder, VOCABULARY))
    write = WriteShard(store, folder, rules, seed, copies)
    record_files.remove_others(folder, write.names)
    done = {
        entry["name"]: entry
        for entry in journal.entries
        if record_files.is_intact(folder, entry)
    }
    missing = [n for n in range(len(write.names)) if write.names[n] not in done]
    if progress:
        progress(len(done), len(write.names))
    for entry in in_order(write, missing, workers):
        journal.add(entry)
        done[entry["name"]] = entry
        if progress:
            progress(len(done), len(write.names))
    entries = [done[name] for name in write.names]
    return record_files.write_manifest(folder, {"shards": entries, **facts})


def record_facts(
    store: TokenStore, rules: SamplingRules, seed: int, copies: int
):
    """What a manifest of records says of how they were made."""
    return {
        "laws": dataclasses.asdict(rules),
        "seed": seed,
        "copies": copies,
        # Older stores do not say their side.
        **{name: store.manifest.get(name) for name in _FROM_STORE},
    }


class WriteShard:
    """A function of a shard's number: writes it, returns its entry.

    May be sent to another process, which opens the store for itself.
    """

    def __init__(self, store, folder, rules, seed, copies):
        self._recipe = store.folder, folder, rules, seed, copies
        self._folder = folder
        self._examples = DrawnExamples(store, rules, seed)
        self._places = [
            (copy, window)
            for copy in range(copies)
            for window in range(len(self._examples.windows.epoch(copy)[0]))
        ]
        count = len(self._places)
        self.names = [
            f"examples-{number:05d}-of-{count:05d}.tfrecord"
            for number in range(count)
        ]

    def __getstate__(self):
        return self._recipe

    def __setstate__(self, recipe):
        store, *others = recipe
        self.__init__(TokenStore(store), *others)

    def __call__(self, number: int) -> dict:
        copy, window = self._places[number]
        path = os.path.join(self._folder, self.names[number])
        pairs = self._examples.draw(copy, window)
        count = count_rows(pairs)
        with files.written_beside(path) as partial:
            with tf.io.TFRecordWriter(partial) as writer:
                for start in range(0, count, _BATCH):
                    batch = pairs[start : start + _BATCH]
                    rows = self._examples.rows(batch, copy, window, start)
                    for record in serialize(rows):
                        writer.write(record)
            return record_files.describe(partial, self.names[number], count)
