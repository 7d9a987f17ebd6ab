"""Convert documents to token stores, for training and for evaluation.

A build tokenises the documents in parts. It writes each part to a file named by
the hash of the part's texts, so a resumed build finds the finished parts. Then
it concatenates these files into the stores.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from bert_keras import files, json_files
from bert_keras.data.corpus import (
    Document,
    Reading,
    content_hash,
    find_files,
    is_below,
    read_file,
)
from bert_keras.data.sentences import document_sentences
from bert_keras.data.token_store import (
    StoreWriter,
    TokenStore,
    describe_tokenizer,
    is_store,
    read_manifest,
)
from bert_keras.data.workers import MIN_ITEMS, in_order
from bert_keras.errors import InputError
from bert_keras.manifest import check_same_settings, find_fault
from bert_keras.run_folder import SETTINGS, RunFolder

PARTS = ".parts"  # folder for tokens, with one file for each input file
# Characters of a part. The document that reaches this number ends the part.
_PART = 2_000_000
_BATCH = 1_000_000  # approximate characters in one call of the tokenizer
# The file of a part has these arrays for each store, such as "train ids". They
# are the results of `Tokenise`, and `Part.hashes`.
ARRAYS = ("ids", "lengths", "counts", "hashes")


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

    The files are the same for any number of workers. After an interruption, a
    second call reads all documents again but tokenises only the missing parts.

    Args:
        documents: iterable, read lazily.
        tokenizer: a `WordPieceTokenizer`.
        folder: output folder; created if it is missing. For a remote folder,
            the stores are built on this machine (see `work_folder`) and
            uploaded at the end.
        held_out_share: approximate fraction of the documents for `held_out`,
            chosen by the hash of their text; 0 for none.
        sentences: "split" splits each paragraph into sentences. "lines" keeps
            each paragraph as one sentence; for this, read the documents with
            `Reading(join_lines=False)`. Documents with `sentences_given` are
            never split.
        workers: number of processes. For less than about 64 million characters
            of text, this process does all the work. With several workers, a
            script must guard its call by `if __name__ == "__main__"`.
        progress: function of the numbers of finished documents and characters.
        held_out: documents for the store `held_out`, instead of a fraction of
            `documents`. A document of `documents` is skipped if `held_out`
            contains the same text.

    Raises:
        InputError: an argument is out of range, `held_out` and `held_out_share`
            are both set, a store has fewer than two documents with text, the
            folder has a store of other documents or settings, or a file of an
            interrupted build is damaged.
    """
    tokenise = Tokenise(tokenizer, sentences)
    held_out = iter(held_out)
    first = list(itertools.islice(held_out, 1))
    names = side_names(held_out_share, named=bool(first))
    held_out = itertools.chain(first, held_out)
    parts = iterate_parts(documents, held_out_share, names, held_out)
    settings = describe_build(tokenizer, sentences, held_out_share)
    finished = find_finished(folder, names, settings)
    if finished:
        _check_corpus(parts, finished, folder)
        if files.is_file(os.path.join(folder, SETTINGS)):  # after a kill
            with open_build(folder, settings | {"stores": names}) as build:
                build.forget()
        return {n: TokenStore(os.path.join(folder, n)) for n in names}
    with open_build(folder, settings | {"stores": names}) as build:
        work = work_folder(folder)
        key = json_files.json_hash(settings)[:16]
        write = WritePart(tokenise, os.path.join(work, "parts", key))
        paths, total, size = [], 0, 0
        for path, count, characters in in_order(
            write, parts, workers, MIN_ITEMS
        ):
            build.check()
            paths.append(path)
            total, size = total + count, size + characters
            if progress:
                progress(total, size)
        stores = assemble_stores(paths, names, work, tokenizer, settings)
        stores = move_stores(stores, work, folder)
        build.forget()
    return stores


