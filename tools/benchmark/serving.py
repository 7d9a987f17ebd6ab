"""Times raw text to probabilities here, in transformers and ONNX Runtime.

    python tools/benchmark/serving.py --model=runs/reviews/model \
        --texts=dev.tsv:sentence --output=latency.json

In: a classifier's folder. Its weights go into a SavedModel (float32 and
bfloat16), a Hugging Face folder and an ONNX file; each is asked the same
strings, of 16, 128 and 512 tokens, one at a time and 32 together, in a process
of its own, in turns within one run. Out, for each: milliseconds at the first
quartile, the median and the third, the processor's at the median, and how many
times as many of those as ours; every system must answer the same to 1e-3
(bfloat16: 0.05). --texts=FILE:COLUMN (any table; may be repeated) adds
texts of natural lengths, 32 together in the order of the file: texts a second
of the processor, and ours by theirs. On a busy machine --threads=1 keeps
threads that wait for each other out of it.

transformers runs in an environment of its own, --environments/transformers; a
missing one is made with pip (PyTorch: gigabytes). Takes about five
minutes for a small model. Needs: pip install 'bert_keras[onnx]'.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import contextlib
import functools
import json
import os
import sys
import tempfile
import time

import numpy as np
from absl import flags
from contenders.turns import Worker, interpreter

import bert_keras
from bert_keras import files
from bert_keras.errors import InputError
from official_tasks import progress, script
from official_tasks.tasks.table import read_rows

LENGTHS, BATCHES = (16, 128, 512), (1, 32)
AGREE = {"savedmodel bfloat16": 0.05}  # to others 1e-3
FIRST = "savedmodel"
# Seconds before each turn: threads of the system that had the last one look
# for more work for a while, on a core that this one should have.
REST = 0.3
# System -> its file in contenders/ and the function there.
JOBS = {
    FIRST: ("ours", "classify"),
    "savedmodel bfloat16": ("ours", "classify"),
    "transformers": ("peers", "transformers_classify"),
    "onnxruntime": ("peers", "onnxruntime_classify"),
}
THREADS = (
    "OMP_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)


def define_flags():
    flags.DEFINE_string("model", None, "Folder of a classifier.")
    flags.DEFINE_string("output", None, "JSON file for the figures.")
    script.define_overwrite()
    flags.DEFINE_string("environments", "runs/peers", "Where peers lie.")
    flags.DEFINE_integer("rounds", 15, "Times that each is asked.", 1)
    flags.DEFINE_integer("threads", 0, "Of each system; 0: as it chooses.", 0)
    flags.DEFINE_list("lengths", [str(n) for n in LENGTHS], "Tokens a text.")
    flags.DEFINE_multi_string("texts", [], "FILE:COLUMN of natural texts.")
    flags.mark_flag_as_required("model")


def write_all(model, preprocess, folder):
    """The same weights for each system: system -> folder."""
    from bert_keras.interop.convert import convert
    from bert_keras.serving.portable_formats import export_on_ids

    folders = {
        name: os.path.join(folder, name.replace(" ", "_")) for name in JOBS
    }
    own = os.path.join(folder, "own")
    # What is answered does not matter here, and the time is the same.
    export = functools.partial(
        bert_keras.export_saved_model, allow_untrained=True
    )
    export(model, preprocess, folders[FIRST])
    export(model, preprocess, folders["savedmodel bfloat16"], dtype="bfloat16")
    model.save_preset(own, preprocess)
    # The form of GELU that the weights are written with is theirs.
    convert(own, folders["transformers"], "huggingface")
    export_on_ids(
        model, preprocess, folders["onnxruntime"], "onnx", allow_untrained=True
    )
    return folders


def texts(vocabulary, tokens, count):
    """Texts of so many tokens, [CLS] and [SEP] among them."""
    words = [p for p in vocabulary if p.isascii() and p.isalpha()]
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(words, tokens - 2)) for _ in range(count)]


@contextlib.contextmanager
def workers(folders, pythons, threads=0):
    """Yields system -> function of texts: ([seconds, the processor's], row)."""
    variables = dict.fromkeys(THREADS, str(threads)) if threads else {}
    with contextlib.ExitStack() as stack:
        askers = {}
        for name, folder in folders.items():
            python = pythons.get(name, sys.executable)
            settings = {"folder": str(folder), "warm": 0}
            worker = Worker(python, *JOBS[name], settings, variables)
            stack.callback(worker.close)
            askers[name] = _asker(worker)
        yield askers


def _asker(worker):
    def ask(texts):
        time.sleep(REST)
        answer = worker.ask(texts)
        return [answer["seconds"], answer["processor"]], answer["result"]

    return ask


def timed(askers, batches):
    """System -> (seconds, the processor's) of each batch, asked in turns.

    Raises an InputError where one answers otherwise than the first.
    """
    for ask in askers.values():
        ask(batches[0])
    seconds = {name: [] for name in askers}
    names = list(askers)
    for number, batch in enumerate(batches):
        turn = number % len(names)
        firsts = {}
        for name in names[turn:] + names[:turn]:
            spent, firsts[name] = askers[name](batch)
            seconds[name].append(spent)
        for name, first in firsts.items():
            apart = float(np.abs(np.subtract(first, firsts[FIRST])).max())
            if apart > AGREE.get(name, 1e-3):
                raise InputError(f"{name} answers otherwise, by {apart:.2g}.")
    return seconds


def row(seconds, batch, tokens):
    """Of one case: system -> quartiles in milliseconds, the processor's
    median, and that by ours."""
    found = {"batch": batch, "tokens": tokens}
    ours = np.median(seconds[FIRST], axis=0)[1]
    for name, values in seconds.items():
        wall, processor = np.array(values).T * 1000
        figures = [*np.percentile(wall, [25, 50, 75]), np.median(processor)]
        figures.append(figures[-1] / ours / 1000)
        found[name] = [round(float(x), 2) for x in figures]
    return found


def natural(spec):
    """A file's texts, FILE:COLUMN, in its order, 32 together."""
    path, _, column = spec.rpartition(":")
    rows = [text for _, (text,) in read_rows(path, [column])]
    size = max(BATCHES)
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def throughput(seconds, batches, name):
    """Of natural texts: system -> texts a second of the processor, and how
    many times the processor's time of ours it takes."""
    count = sum(map(len, batches))
    spent = {key: sum(x[1] for x in values) for key, values in seconds.items()}
    found = {"texts": os.path.basename(name), "rows": count}
    for key, total in spent.items():
        figures = count / total, total / spent[FIRST]
        found[key] = [round(x, 2) for x in figures]
    return found


def cases(values, askers, vocabulary):
    """Yields the figures of each case."""
    for batch in BATCHES:
        for tokens in map(int, values.lengths):
            asked = texts(vocabulary, tokens, batch)
            yield row(timed(askers, [asked] * values.rounds), batch, tokens)
    for spec in values.texts:
        batches = natural(spec)
        yield throughput(timed(askers, batches), batches, spec)


def main(values):
    script.prepare_output(values)
    lengths = [int(n) for n in values.lengths]
    model = bert_keras.BertClassifier.from_preset(values.model)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        values.model, sequence_length=max(lengths)
    )
    python = interpreter(values.environments, "transformers")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        folders = write_all(model, preprocess, folder)
        with workers(
            folders, {"transformers": python}, values.threads
        ) as askers:
            vocabulary = preprocess.tokenizer.vocabulary
            for figures in cases(values, askers, vocabulary):
                found.append(figures)
                line = json.dumps(figures)
                progress.console.print(line, soft_wrap=True)
    if values.output:
        files.write_json(found, values.output)


if __name__ == "__main__":
    script.start(main, define_flags)
