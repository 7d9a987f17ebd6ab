"""The whole job on real text: from documents to a SavedModel that answers.

    python tools/demo.py

In: nothing; the text is the documentation that is installed with Python
(--corpus takes instead what tools/train_vocabulary.py takes: files, a folder,
a glob in quotes or a data set). Out, in --output: report.html and
report.json, and of each stage its result: vocabulary, examples, pre-trained
and fine-tuned model, SavedModel. The same command resumes a run that was
interrupted.

Takes some 6 minutes on two CPU cores with AVX-512, some 8 on two with AVX2
alone.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import os

from absl import flags
from rich.table import Table

from official_tasks import progress, script


def define_flags():
    flags.DEFINE_string("corpus", "documentation:", "Text to learn from.")
    flags.DEFINE_string("output", "runs/demo", "Folder of this run.")
    script.define_seed("Seed of everything random.")
    flags.DEFINE_bool("quick", False, "Every stage, but little learning.")


def main(values):
    from official_tasks.demo import whole_job

    settings = whole_job.QUICK if values.quick else whole_job.FULL
    report = whole_job.run(values.output, values.corpus, values.seed, settings)
    table = Table(title="Measured on held-out documents")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in report.items():
        if isinstance(value, int | float):
            figure = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
            table.add_row(name, figure)
    progress.console.print(table)
    page = os.path.join(values.output, "report.html")
    if not os.path.exists(page):  # no charts without matplotlib
        page = os.path.join(values.output, "report.json")
    progress.console.print(
        f"{page} has every figure. With your own data:\n\n"
        f"{report['command']}\n",
        soft_wrap=True,
    )


if __name__ == "__main__":
    script.start(main, define_flags)