def build_stores_of_files(
    source: str,
    tokenizer,
    folder: str,
    held_out_share: float,
    sentences: str,
    reading: Reading,
    run: Callable[[Callable, list], Iterable],
) -> dict[str, TokenStore]:
    """Build the stores of `build_stores` with a task for each input file.

    Args:
        source: files; see `read_documents`.
        tokenizer: see `build_stores`.
        folder: see `build_stores`.
        held_out_share: see `build_stores`.
        sentences: see `build_stores`.
        reading: see `read_documents`.
        run: function of a picklable task and a list of items.
    """
    names = side_names(held_out_share)
    settings = describe_build(tokenizer, sentences, held_out_share)
    find_finished(folder, names, settings)
    _, paths = find_files(source)
    # One changed file changes the key, so all parts are made again.
    versions = list(map(files.describe_version, paths))
    key = json_files.json_hash(
        [settings, reading.layout, reading.text_field, paths, versions]
    )[:16]
    parts = os.path.join(folder, PARTS, key)
    targets = [
        os.path.join(parts, f"part-{number:06d}.npz")
        for number in range(len(paths))
    ]
    done = set(files.list_folder(parts))
    pairs = zip(paths, targets, strict=True)
    todo = [pair for pair in pairs if os.path.basename(pair[1]) not in done]
    work = work_folder(folder)
    task = TokeniseFile(
        Tokenise(tokenizer, sentences), reading, names, held_out_share
    )
    with (
        open_build(folder, settings | {"stores": names}) as build,
        remove_parts_after_error(folder),
    ):
        for _ in run(task, todo):
            pass
        stores = assemble_stores(targets, names, work, tokenizer, settings)
        stores = move_stores(stores, work, folder)
        build.forget()
    return stores


def open_build(folder: str, settings: dict) -> RunFolder:
    """Open the `RunFolder` of data, which may have files of earlier builds.

    Raises:
        InputError: another process writes to the folder, or it has an
            unfinished build with other settings or of an earlier version.
    """
    if files.is_file(os.path.join(folder, "build.json")):
        raise InputError(
            f"{folder} has an unfinished build of an earlier version of "
            "bert_keras. Finish it with that version, or remove the folder."
        )
    return RunFolder(folder, settings, allows_files=True)


@contextlib.contextmanager
def remove_parts_after_error(folder):
    """Remove `PARTS` in `folder` after `InputError`, if the block made it."""
    parts = os.path.join(folder, PARTS)
    is_new = not files.is_folder(parts)
    try:
        yield
    except InputError:
        if is_new:
            files.remove(parts)
        raise


def side_names(held_out_share: float, named: bool = False) -> list[str]:
    """Return the names of the stores that a build writes.

    Args:
        held_out_share: fraction of the documents to hold out.
        named: True if the caller passes the documents to hold out.
    """
    if not 0 <= held_out_share < 1:
        raise InputError(
            "`held_out_share` must be at least 0 and below 1; got "
            f"{held_out_share}."
        )
    if named and held_out_share:
        raise InputError(
            "`held_out` and `held_out_share` exclude each other; got documents "
            f"and {held_out_share}. Set `held_out_share` to 0, or omit "
            "`held_out`."
        )
    return ["train", "held_out"] if named or held_out_share else ["train"]


@dataclasses.dataclass
class Part:
    """Part of a corpus. The keys of its dicts are names of stores."""

    documents: dict[str, list[Document]]
    # Each document's content hash, and b"sentences" if `sentences_given`.
    hashes: dict[str, bytearray]
    characters: int = 0


def iterate_parts(
    documents: Iterable[Document],
    held_out_share: float,
    names: list[str],
    held_out: Iterable[Document] = (),
) -> Iterator[Part]:
    """Yield the documents in parts of about `_PART` characters.

    `held_out` is read first, so that documents with the same text can be
    skipped in `documents`.
    """

    def empty_part():
        hashes = {name: bytearray() for name in names}
        return Part({name: [] for name in names}, hashes)

    part, kept = empty_part(), set()
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
        is_held_out = is_kept or is_below(digest, held_out_share)
        name = "held_out" if is_held_out else "train"
        part.documents[name].append(document)
        # The same text gives other tokens if each paragraph is one sentence.
        mark = b"sentences" if document.sentences_given else b""
        part.hashes[name] += digest + mark
        part.characters += sum(map(len, document.paragraphs))
        if part.characters >= _PART:
            yield part
            part = empty_part()
    if part.characters:
        yield part


