"""The token store: a corpus as flat arrays of ids on disk.

`tokens.bin` holds the ids of all sentences one behind the other (uint16
where the vocabulary allows, else int32), `sentences.bin` where each sentence
begins in it, `documents.bin` where each document begins in `sentences.bin`,
`blocks.bin` where each block of about 65,536 tokens begins in
`documents.bin` (all int64, with the end behind the last). `store.json`, the
manifest, is written last. The arrays are mapped, not read: a store of any
size needs the memory of what is looked at. A remote store is fetched first,
see `fetching.py`.
"""

import mmap
import os

import numpy as np

from bert_keras import files
from bert_keras.data.fetching import fetched
from bert_keras.data.laws import Pieces, vocabulary_hash
from bert_keras.data.manifests import read_sealed
from bert_keras.errors import InputError
from bert_keras.text.vocabulary import read_vocabulary

MANIFEST = "store.json"
VOCABULARY = "vocab.txt"
_LARGE = 2**26  # bytes; a smaller file may stay in memory
ARRAYS = ("tokens", "sentences", "documents", "blocks")


class TokenStore:
    """Opens a store for reading.

    Args:
        folder: where `build_stores` wrote it; may be remote.

    Raises:
        InputError: no store there, an unfinished one, or one whose files
            have not the sizes that its manifest states.
    """

    def __init__(self, folder: str):
        self.source = folder
        self.manifest = read_manifest(folder)
        self.folder = folder = fetched(folder, self.manifest)
        for name, entry in self.manifest["files"].items():
            _check_size(os.path.join(folder, name), entry["bytes"])
        self.vocabulary = read_vocabulary(os.path.join(folder, VOCABULARY))
        self.pieces = Pieces(self.vocabulary)
        self._mapped = []
        self.tokens = self._map("tokens", self.manifest["dtype"])
        self.sentences = self._map("sentences", "<i8")
        self.documents = self._map("documents", "<i8")
        self.blocks = self._map("blocks", "<i8")

    @property
    def num_documents(self) -> int:
        return len(self.documents) - 1

    @property
    def tokenizer(self) -> dict:
        """The arguments, beside the vocabulary, of the tokenizer of the ids.

        Older stores say the case alone.
        """
        case = self.manifest["lowercase"]
        usual = {"strip_accents": case, "max_word_length": 200}
        usual |= {"keep_special_tokens": False}
        said = {k: self.manifest.get(k, v) for k, v in usual.items()}
        return {"lowercase": case, **said}

    def _map(self, name: str, dtype: str) -> np.ndarray:
        with open(os.path.join(self.folder, f"{name}.bin"), "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._mapped.append(mapped)
        return np.frombuffer(mapped, dtype)

    def release(self):
        """Gives memory that mapped pages take back to the system.

        Random places of a large store would otherwise, one after the other,
        count as this process's memory.
        """
        for mapped in self._mapped:
            if len(mapped) > _LARGE and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


def is_store(folder: str) -> bool:
    """Whether a finished store lies in the folder."""
    return files.is_file(os.path.join(folder, MANIFEST))


def check_store(folder: str, vocabulary: list[str] | None = None) -> dict:
    """Compares every byte of a store with its manifest; returns that.

    Raises:
        InputError: names the file that is missing, cut or changed, or says
            that the store was made with another vocabulary.
    """
    manifest = read_manifest(folder)
    folder = fetched(folder, manifest)
    for name, entry in manifest["files"].items():
        path = os.path.join(folder, name)
        _check_size(path, entry["bytes"])
        if files.sha256(path) != entry["sha256"]:
            raise InputError(
                f"{path} is damaged: its bytes are not those that its "
                "manifest names. Build the store again."
            )
    if vocabulary is not None:
        check_vocabulary_hash(manifest, vocabulary, folder)
    return manifest


def check_vocabulary_hash(manifest: dict, vocabulary: list[str], folder: str):
    """Refuses data that were made with another vocabulary."""
    if manifest["vocabulary_hash"] != vocabulary_hash(vocabulary):
        raise InputError(
            f"{folder} was made with another vocabulary "
            f"({manifest['vocabulary_size']} pieces, the model's has "
            f"{len(vocabulary)}). Give the model that vocabulary or build "
            "the data again."
        )


def read_manifest(folder: str) -> dict:
    """The manifest of a finished store.

    Raises:
        InputError: no manifest, or not one of a store.
    """
    path = os.path.join(folder, MANIFEST)
    return read_sealed(path, "token store", lambda m: m["files"])


def _check_size(path: str, size: int):
    found = os.path.getsize(path) if os.path.isfile(path) else None
    if found != size:
        state = "is missing" if found is None else f"has {found} bytes"
        raise InputError(
            f"{path} {state}; its manifest says {size} bytes. Build the "
            "store again."
        )
