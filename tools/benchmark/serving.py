r"""Times classification of texts by this package and two other libraries.

    python tools/benchmark/serving.py --model=runs/reviews/model \
        --texts=dev.tsv:sentence --output=latency.json

In: the folder of a classifier. The script writes the classifier as SavedModel
(float32 and bfloat16), for transformers and for ONNX Runtime. Each of these
four systems runs in its own process, and the systems take turns. All systems
get the same texts of random words, of 16, 128 and 512 tokens, one or 32 texts
at a time. --texts=FILE:COLUMN adds the texts of a table; it may be repeated.
Out: for each system, the wall time and processor time of a text, printed in
milliseconds and written in seconds. The printed table also has the processor
time relative to the first system. The script fails if the probabilities of a
batch's first text differ from the float32 SavedModel's by more than 1e-3
(bfloat16: 0.05). On a busy machine, --threads=1 prevents threads from waiting
for each other.

Takes about five minutes for a small model. Needs: pip install
'.[onnx,peers]' in a clone.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses
import os
import tempfile

import numpy as np
from baselines import turns
from baselines.rows import Job

import bert_keras
from bert_keras import files, json_files
from bert_keras.errors import InputError
from official_tasks import cli, options, progress
from official_tasks.options import option
from official_tasks.outputs import prepare_output
from official_tasks.tasks.forms.table import read_rows

FULL, HALF = "savedmodel", "savedmodel bfloat16"
# System -> its function in baselines/jobs.py.
JOBS = {
    FULL: "classify",
    HALF: "classify",
    "transformers": "transformers_classify",
    "onnxruntime": "onnxruntime_classify",
}
BATCHES = (1, 32)
THREADS = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"]
THREADS += ["TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    model: str = option(help="Folder of a classifier.")
    output: str | None = option(None, "JSON file to write.")
    overwrite: bool = options.define_overwrite()
    turns: int = option(15, "Number of turns of each system.", at_least=1)
    threads: int = option(
        0, "Threads of each system; 0 keeps the default.", at_least=0
    )
    lengths: tuple[int, ...] = option(
        (16, 128, 512), "Lengths of random texts, in tokens."
    )
    texts: tuple[str, ...] = option(
        (), "FILE:COLUMN with more texts.", is_repeated=True
    )


def write_models(model, preprocess, folder):
    """Write the weights for each system; return a dict: system -> folder."""
    from bert_keras.serving.onnx_litert import export_on_ids

    folders = {
        name: os.path.join(folder, name.replace(" ", "_")) for name in JOBS
    }
    for name, dtype in ((FULL, "float32"), (HALF, "bfloat16")):
        bert_keras.export_saved_model(
            model,
            folders[name],
            preprocess,
            weights_dtype=dtype,
            allow_untrained=True,
        )
    model.save_preset(folders["transformers"], preprocess)
    export_on_ids(
        model, preprocess, folders["onnxruntime"], "onnx", allow_untrained=True
    )
    return folders


def make_texts(vocabulary, tokens, count):
    """Return `count` random texts that become rows of `tokens` tokens.

    A text has `tokens - 2` words, because [CLS] and [SEP] count too.
    """
    words = [p for p in vocabulary if p.isascii() and p.isalpha()]
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(words, tokens - 2)) for _ in range(count)]


def read_batches(spec):
    """Return the texts of FILE:COLUMN in batches of 32, in the file's order."""
    path, _, column = spec.rpartition(":")
    rows = [text for _, (text,) in read_rows(path, [column])]
    size = max(BATCHES)
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def measure_case(title, steps, batches):
    """Print and return system -> times; raise if probabilities differ."""
    answers, _ = turns.take_turns(steps, [[batch] for batch in batches])
    systems = {}
    count = sum(map(len, batches)) / len(batches)
    for name, given in answers.items():
        for answer, first in zip(given, answers[FULL], strict=True):
            gap = np.abs(np.subtract(answer["result"], first["result"])).max()
            if gap > (0.05 if name == HALF else 1e-3):
                raise InputError(
                    f"Probabilities of {name} and {FULL} differ by {gap:.2g}. "
                    "Expected at most 1e-3, or 0.05 for bfloat16."
                )
        systems[name] = turns.summarize(given, count)
    turns.print_systems(title, systems, "a text")
    return systems


def main(values):
    prepare_output(values)
    lengths = [int(n) for n in values.lengths]
    model = bert_keras.BertClassifier.from_preset(values.model)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        values.model, sequence_length=max(lengths)
    )
    vocabulary = preprocess.tokenizer.vocabulary
    cases = {
        f"{batch} x {tokens} tokens": values.turns
        * [make_texts(vocabulary, tokens, batch)]
        for batch in BATCHES
        for tokens in lengths
    }
    cases |= {os.path.basename(s): read_batches(s) for s in values.texts}
    with tempfile.TemporaryDirectory() as folder:
        folders = write_models(model, preprocess, folder)
        jobs = {
            name: Job(job, {"folder": folders[name], "warm": 0})
            for name, job in JOBS.items()
        }
        threads = values.threads and str(values.threads)
        variables = dict.fromkeys(THREADS, threads) if threads else {}
        with turns.start_workers(jobs, variables) as (workers, left_out):
            for name, reason in left_out.items():
                progress.console.print(f"{name} is skipped: {reason}")
            steps = {name: worker.ask for name, worker in workers.items()}
            results = {}
            for title, batches in cases.items():
                turns.take_turns(steps, [batches[:1]])  # warm up
                results[title] = measure_case(title, steps, batches)
    if values.output:
        machine = turns.machine()
        with files.atomic_output(values.output) as partial:
            json_files.write_json(
                {"machine": machine, "rows": results}, partial
            )


if __name__ == "__main__":
    cli.start(main, Options)
