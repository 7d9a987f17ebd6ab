"""Documents to token stores, for training and for evaluation."""

import contextlib
import dataclasses
import hashlib
import importlib
import itertools
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from bert_keras import files
from bert_keras.data import token_store
from bert_keras.data.corpus import Document, content_hash, in_share
from bert_keras.data.sampling import vocabulary_hash
from bert_keras.data.sentences import document_sentences
from bert_keras.data.token_store import StoreWriter, TokenStore
from bert_keras.data.workers import WORTH, in_order
from bert_keras.errors import InputError
from bert_keras.journal import PROGRESS, Journal, check_same_settings
from bert_keras.manifest import find_fault

logger = logging.getLogger(__name__)

_PART = 2_000_000  # characters that are tokenised at once in a process
_BATCH = 1_000_000  # characters that the tokenizer gets at once
_SAVE = 5  # seconds; a kill costs that at most, and a part for each worker
_REBUILT = ".rebuilt"  # a folder in that of finished or damaged stores


def build_stores(
    documents: Iterable[Document],
    tokenizer,
    folder: str,
    held_out_share: float = 0.0,
    sentences: str = "split",
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
    held_out: Iterable[Document] = (),
) -> dict[str, TokenStore]:
    """Tokenise documents into the stores `train` and `held_out`.

    The bytes that are written are the same for any number of workers. An
    interrupted build resumes where it stopped: what is done is read again,
    compared, and not tokenised again.

    Args:
        documents: any number of them; only a few are held in memory.
        tokenizer: a `WordPieceTokenizer`.
        folder: where to write; made where it is missing. For a remote one
            the stores are built in a folder of this machine (see
            `work_folder`), which stays, and uploaded at the end.
        held_out_share: about this share of the documents, chosen by the hash
            of their content, goes to `held_out`; 0 for no such store.
        sentences: "split" finds the sentences of each paragraph, "lines"
            takes each paragraph for one. Documents with given sentences are
            taken as they are.
        workers: processes, once the corpus is worth them (64 MB); a script
            that asks for several must guard its call by
            `if __name__ == "__main__"`.
        progress: called with the documents and the characters done so far.
        held_out: documents that all go to `held_out`, in place of a share;
            one of `documents` with the same text is left out.

    Raises:
        InputError: an impossible share, fewer than two documents with text
            on either side, or the folder holds the tokens of another corpus
            or tokenizer.
    """
    tokenise = Tokenise(tokenizer, sentences)
    if not 0 <= held_out_share < 1:
        raise InputError(
            "held_out_share must be at least 0 and below 1; got "
            f"{held_out_share}."
        )
    held_out = iter(held_out)
    first = next(held_out, None)
    if first is not None:
        if held_out_share:
            raise InputError(
                "held_out names the documents and held_out_share is "
                f"{held_out_share}. Give one of the two."
            )
        held_out = itertools.chain([first], held_out)
    has_held_out = held_out_share or first is not None
    names = ["train", "held_out"] if has_held_out else ["train"]
    settings = _settings(tokenizer, held_out_share, sentences)

    def open_build(folder):
        files.make_folder(folder)
        return Journal(os.path.join(folder, PROGRESS), settings), {
            name: StoreWriter(os.path.join(folder, name), tokenizer, name)
            for name in names
        }

    target, folder = folder, work_folder(folder)
    if not files.is_file(os.path.join(folder, PROGRESS)):
        folder = store_folder(target, names)
    journal, stores = open_build(folder)
    damaged = None  # the last entry of the journal of damaged stores
    if damage := _find_damage(journal, stores):
        logger.warning("%s. The stores are built again.", damage)
        # Next to them: they stay where these documents are others.
        damaged, folder = journal.entries[-1], os.path.join(folder, _REBUILT)
        journal, stores = open_build(folder)
        if _find_damage(journal, stores):
            journal.clear()
    with contextlib.ExitStack() as stack:
        for writer in stores.values():
            stack.enter_context(writer)
        build = _Build(folder, stores, journal, damaged, progress)
        parts = build.unseen(
            parts_of(documents, held_out_share, names, held_out)
        )
        for part in in_order(tokenise, parts, workers, WORTH):
            build.add(part)
        build.check_all_seen()
        for name, writer in stores.items():
            if writer.totals["documents"] < 2:
                _leave_nothing(folder, names, journal)
                refuse_few(name, writer.totals["documents"])
        build.save()
        built = {name: writer.finish() for name, writer in stores.items()}
    return settle(built, folder, target)


