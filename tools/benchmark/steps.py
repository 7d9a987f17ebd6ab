r"""Measures this package and other libraries in one run on one machine.

    python tools/benchmark/steps.py --rows=small,base --output=runs/steps.json

In: some rows need text (--input), a vocabulary (--vocabulary), the folder of
glue/, squad/ and wikiann_en/ (--data) or weights (--init). Without its input a
row ends with an error. Out: tables on the terminal, and a JSON file with times
in seconds: for each row and system the time of an example (median, minimum and
maximum over the turns), the processor time and the peak memory (of the GPU if
there is one). A library that is not installed is left out; to install all:
pip install 'bert_keras[onnx,peers]'. Rows in bfloat16 are left out on devices
that are not faster in it. A row takes 1 to 5 minutes on a CPU. The steps use a
GPU if there is one; --batch_size=256 fills it.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import tempfile

from absl import flags
from baselines import turns
from baselines.inputs import Inputs
from baselines.rows import HALF, ROWS

from bert_keras.errors import InputError
from bert_keras.json_files import write_json
from bert_keras.training.strategy import choose_dtype
from official_tasks import progress, script


def define_flags():
    flags.DEFINE_list("rows", [], "Rows to measure; by default all.")
    flags.DEFINE_string("output", None, "JSON file to write.")
    script.define_overwrite()
    flags.DEFINE_integer("turns", 9, "Turns of each system.", lower_bound=1)
    flags.DEFINE_integer("batch_size", 0, "Batch size; 0 means the row's.", 0)
    flags.DEFINE_integer(
        "lines", 20_000, "Maximum number of lines or questions to read.", 1
    )
    flags.DEFINE_string("input", None, "Text of any kind.")
    flags.DEFINE_string("vocabulary", None, "Uncased vocabulary.")
    flags.DEFINE_string("data", None, "Folder of glue/, squad/, wikiann_en/.")
    flags.DEFINE_string("init", None, "Folder of the weights.")


def main(values):
    script.prepare_output(values)
    names = values.rows or list(ROWS)
    for name in names:
        if name not in ROWS:
            raise InputError(f"No row {name!r}: expected {', '.join(ROWS)}")
    results = {"machine": turns.machine(), "rows": {}}
    with tempfile.TemporaryDirectory() as folder:
        inputs = Inputs(
            folder,
            *(values.input, values.data, values.init, values.vocabulary),
            *(values.batch_size, values.lines),
        )
        for name in names:
            row = ROWS[name]
            if name.endswith("bfloat16") and choose_dtype() != HALF:
                progress.console.print(
                    f"{name} is left out: this device is not faster in bfloat16"
                )
                continue
            measured = turns.measure_row(row, inputs, values.turns)
            results["rows"][name] = {"title": row.title} | measured
            if values.output:  # after each row, as a later row may fail
                write_json(results, values.output)
            systems = measured["systems"]
            device = systems[turns.THIS]["device"]
            turns.print_systems(f"{row.title} ({device})", systems)


if __name__ == "__main__":
    script.start(main, define_flags)
