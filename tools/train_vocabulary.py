"""Learns a WordPiece vocabulary from text.

    python tools/train_vocabulary.py --input="books/*.txt" --size=30000 \
        --output=runs/vocab.txt

In: text files, JSONL, Parquet or Arrow, a folder, a glob in quotes,
tfds:NAME[/CONFIG][:SPLIT], hf:NAME[/CONFIG][:SPLIT], or documentation: for the
documentation installed with Python. Out: one piece a line, [PAD] [UNK] [CLS]
[SEP] [MASK] first. The same text and flags give the
same file, however many workers there are. --unused=994 keeps places free for
words of a later domain, and ids of special tokens are then the original's.

Takes about half a minute for 30,000 pieces from 120 MB on two CPU cores.
"""

import functools
import os

from absl import flags

from bert_keras.data.corpus import paragraphs, read_documents
from bert_keras.data.workers import in_order
from bert_keras.text.learning import learn_vocabulary
from bert_keras.text.vocabulary import write_vocabulary
from official_tasks import progress, script


def define_flags():
    script.define_text("Text to learn from.")
    flags.DEFINE_string("output", None, "The vocabulary file to write.")
    script.define_overwrite()
    flags.DEFINE_integer("size", 30_000, "Pieces in all.", lower_bound=10)
    flags.DEFINE_integer("min_count", 2, "Rarer pairs are not merged.", 1)
    flags.DEFINE_integer("unused", 0, "Pieces [unusedN] to keep free.", 0)
    flags.DEFINE_integer("workers", os.cpu_count(), "Processes that count.", 1)
    flags.mark_flags_as_required(["input", "output"])


def main(values):
    script.prepare_output(values)
    with progress.bar("Learning pieces") as update:
        tokens = learn_vocabulary(
            paragraphs(
                read_documents(values.input, text_field=values.text_field)
            ),
            values.size,
            lowercase=values.lowercase,
            strip_accents=values.strip_accents,
            min_count=values.min_count,
            unused=values.unused,
            progress=update,
            in_order=functools.partial(in_order, workers=values.workers),
        )
    write_vocabulary(tokens, values.output)
    line = f"{values.output}: {len(tokens):,} pieces"
    if len(tokens) < values.size:
        line += (
            f" of {values.size:,}: no other two stand together "
            f"{values.min_count} times; give more text for more pieces"
        )
    progress.console.print(line)


if __name__ == "__main__":
    script.start(main, define_flags)