@dataclasses.dataclass
class Part:
    """Some documents of a corpus, by the store that they go to."""

    documents: dict[str, list[Document]]
    hashes: dict[str, bytearray]  # of their contents, joined
    characters: int


@dataclasses.dataclass
class TokenisedPart:
    """The ids of a part's documents, by the store that they go to.

    Each of `arrays` holds the ids of all sentences, the number of ids of
    each sentence, and the number of sentences of each document; sentences
    without ids and documents without sentences are left out.
    """

    arrays: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
    hashes: dict[str, bytearray]
    documents: int
    characters: int


class Tokenise:
    """The function from `Part` to `TokenisedPart`; may be sent elsewhere.

    Args:
        tokenizer: a `WordPieceTokenizer`; built again where this is sent.
        sentences: "split" or "lines"; see `build_stores`.
    """

    def __init__(self, tokenizer, sentences: str):
        if sentences not in ("split", "lines"):
            raise InputError(
                f"sentences must be 'split' or 'lines'; got {sentences!r}."
            )
        self._tokenizer = tokenizer
        self._sentences = sentences

    def __getstate__(self):
        if self._tokenizer is not None:
            kind = type(self._tokenizer)
            # Plain lists and numbers: Keras's own lists cannot be sent.
            config = json.loads(json.dumps(self._tokenizer.get_config()))
            self._recipe = kind.__module__, kind.__qualname__, config
        return self._recipe, self._sentences

    def __setstate__(self, state):
        # Built at the first call, when the process is ready for TensorFlow.
        self._recipe, self._sentences = state
        self._tokenizer = None

    def __call__(self, part: Part) -> TokenisedPart:
        if self._tokenizer is None:
            self._tokenizer = _build_tokenizer(*self._recipe)
        arrays = {
            name: self._arrays(documents)
            for name, documents in part.documents.items()
        }
        count = sum(map(len, part.documents.values()))
        return TokenisedPart(arrays, part.hashes, count, part.characters)

    def _arrays(self, documents: list[Document]):
        texts, counts = [], []
        for document in documents:
            sentences = document.paragraphs
            if self._sentences == "split":
                sentences = document_sentences(document)
            texts.extend(sentences)
            counts.append(len(sentences))
        ids, lengths = self._encode(texts)
        owner = np.repeat(np.arange(len(counts)), counts)
        full = lengths > 0
        counts = np.bincount(owner[full], minlength=len(counts))
        return ids, lengths[full], counts[counts > 0]

    def _encode(self, texts: list[str]):
        """Return the ids of all texts, and the number of each one's ids."""
        ends = np.cumsum([len(text) for text in texts]) // _BATCH
        cuts = np.flatnonzero(np.diff(ends, prepend=-1, append=-1))
        ids, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
            # As an array: Keras looks at each item of a list.
            rows = self._tokenizer(np.array(texts[start:stop], object))
            ids.append(rows.values.numpy())
            lengths.append(rows.row_lengths().numpy())
        return np.concatenate(ids), np.concatenate(lengths)


def _build_tokenizer(module: str, kind: str, config: dict):
    """Build a tokenizer in a worker: its neighbours have the other cores."""
    import tensorflow as tf

    # A runner of Beam may have started TensorFlow in this process before.
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    return getattr(importlib.import_module(module), kind).from_config(config)


