"""What the workers of a Beam pipeline do; nothing of Beam itself.

Each task is a small value that may be sent anywhere. What it finds out lies
in files of the shared folder, so that no runner has to hand anything back.
"""

import dataclasses
import functools
import json
import os

import numpy as np

from bert_keras import files
from bert_keras.data import text_files
from bert_keras.data.building import parts_of, splitter
from bert_keras.data.laws import Laws
from bert_keras.data.pretraining import WriteShard
from bert_keras.data.store import TokenStore
from bert_keras.data.tokenising import Tokenise

ENTRIES = ".entries"  # a folder of the manifest's entries, one a file
PIECES = ".pieces"  # a folder of the tokens of each text file
KINDS = ("ids", "lengths", "counts")  # the arrays of a `TokenisedPart`
_NOTHING = (np.zeros(0, np.int32), np.zeros(0, int), np.zeros(0, int))


@dataclasses.dataclass(frozen=True)
class ShardTask:
    """Writes a shard and its entry in the manifest.

    Args:
        store: folder of the token store, which every worker can read.
        folder: where to write.
    """

    store: str
    folder: str
    laws: Laws
    seed: int
    copies: int

    def __call__(self, number: int) -> str:
        entry = _opened(self)(number)
        with files.written_beside(self.entry_path(entry["name"])) as partial:
            files.write_json(entry, partial)
        return entry["name"]

    def entry_path(self, name: str) -> str:
        return os.path.join(self.folder, ENTRIES, f"{name}.json")


@functools.lru_cache(maxsize=1)
def _opened(task: ShardTask) -> WriteShard:
    """Opened once in a process: a remote store is fetched then."""
    return WriteShard(
        TokenStore(task.store), task.folder, task.laws, task.seed, task.copies
    )


@dataclasses.dataclass(frozen=True)
class TokeniseFile:
    """Writes the tokens of a text file's documents, as one piece.

    Args:
        tokenizer: JSON of a `WordPieceTokenizer`'s configuration.
        folder: where to write.
        names: of the stores, "train" and perhaps "held_out".
        share: of the documents that are held out.
        sentences: "split" or "lines".
        layout: see `read_documents`.
        text_field: see `read_documents`.
    """

    tokenizer: str
    folder: str
    names: tuple[str, ...]
    share: float
    sentences: str
    layout: str
    text_field: str

    def __call__(self, numbered: tuple[int, str]) -> str:
        number, path = numbered
        piece = self.piece_path(number)
        documents = text_files.read(
            path, path, "", self.layout, self.text_field
        )
        tokenise = _tokenise(self.tokenizer, self.sentences)
        parts = [
            tokenise(part)
            for part in parts_of(documents, self.share, list(self.names))
        ]
        with (
            files.written_beside(piece) as partial,
            open(partial, "wb") as file,
        ):
            np.savez(file, **_joined(parts, self.names))
        return piece

    def piece_path(self, number: int) -> str:
        return os.path.join(self.folder, f"piece-{number:06d}.npz")


@functools.lru_cache(maxsize=1)
def _tokenise(config: str, sentences: str) -> Tokenise:
    from bert_keras.text.tokenizer import WordPieceTokenizer

    tokenizer = WordPieceTokenizer.from_config(json.loads(config))
    return Tokenise(tokenizer, splitter(sentences))


def _joined(parts, names) -> dict:
    """The arrays of all parts by store and kind, as a piece holds them."""
    found = {}
    for name in names:
        arrays = [part.arrays[name] for part in parts] or [_NOTHING]
        for kind, column in zip(KINDS, zip(*arrays, strict=True), strict=True):
            found[f"{name} {kind}"] = np.concatenate(column)
        hashes = b"".join(part.hashes[name] for part in parts)
        found[f"{name} hashes"] = np.frombuffer(hashes, np.uint8)
    return found
