"""Read and write token stores, which hold a corpus as arrays of ids on disk.

`tokens.bin` has the ids of all sentences, concatenated (uint16 if the
vocabulary has at most 65,536 tokens, else int32). Three files have int64 arrays
of start indices, with one more entry for the end:
- `sentences.bin` has the index in `tokens.bin` where each sentence begins.
- `documents.bin` has the index in `sentences.bin` where each document begins.
- `blocks.bin` has the index in `documents.bin` where each block begins.
A block has whole documents, in sum about 65,536 tokens. An epoch shuffles the
blocks. The manifest `store.json` is written last. The arrays are memory-mapped,
so only used pages take memory. A remote store is first copied to this machine.
"""

import contextlib
import functools
import hashlib
import mmap
import os

import filelock
import numpy as np

from bert_keras import files, full_disk, json_files
from bert_keras.data.sampling import vocabulary_hash
from bert_keras.errors import InputError
from bert_keras.json_files import BOOLEAN, NATURAL, OBJECT, TEXT
from bert_keras.manifest import (
    check_entries,
    check_fields,
    check_files,
    describe_files,
    find_fault,
    find_size_fault,
    write_manifest,
)
from bert_keras.manifest import read_manifest as read_checked
from bert_keras.text.masking import MaskingVocabulary
from bert_keras.text.vocabulary import read_vocabulary, write_vocabulary

MANIFEST = "store.json"
VOCABULARY = "vocab.txt"
ARRAYS = ("tokens", "sentences", "documents", "blocks")
# Settings of the tokenizer that made the ids, with their types.
_TOKENIZER = {
    "lowercase": BOOLEAN,
    "strip_accents": BOOLEAN,
    "max_word_length": NATURAL,
    "keep_special_tokens": BOOLEAN,
}
_WIDTHS = {"<u2": 2, "<i4": 4}  # dtype of the ids -> bytes of an id
_LARGE = 2**26  # bytes; `release` keeps the pages of smaller files in memory
_CHECKED = 2**22  # array entries that are checked at a time
_BLOCK = 65_536  # approximate number of tokens of a block
_FIX = "Build the store again."
_FIX_COPY = "Delete this local copy. The next run copies the store again."


