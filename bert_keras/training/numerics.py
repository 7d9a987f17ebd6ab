"""The dtype policy that computes fastest on the devices at hand."""

import functools

BFLOAT16, FLOAT32 = "mixed_bfloat16", "float32"
# Instructions that multiply bfloat16. A processor without them emulates it,
# several times slower than float32.
INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}
CAPABILITY = (8, 0)  # NVIDIA's first GPUs that multiply bfloat16 (A100)


def choose_dtype(dtype="auto", distribution="off"):
    """The name of a Keras dtype policy; "auto" becomes one that fits.

    That is "mixed_bfloat16" on a TPU, on GPUs of compute capability 8.0 and
    above, and on processors with the instructions avx512_bf16 or amx_bf16;
    elsewhere "float32". "mixed_float16", which older GPUs compute fast, is
    never chosen: its range is too small for training without loss scaling.

    Args:
        dtype: "auto", or a policy's name, which is returned as it is.
        distribution: the name of the `Strategy`.
    """
    if dtype != "auto":
        return dtype
    if distribution == "tpu":
        return BFLOAT16
    import tensorflow as tf

    if gpus := tf.config.get_visible_devices("GPU"):
        details = map(tf.config.experimental.get_device_details, gpus)
        found = [one.get("compute_capability", (0, 0)) for one in details]
        return BFLOAT16 if min(found) >= CAPABILITY else FLOAT32
    return BFLOAT16 if INSTRUCTIONS & _instructions() else FLOAT32


@functools.cache
def _instructions(path="/proc/cpuinfo"):
    """What Linux says that the first core can do; empty on other systems."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("flags")]
    except OSError:
        return frozenset()
    return frozenset(lines[0].split()) if lines else frozenset()
