r"""Times the tokenizer, and the making of pre-training data from text.

    python tools/benchmark/text.py --input="books/*.txt" \
        --vocabulary=vocab.txt --output=runs/text.json

In: plain text and an uncased vocabulary. Out: tables on the terminal, and JSON.

This package's tokenizer and the library `tokenizers` take turns. The results
are times per megabyte for batches of lines, on all available cores, and times
per line for single lines, eager and in a graph. The tables have milliseconds,
the JSON has seconds. Lines are skipped if the two tokenizers return different
ids.

For pre-training data, the results are rates per second of processor time, on
one core. Two rates count million characters: from text to a token store, and
from text to records (building the store included). Three other rates count the
sequences or packed rows of batches that are sampled on the fly.

Takes a minute for 8 million characters. Needs: pip install tokenizers.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses
import functools
import os
import tempfile
import time

from baselines import turns
from baselines.worker import time_step

import bert_keras
from bert_keras.data.building import build_stores
from bert_keras.data.corpus import paragraphs, read_documents
from bert_keras.data.sampling import SamplingRules
from bert_keras.files import atomic_output
from bert_keras.json_files import write_json
from official_tasks import cli, options, progress
from official_tasks.options import option
from official_tasks.outputs import prepare_output

PEER, OURS = "tokenizers", "WordPieceTokenizer"
BATCH = 1000  # lines of a batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    input: str = option(help="Text to read.")
    vocabulary: str = option(help="Uncased vocabulary.")
    output: str | None = option(None, "JSON file to write.")
    overwrite: bool = options.define_overwrite()
    megabytes: int = option(
        8, "Amount of text to read, in millions of characters.", at_least=1
    )
    turns: int = option(5, "Number of turns of each tokenizer.", at_least=1)
    seconds: float = option(
        3, "Processor seconds to sample each type of batch.", at_least=0.01
    )


def main(values):
    prepare_output(values)
    documents = list(read_part(values.input, values.megabytes))
    results = time_tokenizers(documents, values)
    tokenizer = bert_keras.WordPieceTokenizer(values.vocabulary)
    tokenizer(["Warm."])
    with tempfile.TemporaryDirectory() as folder:
        made, store = time_records(documents, tokenizer, folder)
        made |= time_batches(store, values.seconds)
    turns.print_table("pre-training data", ["one core"], made.items())
    if values.output:
        with atomic_output(values.output) as partial:
            write_json(results | made, partial)


def read_part(pattern, megabytes):
    """Yield documents with about `megabytes` x 1e6 characters in total."""
    characters = megabytes * 1e6
    for document in read_documents(pattern):
        if characters <= 0:
            return
        characters -= sum(map(len, document.paragraphs))
        yield document


def time_tokenizers(documents, values):
    """Return a dict: times of both tokenizers, and the amount of text.

    Lines for which the tokenizers return different ids are left out.
    """
    import tensorflow as tf
    import tokenizers

    path, lines = values.vocabulary, list(paragraphs(documents))
    peer = tokenizers.BertWordPieceTokenizer(path)
    ours = bert_keras.WordPieceTokenizer(path, max_word_length=100)

    def encode(batch):
        rows = peer.encode_batch(batch, add_special_tokens=False)
        return [row.ids for row in rows]

    pairs = zip(lines, encode(lines), ours(lines).to_list(), strict=True)
    kept = [line for line, ids, others in pairs if ids == others]
    left_out = len(lines) - len(kept)
    progress.console.print(f"{len(kept):,} lines; {left_out:,} are skipped")
    batches = [kept[i : i + BATCH] for i in range(0, len(kept), BATCH)]
    mapped = (
        tf.data.Dataset.from_tensor_slices(kept)
        .batch(BATCH)
        .cache()
        .map(ours, num_parallel_calls=len(os.sched_getaffinity(0)))
    )
    megabytes = sum(len(line.encode()) for line in kept) / 1e6
    some = kept[:200]
    tensors = [tf.constant([line]) for line in some]
    spec = [tf.TensorSpec([None], tf.string)]
    in_graph = tf.function(ours, spec)
    preprocess = tf.function(bert_keras.BertPreprocessor(ours), spec)
    in_batches = {
        PEER: lambda: [encode(batch) for batch in batches],
        OURS: lambda: list(mapped),
    }
    one_by_one = {
        PEER: lambda: [peer.encode(line).ids for line in some],
        OURS: lambda: [ours([line]) for line in some],
        f"{OURS}, in a graph": lambda: list(map(in_graph, tensors)),
        "BertPreprocessor, in a graph": lambda: list(map(preprocess, tensors)),
    }
    return {
        "lines": len(kept),
        "lines left out": left_out,
        "megabytes": megabytes,
        "seconds a megabyte": measure(
            "a megabyte", in_batches, values.turns, megabytes
        ),
        "seconds a line": measure(
            "a line", one_by_one, values.turns, len(some)
        ),
    }


def measure(unit, runs, count, size):
    """Time tokenizers in turns; print a table and return dict: name -> times.

    Args:
        unit: name of a unit of text, such as "a line".
        runs: dict of tokenizer -> function that tokenizes the same text.
        count: number of turns.
        size: number of units in that text. Times are seconds per unit.
    """
    steps = {n: functools.partial(time_step, run) for n, run in runs.items()}
    turns.take_turns(steps, [()])  # warm up
    answers, _ = turns.take_turns(steps, [()] * count)
    rows = {name: turns.summarize(x, size) for name, x in answers.items()}
    turns.print_systems(f"tokenizing, {unit}", rows, unit)
    return rows


def time_records(documents, tokenizer, folder):
    """Make a token store and its records; return (dict of rates, store)."""
    from bert_keras.data.shards import write_records

    done = {}
    start = time.process_time()
    stores = build_stores(
        documents,
        tokenizer,
        os.path.join(folder, "tokens"),
        progress=lambda _, characters: done.update(characters=characters),
    )
    stored = time.process_time()
    records = os.path.join(folder, "records")
    write_records(stores["train"], records, SamplingRules(), 0)
    end = time.process_time()
    millions, rate = done["characters"] / 1e6, "million characters per second"
    results = {
        "million characters of text": millions,
        f"{rate}, text to store": millions / (stored - start),
        f"{rate}, text to records of 128 tokens": millions / (end - start),
    }
    return results, stores["train"]


def time_batches(store, seconds):
    """Return dict of rates of batches that are sampled on the fly."""
    from bert_keras.data.batches import pretraining_dataset

    rates = {}
    for unit, rules in {
        "sequences (128 tokens)": SamplingRules(128, 20),
        "sequences (512 tokens)": SamplingRules(512, 80),
        "packed rows (512 tokens)": SamplingRules(512, 80, packed=True),
    }.items():
        size = 32_768 // rules.sequence_length
        batches = iter(pretraining_dataset(store.folder, size, 0, rules=rules))
        next(batches)
        start, count = time.process_time(), 0
        while time.process_time() < start + seconds:
            next(batches)
            count += size
        rate = count / (time.process_time() - start)
        rates[f"{unit} per second, sampled on the fly"] = rate
    return rates


if __name__ == "__main__":
    cli.start(main, Options)
