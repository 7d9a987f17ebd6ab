"""Convert raw documents to token stores and to shards of examples.

Only one process at a time can write to a folder.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable

from bert_keras import files
from bert_keras.data.building import (
    PARTS,
    build_stores,
    build_stores_of_files,
    open_build,
    remove_parts_after_error,
    work_folder,
)
from bert_keras.data.corpus import (
    Document,
    Reading,
    read_documents,
)
from bert_keras.data.data_sets import is_data_set
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.token_store import TokenStore
from bert_keras.data.workers import in_order
from bert_keras.errors import InputError

_MIN_SHARDS = 4  # minimum number of shards to start workers; a shard takes 2 s


@dataclasses.dataclass(frozen=True)
class BuildOptions:
    """Options that determine the content of pre-training data.

    Args:
        held_out_share: approximate fraction of the documents for `held_out`,
            chosen by the hash of their text; 0 for none.
        sentences: "split" or "lines"; see `build_stores`.
        records: True to write records, too. Without them, training draws new
            examples from the stores in each epoch, by its own rules.
        rules: how pairs and masks of records are drawn. Like `seed` and
            `copies`, it has no effect without `records`.
        seed: seed of pairs and masks, at least 0.
        copies: number of times that the training text is used, each time with
            different pairs and masks (`dupe_factor` of the original BERT).
            Held-out text is used once.

    Raises:
        InputError: `copies` is below 1.
    """

    held_out_share: float = 0.05
    sentences: str = "split"
    records: bool = False
    rules: SamplingRules = SamplingRules()
    seed: int = 0
    copies: int = 1

    def __post_init__(self):
        if self.copies < 1:
            raise InputError(f"`copies` must be at least 1; got {self.copies}.")


def create_pretraining_data(
    documents: Iterable[Document],
    tokenizer,
    folder: str,
    options: BuildOptions | None = None,
    workers: int = 1,
    progress: Callable[[str, int, int | None], None] | None = None,
    held_out: Iterable[Document] = (),
) -> dict[str, dict]:
    """Convert raw documents to records for training and for evaluation.

    `folder` gets the token stores `tokens/train` and `tokens/held_out`. With
    the option `records`, it also gets the records `train` and `held_out`, which
    are drawn from the stores. After an interruption, a second call resumes the
    work.

    Args:
        documents: iterable of `Document`, such as from `read_documents`.
        tokenizer: a `WordPieceTokenizer`.
        folder: output folder; created if it is missing. May be remote; see
            `build_stores`.
        options: None for `BuildOptions()`.
        workers: number of processes; see `build_stores`.
        progress: function of the stage ("tokens", "train" or "held_out"), the
            number of finished documents or shards, and their total number
            (None if unknown).
        held_out: see `build_stores`. Needs `held_out_share=0`.

    Returns:
        Dict with the manifests of "train" and, if documents are held out, of
        "held_out". They describe the records or, without records, the stores.

    Raises:
        InputError: an argument is out of range, `train` or `held_out` has fewer
            than two documents, the folder has data of other documents or
            settings, or another process writes to the folder.
    """
    options = options or BuildOptions()
    run = functools.partial(in_order, workers=workers, min_items=_MIN_SHARDS)
    with open_build(folder, {}) as whole:  # one writer
        stores = build_stores(
            documents,
            tokenizer,
            os.path.join(folder, "tokens"),
            options.held_out_share,
            options.sentences,
            workers,
            progress and (lambda done, _: progress("tokens", done, None)),
            held_out,
        )
        manifests = finish_data(stores, folder, options, run, progress)
        whole.forget()
    return manifests


def create_from_files(
    source: str,
    tokenizer,
    folder: str,
    options: BuildOptions,
    reading: Reading,
    run: Callable[[Callable, list], Iterable],
) -> dict[str, dict]:
    """Run `create_pretraining_data` with a task for each input file and shard.

    The files have the same bytes. This process assembles the stores, and
    tokenises data sets by itself. After an interruption, a second call makes
    only the missing token files and shards.

    Args:
        source: see `read_documents`. The files must have the same paths on
            every machine, like `folder`.
        tokenizer: a `WordPieceTokenizer`.
        folder: output folder.
        options: see `create_pretraining_data`.
        reading: see `read_documents`.
        run: see `write_records`; such as `make_runner` of `beam.py`.
    """
    tokens = os.path.join(folder, "tokens")
    with open_build(folder, {}) as whole, remove_parts_after_error(tokens):
        rules = options.held_out_share, options.sentences
        if is_data_set(source):
            documents = read_documents(source, reading)
            stores = build_stores(documents, tokenizer, tokens, *rules)
        else:
            stores = build_stores_of_files(
                source, tokenizer, tokens, *rules, reading, run
            )
        manifests = finish_data(stores, folder, options, run)
        files.remove(os.path.join(tokens, PARTS))
        whole.forget()
    return manifests


def finish_data(
    stores: dict[str, TokenStore],
    folder: str,
    options: BuildOptions,
    run: Callable[[Callable, list], Iterable],
    progress: Callable | None = None,
) -> dict[str, dict]:
    """Write the records if `options` has them; return the manifests.

    If `folder` is remote, also remove the local `work_folder` of the stores.
    `stores` is a dict of split ("train" or "held_out") -> `TokenStore`. `run`:
    see `write_records`. `progress`: see `create_pretraining_data`.
    """
    manifests = {name: store.manifest for name, store in stores.items()}
    if options.records:
        from bert_keras.data.shards import write_records

        for name, store in stores.items():
            manifests[name] = write_records(
                store,
                os.path.join(folder, name),
                options.rules,
                options.seed,
                options.copies if name == "train" else 1,
                run,
                functools.partial(progress, name) if progress else None,
            )
    if files.is_remote(folder):
        files.remove(work_folder(os.path.join(folder, "tokens")))
    return manifests