class Tokenise:
    """Picklable function from documents to arrays of ids.

    Args:
        tokenizer: a `WordPieceTokenizer`. Each worker builds its own copy.
        sentences: "split" or "lines"; see `build_stores`.

    Returns:
        Three 1D integer arrays: the ids of all sentences, concatenated; the
        number of ids of each sentence; the number of sentences of each
        document. Empty sentences and documents are skipped.
    """

    def __init__(self, tokenizer, sentences: str):
        if sentences not in ("split", "lines"):
            raise InputError(
                f"`sentences` must be 'split' or 'lines'; got {sentences!r}."
            )
        self._tokenizer = tokenizer
        # Use JSON, because pickle fails for lists that Keras has wrapped.
        self._config = json.dumps(tokenizer.get_config())
        self._sentences = sentences

    def __getstate__(self):
        return {**self.__dict__, "_tokenizer": None}

    def __call__(self, documents: list[Document]) -> tuple[np.ndarray, ...]:
        texts, counts = [], []
        for document in documents:
            sentences = document.paragraphs
            if self._sentences == "split":
                sentences = document_sentences(document)
            texts.extend(sentences)
            counts.append(len(sentences))
        ids, lengths = self._encode(texts)
        document = np.repeat(np.arange(len(counts)), counts)  # (sentences,)
        full = lengths > 0
        counts = np.bincount(document[full], minlength=len(counts))
        return ids, lengths[full], counts[counts > 0]

    def _encode(self, texts: list[str]):
        if self._tokenizer is None:
            self._tokenizer = _build_tokenizer(json.loads(self._config))
        ends = np.cumsum([len(text) for text in texts]) // _BATCH
        cuts = np.flatnonzero(np.diff(ends, prepend=-1, append=-1))
        ids, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
            # Pass an array, because Keras slowly inspects each item of a list.
            rows = self._tokenizer(np.array(texts[start:stop], object))
            ids.append(rows.values.numpy())
            lengths.append(rows.row_lengths().numpy())
        return np.concatenate(ids), np.concatenate(lengths)


@dataclasses.dataclass(frozen=True)
class TokeniseFile:
    """Task that tokenises an input file and writes the tokens to a file.

    Args:
        tokenise: the `Tokenise` function.
        reading: see `read_documents`.
        names: names of the stores; see `side_names`.
        held_out_share: see `build_stores`.
    """

    tokenise: Tokenise
    reading: Reading
    names: list[str]
    held_out_share: float

    def __call__(self, pair: tuple[str, str]):
        path, target = pair
        documents = read_file(path, path, self.reading)
        parts = iterate_parts(documents, self.held_out_share, self.names)
        write_tokens(target, parts, self.tokenise, self.names)
        return target


def _build_tokenizer(config: dict):
    import tensorflow as tf

    from bert_keras.text.tokenizer import WordPieceTokenizer

    # Each worker uses one core. `set_...` raises RuntimeError if TensorFlow has
    # already started in this process, which is possible with Beam.
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    return WordPieceTokenizer.from_config(config)


@dataclasses.dataclass(frozen=True)
class WritePart:
    """Task that writes a part's tokens to a file, unless the file exists.

    A call returns the file's path and the part's numbers of documents and
    characters.
    """

    tokenise: Tokenise
    folder: str

    def __call__(self, part: Part) -> tuple[str, int, int]:
        content = [value.hex() for value in part.hashes.values()]
        name = f"{json_files.json_hash(content)[:32]}.npz"
        path = os.path.join(self.folder, name)
        if not files.is_file(path):
            write_tokens(path, [part], self.tokenise, list(part.documents))
        count = sum(map(len, part.documents.values()))
        return path, count, part.characters


def write_tokens(
    path: str, parts: Iterable[Part], tokenise: Tokenise, names: list[str]
):
    """Tokenise parts of a corpus; write the arrays to one `.npz` file.

    The file has one array for each store in `names` and each name in `ARRAYS`.
    `assemble_stores` reads it.
    """
    rows = {name: [tokenise([])] for name in names}
    hashes = {name: bytearray() for name in names}
    for part in parts:
        for name in names:
            rows[name].append(tokenise(part.documents[name]))
            hashes[name] += part.hashes[name]
    arrays = {}
    for name in names:
        columns = map(np.concatenate, zip(*rows[name], strict=True))
        values = [*columns, np.frombuffer(hashes[name], np.uint8)]
        for array, value in zip(ARRAYS, values, strict=True):
            arrays[f"{name} {array}"] = value
    # Do not use `np.savez`: if the disk is full, NumPy before 2.2 leaves the
    # zip open, and Python prints a traceback when it closes the zip later.
    with (
        files.atomic_output(path) as partial,
        zipfile.ZipFile(partial, "w") as file,
    ):
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array)


def _read_tokens(path: str) -> dict[str, np.ndarray]:
    try:
        with files.open_file(path) as file, np.load(file) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        # An error with an errno comes from the operating system. The file may
        # be intact, so keep it.
        if getattr(error, "errno", None):
            raise
        files.remove(path)
        raise InputError(
            f"{path} was damaged ({error}) and has been removed. Run the same "
            "build again."
        ) from None


def describe_build(tokenizer, sentences: str, held_out_share: float) -> dict:
    """Return the settings of a build, for the manifests of its stores."""
    return {
        **describe_tokenizer(tokenizer),
        "sentence_rule": sentences,
        "held_out_share": held_out_share,
    }


