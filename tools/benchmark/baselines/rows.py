"""Rows of `steps.py`. A row has a title and the jobs that are compared.

`compare` makes a row of whole commands, one for each library. Later,
`inputs.Inputs.fill` fills in the settings that depend on the machine.
"""

from typing import NamedTuple

THIS = "bert_keras"  # other systems are compared with this system
FLOAT, HALF = "float32", "mixed_bfloat16"
TEXT = "An hour well spent."
# System -> the library whose import its memory is compared with.
LIBRARIES = {
    THIS: "tensorflow",
    "transformers": "torch",
    "onnxruntime": "onnxruntime",
    "tokenizers": "tokenizers",
}


class Job(NamedTuple):
    """Name of a function of `jobs.py`, and the settings to call it with.

    `worker.py` also reads some settings, such as "warm" and "gpu_steps".
    """

    function: str
    settings: dict
    library: str = LIBRARIES[THIS]


class Row(NamedTuple):
    """Systems to compare: a title, and a dict of system -> `Job`.

    The first system is this package.

    Attributes:
        turns: number of turns, if --turns does not set it.
        unit: what a time is divided by.
        has_texts: True if a step takes texts; the row then has a table for each
            length of random texts and for each file of --texts.
    """

    title: str
    jobs: dict
    turns: int = 9
    unit: str = "an example"
    has_texts: bool = False


def _make_settings(size, batch, dtype):
    """Return the settings of a job that takes pre-training steps."""
    return {
        "size": size,
        "batch": batch,
        "length": 128,
        "predictions": 20,
        "dtype": dtype,
        "gpu_steps": 20,
        "warm": 3,
    }


def step(size, batch, dtype):
    """Return a row that times pre-training steps on random ids.

    All libraries use AdamW, clip gradients to norm 1, and use no dropout.
    """
    settings = _make_settings(size, batch, dtype)
    other = Job("transformers_step", settings, "torch")
    jobs = {
        THIS: Job("step", settings),
        "transformers": other,
        "transformers, compiled": other._replace(
            settings=settings | {"compiled": True}
        ),
    }
    kind = dtype.removeprefix("mixed_")
    title = f"pre-training step, {size}, {batch} x 128, {kind}"
    return Row(title, jobs)


def compare(title, turns=3, **commands):
    """Return a row that times whole commands, from start to end of the process.

    `commands` is a dict: system -> words after `python`. `{name}` in a word is
    replaced by the path `Inputs[name]`, and `{new}` by a path that is new in
    each turn.
    """
    jobs = {
        name: Job("command", {"words": words}, LIBRARIES[name])
        for name, words in commands.items()
    }
    return Row(title, jobs, turns, "a command")


def _predict(model, signature, ending, *input_words):
    return [
        *("-m", "official_tasks.predict", f"--signature={signature}"),
        *(f"--model={{served_{model}}}", f"--output={{new}}.{ending}"),
        *(input_words or ["--input={lines}"]),
    ]


def _train(task, train, dev, extent="an epoch"):
    words = [f"--task={task}", f"--train={train}", f"--dev={dev}"]
    words += "--init={init} --learning_rate=1e-4 --epochs=1".split()
    finetune = ["-m", "official_tasks.finetune", "--output={new}"]
    return compare(
        f"start, {extent} of fine-tuning on {task}, and scoring",
        turns=1,
        bert_keras=[*finetune, *words],
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

TOKENIZE = {"lines": "{equal_lines}", "vocabulary": "{vocabulary}", "warm": 1}
ROWS = {
    "small": step("small", 16, FLOAT),
    "base": step("base", 8, FLOAT),
    "small_bfloat16": step("small", 16, HALF),
    "base_bfloat16": step("base", 8, HALF),
    "products": Row(
        "pre-training step, small, 32 x 128, and its matrix products alone",
        {
            THIS: Job("step", _make_settings("small", 32, FLOAT)),
            "its products": Job("products", _make_settings("small", 32, FLOAT)),
        },
    ),
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
        f"train_{task}": _train(task, train, dev)
        for task, train, dev in (
            ("mrpc", "{mrpc_train}", "{mrpc_dev}"),
            ("sst2", "{sst2_train}", "{sst2_dev}"),
            ("stsb", "{stsb_train}", "{stsb_dev}"),
            ("wikiann", "{wikiann_train}", "{wikiann_dev}"),
            ("squad1", "{squad_train}", "{squad}"),
        )
    },
    "train_two_steps": _train("sst2", "{sst2_two}", "{sst2_dev}", "two steps"),
    "vocabulary": compare(
        "text to a vocabulary of 30,000",
        bert_keras=(
            "{here}/../../train_vocabulary.py --input={text} "
            "--vocabulary_size=30000 --output={new}.txt"
        ).split(),
        tokenizers=["-c", LEARN, "{text}", "{new}.json"],
    ),
    "tokenize": Row(
        "tokenizing lines with equal ids",
        {
            THIS: Job("tokenize", TOKENIZE),
            "tokenizers": Job("tokenizers_tokenize", TOKENIZE, "tokenizers"),
        },
        unit="a megabyte",
    ),
    "records": Row(
        "text to a token store and records of 128 tokens, one core",
        {
            THIS: Job(
                "records",
                {"text": "{text}", "vocabulary": "{vocabulary}"}
                | {"characters": 8_000_000},
            )
        },
        turns=3,
        unit="a million characters",
    ),
    "serve": Row(
        "raw texts to probabilities",
        {
            THIS: Job("classify", {"folder": "{served_long}"}),
            f"{THIS}, bfloat16": Job("classify", {"folder": "{half_long}"}),
            "transformers": Job(
                "transformers_classify", {"folder": "{long}"}, "torch"
            ),
            "onnxruntime": Job(
                *("onnxruntime_classify", {"folder": "{onnx_long}"}),
                "onnxruntime",
            ),
        },
        turns=15,
        unit="a text",
        has_texts=True,
    ),
}
