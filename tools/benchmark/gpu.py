"""Times the pre-training step on a GPU, on TensorFlow or on JAX.

    python tools/benchmark/gpu.py --backend=tensorflow --device=h200 \
        --distributions=off,mirrored --dtypes=mixed_bfloat16,mixed_float16 \
        --output=runs/gpu_tensorflow.json
    python tools/benchmark/gpu.py --backend=jax --device=h200 \
        --output=runs/gpu_jax.json

In: nothing but text of natural length, --input or what is installed with
Python. On JAX nothing here imports TensorFlow, which need not be installed.
Each case (size, length, rows, dtype, devices) runs in a process of its own,
with AdamW and all that `fit` does. Rows are synthetic, every one full, or
packed: examples of the text's lengths, several to a row.

Out: a table on the terminal and as JSON: sequences (of packed rows, examples)
a second over all devices, median with least and most; the share of the
devices' peak that the model's own operations take (MFU); and the peak of the
memory of one device. The operations of a sequence of T tokens and M
predictions are 3 (2 T W + 4 L T^2 D + 2 M D (D + V) + 2 D^2), W the numbers in
the matrices of all L layers of width D, V the vocabulary: nothing is counted
for padding, for other examples of a row, or for what is computed twice.

Takes about two minutes a case. A case that fails, such as one for which the
memory does not suffice, is reported, and the others go on.
"""

import itertools
import sys

from absl import flags
from contenders import turns
from contenders.inputs import natural_lengths
from contenders.turns import machine
from contenders.worker import SIZES, VOCABULARY

from bert_keras.errors import InputError
from bert_keras.files import write_json
from official_tasks import progress, script
from official_tasks.pretraining.cost import Model, device_named, sequence_flops

# Sequences a second wanted of one H200: (size, length, rows) -> number.
GOALS = {
    ("base", 128, "synthetic"): 5000,
    ("large", 128, "synthetic"): 1450,
    ("large", 512, "synthetic"): 390,
    ("large", 512, "packed"): 700,
}
ROWS = ("synthetic", "packed")


def define_flags():
    flags.DEFINE_enum("backend", None, ["tensorflow", "jax"], "Keras's.")
    flags.DEFINE_string("device", "h200", "a100, h100 or h200: its peak.")
    flags.DEFINE_float("peak", None, "Another device's, in TFLOP/s.")
    flags.DEFINE_list("sizes", ["base", "large"], "Models, by name.")
    flags.DEFINE_list("lengths", ["128", "512"], "Tokens of a row.")
    flags.DEFINE_list("rows", list(ROWS), "synthetic, packed or both.")
    flags.DEFINE_list("dtypes", ["mixed_bfloat16"], "Policies.")
    flags.DEFINE_list("distributions", ["off"], "off, mirrored or both.")
    flags.DEFINE_integer("tokens", 32768, "Of a device's batch.", 1)
    flags.DEFINE_bool("xla", True, "Compile on TensorFlow too.")
    flags.DEFINE_float("dropout", 0.1, "Of embeddings and sub-layers.")
    flags.DEFINE_float(
        "attention_dropout", 0.0, "Above 0, JAX's fused kernel is left out."
    )
    flags.DEFINE_integer("steps", 20, "Of a turn.", 1)
    flags.DEFINE_integer("turns", 5, "That are timed.", 1)
    flags.DEFINE_string("input", None, "Text of natural length; else docs.")
    flags.DEFINE_string("output", None, "JSON file to write.")
    script.applies_only("without --peak", lambda v: not v.peak, "device")
    script.applies_only(
        "with --backend=tensorflow: JAX always compiles",
        lambda v: v.backend == "tensorflow",
        "xla",
    )
    script.applies_only(
        "with packed among --rows", lambda v: "packed" in v.rows, "input"
    )
    script.define_overwrite()
    flags.mark_flag_as_required("backend")


def main(values):
    script.prepare_output(values)
    peak = 1e12 * values.peak if values.peak else None
    peak = peak or device_named(values.device).flops
    results = {"machine": machine(), "peak": peak, "cases": []}
    cases = list(chosen_cases(values))
    with progress.bar("Cases", len(cases)) as update:
        for number, case in enumerate(cases):
            results["cases"].append(measured(case, values, peak))
            update(number + 1)
            if values.output:
                write_json(results, values.output)
    table = as_text(results["cases"])
    progress.console.print(table, markup=False, soft_wrap=True)


def chosen_cases(values):
    """Settings of each case, as `fit` of contenders/ours.py takes them."""
    unknown = sorted(set(values.rows) - set(ROWS))
    if unknown:
        raise InputError(f"--rows: expected {', '.join(ROWS)}; got {unknown}.")
    for size, length, dtype, distribution, rows in itertools.product(
        values.sizes,
        map(int, values.lengths),
        values.dtypes,
        values.distributions,
        values.rows,
    ):
        yield {
            "backend": values.backend,
            "size": size,
            "length": length,
            "dtype": dtype,
            "distribution": distribution,
            "rows": rows,
            "batch": max(1, values.tokens // length),
            "predictions": 20 if length == 128 else length * 15 // 100,
            "dropout": values.dropout,
            "attention_dropout": values.attention_dropout,
            "jit": values.xla or values.backend == "jax",
            "steps": values.steps,
            "warm": 1,
        }


def measured(case, values, peak):
    """A case with its figures, or with why it failed."""
    settings, lengths = dict(case), [case["length"]]
    if case["rows"] == "packed":
        lengths = natural_lengths(values.input, case["length"])
        settings["lengths"] = lengths
    worker = sys.executable, "ours", "fit", settings
    try:
        # Without a limit of time no contender is left out.
        figures, _ = turns.measure({"ours": worker}, values.turns)
    except InputError as error:
        return {**case, "failed": str(error)}
    found = figures["ours"]
    flops = sum(model_flops(case, n) for n in lengths) / len(lengths)
    found["a second"] = 1 / found["median"]
    found["mfu"] = flops / found["median"] / peak / found["replicas"]
    return {**case, **found, "flops": flops}


def model_flops(case, length):
    """Operations of training on one sequence of `length` tokens."""
    layers, width, heads = SIZES[case["size"]]
    model = Model(layers, width, heads, 4 * width, VOCABULARY)
    predictions = case["predictions"]
    if case["rows"] == "packed":
        predictions = max(1, length * 15 // 100)
    return sequence_flops(model, length, predictions)


def as_text(cases):
    """A line a case."""
    lines = [
        f"{'':<24}{'dtype':<10}{'devices':<30}{'sequences/s':>12}"
        f"{'least':>10}{'most':>10}{'goal':>7}{'MFU':>7}{'peak MB':>9}"
    ]
    for case in cases:
        name = f"{case['size']} {case['length']} {case['rows']}"
        line = f"{name:<24}{case['dtype'].removeprefix('mixed_'):<10}"
        if "failed" in case:
            said = case["failed"].strip().splitlines()[-1]
            lines.append(f"{line}{case['distribution']}, failed: {said[:80]}")
            continue
        devices = f"{case['replicas']} x {case['device']}"
        goal = GOALS.get((case["size"], case["length"], case["rows"]), "")
        lines.append(
            f"{line}{devices + ', ' + case['distribution']:<30}"
            f"{case['a second']:>12,.1f}{1 / case['most']:>10,.1f}"
            f"{1 / case['least']:>10,.1f}{goal:>7}{case['mfu']:>7.3f}"
            f"{case['peak_megabytes']:>9,}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    script.start(main, define_flags, tensorflow=False)
