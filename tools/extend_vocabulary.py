r"""Adds the words of a domain to a vocabulary, each as one token.

    bert-keras extend_vocabulary --vocabulary=vocab.txt \
        --input="reports/*.txt" --num_words=500 --output=runs/extended/vocab.txt

In: the vocabulary of a model (a file, a model folder or a name of weights),
and text of the domain, as bert-keras train_vocabulary takes it. Out: the
vocabulary with its tokenizer_config.json. The script adds the words that save
the most tokens in the text. The first words replace [unusedN] tokens, the other
words get ids at the end. No other id changes. To continue pre-training, set
--init and --vocabulary of bert-keras pretrain. The embedding of a new word
starts as the mean of the embeddings of its former tokens.

Takes about half a minute for 120 MB of text.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses
import functools
import os

from bert_keras.data.corpus import Reading, paragraphs, read_documents
from bert_keras.data.workers import in_order
from bert_keras.errors import InputError
from bert_keras.text import extension
from bert_keras.text.vocabulary import (
    resolve_settings,
    shares_settings,
    write_with_settings,
)
from official_tasks import cli, options, progress
from official_tasks.options import option
from official_tasks.outputs import prepare_output


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(options.CorpusOptions):
    """Options of this script."""

    vocabulary: str = option(
        help="Vocabulary to extend: a file, a model folder or a name of "
        "weights."
    )
    output: str = option(help="The vocabulary file to write.")
    overwrite: bool = options.define_overwrite()
    num_words: int = option(500, "Maximum number of words to add.", at_least=1)
    workers: int = options.define_workers()


def _check_settings(values, settings):
    """Raise `InputError` if the output's folder has other settings.

    Vocabularies in one folder share a settings file.
    """
    if not shares_settings(values.output):
        return
    names = ("lowercase", "strip_accents")
    stored = resolve_settings(values.output)
    for name, value, found in zip(names, settings, stored, strict=True):
        if found is not None and value != found:
            folder = os.path.dirname(values.output) or "."
            raise InputError(
                f"--output={values.output} cannot be in the folder {folder}: "
                f"the vocabularies there have {name}={found}, but "
                f"{values.vocabulary} has {name}={value}. Name a file in "
                "another folder."
            )


def main(values):
    prepare_output(values, values.input, values.vocabulary)
    progress.note_unread(values.input)
    tokenizer = options.load_tokenizer(values)
    settings = tokenizer.lowercase, tokenizer.strip_accents
    _check_settings(values, settings)
    words = extension.domain_words(
        tokenizer.vocabulary,
        paragraphs(
            read_documents(values.input, Reading(text_field=values.text_field))
        ),
        values.num_words,
        tokenizer.lowercase,
        functools.partial(in_order, workers=values.workers),
        tokenizer.strip_accents,
    )
    pieces = extension.extend_vocabulary(tokenizer.vocabulary, words).vocabulary
    write_with_settings(pieces, values.output, *settings)
    examples = f", such as {', '.join(words[:5])}" if words else ""
    known = "" if words else "each word of the text is one token already: "
    progress.console.print(
        f"{values.output}: {known}{len(pieces):,} tokens, {len(words):,} of "
        f"them new{examples}"
    )


if __name__ == "__main__":
    cli.start(main, Options)
