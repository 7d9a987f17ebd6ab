r"""Time the making of pre-training data, from raw text to batches.

    python tools/benchmark/data.py --input="books/*.txt" \
        --vocabulary=vocab.txt --output=speed.json

In: text (what tools/create_pretraining_data.py takes) and a vocabulary. Out: a
table on the terminal, and as JSON: megabytes of text a second from text to the
token store and on to records; sequences a second of batches that are sampled on
the fly, single and packed; and the peak of the memory that the records took
beyond what importing TensorFlow and the tokenizer cost. One process; all times
are of the processor, which other work disturbs less than the clock. Takes half
a minute for 8 megabytes.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import os
import tempfile
import time

from absl import flags
from baselines.turns import print_table
from baselines.worker import host_megabytes

from bert_keras.data.building import build_stores
from bert_keras.data.corpus import read_documents
from bert_keras.data.sampling import SamplingRules
from bert_keras.json_files import write_json
from bert_keras.text.vocabulary import read_vocabulary
from official_tasks import script


def define_flags():
    flags.DEFINE_string("input", None, "Text to read.")
    flags.DEFINE_string("vocabulary", None, "Vocabulary, one token a line.")
    flags.DEFINE_string("output", None, "JSON file to write.")
    script.define_overwrite()
    flags.DEFINE_integer("megabytes", 8, "Of the text, at most.", 1)
    flags.DEFINE_float("seconds", 3, "To draw each type of batch for.", 0.01)
    flags.mark_flags_as_required(["input", "vocabulary"])


def main(values):
    from bert_keras import WordPieceTokenizer

    script.prepare_output(values)
    tokenizer = WordPieceTokenizer(read_vocabulary(values.vocabulary))
    tokenizer(["Warm."])
    before = host_megabytes()
    documents = read_part(values)
    with tempfile.TemporaryDirectory() as folder:
        results, store = time_records(documents, tokenizer, folder)
        results["MB of memory to make records"] = host_megabytes() - before
        results |= time_batches(store, values.seconds)
    print_table("", ["one core"], results.items())
    if values.output:
        write_json(results, values.output)


def read_part(values):
    """Yield documents until they have about --megabytes characters."""
    characters = values.megabytes * 1e6
    for document in read_documents(values.input):
        if characters <= 0:
            return
        characters -= sum(map(len, document.paragraphs))
        yield document


def time_records(documents, tokenizer, folder):
    """Return the rates from text to the store and to records, and the store."""
    from bert_keras.data.pretraining_data import write_records

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
    megabytes = done["characters"] / 1e6
    results = {
        "million characters of text": megabytes,
        "MB/s, text to store": megabytes / (stored - start),
        "MB/s, text to records of 128": megabytes / (end - start),
    }
    return results, stores["train"]


def time_batches(store, seconds):
    """Return the rates of batches that are sampled on the fly."""
    settings = {
        "sequences/s of 128, sampled on the fly": SamplingRules(128, 20),
        "sequences/s of 512, sampled on the fly": SamplingRules(512, 80),
        "rows/s of 512, packed": SamplingRules(512, 80, packed=True),
    }
    return {
        name: count_sequences(store, rules, seconds)
        for name, rules in settings.items()
    }


def count_sequences(store, rules, seconds):
    """Return the rate by processor time, which includes drawing pairs."""
    from bert_keras.data.batches import pretraining_dataset

    batch_size = 32_768 // rules.sequence_length
    batches = pretraining_dataset(store.folder, batch_size, 0, rules=rules)
    iterator = iter(batches)
    next(iterator)
    start, count = time.process_time(), 0
    while time.process_time() < start + seconds:
        next(iterator)
        count += batch_size
    return count / (time.process_time() - start)


if __name__ == "__main__":
    script.start(main, define_flags)
