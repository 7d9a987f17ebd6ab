"""The whole job on real text: from documents to a SavedModel that answers.

    python tools/demo.py

In: nothing; the text is the documentation that is installed beside Python
(--corpus takes text files, a folder, a glob in quotes or
tfds:NAME[/CONFIG][:SPLIT] instead). Out, in --output: report.html and
report.json, and of each stage its result: vocabulary, examples, pre-trained
and fine-tuned model, SavedModel. The same command goes on with a run that
was broken off.

Takes some 6 minutes on two CPU cores with bfloat16 instructions, some 8 on
two with AVX2 alone.
"""

import os

from absl import flags

from official_tasks import script


def define_flags():
    flags.DEFINE_string("corpus", "documentation:", "Text to learn from.")
    flags.DEFINE_string("output", "runs/demo", "Folder of this run.")
    flags.DEFINE_integer(
        "seed", 0, "Of everything that is drawn.", 0, script.LARGEST_SEED
    )
    flags.DEFINE_bool("quick", False, "Every stage, but little learning.")


def main(values):
    from rich.table import Table

    from official_tasks import progress
    from official_tasks.demo import whole_job

    settings = whole_job.QUICK if values.quick else whole_job.FULL
    report = whole_job.run(values.output, values.corpus, values.seed, settings)
    table = Table(title="Measured on held-out documents")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in report.items():
        if isinstance(value, int | float):
            shown = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
            table.add_row(name, shown)
    progress.console.print(table)
    shown = os.path.join(values.output, "report.html")
    if not os.path.exists(shown):  # no charts without matplotlib
        shown = os.path.join(values.output, "report.json")
    progress.console.print(
        f"{shown} shows it all. With your own data:\n\n{report['command']}\n",
        soft_wrap=True,
    )


if __name__ == "__main__":
    script.start(main, define_flags)
