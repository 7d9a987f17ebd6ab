"""Measures the memory that pre-training data take, for a corpus of any size.

    python tools/benchmark/data_memory.py --input="books/*.txt" \
        --vocabulary=vocab.txt --copies=8 --workers=2 --output=memory.json

In: text (what tools/create_pretraining_data.py takes), a vocabulary, and how
often the text is repeated to make a larger corpus. Out, on the terminal and as
JSON: the corpus's size, and the peak of the memory while the store and the
records are made, by all processes together, and while batches are drawn from
the store, one epoch of 128 pieces and one of packed rows of 512. Counted is the
resident memory of each process beyond what `import tensorflow` takes in one,
mapped files included. Takes about 40 seconds for 100 MB and needs three times
the corpus's size of disk. Linux only.
"""

import multiprocessing
import os
import tempfile
import time

from absl import flags

from official_tasks import script

POLLED_EVERY = 0.05  # seconds
BATCH = 256


def define_flags():
    flags.DEFINE_string("input", None, "Text to read.")
    flags.DEFINE_string("vocabulary", None, "Vocabulary, one piece a line.")
    flags.DEFINE_bool("lowercase", True, "Lower-case and strip accents.")
    flags.DEFINE_string("output", None, "JSON file to write.")
    script.define_overwrite()
    flags.DEFINE_integer("copies", 8, "How often the text is repeated.", 1)
    flags.DEFINE_integer("workers", 2, "Processes that make the data.", 1)
    flags.mark_flags_as_required(["input", "vocabulary"])


def main(values):
    from bert_keras.data.token_store import TokenStore
    from bert_keras.files import write_json
    from official_tasks.progress import console

    script.prepare_output(values)
    with tempfile.TemporaryDirectory() as folder:
        importing = max(max(sample) for sample in _memory_of(_import))
        made = _memory_of(
            _make,
            folder,
            values.input,
            values.copies,
            values.workers,
            (values.vocabulary, values.lowercase),
        )
        store = os.path.join(folder, "tokens", "train")
        drawn = _memory_of(_draw, store)
        manifest = TokenStore(store).manifest
    figures = {
        "million tokens": manifest["tokens"] / 1e6,
        "documents": manifest["documents"],
        "MB to import TensorFlow": importing,
    }
    for what, samples in (("make", made), ("draw", drawn)):
        figures[f"processes to {what}"] = max(map(len, samples))
        figures[f"MB to {what}, beyond importing"] = beyond(samples, importing)
    for name, value in figures.items():
        console.print(f"{name}: {value:,.0f}")
    if values.output:
        write_json(figures, values.output)


def beyond(samples, importing):
    """The peak of what all processes take together beyond importing."""
    return max(
        sum(max(0, memory - importing) for memory in sample)
        for sample in samples
    )


def _import():
    import tensorflow  # noqa: F401


def _make(folder, source, copies, workers, vocabulary):
    from bert_keras import WordPieceTokenizer
    from bert_keras.data.pretraining_data import create_pretraining_data
    from bert_keras.text.vocabulary import read_vocabulary

    path, lowercase = vocabulary
    create_pretraining_data(
        _repeated(source, copies),
        WordPieceTokenizer(read_vocabulary(path), lowercase=lowercase),
        folder,
        held_out_share=0,
        workers=workers,
    )


def _repeated(source, copies):
    """The documents so many times, each time another first line."""
    from bert_keras.data.corpus import read_documents

    for copy in range(copies):
        for document in read_documents(source):
            document.paragraphs.insert(0, f"Copy {copy}.")
            yield document


def _draw(folder):
    from bert_keras.data.batches import pretraining_dataset
    from bert_keras.data.examples import block_sizes
    from bert_keras.data.sampling import SamplingRules
    from bert_keras.data.token_store import TokenStore

    store = TokenStore(folder)
    for rules in (SamplingRules(128, 20), SamplingRules(512, 80, packed=True)):
        steps = int(block_sizes(store, rules).sum()) // BATCH
        for _ in pretraining_dataset(folder, BATCH, 0, rules=rules).take(steps):
            pass


def _memory_of(function, *arguments):
    """Runs it in a process; samples of MB of each process, as lists."""
    process = multiprocessing.get_context("spawn").Process(
        target=function, args=arguments
    )
    process.start()
    samples = []
    while process.is_alive():
        samples.append([_resident(pid) for pid in _family(process.pid)])
        time.sleep(POLLED_EVERY)
    if process.exitcode:
        raise RuntimeError(f"It ended with exit code {process.exitcode}.")
    return samples


def _family(pid):
    """The process and all that it and those started."""
    found = [pid]
    for process in found:
        try:
            for thread in os.listdir(f"/proc/{process}/task"):
                path = f"/proc/{process}/task/{thread}/children"
                with open(path, encoding="utf-8") as file:
                    found.extend(map(int, file.read().split()))
        except OSError:
            continue  # it has just ended
    return found


def _resident(pid):
    try:
        with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    script.start(main, define_flags)
