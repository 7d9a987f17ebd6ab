"""What is measured: each row says all about itself.

A row has "contenders" (name -> peer, script, settings) that take turns, or a
"tool", a script of this folder's parent that measures by itself. "goal" is how
many times as fast as the best peer; "growth" says of what the contenders' names
are the sizes, where a row is about how the seconds of a step grow.

Settings that only the driver knows stand here by the names of `inputs.py`.
"""

PLAIN, HALF = "float32", "mixed_bfloat16"
PEERS = {
    "keras_hub": "keras_hub_bert.py",
    "model_garden": "model_garden.py",
    "transformers": "transformers_bert.py",
}


def step(size, batch, length, dtype, peers=PEERS, **more):
    """Contenders of one pre-training step: name -> peer, script, settings.

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
        **more,
    }
    contenders = {"ours": ("ours", "ours.py", settings)}
    for peer, script in peers.items():
        contenders[peer] = (peer, script, settings)
        if peer == "transformers":
            compiled = {**settings, "jit": True}
            contenders["transformers, compiled"] = (peer, script, compiled)
    contenders["limit"] = ("ours", "limit.py", settings)
    return contenders


def packed(size, batch, length, dtype, lengths, peers=PEERS):
    """Rows that hold many examples, beside rows that hold one and padding."""
    contenders = step(size, batch, length, dtype, peers)
    settings = {**contenders["ours"][2], "lengths": lengths}
    contenders["ours, packed"] = ("ours", "ours_packed.py", settings)
    return contenders


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
    script = "transformers_finetune.py"
    return {
        "ours": ("ours", "ours_finetune.py", settings),
        "transformers": ("transformers", script, settings),
        "transformers, grouped": ("transformers", script, grouped),
        f"padded to {longest}": ("ours", "ours_finetune.py", fixed),
    }


def alone(batch, length=128, **more):
    """This package's steps by `fit`, which starts anew each turn."""
    _, script, settings = step("small", batch, length, PLAIN, {})["ours"]
    more = {
        "backend": "tensorflow",
        "jit": False,
        "steps": 4,
        "warm": 1,
        **more,
    }
    more = {"distribution": "off", **more}
    return "ours", "ours_fit.py", {**settings, **more}


def replicas(number, rows=16):
    return alone(rows // number, distribution="mirrored", cpu_devices=number)


def data(megabytes, workers=1):
    settings = {"text": True, "megabytes": megabytes, "workers": workers}
    return "ours", "ours_data.py", {**settings, "warm": 1}


def loading(*peers):
    """Weights of base size from a Hugging Face folder, and one short row."""
    return {
        peer: (peer, "loading.py", {"system": peer, "base": True, "warm": 0})
        for peer in ("ours", *peers)
    }


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
        "title": "pre-training, documents at 512, small, bfloat16",
        "contenders": packed("small", 8, 512, HALF, "documentation"),
        "goal": 2.5,
    },
    "packed_paragraphs": {
        "title": "pre-training, paragraphs at 512, small, bfloat16",
        "contenders": packed(
            "small",
            8,
            512,
            HALF,
            "paragraphs",
            {name: PEERS[name] for name in ("keras_hub", "model_garden")},
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
        "contenders": loading("keras_hub", "transformers"),
        "goal": None,
        "turns": 1,
    },
    "length": {
        "title": "4 steps against tokens a row, small, 8 rows, float32",
        "contenders": {str(t): alone(8, t) for t in (128, 256, 384, 512)},
        "growth": "tokens a row",
    },
    "batch": {
        "title": "4 steps against rows, small, rows of 128, float32",
        "contenders": {str(b): alone(b) for b in (8, 16, 32, 64)},
        "growth": "rows",
    },
    "replicas": {
        "title": "4 steps against replicas, small, 16 x 128 in all, float32",
        "contenders": {str(n): replicas(n) for n in (1, 2, 4)},
        "growth": "replicas",
    },
    "corpus": {
        "title": "text to records against its size",
        "contenders": {str(m): data(m) for m in (4, 8, 16, 32)},
        "growth": "MB of text",
        "turns": 3,
    },
    "workers": {
        "title": "text to records against workers, 130 MB",
        "contenders": {str(n): data(130, n) for n in (1, 2)},
        "growth": "workers",
        "turns": 2,
    },
}
