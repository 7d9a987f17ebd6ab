"""Times the tokenizer, Hugging Face's and tensorflow-text's in turns.

    python tools/benchmark/tokenizer.py --vocabulary=vocab.txt \
        --input="books/*.txt" --output=speed.json

In: an uncased vocabulary and plain text; ten megabytes are enough. Out: a
table on the terminal, and as JSON: of each tokenizer, megabytes a second over
batches of lines, on as many cores as the process may use, by the clock and by
the processor's time (which other work on the machine disturbs less); the best
turn of each counts. Before that, the ids are compared: lines
on which the exact tokenizers, ours and that of the `tokenizers` package, do
not agree are left out; those of which the inexact one makes other ids stay.
Both are counted. Last, what one word of a megabyte takes, and one line at a
time: ours by itself, in a graph as a SavedModel has it, and with its rows
packed. Needs the `tokenizers` package. Takes a minute.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import functools
import os
import time

from absl import flags

from bert_keras.data.corpus import paragraphs, read_documents
from bert_keras.files import write_json
from bert_keras.text.vocabulary import read_vocabulary
from official_tasks import progress, script

PEER, INEXACT = "tokenizers", "FastBertTokenizer"
OURS = ("WordPieceTokenizer", "WordPieceTokenizer, portable")


def define_flags():
    flags.DEFINE_string("vocabulary", None, "Uncased vocabulary.")
    flags.DEFINE_string("input", None, "Text to tokenise.")
    flags.DEFINE_string("output", None, "JSON file to write.")
    script.define_overwrite()
    flags.DEFINE_integer("megabytes", 10, "Of the text, at most.", 1)
    flags.DEFINE_integer("batch", 1000, "Lines at a time.", 1)
    flags.DEFINE_integer("repeats", 5, "Turns of each.", 1)
    flags.mark_flags_as_required(["vocabulary", "input"])


def main(values):
    script.prepare_output(values)
    lines = paragraphs(read_documents(values.input))
    lines = _first(lines, values.megabytes * 1e6)
    makers = _tokenizers(values.vocabulary)
    kept, wrong = _agreeing(makers, lines)
    megabytes = sum(len(k.encode()) for k in kept[values.batch :]) / 1e6
    runs = {name: make(kept, values.batch) for name, make in makers.items()}
    turns = {name: [] for name in runs}
    with progress.bar("Timing", values.repeats) as update:
        for repeat in range(values.repeats):
            for name, run in runs.items():
                turns[name].append(_timed(run))
            update(repeat + 1)
    # The least seconds by the clock and of the processor.
    best = {
        name: tuple(map(min, zip(*seconds, strict=True)))
        for name, seconds in turns.items()
    }
    rows = {
        name: {
            "MB a second": round(megabytes / wall, 1),
            "MB a second of processor time": round(megabytes / cpu, 1),
            "lines with other ids": wrong[name],
        }
        for name, (wall, cpu) in best.items()
    }
    report = {
        "megabytes": round(megabytes, 2),
        "lines": len(kept),
        "lines left out": len(lines) - len(kept),
        "cores": _cores(),
        "tokenizers": rows,
        "seconds for one word of a megabyte": _long_word_seconds(makers),
        "milliseconds for one line": _one_line(
            values.vocabulary, kept, values.repeats
        ),
    }
    for line in _table(report):
        progress.console.print(line)
    if values.output:
        write_json(report, values.output)


def _long_word_seconds(makers):
    """Name -> seconds, of the processor, for a megabyte without a space."""
    text = "ab" * 500_000
    seconds = {}
    for name in OURS:
        run = makers[name]([text], 1)
        for _ in range(2):  # the first time starts the machinery
            began = time.process_time()
            list(run())
            seconds[name] = round(time.process_time() - began, 2)
    return seconds


def _one_line(path, lines, repeats):
    """Name -> milliseconds, of the processor, for a line; the best turn."""
    import tensorflow as tf
    import tokenizers

    import bert_keras

    peer = tokenizers.BertWordPieceTokenizer(path)
    ours = bert_keras.WordPieceTokenizer(path, max_word_length=100)
    preprocess = bert_keras.BertPreprocessor(ours)
    spec = [tf.TensorSpec([None], tf.string)]
    asks = {
        PEER: lambda line: peer.encode(line).ids,
        OURS[0]: lambda line: ours([line]),
        f"{OURS[0]}, in a graph": tf.function(ours, spec),
        "BertPreprocessor": lambda line: preprocess([line]),
        "BertPreprocessor, in a graph": tf.function(preprocess, spec),
    }
    lines = lines[:200]
    found = {name: [] for name in asks}
    for _ in range(repeats + 1):
        for name, ask in asks.items():
            # A graph has the line as a tensor, as a server does.
            texts = [tf.constant([x]) if "graph" in name else x for x in lines]
            began = time.process_time()
            for text in texts:
                ask(text)
            found[name].append(1000 * (time.process_time() - began))
    # The first turn traces.
    return {
        name: round(min(spent[1:]) / len(lines), 3)
        for name, spent in found.items()
    }


def _table(report):
    rows = report["tokenizers"]
    slowest = rows[PEER]["MB a second of processor time"]
    yield f"  {'':<30}{'MB/s':>8}{'MB/CPU s':>10}{'':>9}  other ids in"
    for name, row in rows.items():
        wall, cpu, wrong = row.values()
        yield (
            f"  {name:<30}{wall:8.1f}{cpu:10.1f}{cpu / slowest:7.1f} x"
            f"{wrong:8,} lines"
        )
    yield (
        f"  {report['cores']} cores, {report['megabytes']} MB in "
        f"{report['lines']:,} lines; {report['lines left out']} others left out"
    )
    for name, seconds in report["seconds for one word of a megabyte"].items():
        yield f"  {name}: {seconds} CPU s for one word of a megabyte"
    for name, spent in report["milliseconds for one line"].items():
        yield f"  {name}: {spent} CPU ms for one line"


def _first(lines, size):
    kept = []
    for line in lines:
        size -= len(line.encode())
        if size < 0:
            break
        kept.append(line)
    return kept


def _tokenizers(path):
    """Name -> function of lines and batch size to what is to be timed."""
    import tensorflow as tf
    import tensorflow_text as tf_text
    import tokenizers

    from bert_keras.text.tokenizer import WordPieceTokenizer

    vocabulary = read_vocabulary(path)
    peer = tokenizers.BertWordPieceTokenizer(path)
    inexact = tf_text.FastBertTokenizer(
        vocabulary, token_out_type=tf.int32, lower_case_nfd_strip_accents=True
    )
    ours = WordPieceTokenizer(vocabulary, max_word_length=100)
    portable = WordPieceTokenizer(
        vocabulary, max_word_length=100, portable=True
    )
    return {
        PEER: functools.partial(_encode, peer),
        INEXACT: functools.partial(_map, inexact.tokenize),
        OURS[0]: functools.partial(_map, ours),
        OURS[1]: functools.partial(_map, portable),
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
    mapped = dataset.map(tokenize, num_parallel_calls=_cores())
    return lambda: iter(mapped)


def _cores():
    return len(os.sched_getaffinity(0))


def _agreeing(makers, lines):
    """Lines that the exact ones agree on; by name, lines with other ids."""
    rows = {n: _rows(make(lines, len(lines))) for n, make in makers.items()}
    kept = [
        number
        for number, ids in enumerate(rows[PEER])
        if all(rows[name][number] == ids for name in OURS)
    ]
    wrong = {
        name: sum(found[n] != rows[PEER][n] for n in kept)
        for name, found in rows.items()
    }
    return [lines[n] for n in kept], wrong


def _rows(run):
    rows = []
    for part in run():
        rows += part.to_list() if hasattr(part, "to_list") else [part]
    return rows


def _timed(run):
    """Seconds for all batches but the first, which starts the machinery.

    By the clock and, of all threads together, of the processor.
    """
    parts = run()
    next(parts)
    began = time.perf_counter(), time.process_time()
    for _ in parts:
        pass
    return time.perf_counter() - began[0], time.process_time() - began[1]


if __name__ == "__main__":
    script.start(main, define_flags)
