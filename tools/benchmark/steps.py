r"""Measures speed and memory of this package and of other libraries.

    python tools/benchmark/steps.py --rows=small,base --output=runs/steps.json

In: --rows has names of `ROWS` in baselines/rows.py. A row compares libraries at
one job. Some rows need --input, --vocabulary, --data or --init. The script
stops at a row that needs a missing flag. Out: a table for each row, and a JSON
file. For each library, the file has the seconds per example or command, the
processor seconds, and the peak memory (of the GPU, if used). The seconds are
the median, minimum and maximum of repeated measurements.

Other libraries that fail or are not installed are skipped. To install all:
pip install '.[onnx,peers]' jax, in a clone. Rows in bfloat16 are skipped if the
device is not faster in bfloat16. A row takes 1 to 5 minutes on a CPU. The
pre-training steps use a GPU if there is one; --batch_size=256 fills it.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    rows: tuple[str, ...] = option((), "Rows to measure; by default all.")
    output: str | None = option(None, "JSON file to write.")
    overwrite: bool = options.define_overwrite()
    turns: int = option(
        9,
        "Maximum number of turns of each system. A row of whole commands "
        "takes at most three.",
        at_least=1,
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
                    f"{name} is skipped: this device is not faster in bfloat16."
                )
                continue
            measured = turns.measure_row(row, inputs, values.turns)
            results["rows"][name] = {"title": row.title} | measured
            if values.output:  # write now, because a later row may fail
                with atomic_output(values.output) as partial:
                    write_json(results, partial)
            systems = measured["systems"]
            device = systems[turns.THIS]["device"]
            turns.print_systems(f"{row.title} ({device})", systems)


if __name__ == "__main__":
    cli.start(main, Options)
