"""Times the making of pre-training data, from raw text to batches.

    python tools/benchmark/data.py --input="books/*.txt" \
        --vocabulary=vocab.txt --output=speed.json

In: text (what tools/create_pretraining_data.py takes) and a vocabulary. Out: a
table on the terminal, and as JSON: megabytes of text a second from text to the
token store and on to records; sequences a second of batches that are sampled on
the fly, single and packed, and how many cores it takes to feed a device that
trains on 7,000 sequences of 128 a second; and the peak of the memory that the
records took beyond what importing TensorFlow and the tokenizer cost. One
process; all times are of the processor, which other work disturbs less than the
clock. With --peer_python, an interpreter that has tf-models-official, also the
rate of the original's script, as the Model Garden keeps it, on the same text
with a sentence a line. Takes half a minute for 8 megabytes, a minute more with
the original's.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import os
import subprocess
import tempfile
import time
from pathlib import Path

from absl import flags
from contenders.worker import peak_megabytes
from rich.table import Table

from bert_keras.data.building import build_stores
from bert_keras.data.corpus import read_documents
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.sentences import document_sentences
from bert_keras.errors import InputError
from bert_keras.files import write_json
from bert_keras.text.vocabulary import read_vocabulary
from official_tasks import progress, script

RECORDS = "MB/s, text to records of 128"
DEVICE = 7_000  # sequences of 128 a second: above the goal for one H200
# Prints seconds of the processor, without those of its imports.
ORIGINAL = """
import time
from absl import app
from official.nlp.data import create_pretraining_data

def main(arguments):
    start = time.process_time()
    create_pretraining_data.main(arguments)
    print(time.process_time() - start)

app.run(main)
"""


def define_flags():
    flags.DEFINE_string("input", None, "Text to read.")
    flags.DEFINE_string("vocabulary", None, "Vocabulary, one piece a line.")
    flags.DEFINE_string("output", None, "JSON file to write.")
    script.define_overwrite()
    flags.DEFINE_bool("lowercase", True, "Lower-case and strip accents.")
    flags.DEFINE_integer("megabytes", 8, "Of the text, at most.", 1)
    flags.DEFINE_float("seconds", 3, "To draw each kind of batch for.")
    flags.DEFINE_string(
        "peer_python", None, "Interpreter with tf-models-official."
    )
    flags.mark_flags_as_required(["input", "vocabulary"])
    script.require_positive("seconds")


def main(values):
    from bert_keras import WordPieceTokenizer

    script.prepare_output(values)
    tokenizer = WordPieceTokenizer(
        read_vocabulary(values.vocabulary), lowercase=values.lowercase
    )
    tokenizer(["Warm."])
    before = peak_megabytes()
    documents = _first_documents(values)
    with tempfile.TemporaryDirectory() as folder:
        figures, store = _making(documents, tokenizer, folder)
        figures["MB of memory to make records"] = peak_megabytes() - before
        figures |= _drawing(store, values.seconds)
        if values.peer_python:
            rate = _original(values, folder)
            figures |= {
                "MB/s, the original's script": rate,
                "times the original's": figures[RECORDS] / rate,
            }
    _show(figures)
    if values.output:
        write_json(figures, values.output)


def _first_documents(values):
    """Documents until there are about as many characters as asked for."""
    characters = values.megabytes * 1e6
    for document in read_documents(values.input):
        if characters <= 0:
            return
        characters -= sum(map(len, document.paragraphs))
        yield document


def _making(documents, tokenizer, folder):
    """Rates from text to the store and to records, and the store."""
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
    manifest = write_records(stores["train"], records, SamplingRules(), 0)
    end = time.process_time()
    megabytes = done["characters"] / 1e6
    rate = megabytes / (end - start)
    store_bytes = sum(
        entry["bytes"] for entry in stores["train"].manifest["files"].values()
    )
    record_bytes = sum(shard["bytes"] for shard in manifest["shards"])
    figures = {
        "million characters of text": megabytes,
        "MB/s, text to store": megabytes / (stored - start),
        RECORDS: rate,
        "bytes of store for one of text": store_bytes / megabytes / 1e6,
        "bytes of records for one of text": record_bytes / megabytes / 1e6,
    }
    return figures, stores["train"]


def _original(values, folder):
    """The original's rate, of one copy, with its other settings as they are.

    Raises:
        InputError: the interpreter or the script failed; says how.
    """
    text = Path(folder, "sentences.txt")
    characters = 0
    with text.open("w", encoding="utf-8") as file:
        for document in _first_documents(values):
            characters += sum(map(len, document.paragraphs))
            file.writelines(s + "\n" for s in document_sentences(document))
            file.write("\n")
    command = [
        values.peer_python,
        "-c",
        ORIGINAL,
        f"--input_file={text}",
        f"--output_file={folder}/original",
        f"--vocab_file={values.vocabulary}",
        f"--do_lower_case={values.lowercase}",
        "--dupe_factor=1",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise InputError(f"--peer_python does not start: {error}") from None
    if done.returncode:
        raise InputError(f"The original's script failed: {done.stderr[-2000:]}")
    return characters / 1e6 / float(done.stdout.split()[-1])


def _drawing(store, seconds):
    """Rates of batches that are sampled on the fly."""
    kinds = {
        "sequences/s of 128, sampled on the fly": SamplingRules(128, 20),
        "sequences/s of 128, whole words": SamplingRules(
            128, 20, whole_word=True
        ),
        "sequences/s of 512, sampled on the fly": SamplingRules(512, 80),
        "rows/s of 512, packed": SamplingRules(512, 80, packed=True),
    }
    figures = {
        name: _sequences_a_second(store, rules, seconds)
        for name, rules in kinds.items()
    }
    single = figures["sequences/s of 128, sampled on the fly"]
    figures[f"cores that feed {DEVICE:,} sequences/s"] = DEVICE / single
    return figures


def _sequences_a_second(store, rules, seconds):
    """Of processor time; the windows' pairs are drawn within it."""
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


def _show(figures):
    table = Table("", "one core")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}" if value < 100 else f"{value:,.0f}")
    progress.console.print(table)


if __name__ == "__main__":
    script.start(main, define_flags)
