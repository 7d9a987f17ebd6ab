"""Documents to token stores, for training and for evaluation."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator

from bert_keras import files
from bert_keras.data.documents import Document, content_hash, in_share
from bert_keras.data.journal import PROGRESS, Journal
from bert_keras.data.laws import vocabulary_hash
from bert_keras.data.places import settle, store_folder, work_folder
from bert_keras.data.sentences import split_sentences
from bert_keras.data.store import TokenStore
from bert_keras.data.store_writer import StoreWriter
from bert_keras.data.tokenising import Part, Tokenise, TokenisedPart
from bert_keras.data.workers import in_order
from bert_keras.errors import InputError

_PART = 2_000_000  # characters that are tokenised at once
_SAVE = 5  # seconds; what a kill costs at most, beside a part for each worker


def build_stores(
    documents: Iterable[Document],
    tokenizer,
    folder: str,
    held_out_share: float = 0.0,
    sentences: str | Callable[[str], list[str]] = "split",
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, TokenStore]:
    """Tokenises documents into the stores `train` and `held_out`.

    The bytes that are written are the same for any number of workers. A
    build that was broken off goes on where it stopped: what is done is read
    again, compared, and not tokenised again.

    Args:
        documents: any number of them; only a few are held in memory.
        tokenizer: a `WordPieceTokenizer`.
        folder: where to write; made where it is missing. For a remote one
            the stores are built in a folder of this machine (see
            `work_folder`), which stays, and uploaded at the end.
        held_out_share: about this share of the documents, chosen by the hash
            of their content, goes to `held_out`; 0 for no such store.
        sentences: "split" finds the sentences of each paragraph, "lines"
            takes each paragraph for one, a function returns those of a
            paragraph. Documents with given sentences are taken as they are.
        workers: processes, once the corpus is worth them (64 MB); a script
            that asks for several must guard its call by
            `if __name__ == "__main__"`.
        progress: called with the documents and the characters done so far.

    Raises:
        InputError: a share that is none, fewer than two documents with text
            on either side, or the folder holds the tokens of another corpus
            or tokenizer.
    """
    split = splitter(sentences)
    if not 0 <= held_out_share < 1:
        raise InputError(
            "held_out_share must be at least 0 and below 1; got "
            f"{held_out_share}."
        )
    names = ["train", "held_out"] if held_out_share else ["train"]
    target, folder = folder, work_folder(folder)
    if not files.is_file(os.path.join(folder, PROGRESS)):
        folder = store_folder(target, names)
    files.make_folder(folder)
    settings = _settings(tokenizer, held_out_share, sentences)
    journal = Journal(os.path.join(folder, PROGRESS), settings)
    with contextlib.ExitStack() as stack:
        stores = {}
        for name in names:
            writer = StoreWriter(os.path.join(folder, name), tokenizer, name)
            stores[name] = stack.enter_context(writer)
        build = _Build(stores, journal, progress)
        parts = build.unseen(parts_of(documents, held_out_share, names))
        for part in in_order(Tokenise(tokenizer, split), parts, workers):
            build.add(part)
        for name, writer in stores.items():
            if writer.totals["documents"] < 2:
                _leave_nothing(folder, names, journal)
                refuse_few(name, writer.totals["documents"])
        build.save()
        built = {name: writer.finish() for name, writer in stores.items()}
    return settle(built, folder, target)


class _Build:
    """The stores that a build writes, and how far it has come.

    A journal entry holds the number of parts done, and of each store its
    corpus hash and its state.
    """

    def __init__(self, stores: dict[str, StoreWriter], journal, progress):
        self._stores = stores
        self._journal = journal
        self._progress = progress
        self._parts = self._documents = self._characters = 0
        self._saved = time.monotonic()

    def unseen(self, parts: Iterator[Part]) -> Iterator[Part]:
        """The parts that are not in the stores yet."""
        entries = self._journal.entries
        last = entries[-1] if entries else {"parts": 0}
        while self._parts < last["parts"]:
            part = next(parts, None)
            if part is None:
                self._refuse()
            count = sum(map(len, part.documents.values()))
            self._count(part.hashes, count, part.characters)
        if entries and self._hashes() != last["hashes"]:
            self._refuse()
        for name, store in self._stores.items():
            store.restore(last["stores"][name] if entries else None)
        yield from parts

    def _hashes(self) -> dict[str, str]:
        return {name: s.corpus_hash for name, s in self._stores.items()}

    def _refuse(self):
        folder = os.path.dirname(self._stores["train"].folder)
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
        self._documents += documents
        self._characters += size
        if self._progress:
            self._progress(self._documents, self._characters)

    def save(self):
        """Writes down how far it has come, unless that is known."""
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


def _settings(tokenizer, held_out_share: float, sentences) -> dict:
    """What decides which bytes are written, beside the documents."""
    if callable(sentences):
        sentences = getattr(sentences, "__qualname__", repr(sentences))
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


def splitter(sentences) -> Callable[[str], list[str]]:
    """The function that finds the sentences of a paragraph."""
    if callable(sentences):
        return sentences
    known = {"split": split_sentences, "lines": _as_it_is}
    if sentences not in known:
        raise InputError(
            f"sentences must be 'split', 'lines' or a function; "
            f"got {sentences!r}."
        )
    return known[sentences]


def _as_it_is(line: str) -> list[str]:
    return [line]


def parts_of(
    documents: Iterable[Document], share: float, names: list[str]
) -> Iterator[Part]:
    """Runs of documents of about `_PART` characters."""

    def empty():
        hashes = {name: bytearray() for name in names}  # grow in place
        return Part({name: [] for name in names}, hashes, 0)

    part = empty()
    for document in documents:
        digest = content_hash(document)
        name = "held_out" if in_share(digest, share) else "train"
        part.documents[name].append(document)
        part.hashes[name] += digest
        part.characters += sum(map(len, document.paragraphs))
        if part.characters >= _PART:
            yield part
            part = empty()
    if part.characters:
        yield part


def _leave_nothing(folder, names, journal):
    """Removes what was written, and the folder where nothing else is in it."""
    journal.remove()
    for name in names:
        files.remove(os.path.join(folder, name))
    with contextlib.suppress(OSError):
        os.removedirs(folder)


def refuse_few(name: str, documents: int):
    """A random next sentence comes from another document."""
    if name == "train":
        raise InputError(
            f"A random next sentence needs at least two documents with text; "
            f"got {documents}. Give more files, or one sentence a line with "
            "blank lines between documents, as layout 'sentences'."
        )
    raise InputError(
        f"The held-out share leaves {documents} documents for evaluation, "
        "but a random next sentence needs at least two. Raise the share, set "
        "it to 0, or give more documents."
    )
