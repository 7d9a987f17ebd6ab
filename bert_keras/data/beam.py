"""Pre-training data on many machines: the build as Apache Beam pipelines.

The functions of the local build run as Beam's steps, so that stores, shards
and manifests have the same bytes. Each step is a small value that can be sent
anywhere; its results are files of the shared folder, so that no runner has to
return anything. Apache Beam is imported only when asked.
"""

import contextlib
import dataclasses
import functools
import json
import os
import zipfile

import numpy as np

from bert_keras import files, json_files
from bert_keras.data import building, corpus, pretraining_data, record_files
from bert_keras.data.data_sets import is_data_set
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.token_store import StoreWriter, TokenStore
from bert_keras.errors import InputError
from bert_keras.journal import PROGRESS

ENTRIES = ".entries"  # a folder of the manifest's entries, one a file
PIECES = ".pieces"  # a folder of the tokens of each text file
KINDS = ("ids", "lengths", "counts")  # the arrays of a `TokenisedPart`
_NOTHING = (np.zeros(0, np.int32), np.zeros(0, int), np.zeros(0, int))


def create_pretraining_data_with_beam(
    source: str,
    tokenizer,
    folder: str,
    rules: SamplingRules | None = None,
    seed: int = 0,
    copies: int = 1,
    held_out_share: float = 0.05,
    sentences: str = "split",
    layout: str = "auto",
    text_field: str = "text",
    beam_flags: list[str] | tuple[str, ...] = (),
    records: bool = True,
) -> dict[str, dict]:
    """As `create_pretraining_data`, on the machines that Beam's flags name.

    Each text file is tokenised by one worker, so that a corpus of many files
    uses many; each shard is written by one. The stores are put together by
    this process. Called again, it makes the files and shards that are missing.

    Args:
        source: as for `read_documents`. What is not files (`tfds:`,
            `hf:` and `documentation:`) is tokenised by this process.
        folder: where to write; every worker must reach it under this name.
        layout: see `read_documents`.
        text_field: see `read_documents`.
        beam_flags: Beam's own, such as `--runner=FlinkRunner`.
        Others: as for `create_pretraining_data`.

    Returns:
        As `create_pretraining_data`.
    """
    run = _runner(beam_flags)
    rules = rules or SamplingRules()
    tokens = os.path.join(folder, "tokens")
    pieces = os.path.join(tokens, PIECES)

    def write(name, store, copies):
        target = os.path.join(folder, name)
        return _write_records(store, target, rules, seed, copies, run)

    with pretraining_data.one_writer(folder):
        if source == corpus.DOCUMENTATION or is_data_set(source):
            documents = corpus.read_documents(source, layout, text_field)
            stores = building.build_stores(
                documents, tokenizer, tokens, held_out_share, sentences
            )
        else:
            choices = (held_out_share, sentences, layout, text_field)
            stores = _build_stores(source, tokenizer, tokens, choices, run)
        with _removed_after_mistake(pieces):
            manifests = pretraining_data.manifests_of(
                stores, copies, write if records else None
            )
    files.remove(pieces)
    if files.is_remote(folder):
        files.remove(building.work_folder(tokens))
    return manifests


def _runner(flags):
    """Return a function that runs a task over items by Beam, to the end."""
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise InputError(
            "Apache Beam is not installed: pip install 'bert_keras[beam]'."
        ) from error

    def run(task, items):
        with beam.Pipeline(options=PipelineOptions(list(flags))) as pipeline:
            (
                pipeline
                | beam.Create(items)
                | beam.Reshuffle()  # else some runners give all to one worker
                | beam.Map(task)
            )

    return run


@dataclasses.dataclass(frozen=True)
class TokeniseFile:
    """Writes the tokens of a text file's documents, as one piece.

    Args:
        tokenise: `Tokenise`.
        folder: where to write.
        names: of the stores, "train" and perhaps "held_out".
        share: of the documents that are held out.
        layout: see `read_documents`.
        text_field: see `read_documents`.
    """

    tokenise: building.Tokenise
    folder: str
    names: tuple[str, ...]
    share: float
    layout: str
    text_field: str

    def __call__(self, numbered: tuple[int, str]) -> str:
        number, path = numbered
        piece = self.piece_path(number)
        documents = corpus.read_file(
            path, path, "", self.layout, self.text_field
        )
        parts = building.parts_of(documents, self.share, list(self.names))
        tokenised = list(map(self.tokenise, parts))
        with (
            files.atomic_output(piece) as partial,
            open(partial, "wb") as file,
        ):
            np.savez(file, **_join_parts(tokenised, self.names))
        return piece

    def piece_path(self, number: int) -> str:
        return os.path.join(self.folder, f"piece-{number:06d}.npz")


