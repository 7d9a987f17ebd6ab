"""What is measured: each row says everything about itself.

A row has "contenders" (name -> `Contender`) that take turns; "goal" is how many
times as fast as the best peer; "turns" is the most that it takes.

Settings that depend on the machine are filled in by `inputs.Inputs.fill`.
"""

from typing import NamedTuple

# FASTEST is that of the two which the processor is faster in.
PLAIN, HALF, FASTEST = "float32", "mixed_bfloat16", "auto"


class Contender(NamedTuple):
    """One job of a worker.

    Attributes:
        environment: whose interpreter: a key of `turns.REQUIREMENTS`, or
            "ours" for this very Python.
        module: file of this folder.
        job: function in it.
        settings: JSON dict that the job takes.
    """

    environment: str
    module: str
    job: str
    settings: dict


PEERS = ("keras_hub", "model_garden", "transformers")


def step(size, batch, length, dtype, peers=PEERS):
    """Contenders of one pre-training step: name -> `Contender`.

    Dropout is 0 for all: not every peer can set both of its rates. Adam with
    decoupled decay, gradients clipped to 1, for all.
    """
    settings = {
        "size": size,
        "batch": batch,
        "length": length,
        "predictions": 20 if length == 128 else length * 15 // 100,
        "dropout": 0.0,
        "dtype": dtype,
    }
    contenders = {"ours": Contender("ours", "ours", "step", settings)}
    for peer in peers:
        contenders[peer] = Contender(peer, "peers", f"{peer}_step", settings)
    if "transformers" in peers:
        compiled = {**settings, "jit": True}
        rival = contenders["transformers"]._replace(settings=compiled)
        contenders["transformers, compiled"] = rival
    contenders["limit"] = Contender("ours", "ours", "limit", settings)
    return contenders


def packed(size, batch, length, dtype, lengths, peers=PEERS):
    """Rows that hold many examples, and rows that hold one and padding."""
    contenders = step(size, batch, length, dtype, peers)
    settings = {**contenders["ours"].settings, "lengths": lengths}
    packed = Contender("ours", "ours", "packed_step", settings)
    return {**contenders, "ours, packed": packed}


def finetuning(task, batch, longest, padded_steps, steps=32):
    """A part of an epoch: batches of rows drawn at random from the texts.

    Rows padded to one length all cost the same: fewer batches of them do.
    """
    settings = {
        "task": task,
        "batch": batch,
        "rows": steps * batch,
        "steps": steps,
        "dtype": PLAIN,
        "warm": 1,
    }
    fixed = {**settings, "padded": longest, "steps": padded_steps}
    grouped = {**settings, "grouped": True}
    ours = Contender("ours", "ours", "finetune", settings)
    rival = Contender(
        "transformers", "peers", "transformers_finetune", settings
    )
    return {
        "ours": ours,
        "transformers": rival,
        "transformers, grouped": rival._replace(settings=grouped),
        f"padded to {longest}": ours._replace(settings=fixed),
    }


def loading():
    """Weights of base size from a Hugging Face folder, and one short row."""
    settings = {"base": True, "warm": 0}
    contenders = {"ours": Contender("ours", "ours", "load", settings)}
    for peer in ("keras_hub", "transformers"):
        contenders[peer] = Contender(peer, "peers", f"{peer}_load", settings)
    return contenders


def first_answer():
    """A cold process: imports, the packaged model's weights, one text."""
    settings = {"mini": True, "warm": 0}
    contenders = {
        "ours": Contender("bert_keras", "ours", "first", settings),
        "ours, a SavedModel": Contender(
            "bert_keras", "ours", "first_served", settings
        ),
    }
    for peer in ("keras_hub", "transformers"):
        contenders[peer] = Contender(peer, "peers", f"{peer}_first", settings)
    return contenders


ROWS = {
    "small": {
        "title": "pre-training step, small, 16 x 128, float32",
        "contenders": step("small", 16, 128, PLAIN),
        "goal": 1.1,
    },
    "base": {
        "title": "pre-training step, base, 8 x 128, float32",
        "contenders": step("base", 8, 128, PLAIN),
        "goal": 1.1,
    },
    "small_fastest": {
        "title": "pre-training step, small, 16 x 128, bfloat16",
        "contenders": step("small", 16, 128, HALF),
        "goal": 1.5,
    },
    "base_fastest": {
        "title": "pre-training step, base, 8 x 128, bfloat16",
        "contenders": step("base", 8, 128, HALF),
        "goal": 1.5,
    },
    "packed": {
        "title": "pre-training, documents at 512, small, packed",
        "contenders": packed("small", 8, 512, FASTEST, "documentation"),
        "goal": 2.5,
    },
    "packed_paragraphs": {
        "title": "pre-training, paragraphs at 512, small, packed",
        "contenders": packed(
            "small",
            8,
            512,
            FASTEST,
            "paragraphs",
            ("keras_hub", "model_garden"),
        ),
        "goal": 2.5,
    },
    "sst2": {
        "title": "fine-tuning, SST-2, 32 a batch, float32",
        "contenders": finetuning("SST-2", 32, 128, 3),
        "goal": 1.5,
        "turns": 3,
    },
    "mrpc": {
        "title": "fine-tuning, MRPC, 16 a batch, float32",
        "contenders": finetuning("MRPC", 16, 128, 6),
        "goal": 1.5,
        "turns": 3,
    },
    "squad": {
        "title": "fine-tuning, windows of SQuAD, 8 a batch, float32",
        "contenders": finetuning("SQuAD", 8, 384, 4, steps=12),
        "goal": 1.5,
        "turns": 3,
    },
    "loading": {
        "title": "loading base",
        "contenders": loading(),
        "goal": None,
        "turns": 1,
    },
    "first": {
        "title": "first answer of a cold process",
        "contenders": first_answer(),
        "goal": None,
        "turns": 1,
    },
}
