"""Writes a token store; see `store.py` for what its files hold."""

import hashlib
import os

import numpy as np

from bert_keras import files
from bert_keras.data.laws import vocabulary_hash
from bert_keras.data.manifests import write_sealed
from bert_keras.data.store import ARRAYS, MANIFEST, VOCABULARY, TokenStore
from bert_keras.errors import InputError
from bert_keras.text.vocabulary import write_vocabulary

_BLOCK = 65_536  # tokens


class StoreWriter:
    """Appends tokenised documents to the files of a store.

    Args:
        folder: where to write; made where it is missing.
        tokenizer: the `WordPieceTokenizer` that made the ids.
        side: "train" or "held_out", what the documents are for.
    """

    def __init__(self, folder: str, tokenizer, side: str = "train"):
        self.folder, self._side = folder, side
        self._tokenizer = tokenizer
        small = tokenizer.vocabulary_size <= 2**16
        self._types = dict.fromkeys(ARRAYS, "<i8")
        self._types["tokens"] = "<u2" if small else "<i4"
        self._corpus = hashlib.sha256()
        self._block = -1  # the number of the last document's block
        self.totals = dict.fromkeys(ARRAYS, 0)

    def __enter__(self):
        files.make_folder(self.folder)
        self._files = {
            name: open(self._path(name), "ab")  # noqa: SIM115
            for name in ARRAYS
        }
        return self

    def __exit__(self, *_):
        for file in self._files.values():
            file.close()

    @property
    def corpus_hash(self) -> str:
        """SHA-256 of the contents' hashes so far."""
        return self._corpus.hexdigest()

    def hash(self, hashes: bytes):
        """Takes note of the hashes of documents' contents, joined."""
        self._corpus.update(hashes)

    def state(self) -> dict:
        """Where to go on from, once the disk holds what was written."""
        self._flush()
        return {"totals": dict(self.totals), "block": int(self._block)}

    def restore(self, state: dict | None):
        """Goes on from a state, None for the start; drops what is behind it.

        Raises:
            InputError: a file is shorter than it was then.
        """
        if state:
            self.totals = dict(state["totals"])
            self._block = state["block"]
        files.remove_partials(self.folder)
        files.remove(os.path.join(self.folder, MANIFEST))
        for name, file in self._files.items():
            size = self.totals[name] * np.dtype(self._types[name]).itemsize
            if os.path.getsize(self._path(name)) < size:
                raise InputError(
                    f"{self._path(name)} was cut since it was written. "
                    f"Delete {self.folder} and build again."
                )
            file.truncate(size)

    def add(self, ids, lengths, per_document):
        """Appends documents.

        Args:
            ids: of all sentences, one behind the other.
            lengths: ids of each sentence.
            per_document: sentences of each document.
        """
        starts = self.totals["tokens"] + np.cumsum(lengths) - lengths
        firsts = np.cumsum(per_document) - per_document
        block = starts[firsts] // _BLOCK  # where each document begins
        opens = np.flatnonzero(np.diff(block, prepend=self._block))
        self._block = block[-1] if len(block) else self._block
        first_document = self.totals["documents"]
        self._write("documents", self.totals["sentences"] + firsts)
        self._write("sentences", starts)
        self._write("tokens", ids)
        self._write("blocks", first_document + opens)

    def finish(self) -> TokenStore:
        """Writes the ends and the manifest; opens the store."""
        totals = dict(self.totals)
        self._write("sentences", [totals["tokens"]])
        self._write("documents", [totals["sentences"]])
        self._write("blocks", [totals["documents"]])
        self.totals = totals
        self._flush()
        vocabulary = os.path.join(self.folder, VOCABULARY)
        write_vocabulary(self._tokenizer.vocabulary, vocabulary)
        path = os.path.join(self.folder, MANIFEST)
        write_sealed(path, self._manifest())
        return TokenStore(self.folder)

    def _manifest(self) -> dict:
        names = [f"{name}.bin" for name in ARRAYS] + [VOCABULARY]
        paths = {name: os.path.join(self.folder, name) for name in names}
        return {
            "format": "bert_keras token store",
            "version": 1,
            "side": self._side,
            **self.totals,
            "dtype": self._types["tokens"],
            "vocabulary_size": self._tokenizer.vocabulary_size,
            "vocabulary_hash": vocabulary_hash(self._tokenizer.vocabulary),
            "lowercase": self._tokenizer.lowercase,
            "strip_accents": self._tokenizer.strip_accents,
            "max_word_length": self._tokenizer.max_word_length,
            "keep_special_tokens": self._tokenizer.keep_special_tokens,
            "corpus_hash": self.corpus_hash,
            "files": {
                name: {
                    "bytes": os.path.getsize(path),
                    "sha256": files.sha256(path),
                }
                for name, path in paths.items()
            },
        }

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, f"{name}.bin")

    def _write(self, name: str, values):
        values = np.asarray(values)
        self._files[name].write(values.astype(self._types[name]).tobytes())
        self.totals[name] += len(values)

    def _flush(self):
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