class _Build:
    """The stores that a build writes, and how far it has come.

    A journal entry holds the number of parts done, and of each store its
    corpus hash and its state.
    """

    def __init__(
        self,
        folder: str,
        stores: dict[str, StoreWriter],
        journal: Journal,
        damaged: dict | None,
        progress: Callable | None,
    ):
        self._folder, self._stores = folder, stores
        self._journal = journal
        self._damaged = damaged
        self._progress = progress
        self._parts = self._documents = self._characters = 0
        self._saved = time.monotonic()

    def unseen(self, parts: Iterator[Part]) -> Iterator[Part]:
        """Yield the parts that are not in the stores yet."""
        last = self._journal.entries[-1] if self._journal.entries else None
        while last and self._parts < last["parts"]:
            part = next(parts, None)
            if part is None:
                self._refuse()
            count = sum(map(len, part.documents.values()))
            self._count(part.hashes, count, part.characters)
        self._check_documents(last)
        for name, store in self._stores.items():
            store.restore(last["stores"][name] if last else None)
        yield from parts

    def check_all_seen(self):
        """Raise if damaged stores were of more documents than these."""
        if self._damaged and self._parts < self._damaged["parts"]:
            self._refuse()

    def _check_documents(self, entry: dict | None):
        """Raise if an entry of as many parts is of other documents."""
        is_reached = entry is not None and self._parts == entry["parts"]
        if is_reached and self._hashes() != entry["hashes"]:
            self._refuse()

    def _hashes(self) -> dict[str, str]:
        return {name: s.corpus_hash for name, s in self._stores.items()}

    def _refuse(self):
        folder = self._folder
        if self._damaged:
            files.remove(folder)  # what was built again
            folder = os.path.dirname(folder)
        raise InputError(
            f"{folder} was begun with other documents than those given now. "
            "Give the same ones, name another folder, or delete this one."
        )

    def add(self, part: TokenisedPart):
        for name, store in self._stores.items():
            store.add(*part.arrays[name])
        self._count(part.hashes, part.documents, part.characters)
        if time.monotonic() > self._saved + _SAVE:
            self.save()

    def _count(self, hashes: dict[str, bytes], documents: int, size: int):
        for name, store in self._stores.items():
            store.hash(hashes[name])
        self._parts += 1
        self._check_documents(self._damaged)
        self._documents += documents
        self._characters += size
        if self._progress:
            self._progress(self._documents, self._characters)

    def save(self):
        """Add an entry to the journal."""
        entries = self._journal.entries
        if not entries or self._parts > entries[-1]["parts"]:
            states = {name: s.state() for name, s in self._stores.items()}
            self._journal.add(
                {
                    "parts": self._parts,
                    "hashes": self._hashes(),
                    "stores": states,
                }
            )
        self._saved = time.monotonic()


def _find_damage(journal: Journal, stores: dict[str, StoreWriter]):
    """Return what changed since the journal recorded it, or None."""
    for entry in journal.entries[-1:]:
        for name, store in stores.items():
            if damage := store.find_damage(entry["stores"][name]):
                return damage
    return None


def _settings(tokenizer, held_out_share: float, sentences) -> dict:
    """Return what decides, next to the documents, the bytes written."""
    config = tokenizer.get_config()
    vocabulary = config.pop("vocabulary")
    return {
        "sentences": sentences,
        "held_out_share": held_out_share,
        "vocabulary_hash": vocabulary_hash(vocabulary),
        **{
            f"tokenizer {name}": value
            for name, value in config.items()
            if name not in ("name", "dtype", "trainable")
        },
    }


