r"""Learns a WordPiece vocabulary from text.

    bert-keras train_vocabulary --input="books/*.txt" --vocabulary_size=30000 \
        --output=runs/vocab.txt

In: text files, JSONL, Parquet, a folder, a glob in quotes, or a data set
(tfds:NAME[/CONFIG][:VERSION][#SPLIT] or hf:NAME[/CONFIG][:SPLIT]). Out: a file
with one token on each line, first [PAD] [UNK] [CLS] [SEP] [MASK].
tokenizer_config.json in the same folder has the settings for case and accents,
which tokenizers with this vocabulary use. Settings that are already in the
folder apply, unless only the vocabulary that is replaced uses them. Otherwise,
text is lower-cased by default, and accents are stripped if this changes at most
1 % of the words. If it changes more, accents are kept, because they can tell
letters apart, such as Russian й and и. --nolowercase keeps case and accents.
--strip_accents and --nostrip_accents override the rule for accents. The same
text and flags write the same file with any number of workers. --beam counts the
words on many machines; see docs/data.md. --unused=994 adds tokens [unusedN],
which words of another domain can replace later. As in the original vocabulary,
99 of them then stand between [PAD] and [UNK].

Takes about half a minute for 30,000 tokens from 120 MB on two CPU cores.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses
import functools

from bert_keras.data.corpus import Reading, paragraphs, read_documents
from bert_keras.data.workers import in_order
from bert_keras.text import learning
from bert_keras.text.vocabulary import (
    SETTINGS,
    resolve_settings,
    shares_settings,
    write_with_settings,
)
from official_tasks import cli, options, progress
from official_tasks.options import Condition, option
from official_tasks.outputs import prepare_output


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(options.CorpusOptions):
    """Options of this script."""

    output: str = option(help="The vocabulary file to write.")
    overwrite: bool = options.define_overwrite()
    vocabulary_size: int = option(
        30_000,
        "Maximum number of tokens, with special and unused tokens.",
        at_least=10,
    )
    min_count: int = option(
        2, "Minimum count of a character or a merged pair.", at_least=1
    )
    unused: int = option(0, "Number of [unusedN] tokens.", at_least=0)
    workers: int = options.define_workers()
    beam: str | None = option(
        None,
        "Count the words in an Apache Beam pipeline, with these Beam flags.",
    )
    conditions = (
        Condition(("workers",), "without --beam", lambda v: v.beam is None),
    )


def main(values):
    prepare_output(values, values.input)
    progress.note_unread(values.input)
    lowercase, strip = values.lowercase, values.strip_accents
    # Vocabularies in one folder share a settings file, so settings must agree.
    if shares_settings(values.output):
        lowercase, strip = resolve_settings(values.output, lowercase, strip)
    lowercase = True if lowercase is None else lowercase
    first = learning.first_pieces(values.vocabulary_size, values.unused)
    with progress.bar("Learning tokens") as update:
        counts = _count_words(values, lowercase, bool(strip))
        fraction = learning.accented_fraction(counts)
        if strip is None and lowercase:
            strip = fraction <= learning.MANY_ACCENTS
            counts = learning.strip_counts(counts) if strip else counts
        tokens = learning.learn_pieces(
            counts, first, values.vocabulary_size, values.min_count, update
        )
    write_with_settings(tokens, values.output, lowercase, bool(strip))
    line = f"{values.output}: {len(tokens):,} tokens"
    if len(tokens) < values.vocabulary_size:
        line += (
            f" of {values.vocabulary_size:,}: no other pair occurs "
            f"{values.min_count} times; take more text for more tokens"
        )
    progress.console.print(line)
    accents = "stripped" if strip else "kept"
    if values.strip_accents is None and fraction:
        accents += f"; stripping accents changes {fraction:.1%} of the words"
    progress.console.print(
        f"{SETTINGS} next to it: {'lower case' if lowercase else 'case kept'}, "
        f"accents {accents}"
    )


def _count_words(values, lowercase, strip_accents):
    reading = Reading(text_field=values.text_field)
    if values.beam is not None:
        from bert_keras.data.beam import count_words_of_files

        return count_words_of_files(
            values.input,
            reading,
            lowercase,
            strip_accents,
            f"{values.output}.counts",
            options.split_words("beam", values.beam),
        )
    texts = paragraphs(read_documents(values.input, reading))
    in_workers = functools.partial(in_order, workers=values.workers)
    return learning.count_words(texts, lowercase, strip_accents, in_workers)


if __name__ == "__main__":
    cli.start(main, Options)