def _join_parts(parts, names) -> dict:
    """Return the arrays of all parts by store and kind."""
    piece = {}
    for name in names:
        arrays = [part.arrays[name] for part in parts] or [_NOTHING]
        for kind, column in zip(KINDS, zip(*arrays, strict=True), strict=True):
            piece[f"{name} {kind}"] = np.concatenate(column)
        hashes = b"".join(part.hashes[name] for part in parts)
        piece[f"{name} hashes"] = np.frombuffer(hashes, np.uint8)
    return piece


def _build_stores(source, tokenizer, folder, choices, run):
    """Return the stores of a source of files."""
    share, sentences, layout, text_field = choices
    _, paths = corpus.find_files(source)
    names = ("train", "held_out") if share else ("train",)
    config = json.dumps(tokenizer.get_config(), sort_keys=True)
    sizes = list(map(files.size, paths))
    key = json_files.json_hash([config, choices, paths, sizes])[:16]
    pieces = os.path.join(folder, PIECES, key)
    tokenise = building.Tokenise(tokenizer, sentences)
    task = TokeniseFile(tokenise, pieces, names, share, layout, text_field)
    done = set(files.list_folder(pieces))
    missing = [
        (number, path)
        for number, path in enumerate(paths)
        if os.path.basename(task.piece_path(number)) not in done
    ]
    if missing:
        run(task, missing)
    work = building.store_folder(folder, names)
    # An interrupted build on one machine starts again.
    files.remove(os.path.join(work, PROGRESS))
    numbers = range(len(paths))
    with _removed_after_mistake(pieces):
        stores = {
            name: _assemble(
                map(task.piece_path, numbers), name, work, tokenizer
            )
            for name in names
        }
        return building.settle(stores, work, folder)


@contextlib.contextmanager
def _removed_after_mistake(folder):
    """So that what is refused leaves no pieces next to finished data."""
    try:
        yield
    except InputError:
        files.remove(folder)
        raise


def _assemble(pieces, name: str, folder: str, tokenizer) -> TokenStore:
    """Return the store of all pieces, in their order."""
    with StoreWriter(os.path.join(folder, name), tokenizer, name) as writer:
        writer.restore(None)
        for path in pieces:
            piece = _read_piece(path)
            writer.hash(piece[f"{name} hashes"].tobytes())
            writer.add(*(piece[f"{name} {kind}"] for kind in KINDS))
        if writer.totals["documents"] < 2:
            files.remove(folder)  # so that a mistake leaves nothing
            building.refuse_few(name, writer.totals["documents"])
        return writer.finish()


def _read_piece(path: str) -> dict:
    """Return the arrays of a piece; its file has a checksum of each.

    Raises:
        InputError: it is damaged. `_removed_after_mistake` removes it then.
    """
    try:
        with files.open_file(path) as file, np.load(file) as piece:
            return dict(piece)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} is damaged ({error}). Run the same command again."
        ) from None


def _write_records(store, folder, rules, seed, copies, run) -> dict:
    """Write records and their manifest; each shard by one worker."""
    facts = pretraining_data.record_facts(store, rules, seed, copies)
    record_files.refuse_other(folder, facts)
    # Workers open the store at its shared place, not a copy of this machine.
    write = pretraining_data.begin_shards(
        store, folder, rules, seed, copies, store.source
    )
    # An interrupted build on one machine starts again.
    files.remove(os.path.join(building.work_folder(folder), PROGRESS))
    entries = os.path.join(folder, ENTRIES)
    _keep_entries_of(facts, entries)
    done = set()
    for name in write.names:
        path = _entry_path(entries, name)
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
            if record_files.is_intact(folder, json_files.read_json(path)):
                done.add(name)
    missing = [n for n, name in enumerate(write.names) if name not in done]
    if missing:
        run(functools.partial(_write_shard, write, entries), missing)
    shards = [
        json_files.read_json(_entry_path(entries, n)) for n in write.names
    ]
    manifest = record_files.write_manifest(folder, {"shards": shards, **facts})
    files.remove(entries)
    return manifest


def _write_shard(
    write: pretraining_data.WriteShard, entries: str, number: int
) -> str:
    """Write a shard and its entry in the manifest."""
    entry = write(number)
    with files.atomic_output(_entry_path(entries, entry["name"])) as partial:
        json_files.write_json(entry, partial)
    return entry["name"]


def _entry_path(entries: str, name: str) -> str:
    return os.path.join(entries, f"{name}.json")


def _keep_entries_of(facts: dict, folder: str):
    """Drop the entries of shards that were drawn by other rules."""
    path = os.path.join(folder, "facts.json")
    plain = json.loads(json.dumps(facts))
    with contextlib.suppress(FileNotFoundError, ValueError):
        if json_files.read_json(path) == plain:
            return
    files.remove(folder)
    with files.atomic_output(path) as partial:
        json_files.write_json(facts, partial)