def assemble_stores(
    paths: Iterable[str],
    names: list[str],
    folder: str,
    tokenizer,
    settings: dict,
) -> dict[str, TokenStore]:
    """Concatenate the parts, in the order of their `paths`, into stores.

    Raises:
        InputError: a store would have fewer than two documents (`folder` is
            removed), or the file of a part is damaged (the file is removed).
    """
    with contextlib.ExitStack() as stack:
        writers = {
            name: stack.enter_context(
                StoreWriter(
                    os.path.join(folder, name), tokenizer, name, settings
                )
            )
            for name in names
        }
        for path in paths:
            arrays = _read_tokens(path)
            for name, writer in writers.items():
                *rows, hashes = (arrays[f"{name} {array}"] for array in ARRAYS)
                writer.add(*rows, hashes.tobytes())
        for name, writer in writers.items():
            if writer.totals["documents"] < 2:
                files.remove(folder)
                _refuse_few(name, writer.totals["documents"])
        return {name: writer.finish() for name, writer in writers.items()}


def _refuse_few(name: str, documents: int):
    if name == "train":
        raise InputError(
            "Next-sentence prediction needs at least two documents with text; "
            f"got {documents}. Give more files, or one file with layout "
            "'sentences', which has a sentence on each line and a blank line "
            "between documents."
        )
    raise InputError(
        "Next-sentence prediction needs at least two documents with text; the "
        f"held-out data has {documents} documents. Pass at least two as "
        "`held_out`, or set `held_out_share` to 0 or to a much larger fraction."
    )


def work_folder(folder: str) -> str:
    """Return the folder for a build's unfinished files.

    This folder is in `folder`, or in `cache_folder()` if `folder` is remote.
    """
    if not files.is_remote(folder):
        return os.path.join(folder, ".building")
    name = hashlib.sha256(folder.rstrip("/").encode()).hexdigest()[:32]
    return os.path.join(files.cache_folder(), "building", name)


def find_finished(
    folder: str, names: list[str], settings: dict
) -> dict[str, dict] | None:
    """Return the manifests of a folder's stores, or None if one is missing.

    A damaged store counts as missing, so it is built again.

    Raises:
        InputError: a store was built with other settings.
    """
    manifests = {}
    for name in names:
        path = os.path.join(folder, name)
        manifest = _read_finished(path)
        if manifest:
            old = {key: manifest.get(key) for key in settings}
            check_same_settings(old, settings, path)
            if _is_intact(path, manifest):
                manifests[name] = manifest
    return manifests if len(manifests) == len(names) else None


def _read_finished(folder: str) -> dict | None:
    with contextlib.suppress(InputError):  # it is damaged
        return read_manifest(folder) if is_store(folder) else None
    return None


def _is_intact(folder: str, manifest: dict) -> bool:
    return not any(
        find_fault(os.path.join(folder, name), entry)
        for name, entry in manifest["files"].items()
    )


def _check_corpus(parts: Iterator[Part], finished: dict[str, dict], folder):
    hashes = {name: hashlib.sha256() for name in finished}
    for part in parts:
        for name, value in part.hashes.items():
            hashes[name].update(value)
    for name, manifest in finished.items():
        if manifest["corpus_hash"] != hashes[name].hexdigest():
            _refuse_other_corpus(folder)


def _refuse_other_corpus(folder: str):
    raise InputError(
        f"{folder} holds the tokens of other documents, or of these documents "
        "with another layout. Give the documents and layout of the first "
        "build, name another folder, or delete this folder."
    )


def move_stores(
    stores: dict[str, TokenStore], work: str, folder: str
) -> dict[str, TokenStore]:
    """Move finished stores from `work` to `folder`, which may be remote.

    Raises:
        InputError: `folder` has stores of other documents. They are kept, and
            `work` is removed.
    """
    moved = {}
    finished = {
        name: _read_finished(os.path.join(folder, name)) for name in stores
    }
    for name, store in stores.items():
        old = finished[name]
        if old and old["corpus_hash"] != store.manifest["corpus_hash"]:
            files.remove(work)
            _refuse_other_corpus(folder)
    for name, store in stores.items():
        target, new = os.path.join(folder, name), store.manifest
        is_finished = finished[name] == new and _is_intact(target, new)
        if files.is_remote(folder):
            if not is_finished:
                files.upload(store.folder, target)
            store.source = target
            moved[name] = store
            continue
        if not is_finished:
            with files.atomic_output(target) as partial:
                os.rename(store.folder, partial)
        moved[name] = TokenStore(target)
    files.remove(os.path.join(work, "parts"))
    if not files.is_remote(folder):
        files.remove(work)
    return moved