class TokenStore:
    """A token store, opened for reading.

    Args:
        folder: `train` or `held_out` in the folder of `build_stores`; may be
            remote.

    Raises:
        InputError: the folder has no finished store, the manifest is damaged,
            or a file's size or the vocabulary does not match the manifest.
    """

    def __init__(self, folder: str):
        self.source = folder
        self.manifest = read_manifest(folder)
        self.folder = folder = _fetch(folder, self.manifest)
        check_files(folder, self.manifest["files"], _FIX, find_size_fault)
        self.vocabulary = read_vocabulary(os.path.join(folder, VOCABULARY))
        check_vocabulary_hash(self.manifest, self.vocabulary, folder)
        self._mapped = []
        self.tokens = self._map("tokens", self.manifest["dtype"])
        self.sentences = self._map("sentences", "<i8")
        self.documents = self._map("documents", "<i8")
        self.blocks = self._map("blocks", "<i8")

    @functools.cached_property
    def masking_vocabulary(self) -> MaskingVocabulary:
        return MaskingVocabulary(self.vocabulary)

    @property
    def num_documents(self) -> int:
        return len(self.documents) - 1

    @property
    def tokenizer(self) -> dict:
        """Settings of the tokenizer, without the vocabulary."""
        return {name: self.manifest[name] for name in _TOKENIZER}

    def _map(self, name: str, dtype: str) -> np.ndarray:
        with open(os.path.join(self.folder, f"{name}.bin"), "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._mapped.append(mapped)
        return np.frombuffer(mapped, dtype)

    def release(self):
        """Release the memory of the mapped pages of large files.

        Without this call, pages that were read count as this process's memory.
        """
        for mapped in self._mapped:
            if len(mapped) > _LARGE and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


def describe_tokenizer(tokenizer) -> dict:
    """Return the manifest's entries about the tokenizer that made the ids."""
    return {
        "vocabulary_size": tokenizer.vocabulary_size,
        "vocabulary_hash": vocabulary_hash(tokenizer.vocabulary),
        **{name: getattr(tokenizer, name) for name in _TOKENIZER},
    }


def is_store(folder: str) -> bool:
    """Return True if the folder has a finished store."""
    return files.is_file(os.path.join(folder, MANIFEST))


def check_store(folder: str) -> dict:
    """Compare every byte of a store with its manifest; return the manifest.

    If the store is remote, its local copy is compared.

    Raises:
        InputError: a file is missing or changed, or its values are out of
            range. The message names the file.
    """
    manifest = read_manifest(folder)
    local = _fetch(folder, manifest)
    fix = _FIX if local == folder else _FIX_COPY
    check_files(local, manifest["files"], fix)
    _check_arrays(TokenStore(folder))
    return manifest


def check_vocabulary_hash(manifest: dict, vocabulary: list[str], folder: str):
    """Raise `InputError` if data were made with another vocabulary."""
    if manifest["vocabulary_hash"] != vocabulary_hash(vocabulary):
        raise InputError(
            f"{folder} was made with another vocabulary "
            f"({manifest['vocabulary_size']} tokens) than expected "
            f"({len(vocabulary)} tokens). Build the data with the model's "
            "vocabulary."
        )


def read_manifest(folder: str) -> dict:
    """Return the manifest of a finished store.

    Raises:
        InputError: the manifest is missing, damaged or not a store's manifest.
    """
    path = os.path.join(folder, MANIFEST)
    return read_checked(path, "token store", _check_manifest)


def _check_manifest(manifest: dict):
    kinds = dict.fromkeys([*ARRAYS, "vocabulary_size"], NATURAL)
    kinds |= dict.fromkeys(["side", "dtype", "vocabulary_hash"], TEXT)
    check_fields(manifest, kinds | _TOKENIZER | {"files": OBJECT})
    entries = manifest["files"]
    check_entries(entries)
    if entries.keys() != {VOCABULARY, *(f"{name}.bin" for name in ARRAYS)}:
        raise ValueError("'files' must list the arrays and the vocabulary")
    width = _WIDTHS.get(manifest["dtype"])
    if width is None:
        raise ValueError(
            f"'dtype' must be {' or '.join(_WIDTHS)}; got {manifest['dtype']!r}"
        )
    for name in ARRAYS:
        count, size = manifest[name], entries[f"{name}.bin"]["bytes"]
        size_due = count * width if name == "tokens" else 8 * (count + 1)
        if not count:
            raise ValueError(f"{name!r} must be above 0; got {count}")
        if size != size_due:
            raise ValueError(
                f"{name!r} is {count}, so {name}.bin must have {size_due} "
                f"bytes; it has {size}"
            )


def _check_arrays(store: "TokenStore"):
    """Raise `InputError` for indices out of order or values out of range.

    Correct hashes are not enough, because anyone can write a manifest.
    """
    pairs = (
        ("sentences", store.sentences, len(store.tokens)),
        ("documents", store.documents, len(store.sentences) - 1),
        ("blocks", store.blocks, len(store.documents) - 1),
    )
    fault = None
    for name, array, end in pairs:
        ascends = all(
            bool((some[1:] > some[:-1]).all()) for some in _slices(array, 1)
        )
        if array[0] != 0 or array[-1] != end or not ascends:
            fault = f"the offsets in {name}.bin do not rise from 0 to {end}"
    highest = max(int(some.max()) for some in _slices(store.tokens))
    lowest = min(int(some.min()) for some in _slices(store.tokens))
    if not 0 <= lowest <= highest < len(store.vocabulary):
        fault = f"tokens.bin has ids from {lowest} to {highest}, but "
        fault += f"{VOCABULARY} has {len(store.vocabulary)} tokens"
    if fault:
        raise InputError(
            f"The store {store.source} is damaged: {fault}. Build it again."
        )


def _slices(array: np.ndarray, extra: int = 0):
    for start in range(0, len(array), _CHECKED):
        yield array[start : start + _CHECKED + extra]


def _fetch(folder: str, manifest: dict) -> str:
    """Return the folder of a store, or of a local copy of a remote store.

    The copy is in `files.cache_folder()`, in a folder named by the hash of the
    manifest. A machine copies a store only once, except if the store is built
    again, or if a file of the copy is missing or has the wrong size. Each
    copied file is compared with the manifest.
    """
    if not files.is_remote(folder):
        return folder
    name = json_files.json_hash(manifest)[:32]
    copy = os.path.join(files.cache_folder(), "stores", name)
    if _is_complete(copy, manifest):
        return copy
    files.make_folder(os.path.dirname(copy))
    # Of several processes, one copies the store and the others wait.
    with filelock.FileLock(os.path.join(files.cache_folder(), "stores.lock")):
        if not _is_complete(copy, manifest):
            files.remove(copy)
            partial = f"{copy}{files.PARTIAL}"
            files.remove(partial)  # a killed process may have left it
            try:
                _download(folder, manifest, partial)
                os.rename(partial, copy)
            finally:
                files.remove(partial)
    return copy


def _is_complete(copy: str, manifest: dict) -> bool:
    return is_store(copy) and not any(
        find_size_fault(os.path.join(copy, name), entry)
        for name, entry in manifest["files"].items()
    )


def _download(folder: str, manifest: dict, partial: str):
    files.make_folder(partial)
    for name, entry in manifest["files"].items():
        path, local = os.path.join(folder, name), os.path.join(partial, name)
        with contextlib.suppress(FileNotFoundError):
            files.copy(path, local)
        fault = find_fault(local, entry)
        if fault:
            raise InputError(f"{path} {fault}. {_FIX}")
    json_files.write_json(manifest, os.path.join(partial, MANIFEST))


class StoreWriter:
    """Context manager that writes tokenised documents to a new store.

    To complete the store, call `finish` at the end of the `with` block.

    Args:
        folder: output folder; created if it is missing.
        tokenizer: the `WordPieceTokenizer` that made the ids.
        side: "train" or "held_out", the use of the documents.
        settings: further entries of the manifest.
    """

    def __init__(
        self,
        folder: str,
        tokenizer,
        side: str = "train",
        settings: dict | None = None,
    ):
        self.folder = folder
        self._vocabulary = tokenizer.vocabulary
        settings = settings or {}
        self._settings = describe_tokenizer(tokenizer) | settings
        self._settings["side"] = side
        small = tokenizer.vocabulary_size <= 2**16
        self._dtypes = dict.fromkeys(ARRAYS, "<i8")
        self._dtypes["tokens"] = "<u2" if small else "<i4"
        self._corpus = hashlib.sha256()
        self._block = -1  # number of the last document's block
        self.totals = dict.fromkeys(ARRAYS, 0)
        self._hashes = {name: hashlib.sha256() for name in ARRAYS}

    def __enter__(self):
        files.make_folder(self.folder)
        self._files = {
            name: open(self._path(name), "wb")  # noqa: SIM115
            for name in ARRAYS
        }
        return self

    def __exit__(self, kind, *_):
        for file in self._files.values():
            # On a full disk, closing would raise the error again.
            with contextlib.suppress(OSError if kind else ()):
                file.close()

    def add(self, ids, lengths, per_document, hashes: bytes = b""):
        """Append documents.

        Args:
            ids: ids of all sentences, concatenated.
            lengths: number of ids of each sentence.
            per_document: number of sentences of each document.
            hashes: the documents' content hashes, concatenated.
        """
        self._corpus.update(hashes)
        starts = self.totals["tokens"] + np.cumsum(lengths) - lengths
        firsts = np.cumsum(per_document) - per_document
        block = starts[firsts] // _BLOCK  # block of each document's first token
        opens = np.flatnonzero(np.diff(block, prepend=self._block))
        self._block = block[-1] if len(block) else self._block
        first_document = self.totals["documents"]
        self._write("documents", self.totals["sentences"] + firsts)
        self._write("sentences", starts)
        self._write("tokens", ids)
        self._write("blocks", first_document + opens)

    def finish(self) -> TokenStore:
        """Write the last entries and the manifest; return the `TokenStore`."""
        totals = dict(self.totals)
        self._write("sentences", [totals["tokens"]])
        self._write("documents", [totals["sentences"]])
        self._write("blocks", [totals["documents"]])
        for name, file in self._files.items():
            with full_disk.name_file(self._path(name)):
                file.flush()
                os.fsync(file.fileno())
        write_vocabulary(
            self._vocabulary, os.path.join(self.folder, VOCABULARY)
        )
        arrays = {
            f"{name}.bin": {
                # `sha256` is the hash of the bytes in memory, so a check of the
                # file detects disk errors.
                "bytes": files.size(self._path(name)),
                "sha256": self._hashes[name].hexdigest(),
            }
            for name in ARRAYS
        }
        manifest = {
            "format": "bert_keras token store",
            "version": 1,
            **totals,
            **self._settings,
            "dtype": self._dtypes["tokens"],
            "corpus_hash": self._corpus.hexdigest(),
            "files": arrays | describe_files(self.folder, [VOCABULARY]),
        }
        write_manifest(os.path.join(self.folder, MANIFEST), manifest)
        return TokenStore(self.folder)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, f"{name}.bin")

    def _write(self, name: str, values):
        values = np.asarray(values, self._dtypes[name])
        content = values.tobytes()
        with full_disk.name_file(self._path(name)):
            self._files[name].write(content)
        self._hashes[name].update(content)
        self.totals[name] += len(values)