def parts_of(
    documents: Iterable[Document],
    share: float,
    names: list[str],
    held_out: Iterable[Document] = (),
) -> Iterator[Part]:
    """Yield documents in parts of about `_PART` characters.

    Those of `held_out` come first, so that their text is not trained on
    where it is among `documents` too.
    """

    def empty():
        hashes = {name: bytearray() for name in names}  # grow in place
        return Part({name: [] for name in names}, hashes, 0)

    part, kept = empty(), set()
    sides = itertools.chain(
        zip(held_out, itertools.repeat(True)),
        zip(documents, itertools.repeat(False)),
    )
    for document, is_kept in sides:
        digest = content_hash(document)
        if is_kept:
            kept.add(digest)
        elif digest in kept:
            continue
        name = "held_out" if is_kept or in_share(digest, share) else "train"
        part.documents[name].append(document)
        part.hashes[name] += digest
        part.characters += sum(map(len, document.paragraphs))
        if part.characters >= _PART:
            yield part
            part = empty()
    if part.characters:
        yield part


def _leave_nothing(folder, names, journal):
    """Remove what was written, and the folder where nothing else is in it."""
    journal.remove()
    for name in names:
        files.remove(os.path.join(folder, name))
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def refuse_few(name: str, documents: int):
    """Raise `InputError`: a random next sentence needs another document."""
    if name == "train":
        raise InputError(
            f"A random next sentence needs at least two documents with text; "
            f"got {documents}. Give more files, or one sentence a line with "
            "blank lines between documents, as layout 'sentences'."
        )
    raise InputError(
        f"Held out for evaluation are {documents} documents with text, but a "
        "random next sentence needs at least two. Take a larger "
        "held_out_share, 0 for none, or name the documents by held_out. A hash "
        "of their content chooses them, so that of few documents 0.1 and 0.15 "
        "may hold out the same."
    )


# Where stores are built, and how they get to their place.


def work_folder(folder: str) -> str:
    """Where a build writes what is not finished: in the folder itself, or
    for a remote one in a folder of `files.cache_folder()`."""
    if not files.is_remote(folder):
        return folder
    name = hashlib.sha256(folder.rstrip("/").encode()).hexdigest()[:32]
    return os.path.join(files.cache_folder(), "building", name)


def store_folder(folder: str, names) -> str:
    """As `work_folder`, for stores without a journal: next to those that are
    finished, which `settle` compares with the new ones."""
    finished = [
        token_store.is_store(os.path.join(folder, name)) for name in names
    ]
    if files.is_remote(folder) or not any(finished):
        return work_folder(folder)
    return os.path.join(folder, _REBUILT)


def settle(
    stores: dict[str, TokenStore], work: str, folder: str
) -> dict[str, TokenStore]:
    """Move the stores that were built in `work` to `folder`.

    Raises:
        InputError: others stand there, finished. They stay as they are.
    """
    if work == folder:
        return stores
    targets = {name: os.path.join(folder, name) for name in stores}
    try:
        for name, store in stores.items():
            finished = _finished(targets[name])
            if finished not in (None, store.manifest):
                old, new = (
                    {key: value for key, value in one.items() if key != "files"}
                    for one in (finished, store.manifest)
                )
                check_same_settings(old, new, targets[name])
    except InputError:
        files.remove(work)
        raise
    for name, store in stores.items():
        _put(store, targets[name])
    if files.is_remote(folder):
        return stores
    with contextlib.suppress(FileNotFoundError):  # Beam's build has none
        os.replace(os.path.join(work, PROGRESS), os.path.join(folder, PROGRESS))
    files.remove(work)
    return {name: TokenStore(target) for name, target in targets.items()}


def _finished(folder: str) -> dict | None:
    """Return the manifest of a store; None if missing or damaged."""
    with contextlib.suppress(InputError):
        return token_store.read_manifest(folder)
    return None


def _put(store: TokenStore, folder: str):
    """Copy a store to its place, unless it is there whole."""
    store.source = folder
    if _finished(folder) == store.manifest and not any(
        find_fault(os.path.join(folder, name), entry)
        for name, entry in store.manifest["files"].items()
    ):
        return
    if files.is_remote(folder):
        files.upload(store.folder, folder)
        return
    with files.atomic_output(folder) as partial:
        shutil.copytree(store.folder, partial)
