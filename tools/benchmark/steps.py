r"""Measures speed and memory of this package and of other libraries.

    python tools/benchmark/steps.py --rows=small,base --output=runs/steps.json

In: --rows has names of `ROWS` in baselines/rows.py. A row compares libraries at
one job, each in its own process, and they take turns. Some rows need --input,
--vocabulary, --data or --init. The script stops at a row that needs a missing
flag. Out: the machine, a table for each row, and a JSON file. A table has the
median, minimum and maximum of the seconds per unit, such as an example or a
command; the processor seconds; the peak memory (of the GPU, if used); and how
much of it is above that of a process that only imports TensorFlow, PyTorch or
the other library.

The row "serve" makes a SavedModel (float32 and bfloat16), a folder for
transformers and one for ONNX Runtime of the classifier --init. All get the same
texts of random words, one or 32 at a time, and the texts of --texts. The script
fails if their probabilities differ by more than 1e-3 (bfloat16: 0.05).

Other libraries that fail or are not installed are skipped. To install all:
pip install '.[onnx,peers]', in a clone. Rows in bfloat16 are skipped if the
device is not faster in bfloat16. A row takes 1 to 5 minutes on a CPU. The
pre-training steps use a GPU if there is one; --batch_size=256 fills it. On a
busy machine, --threads=1 prevents threads from waiting for each other.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses
import tempfile

from baselines import turns
from baselines.inputs import Inputs
from baselines.rows import HALF, ROWS

from bert_keras.errors import InputError
from bert_keras.files import atomic_output
from bert_keras.json_files import write_json
from bert_keras.training.strategy import choose_dtype
from official_tasks import cli, options, progress
from official_tasks.options import option
from official_tasks.outputs import prepare_output

THREADS = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"]
THREADS += ["TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    rows: tuple[str, ...] = option((), "Rows to measure; by default all.")
    output: str | None = option(None, "JSON file to write.")
    overwrite: bool = options.define_overwrite()
    turns: int | None = option(
        None, "Turns of each system; default: each row's.", at_least=1
    )
    threads: int = option(
        0, "Threads of each system; 0 keeps the default.", at_least=0
    )
    batch_size: int = option(
        0, "Pre-training batch size; 0: each row's default.", at_least=0
    )
    lines: int = option(
        20_000,
        "Maximum number of lines or questions to use from a file. The row "
        "'vocabulary' and training on SQuAD use whole files.",
        at_least=1,
    )
    lengths: tuple[int, ...] = option(
        (16, 128, 512), "Tokens of the random texts of the row 'serve'."
    )
    texts: tuple[str, ...] = option(
        (), "FILE:COLUMN with more texts of this row.", is_repeated=True
    )
    input: str | None = option(None, "Text file, or glob of text files.")
    vocabulary: str | None = option(None, "Uncased vocabulary.")
    data: str | None = option(None, "Folder with glue/, squad/, wikiann_en/.")
    init: str | None = option(None, "Folder of pre-trained weights.")


def main(values):
    prepare_output(values)
    names = values.rows or list(ROWS)
    for name in names:
        if name not in ROWS:
            raise InputError(f"--rows={name}: expected {', '.join(ROWS)}.")
    machine = turns.describe_machine()
    progress.console.print(machine)
    results = {"machine": machine, "rows": {}}
    threads = str(values.threads)
    variables = dict.fromkeys(THREADS, threads) if values.threads else {}
    with tempfile.TemporaryDirectory() as folder:
        inputs = Inputs(
            folder,
            *(values.input, values.data, values.init, values.vocabulary),
            *(values.batch_size, values.lines),
            *(tuple(map(int, values.lengths)), tuple(values.texts)),
        )
        for name in names:
            if name.endswith("bfloat16") and choose_dtype() != HALF:
                progress.console.print(
                    f"{name} is skipped: this device is not faster in bfloat16."
                )
                continue
            results["rows"][name] = turns.measure_row(
                ROWS[name], inputs, values.turns, variables
            )
            if values.output:  # write now, because a later row may fail
                with atomic_output(values.output) as partial:
                    write_json(results, partial)


if __name__ == "__main__":
    cli.start(main, Options)
