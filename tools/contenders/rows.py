"""What is measured: each row says all about itself."""

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


def packed(size, batch, length, dtype):
    """Rows that hold many examples, beside rows that hold one and padding."""
    contenders = step(size, batch, length, dtype)
    settings = {**contenders["ours"][2], "lengths": NATURAL}
    return {
        "ours, packed": ("ours", "ours_packed.py", settings),
        **contenders,
    }


def alone(size, batch, length, dtype=PLAIN):
    return step(size, batch, length, dtype, peers={})


# The driver puts the lengths of real text in its place.
NATURAL = "natural"

# Row -> what it says, its contenders, and the goal: how many times as fast as
# the best peer.
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
        "title": "pre-training, natural lengths at 512, small, bfloat16",
        "contenders": packed("small", 8, 512, HALF),
        "goal": 2.5,
    },
}
# Growth: step time against length and against batch, this package alone.
GROWTH = {
    f"{batch} x {length}": alone("small", batch, length)
    for batch, length in ((16, 128), (16, 256), (16, 512), (4, 128), (64, 128))
}
