"""Rows of `steps.py`. A row has a title and the jobs that are compared.

`compare` makes a row of whole commands, one for each library. Later,
`inputs.Inputs.fill` fills in the settings that depend on the machine.
"""

from typing import NamedTuple

from baselines.turns import THIS

FLOAT, HALF = "float32", "mixed_bfloat16"
TEXT = "An hour well spent."


class Job(NamedTuple):
    """Name of a function of `jobs.py`, and the settings to call it with.

    `worker.py` also reads some settings, such as "warm" and "gpu_steps".
    """

    function: str
    settings: dict


class Row(NamedTuple):
    """Systems to compare: a title, and a dict of system -> `Job`.

    The first system is `THIS`, which is bert_keras.
    """

    title: str
    jobs: dict
    turns: int | None = None  # maximum number of turns; None means --turns


def step(size, batch, dtype, length=128):
    """Return a row that times pre-training steps on random ids.

    All libraries use AdamW, clip gradients to norm 1, and use no dropout.
    """
    settings = {
        "size": size,
        "batch": batch,
        "length": length,
        "predictions": 20,
        "dtype": dtype,
        "gpu_steps": 20,
    }
    package = Job("step", settings)
    transformers = Job("transformers_step", settings)
    jobs = {
        THIS: package,
        f"{THIS}, JAX": _extend(package, environment={"KERAS_BACKEND": "jax"}),
        "transformers": transformers,
        "transformers, compiled": _extend(transformers, compiled=True),
    }
    kind = dtype.removeprefix("mixed_")
    title = f"pre-training step, {size}, {batch} x {length}, {kind}"
    return Row(title, jobs)


def compare(title, turns=3, **commands):
    """Return a row that times whole commands, from start to end of the process.

    `commands` is a dict: system -> words after `python`. `{name}` in a word is
    replaced by the path `Inputs[name]`. Set `turns` to 1 if a second turn would
    only resume the first turn.
    """
    jobs = {
        name: Job("command", {"words": words, "warm": 0})
        for name, words in commands.items()
    }
    return Row(title, jobs, turns=turns)


def _extend(job, **settings):
    return job._replace(settings=job.settings | settings)


def _predict(model, signature, ending, *input_words):
    return [
        *("-m", "official_tasks.predict", f"--signature={signature}"),
        *(f"--model={{served_{model}}}", f"--output={{output}}.{ending}"),
        *("--overwrite", *(input_words or ["--input={lines}"])),
    ]


def _train(task, train, dev, dtype):
    words = [f"--task={task}", f"--dtype={dtype}", "--init={init}"]
    words += [f"--train={train}", f"--dev={dev}"]
    words += ["--learning_rate=1e-4", "--epochs=1"]
    finetune = ["-m", "official_tasks.finetune"]
    output = f"--output={{output}}-{task}-{dtype}"
    return compare(
        f"start, an epoch of fine-tuning on {task}, and scoring, {dtype}",
        turns=1,
        bert_keras=[*finetune, output, *words],
        transformers=["{here}/trainer.py", *words],
    )


# Code that loads weights from a folder and computes a first answer.
FIRST = f"""
import sys, bert_keras
preprocess = bert_keras.BertPreprocessor.from_preset(sys.argv[1])
encoder = bert_keras.BertEncoder.from_preset(sys.argv[1])
encoder.predict(preprocess(["{TEXT}"]), verbose=0)
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
EMBED_ONNX = """
import numpy as np
from onnxruntime import InferenceSession
from tokenizers import BertWordPieceTokenizer
with open("{lines}", encoding="utf-8") as file:
    lines = sorted(file.read().splitlines(), key=len)
tokenizer = BertWordPieceTokenizer("{onnx_embedder}/vocab.txt")
tokenizer.enable_padding()
tokenizer.enable_truncation(128)
session = InferenceSession("{onnx_embedder}/model.onnx")
for start in range(0, len(lines), 32):
    rows = tokenizer.encode_batch(lines[start : start + 32])
    ids, segments, mask = (
        np.array([getattr(row, name) for row in rows], "int32")
        for name in ("ids", "type_ids", "attention_mask"))
    session.run(None, dict(
        token_ids=ids, segment_ids=segments, padding_mask=mask))
"""

ROWS = {
    "small": step("small", 16, FLOAT),
    "base": step("base", 8, FLOAT),
    "small_bfloat16": step("small", 16, HALF),
    "base_bfloat16": step("base", 8, HALF),
    **{
        name: compare(
            f"first answer of a cold process, {size}",
            bert_keras=["-c", FIRST, f"{{{size}}}"],
            transformers=["-c", FIRST_TRANSFORMERS, f"{{{size}}}"],
        )
        for name, size in (("first", "init"), ("first_base", "base"))
    },
    "embed": compare(
        "lines of text to vectors",
        bert_keras=_predict("embedder", "embed", "npy"),
        transformers=["-c", EMBED],
        onnxruntime=["-c", EMBED_ONNX],
    ),
    "classify": compare(
        "lines of text to classes",
        bert_keras=_predict("classifier", "classify", "jsonl"),
        transformers=[
            *("-c", PIPELINE, "text-classification", "{classifier}"),
            "truncation=longest_first",
        ],
    ),
    "tag": compare(
        "lines of text to entities",
        bert_keras=_predict("tagger", "tag", "jsonl"),
        transformers=["-c", PIPELINE, "token-classification", "{tagger}"],
    ),
    "answer": compare(
        "questions of SQuAD to answers",
        bert_keras=_predict(
            *("spans", "answer", "jsonl", "--input={questions}"),
            "--input_format=jsonl",
        ),
        transformers=(
            "{here}/trainer.py --task=squad1 --epochs=0 --train= "
            "--dev={squad} --init={spans}"
        ).split(),
    ),
    **{
        f"train_{task}{ending}": _train(task, train, dev, dtype)
        for task, train, dev in (
            ("mrpc", "{mrpc_train}", "{mrpc_dev}"),
            ("sst2", "{sst2_train}", "{sst2_dev}"),
            ("wikiann", "{wikiann_train}", "{wikiann_dev}"),
            ("squad1", "{squad_train}", "{squad}"),
        )
        for dtype, ending in ((FLOAT, ""), (HALF, "_bfloat16"))
    },
    "vocabulary": compare(
        "text to a vocabulary of 30,000",
        bert_keras=(
            "{here}/../../train_vocabulary.py --input={text} "
            "--vocabulary_size=30000 --output={output}.txt --overwrite"
        ).split(),
        tokenizers=["-c", LEARN, "{text}", "{output}.json"],
    ),
}
