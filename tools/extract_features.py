r"""Writes features of texts: a vector for each token or word.

    bert-keras extract_features --input=texts.txt \
        --model=runs/pretrain/model --recipe=concat_last_four \
        --per=word_first --vectors_dtype=float16 --output=features.npz

In: a file with a text on each line (blanks separate words), and a model folder
or name of weights. With --is_split_into_words, the file is a CoNLL file, with a
word on each line. --input may also be a data set
(tfds:NAME[/CONFIG][:VERSION][#SPLIT] or hf:NAME[/CONFIG][:SPLIT]): its texts
are in the column text or, with --is_split_into_words, its lists of words are in
the column tokens. --text names another column. Out: one .npz or .tfrecord file.
A .npz has the vectors of all texts, the index where each text's vectors start,
the token ids, and for each token the index of its word. A .tfrecord has an
Example for each text. official_tasks/engine/features.py describes the arrays.

--recipe chooses the layers. The paper's six recipes are embeddings,
second_to_last, last, weighted_sum_last_four, concat_last_four and
weighted_sum_all. In a weighted sum, all weights are 1. Other recipes are
possible, such as concat:-1,-3 or weighted_sum:0,6. A text longer than a row is
read in windows. The same command resumes an interrupted run by the folder
NAME.parts; after a finished one it ends at once. --beam extracts on many
machines: see docs/data.md.

Takes about a minute for 100,000 tokens with a small model on two CPU cores.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses
import functools
import io
import os

import bert_keras
from bert_keras import files
from bert_keras.data.beam import import_beam
from bert_keras.data.data_sets import column_rows, is_data_set
from bert_keras.errors import InputError, format_count
from bert_keras.file_forms import bound_lines
from bert_keras.modeling.recipes import find_recipe
from official_tasks import cli, options, progress
from official_tasks.engine.features import (
    PER,
    Extractor,
    split_texts,
    write_features,
)
from official_tasks.engine.models import list_model_files
from official_tasks.engine.parts import open_parts, refuse_inputs
from official_tasks.engine.prediction import find_inputs
from official_tasks.options import option
from official_tasks.tasks.conll import read_columns
from official_tasks.tasks.forms.text_files import plain_errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    input: str = option(
        help="File with one text on each line, or a data set. With --beam: "
        "files."
    )
    is_split_into_words: bool = option(
        False,
        "--input is a CoNLL file, with a word on each line, or a data set with "
        "lists of words.",
    )
    text: str | None = option(
        None,
        "Column of a data set to read; by default text, or tokens with "
        "--is_split_into_words.",
    )
    model: str = option(help="Model folder or name of weights.")
    output: str = option(help="File to write: .npz or .tfrecord.")
    overwrite: bool = options.define_overwrite()
    recipe: str = option("last", "Recipe: the layers to read.")
    per: str = option("token", "Unit that gets a vector.", choices=PER)
    vectors_dtype: str = option(
        "float32", "Type of the vectors.", choices=("float32", "float16")
    )
    sequence_length: int = option(128, "Maximum tokens of a row.")
    batch_size: int = option(
        32, "Rows in a batch.", at_least=1, at_most=options.LARGEST_BATCH
    )
    beam: str | None = option(
        None,
        "Extract in an Apache Beam pipeline, with these Beam flags: one file "
        "of features for each file of --input.",
    )


def read_words(path, columns, text=None):
    """Yield the words of each text of a file or of a data set.

    Args:
        path: the file, or the name of a data set.
        columns: True for a CoNLL file, or for a data set with lists of words.
        text: the column of the data set to read, or None.
    """
    if is_data_set(path):
        yield from _read_data_set(path, text or ("text", "tokens")[columns])
        return
    if text:
        raise InputError(f"--text={text} only applies to a data set.")
    if columns:
        for sentence in read_columns(path, labelled=False):
            yield list(sentence.words)
        return
    try:
        with (
            bound_lines(open(path, "rb"), path) as stream,
            io.TextIOWrapper(stream, "utf-8-sig", newline="\n") as lines,
            plain_errors(path),
        ):
            for line in lines:
                yield line.split()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None


def _read_data_set(source, column):
    for number, (cell,) in column_rows(source, [column]):
        if isinstance(cell, str):
            yield cell.split()
            continue
        words = [] if cell is None else cell
        if not isinstance(words, list) or not all(
            isinstance(word, str) for word in words
        ):
            raise InputError(
                f"{source}, row {number}: expected a text or a list of words "
                f"in column {column!r}, got {cell!r}. Name another column by "
                "--text."
            )
        yield words


def make_extractor(model, sequence_length, recipe, *arguments):
    """Return an `Extractor` with the encoder and the tokenizer of a model."""
    from bert_keras.interop.opening import open_checkpoint

    checkpoint = open_checkpoint(model)  # one save for both
    return Extractor(
        bert_keras.BertEncoder.from_preset(checkpoint),
        bert_keras.BertPreprocessor.from_preset(
            checkpoint, sequence_length=sequence_length, pad_to_longest=True
        ),
        find_recipe(recipe),
        *arguments,
    )


def main(values):
    if not values.output.endswith((".npz", ".tfrecord")):
        raise InputError(
            f"--output={values.output}: expected a .npz or .tfrecord file"
        )
    paths = [values.input] if values.beam is None else _find_files(values)
    refuse_inputs(values.output, values.model, *paths)
    find_recipe(values.recipe)
    read = functools.partial(
        read_words, columns=values.is_split_into_words, text=values.text
    )
    names = "model recipe per vectors_dtype sequence_length batch_size".split()
    settings = {name: values[name].value for name in names}
    make = functools.partial(
        make_extractor,
        values.model,
        values.sequence_length,
        values.recipe,
        values.per,
        values.vectors_dtype,
        values.batch_size,
    )
    if values.beam is not None:
        settings["is_split_into_words"] = values.is_split_into_words
        _extract_with_beam(values, paths, read, make, settings)
        return
    texts = functools.partial(read, values.input)
    if os.path.exists(values.input):
        files.check_file(values.input)  # a pipe can be read only once
    sizes = list(map(len, texts()))
    if not any(sizes):
        raise InputError(f"{values.input} has no text. Name a file with text.")
    weights = list_model_files(values.model)
    with open_parts(
        values.output, settings, values.overwrite, weights
    ) as parts:
        extract = make()
        progress.show_devices()
        with progress.bar("Extracting features", len(sizes)) as update:
            for done in parts.make(split_texts(texts()), extract.make_part):
                update(done)
        if parts.rows != len(sizes):
            raise InputError(
                f"{values.input} changed while it was read, from {len(sizes)} "
                f"texts to {parts.rows}. Run the command again."
            )
        write = functools.partial(write_features, values.output, parts.contents)
        vectors, width = parts.join(write)
    size = files.size(values.output)
    progress.console.print(
        f"{values.output}: {format_count(vectors, 'vector')} of size "
        f"{width}, for {format_count(parts.rows, 'text')}; {size:,} bytes, "
        f"{size / vectors:,.0f} a vector"
    )


def _find_files(values):
    """Return the input files of a Beam pipeline."""
    if values.input == "-" or is_data_set(values.input):
        raise InputError(
            f"--input is {values.input}, but --beam reads files. Name files, "
            "or leave --beam out."
        )
    if values.text:
        raise InputError(f"--text={values.text} only applies to a data set.")
    return find_inputs(values.input)


def _extract_with_beam(values, paths, read, make, settings):
    import_beam()
    from official_tasks.engine.beam_features import extract_files

    shards = extract_files(
        paths,
        read,
        make,
        values.output,
        settings,
        options.split_words("beam", values.beam),
        values.overwrite,
        list_model_files(values.model),
    )
    last = f" to {shards[-1]}" if len(shards) > 1 else ""
    progress.console.print(f"{shards[0]}{last}", soft_wrap=True)


if __name__ == "__main__":
    cli.start(main, Options)
