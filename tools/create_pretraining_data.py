r"""Turns text into pre-training data: tokens, sentence pairs and masks.

    bert-keras create_pretraining_data --input="books/*.txt" \
        --vocabulary=runs/vocab.txt --output=runs/data

Input: a vocabulary and text. --input names files, a folder, a glob in quotes,
or a data set (tfds:NAME[/CONFIG][:VERSION][#SPLIT] or
hf:NAME[/CONFIG][:SPLIT]). A text file is one document, or has one sentence on
each line and a blank line between documents. Each row of a JSONL or Parquet
file and of a data set is a document.

Output: a folder. Its tokens/ has the tokenised text, from which pre-training
draws new pairs and masks in each epoch. With --records, its train/ and
held_out/ have TFRecords of examples drawn once, with the original BERT's
feature names, for pretrain --records. A hash of the content chooses the
held-out documents, or --held_out names them. Every path may be
remote (gs://...). The same command resumes an interrupted build. --beam runs
the build on many machines; see docs/data.md.

Takes about 10 seconds for 8 MB of text on one CPU core.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses
import itertools
import math
import os

from bert_keras import files
from bert_keras.data.corpus import (
    LAYOUTS,
    Reading,
    content_hash,
    read_documents,
)
from bert_keras.data.sampling import SamplingRules
from bert_keras.errors import InputError
from official_tasks import cli, options, progress
from official_tasks.options import Condition, option
from official_tasks.outputs import refuse_input_as_output
from official_tasks.pretraining.settings import ExampleOptions

# Below this number of documents, the split by hash may hold out fewer than two.
FEW = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(options.CorpusOptions, ExampleOptions):
    """Options of this script."""

    layout: str = option(
        "auto",
        "Form of a text file. document: one document. sentences: one "
        "sentence on each line, and a blank line between documents. lines: one "
        "document on each line. auto: decide between document and sentences by "
        "the start of each file.",
        choices=LAYOUTS,
    )
    vocabulary: str = option(
        help="Vocabulary: a file, a model folder or a name of weights."
    )
    output: str = option(help="Folder to write.")
    records: bool = option(
        False, "Write TFRecords to train/ and held_out/ in --output."
    )
    copies: int = option(
        1,
        "Number of copies of the text in train/, each with different pairs "
        "and masks.",
        at_least=1,
    )
    held_out_share: float = option(
        0.05,
        "Fraction of the documents to hold out. For 4 to 199 documents, the "
        "default is raised if it would hold out fewer than two.",
        at_least=0,
        below=1,
    )
    held_out: str | None = option(
        None,
        "Text to hold out, in any form that --input takes. By default, a "
        "fraction of --input is held out.",
    )
    sentences: str = option(
        "split",
        "split: find sentences by rules. lines: each line is a sentence.",
        choices=("split", "lines"),
    )
    workers: int = options.define_workers()
    seed: int = options.define_seed("Seed of pairs and masks.")
    beam: str | None = option(
        None, "Run as Apache Beam pipelines, with these Beam flags."
    )
    conditions = (
        Condition(
            ("held_out_share",),
            "without --held_out, which names the documents to hold out",
            lambda v: v.held_out is None,
        ),
        Condition(
            ("workers", "held_out"), "without --beam", lambda v: v.beam is None
        ),
        Condition(
            (*options.list_options(ExampleOptions), "copies", "seed"),
            "with --records",
            lambda v: v.records,
        ),
    )


def main(values):
    sources = values.input, values.held_out
    refuse_input_as_output(values.output, *sources)
    for folder in filter(None, sources):
        progress.note_unread(folder)
        # The next call would read this call's vocab.txt as text.
        root = os.path.join(files.absolute(folder), "")
        if files.absolute(values.output).startswith(root):
            raise InputError(
                f"--output={values.output} is in the folder {folder}, which is "
                "an input. Name a folder outside of the input folder."
            )
    rules = dataclasses.asdict(options.read(ExampleOptions, values))
    share = _choose_share(values)
    tokenizer = options.load_tokenizer(values)
    from bert_keras.data.pretraining_data import BuildOptions

    build = BuildOptions(
        share,
        values.sentences,
        values.records,
        SamplingRules(**rules),
        values.seed,
        values.copies,
    )
    create = _create_here if values.beam is None else _create_with_beam
    manifests = create(values, tokenizer, build)
    for name, manifest in manifests.items():
        words = [
            f"{manifest[unit]:,} {unit}"
            for unit in ("documents", "sentences", "tokens", "examples")
            if unit in manifest
        ]
        progress.console.print(f"{name}: {', '.join(words)}")


def _choose_share(values):
    """Return the fraction of documents to hold out.

    A random next sentence comes from another document, so at least two must be
    held out. From few documents, the hash may hold out one or none. If there
    are at least 4 documents, the default fraction is then raised.
    """
    if values.held_out:
        return 0
    share = values.held_out_share
    if values["held_out_share"].present:
        return share
    documents = read_documents(values.input, _reading(values))
    hashes = sorted(
        int.from_bytes(content_hash(document)[:8], "big") / 2**64
        for document in itertools.islice(documents, FEW)
        if any(map(str.strip, document.paragraphs))
    )
    if not 4 <= len(hashes) < FEW or hashes[1] < share:
        return share
    share = math.ceil(hashes[1] * 1000 + 1e-6) / 1000
    count = sum(value < share for value in hashes)
    progress.console.print(
        f"note: {count} of {len(hashes)} documents are held out: "
        f"--held_out_share={share}"
    )
    return share


def _reading(values):
    return Reading(
        values.layout, values.text_field, values.sentences == "split"
    )


def _create_with_beam(values, tokenizer, build):
    from bert_keras.data.beam import make_runner
    from bert_keras.data.pretraining_data import create_from_files

    run = make_runner(options.split_words("beam", values.beam))
    reading = _reading(values)
    return create_from_files(
        values.input, tokenizer, values.output, build, reading, run
    )


def _create_here(values, tokenizer, build):
    from bert_keras.data.pretraining_data import create_pretraining_data

    held_out = ()
    if values.held_out:
        held_out = read_documents(values.held_out, _reading(values))
    documents = read_documents(values.input, _reading(values))
    with progress.bar("Examples") as update:
        return create_pretraining_data(
            documents,
            tokenizer,
            values.output,
            build,
            workers=values.workers,
            # Each part of the work has its own total.
            progress=lambda part, done, total: update(done, total, note=part),
            held_out=held_out,
        )


if __name__ == "__main__":
    cli.start(main, Options)
