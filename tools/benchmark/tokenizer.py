r"""Time the tokenizer and Hugging Face's in turns.

    python tools/benchmark/tokenizer.py --vocabulary=vocab.txt \
        --input="books/*.txt" --output=speed.json

In: an uncased vocabulary and plain text; ten megabytes are enough. Out: a
table on the terminal, and as JSON: of each tokenizer, milliseconds a megabyte
over batches of lines, on as many cores as the process may use, and for one line
at a time, eager and in a graph. Before that the ids are compared: lines with
other ids are left out and counted. Needs the `tokenizers` package. Takes a
minute.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import functools
import os

from absl import flags
from baselines import turns
from baselines.worker import time_step

import bert_keras
from bert_keras.data.corpus import paragraphs, read_documents
from bert_keras.json_files import write_json
from bert_keras.text.vocabulary import read_vocabulary
from official_tasks import progress, script

PEER = "tokenizers"
NAMES = ("WordPieceTokenizer", "WordPieceTokenizer, portable")


def define_flags():
    flags.DEFINE_string("vocabulary", None, "Uncased vocabulary.")
    flags.DEFINE_string("input", None, "Text to tokenize.")
    flags.DEFINE_string("output", None, "JSON file to write.")
    script.define_overwrite()
    flags.DEFINE_integer("megabytes", 10, "Of the text, at most.", 1)
    flags.DEFINE_integer("batch", 1000, "Lines at a time.", 1)
    flags.DEFINE_integer("turns", 5, "Turns of each.", 1)
    flags.mark_flags_as_required(["vocabulary", "input"])


def main(values):
    script.prepare_output(values)
    lines, size = [], 0
    for line in paragraphs(read_documents(values.input)):
        size += len(line.encode())
        if size > values.megabytes * 1e6:
            break
        lines.append(line)
    makers = make_tokenizers(values.vocabulary)
    kept = compare_ids(makers, lines)
    megabytes = sum(len(line.encode()) for line in kept) / 1e6
    batches = {n: make(kept, values.batch) for n, make in makers.items()}
    report = {
        "megabytes": megabytes,
        "lines": len(kept),
        "lines left out": len(lines) - len(kept),
        "ms a megabyte": measure(
            "in batches", "a megabyte", batches, values.turns, megabytes
        ),
        "ms a line": measure(
            "one line at a time",
            "a line",
            one_line(values.vocabulary, kept[:200]),
            values.turns,
            len(kept[:200]),
        ),
    }
    progress.console.print(
        f"{len(kept):,} lines; {len(lines) - len(kept):,} have other ids"
    )
    if values.output:
        write_json(report, values.output)


def measure(title, unit, runs, count, size):
    """Let tokenizers take turns, print a table, return its rows.

    Args:
        title: of the table.
        unit: of the results.
        runs: name -> function that returns an iterator of batches.
        count: number of turns.
        size: of all batches, in the unit of the results.
    """
    steps = {
        name: functools.partial(time_step, lambda run=run: list(run()))
        for name, run in runs.items()
    }
    turns.take_turns(steps, [()])  # warm
    answers, _ = turns.take_turns(steps, [()] * count)
    rows = {name: turns.summarize(x, size) for name, x in answers.items()}
    turns.print_systems(title, rows, unit)
    return rows


def make_tokenizers(path):
    """Return name -> function that tokenizes lines in batches of a size."""
    import tokenizers

    vocabulary = read_vocabulary(path)
    peer = tokenizers.BertWordPieceTokenizer(path)
    tokenize = {
        name: bert_keras.WordPieceTokenizer(
            vocabulary, max_word_length=100, portable=name == NAMES[1]
        )
        for name in NAMES
    }
    return {
        PEER: functools.partial(_encode, peer),
        **{
            name: functools.partial(_map, one) for name, one in tokenize.items()
        },
    }


def _encode(tokenizer, lines, batch):
    batches = [lines[i : i + batch] for i in range(0, len(lines), batch)]

    def run():
        for part in batches:
            for encoding in tokenizer.encode_batch(
                part, add_special_tokens=False
            ):
                yield encoding.ids

    return run


def _map(tokenize, lines, batch):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(lines).batch(batch).cache()
    cores = len(os.sched_getaffinity(0))
    mapped = dataset.map(tokenize, num_parallel_calls=cores)
    return lambda: iter(mapped)


def one_line(path, lines):
    """Return name -> run that takes the lines one by one."""
    import tensorflow as tf
    import tokenizers

    peer = tokenizers.BertWordPieceTokenizer(path)
    tokenizer = bert_keras.WordPieceTokenizer(path, max_word_length=100)
    preprocess = bert_keras.BertPreprocessor(tokenizer)
    spec = [tf.TensorSpec([None], tf.string)]
    tensors = [tf.constant([line]) for line in lines]
    runs = {
        PEER: (lambda line: peer.encode(line).ids, lines),
        NAMES[0]: (lambda line: tokenizer([line]), lines),
        f"{NAMES[0]}, in a graph": (tf.function(tokenizer, spec), tensors),
        "BertPreprocessor, in a graph": (
            tf.function(preprocess, spec),
            tensors,
        ),
    }
    return {name: functools.partial(map, *run) for name, run in runs.items()}


def compare_ids(makers, lines):
    """Return the lines that all tokenizers turn into the same ids."""
    rows = [
        [
            ids
            for part in make(lines, len(lines))()
            for ids in (part.to_list() if hasattr(part, "to_list") else [part])
        ]
        for make in makers.values()
    ]
    return [
        line
        for line, first, *others in zip(lines, *rows, strict=True)
        if all(ids == first for ids in others)
    ]


if __name__ == "__main__":
    script.start(main, define_flags)
