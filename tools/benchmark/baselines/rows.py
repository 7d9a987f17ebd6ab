"""The rows of `steps.py`: a title and the jobs that it compares.

A row of whole commands has one command for each library: `compare`. Settings
that depend on the machine are filled in by `inputs.Inputs.fill`.
"""

from typing import NamedTuple

from baselines.turns import THIS

FLOAT, HALF = "float32", "mixed_bfloat16"
TEXT = "An hour well spent."


class Job(NamedTuple):
    """The task of one worker.

    Attributes:
        environment: a key of `turns.REQUIREMENTS`, or `THIS` Python.
        module: file of this folder.
        function: its function that prepares a step.
        settings: JSON dict that the function takes.
    """

    environment: str
    module: str
    function: str
    settings: dict


class Row(NamedTuple):
    """A line of a benchmark: a title, and name -> `Job`, `THIS` first.

    Attributes:
        turns: greatest number of turns; None for that of --turns.
    """

    title: str
    jobs: dict
    turns: int | None = None


def step(size, batch, dtype, length=128):
    """Return a row of pre-training steps on random ids.

    Dropout is 0 for all: not every library can set both of its rates. Adam
    with decoupled decay, gradients clipped to 1, for all.
    """
    settings = {
        "size": size,
        "batch": batch,
        "length": length,
        "predictions": 20,
        "dropout": 0.0,
        "dtype": dtype,
        "gpu_steps": 20,
    }
    package = Job(THIS, "package_jobs", "step", settings)
    transformers = Job("transformers", "others", "transformers_step", settings)
    jobs = {
        THIS: package,
        f"{THIS}, JAX": _extend(package, environment={"KERAS_BACKEND": "jax"}),
        "keras_hub": Job("keras_hub", "others", "keras_hub_step", settings),
        "transformers": transformers,
        "transformers, compiled": _extend(transformers, compiled=True),
    }
    kind = dtype.removeprefix("mixed_")
    title = f"pre-training step, {size}, {batch} x {length}, {kind}"
    return Row(title, jobs)


def compare(title, turns=3, **commands):
    """Return a row of whole commands, from start to end of the process.

    Args:
        title: of the row.
        turns: greatest number of turns; 1 if the commands would resume.
        **commands: system -> (environment, words behind `python`). `{name}`
            in a word stands for a file or folder of `Inputs`.
    """
    jobs = {
        name: Job(environment, "others", "command", {"words": words, "warm": 0})
        for name, (environment, words) in commands.items()
    }
    return Row(title, jobs, turns=turns)


def _extend(job, **settings):
    return job._replace(settings=job.settings | settings)


def _predict(model, signature, ending):
    """Return the words of `predict` for a model of `Inputs`."""
    return [
        *("-m", "official_tasks.predict", f"--signature={signature}"),
        *(f"--model={{served_{model}}}", "--input={lines}"),
        *(f"--output={{output}}.{ending}", "--overwrite"),
    ]


def _train(task, folder, dtype):
    """Return a row that fine-tunes for an epoch, with batches by length."""
    files = [
        f"--train={{data}}/glue/{folder}/train.tsv",
        f"--dev={{data}}/glue/{folder}/dev.tsv",
    ]
    settings = ["--init={init}", "--learning_rate=1e-4", "--epochs=1"]
    words = [f"--task={task}", f"--dtype={dtype}", *files, *settings]
    return compare(
        f"fine-tuning {folder} for an epoch, start and score too, {dtype}",
        turns=1,
        bert_keras=(
            THIS,
            [
                "-m",
                "official_tasks.finetune",
                f"--output={{output}}-{task}-{dtype}",
                *words,
            ],
        ),
        transformers=("transformers", ["{here}/trainer.py", *words]),
    )


# The first answer of a cold process, by the weights in a folder.
FIRST = f"""
import sys, bert_keras
preprocess = bert_keras.BertPreprocessor.from_preset(sys.argv[1])
encoder = bert_keras.BertEncoder.from_preset(sys.argv[1])
encoder.predict(preprocess(["{TEXT}"]), verbose=0)
"""
FIRST_KERAS_HUB = f"""
import sys
from keras_hub import models
preprocess = models.BertTextClassifierPreprocessor.from_preset(sys.argv[1])
backbone = models.BertBackbone.from_preset(sys.argv[1])
backbone.predict(preprocess(["{TEXT}"]), verbose=0)
"""
FIRST_TRANSFORMERS = f"""
import sys
from transformers import pipeline
pipeline("feature-extraction", sys.argv[1], device="cpu")("{TEXT}")
"""
PIPELINE = """
import sys
from transformers import pipeline
with open("{lines}", encoding="utf-8") as file:
    lines = file.read().splitlines()
task, folder, *settings = sys.argv[1:]
pipe = pipeline(task, folder, device="cpu")
pipe(lines, batch_size=32, **dict(word.split("=") for word in settings))
"""
LEARN = """
import glob, sys
from tokenizers import BertWordPieceTokenizer
tokenizer = BertWordPieceTokenizer()
tokenizer.train(glob.glob(sys.argv[1]), vocab_size=30000)
tokenizer.save(sys.argv[2])
"""
EMBED = """
from sentence_transformers import SentenceTransformer
with open("{lines}", encoding="utf-8") as file:
    lines = file.read().splitlines()
model = SentenceTransformer("{init}")
model.max_seq_length = 128
model.encode(lines, batch_size=32)
"""

ROWS = {
    "small": step("small", 16, FLOAT),
    "base": step("base", 8, FLOAT),
    "small_bfloat16": step("small", 16, HALF),
    "base_bfloat16": step("base", 8, HALF),
    **{
        name: compare(
            f"first answer of a cold process, {size}",
            bert_keras=(THIS, ["-c", FIRST, f"{{{size}}}"]),
            keras_hub=("keras_hub", ["-c", FIRST_KERAS_HUB, f"{{{size}}}"]),
            transformers=(
                "transformers",
                ["-c", FIRST_TRANSFORMERS, f"{{{size}}}"],
            ),
        )
        for name, size in (("first", "mini"), ("first_base", "base"))
    },
    "embed": compare(
        "lines of text to vectors",
        bert_keras=(THIS, _predict("embedder", "embed", "npy")),
        transformers=("transformers", ["-c", EMBED]),
    ),
    "classify": compare(
        "lines of text to classes",
        bert_keras=(THIS, _predict("classifier", "classify", "jsonl")),
        transformers=(
            "transformers",
            ["-c", PIPELINE, "text-classification", "{classifier}"]
            + ["truncation=longest_first"],
        ),
    ),
    "tag": compare(
        "lines of text to entities",
        bert_keras=(THIS, _predict("tagger", "tag", "jsonl")),
        transformers=(
            "transformers",
            ["-c", PIPELINE, "token-classification", "{tagger}"],
        ),
    ),
    "train_mrpc": _train("mrpc", "MRPC", FLOAT),
    "train_mrpc_bfloat16": _train("mrpc", "MRPC", HALF),
    "train_sst2": _train("sst2", "SST-2", FLOAT),
    "vocabulary": compare(
        "text to a vocabulary of 30,000",
        bert_keras=(
            THIS,
            "{here}/../../train_vocabulary.py --input={text} --size=30000 "
            "--output={output}.txt --overwrite".split(),
        ),
        transformers=("transformers", ["-c", LEARN, "{text}", "{output}.json"]),
    ),
}
