"""Exports a fine-tuned or pre-trained model as a SavedModel of raw strings.

    python tools/export.py --model=runs/reviews/model --output=runs/served

In: one or more model folders (--model may be repeated). Out: one SavedModel
with the tokenizer in its graph, `classify` for a classifier, `fill_mask` for a
pre-trained model, and a card that names the inputs and outputs. It runs in
float32, in any dtype of training, and needs only tensorflow and tensorflow_text
to be loaded (--portable: only tensorflow). A fresh process loads it and must
agree with the model to 1e-5 (--noverify leaves that out). Weights that are
still random, because a folder lacks them, are refused unless --allow_untrained
is set.

--dtype=bfloat16 halves the size, --dtype=int8 quarters it; with --dev=FILE
(CSV, TSV, JSONL, Parquet, ...) the size, the time and the answers before and
after are measured on its rows and printed:

    python tools/export.py --model=runs/reviews/model --output=runs/small \\
        --dtype=bfloat16 --dev=dev.csv --label=stars

--format=litert or onnx writes the model on token ids instead, in float32 or
with --dtype=int8, next to its vocabulary and tokenizer settings, and compares
it in the runtime of that format
(pip install 'bert_keras[litert]' or 'bert_keras[onnx]').

Takes about half a minute for a small model, more for BERT base.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import math
import os
import tempfile
import time
import warnings

import numpy as np
from absl import flags

from bert_keras import files
from bert_keras.comparison import greatest_difference
from bert_keras.errors import InputError, UntrainedWarning
from official_tasks import script

BATCH = 32
SINGLE = 100  # rows of --dev that are timed one at a time
# Flags that are arguments of `export_saved_model`.
ARGUMENTS = (
    *("pair", "top_k", "pooling", "normalize", "features", "long_text"),
    *("ids_signature", "portable", "license"),
)
FEATURES = (
    *("embeddings", "second_to_last", "last", "sum_last_four"),
    *("concat_last_four", "sum_all"),
)


def define_flags():
    flags.DEFINE_multi_string("model", None, "Model folder; may be repeated.")
    flags.DEFINE_string("output", None, "Folder to write.")
    flags.DEFINE_enum(
        "format",
        "saved_model",
        ("saved_model", "litert", "onnx"),
        "Format to write.",
    )
    flags.DEFINE_enum(
        "dtype",
        "float32",
        ("float32", "bfloat16", "int8"),
        "Type of the weights.",
    )
    flags.DEFINE_integer("sequence_length", None, "Tokens of a text at most.")
    flags.DEFINE_bool(
        "allow_untrained", False, "Export weights that are still random."
    )
    _define_saved_model_flags()
    _define_measurement_flags()
    script.applies_only(
        "with --format=saved_model: the others write the model on ids alone",
        lambda v: v.format == "saved_model",
        *(*ARGUMENTS, "verify", "dev", "label", "columns"),
    )
    flags.mark_flags_as_required(["model", "output"])


def _define_saved_model_flags():
    flags.DEFINE_bool(
        "pair",
        None,
        "The classifier reads two texts; by default as its folder says.",
    )
    flags.DEFINE_integer(
        "top_k",
        None,
        "Predictions of fill_mask and answers of answer; by default 5.",
        1,
    )
    flags.DEFINE_enum(
        "pooling",
        None,
        ("mean", "max", "cls", "pooled"),
        "What embed returns for a text; the default comes with the weights.",
    )
    flags.DEFINE_bool(
        "normalize",
        None,
        "Make embed's vectors of length 1; the default comes with the weights.",
    )
    flags.DEFINE_enum(
        "features",
        None,
        FEATURES,
        "embed also returns a vector for each token, of these layers.",
    )
    flags.DEFINE_enum(
        "long_text",
        "truncate",
        ("truncate", "windows"),
        "Cut a text that is longer than a row, or read it in several.",
    )
    flags.DEFINE_enum(
        "ids_signature",
        None,
        ("ours", "original", "transformers", "model_garden"),
        "Also answer requests of token ids, under these names.",
    )
    flags.DEFINE_bool("portable", False, "For servers without tensorflow_text.")
    flags.DEFINE_string(
        "license", None, "Licence of the weights; by default that of --model."
    )
    flags.DEFINE_bool("verify", True, "Compare in a fresh process.")


def _define_measurement_flags():
    flags.DEFINE_string("dev", None, "Rows to measure a smaller dtype on.")
    flags.DEFINE_string("label", None, "Column of the true label in --dev.")
    flags.DEFINE_list(
        "columns", None, "Columns of the inputs in --dev, if named differently."
    )
    script.applies_only(
        "with --dtype=bfloat16 or int8, which it measures",
        lambda v: v.dtype != "float32",
        "dev",
    )
    script.applies_only("with --dev", lambda v: v.dev, "label", "columns")


def main(values):
    models = [load_model(m, values.allow_untrained) for m in values.model]
    preprocess = load_preprocessor(values.model, values.sequence_length)
    if values.format == "saved_model":
        export(models, preprocess, values)
    else:
        convert(models, preprocess, values)


def load_model(folder, allow_untrained):
    """Load the model of a folder by the class that the folder names."""
    from bert_keras.interop.convert import model_class
    from bert_keras.interop.presets import open_checkpoint

    checkpoint = open_checkpoint(folder)
    with warnings.catch_warnings():
        # Without the flag the export says it, or refuses them.
        if not allow_untrained:
            warnings.simplefilter("ignore", UntrainedWarning)
        return model_class(checkpoint).from_preset(checkpoint)


def load_preprocessor(folders, sequence_length=None):
    """Load the preprocessor of the first model, that all models have in common.

    Raises:
        InputError: the tokenizer of another model differs.
    """
    import bert_keras

    first, *others = (
        bert_keras.BertPreprocessor.from_preset(
            folder, sequence_length=sequence_length
        )
        for folder in folders
    )
    settings = first.tokenizer.get_config()
    for folder, other in zip(folders[1:], others, strict=True):
        config = other.tokenizer.get_config()
        different = [
            name
            for name in settings
            if name != "name" and config[name] != settings[name]
        ]
        if different:
            raise InputError(
                f"The tokenizers of {folders[0]} and {folder} differ in "
                f"{', '.join(different)}; expected one tokenizer in an export. "
                "Export the models to two folders."
            )
    return first


def export(models, preprocess, values):
    """Write the SavedModel; with --dev, compare it with one in float32."""
    import bert_keras
    from official_tasks import progress

    arguments = {name: getattr(values, name) for name in ARGUMENTS}
    arguments["allow_untrained"] = values.allow_untrained
    folder = bert_keras.export_saved_model(
        models,
        preprocess,
        values.output,
        dtype=values.dtype,
        verify=values.verify,
        **arguments,
    )
    served = bert_keras.load_saved_model(folder)
    operations = ", ".join(
        f"{name} ({count})"
        for name, count in served.card["operations_outside_core"].items()
    )
    progress.console.print(f"{folder} answers {', '.join(served.signatures)}")
    progress.console.print(
        f"operations outside TensorFlow: {operations or 'none'}"
    )
    if values.dev:
        with tempfile.TemporaryDirectory() as scratch:
            full = bert_keras.export_saved_model(
                models, preprocess, os.path.join(scratch, "full"), **arguments
            )
            compare(full, folder, values)


def compare(full, small, values):
    """Print size, time and answers of two exports on the rows of --dev."""
    import bert_keras
    from official_tasks import progress
    from official_tasks.engine.prediction import (
        choose_signature,
        list_types,
        read_inputs,
    )

    before, after = map(bert_keras.load_saved_model, (full, small))
    _, entry, columns = choose_signature(before, None, values.columns)
    columns, lists = list(columns), list_types(entry)
    if values.label:
        columns, lists = [*columns, values.label], [*lists, False]
    rows = list(read_inputs([values.dev], None, columns, lists))
    order = entry["input_order"]
    inputs = {name: [row[i] for row in rows] for i, name in enumerate(order)}
    labels = [row[-1] for row in rows] if values.label else None
    result = measure(before, after, inputs, labels)
    say = progress.console.print
    sizes = [files.folder_size(folder) / 1e6 for folder in (full, small)]
    say(f"float32 -> {values.dtype} on {result['rows']} rows of {values.dev}:")
    say(f"  size         {sizes[0]:.1f} MB -> {sizes[1]:.1f} MB")
    for size, (old, new) in result["milliseconds"].items():
        say(
            f"  batch of {size:<3} {old:.2f} -> {new:.2f} ms a row, "
            f"{old / new:.2f} times as fast"
        )
    for name in ("accuracy", "pearson"):
        if name in result:
            old, new = result[name]
            say(f"  {name:<12} {old:.4f} -> {new:.4f}")
    say(f"  same answer  {result['equal']:.2%} of the rows")
    say(f"  values differ by {result['greatest_difference']:.2g} at most")


def measure(before, after, inputs, labels=None):
    """Compare two exports of one model on the same rows, batch by batch.

    Args:
        before: `ServedModel`, usually of float32.
        after: `ServedModel`, usually of another dtype.
        inputs: input name -> list of rows, of the default signature.
        labels: the true labels (strings), or scores of a regression.

    Returns:
        dict of `rows`; `milliseconds`, batch size -> the median time a row of
        each export; `equal`, the fraction of rows with the same answer;
        `greatest_difference` of float outputs; and with labels `accuracy` or
        `pearson` of each.
    """
    name = before.card["default"]
    order = before.card["signatures"][name]["input_order"]
    columns = [inputs[key] for key in order]
    count = len(columns[0])
    if not count:
        raise InputError("There are no rows to measure on. Give some.")
    signatures = [getattr(served, name) for served in (before, after)]
    answers, batched = _call(signatures, columns, count, BATCH)
    _, single = _call(signatures, columns, min(count, SINGLE), 1)
    rows = [_split_rows(batches) for batches in answers]
    are_equal, differences = zip(*map(_compare_rows, *rows), strict=True)
    result = {
        "rows": count,
        "milliseconds": {1: single, BATCH: batched},
        "equal": float(np.mean(are_equal)),
        "greatest_difference": max(differences),
    }
    if labels is not None:
        result |= _score(rows, labels)
    return result


def _call(signatures, columns, count, size):
    """Return the answers of each by batch, and median milliseconds a row."""
    answers, seconds = ([], []), ([], [])
    for signature in signatures:  # the first call is slow
        signature(*[column[:size] for column in columns])
    for first in range(0, count, size):
        batch = [column[first : first + size] for column in columns]
        for side in (0, 1) if first // size % 2 else (1, 0):
            began = time.perf_counter()
            answers[side].append(signatures[side](*batch))
            spent = time.perf_counter() - began
            seconds[side].append(spent / len(batch[0]))
    return answers, [float(np.median(s)) * 1000 for s in seconds]


def _split_rows(answers):
    """Return a dict for each row, from answers by batch."""
    return [
        dict(zip(batch, row, strict=True))
        for batch in answers
        for row in zip(*batch.values(), strict=True)
    ]


def _compare_rows(before, after):
    """Return (True if all but floats is equal, difference of the floats).

    Floats of another shape are not compared: they belong to another answer.
    """
    floats, others = [0.0], [0.0]
    for name, old in before.items():
        old, new = np.asarray(old), np.asarray(after[name])
        is_float = old.dtype.kind == "f"
        if not is_float or old.shape == new.shape:
            difference = greatest_difference(old, new)
            (floats if is_float else others).append(difference)
    return max(others) == 0, max(floats)


def _score(rows, labels):
    """Return `accuracy` or `pearson` of both exports."""
    if len(labels) != len(rows[0]):
        raise InputError(
            f"There are {len(rows[0])} rows and {len(labels)} labels. Give "
            "one label a row."
        )
    first = rows[0][0]
    if np.ndim(first.get("score", [])) == 0:
        true = [_parse_score(*pair) for pair in enumerate(labels, 1)]
        scores = [[row["score"] for row in side] for side in rows]
        return {"pearson": [float(np.corrcoef(s, true)[0, 1]) for s in scores]}
    if not isinstance(first.get("label"), str):
        raise InputError(
            "Labels are compared with one label or one score a row, and this "
            "model answers neither. Leave the labels out: the fraction of "
            "equal answers is printed all the same."
        )
    predicted = [[row["label"] for row in side] for side in rows]
    true = np.asarray(labels)
    return {"accuracy": [float(np.mean(true == side)) for side in predicted]}


def _parse_score(row, label):
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            f"The label of row {row} is {label!r}. Expected a number, since "
            "the model answers a score."
        )
    return number


def convert(models, preprocess, values):
    """Write the model on token ids as ONNX or LiteRT."""
    from bert_keras.serving.portable_formats import export_on_ids
    from official_tasks import progress

    if len(models) > 1:
        raise InputError(
            f"--format={values.format} takes one model; got {len(models)}."
        )
    difference = export_on_ids(
        models[0],
        preprocess,
        values.output,
        values.format,
        values.allow_untrained,
        values.dtype,
    )
    unit = " standard deviations" if values.dtype == "int8" else ""
    progress.console.print(
        f"{values.output} differs from the model by {difference:.2g}{unit}"
    )


if __name__ == "__main__":
    script.start(main, define_flags)
