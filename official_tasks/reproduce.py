"""Reproduces a table of the paper, over several seeds.

    python -m official_tasks.reproduce --table=pretraining_tasks \\
        --scale=small --corpus="books/*.txt" --data_dir=glue \\
        --option=wikiann.data_dir=wikiann --option=squad1.data_dir=squad \\
        --output=runs/pretraining_tasks --seeds=3

In: text to pre-train on (--corpus, or --data, a folder of
tools/create_pretraining_data.py) and the official files of the tasks:
--data_dir for all, --option=TASK.NAME=VALUE for one, as that task's flags in
official_tasks.finetune. It pre-trains what the table compares, which differs in
one thing only, fine-tunes each on each task, and compares over the seeds.
Out, in --output: table.txt, table.svg and results.json with the paper's
figures, and a run folder for every run. The same command resumes an
interrupted table; more --seeds are added to those that are there. Tables
given one --pretrained and one --data share the runs that they have in common.

--scale=small is for two CPU cores: 4 layers of 128, 2,000 steps of 16 and then
64 pieces, tasks of some thousand rows. --scale=paper is the paper's own, and
needs the machines for it. --dry_run prints runs, hours, disk and commands and
starts nothing; its hours are those of --flops, operations a second that all
devices sustain: by default what a few steps here measure, or at --scale=paper
one A100's. Tables: pretraining_tasks, model_size, masking_mix, steps,
feature_based; and glue, squad, swag from released weights (--scale=paper).

Takes one to three hours for a table at --scale=small and three seeds, with
--jobs=2 on two cores.
"""

from absl import flags

from bert_keras.errors import InputError
from bert_keras.run_folder import RunFolder
from official_tasks import script
from official_tasks.paper.tables import PAPER_ONLY, SCALES, TABLES, VOCABULARY
from official_tasks.pretraining import cost
from official_tasks.pretraining.settings import Settings, phases
from official_tasks.progress import console
from official_tasks.tasks.registry import converted, find_task


def define_flags():
    flags.DEFINE_enum("table", None, list(TABLES), "Table to reproduce.")
    flags.DEFINE_enum(
        "scale", "small", list(SCALES), "Scale: small, or the paper's own."
    )
    flags.DEFINE_integer("seeds", 3, "Runs of each variant.", 1)
    flags.DEFINE_string("output", None, "Folder of the table.")
    flags.DEFINE_bool("dry_run", False, "Print the plan and exit.")
    flags.DEFINE_string("corpus", None, "Text, as for create_pretraining_data.")
    flags.DEFINE_string(
        "data", None, "Folder of pre-training data, in place of --corpus."
    )
    flags.DEFINE_string(
        "vocabulary", None, "Vocabulary of --corpus; by default one is learned."
    )
    flags.DEFINE_integer(
        "vocabulary_size", VOCABULARY, "Size of a learned vocabulary.", 100
    )
    flags.DEFINE_string("data_dir", None, "Folder of the tasks' files.")
    flags.DEFINE_multi_string(
        "option", [], "TASK.NAME=VALUE, an option of a task; may be repeated."
    )
    flags.DEFINE_string(
        "pretrained", None, "Folder of pre-training runs that tables share."
    )
    flags.DEFINE_list("tasks", None, "Only these of the table's tasks.")
    flags.DEFINE_integer(
        "steps", None, "Steps of pre-training, in place of the scale's.", 1
    )
    flags.DEFINE_enum(
        "dtype",
        None,
        script.AUTO_DTYPES,
        # The scale's stays the default: docs/paper.md was computed with it.
        f"In place of the scale's, of all runs. {script.DTYPE_HELP}",
    )
    flags.DEFINE_integer("jobs", 1, "Runs at once; they share the cores.", 1)
    flags.DEFINE_float("flops", None, "Operations a second, for --dry_run.")
    flags.mark_flags_as_required(["table", "output"])
    script.require_positive("flops")
    script.applies_only("with --dry_run", lambda v: v.dry_run, "flops")
    script.applies_only(
        "where a vocabulary is learned, without --data and --vocabulary",
        lambda v: not v.data and not v.vocabulary,
        "vocabulary_size",
    )


def table_of(name, scale, tasks=None):
    """The `Table` of a name, with some of its tasks only.

    Raises:
        InputError: the table is not of this scale, or lacks a task.
    """
    if scale != "paper" and name in PAPER_ONLY:
        raise InputError(
            f"The table {name} starts from released weights and has one "
            "scale only: give --scale=paper."
        )
    table = TABLES[name](scale)
    if tasks is None:
        return table
    names = [row.name for row in table.tasks]
    unknown = sorted(set(tasks) - set(names))
    if unknown:
        raise InputError(
            f"The table {name} has no task {unknown[0]!r}: expected some of "
            f"{', '.join(names)}."
        )
    return table._replace(tasks=[t for t in table.tasks if t.name in tasks])


def check_used(table, inputs, steps=None):
    """Refuses `Inputs` and steps that would change nothing in the table."""
    flags_of_data = ("corpus", "vocabulary", "data", "pretrained")
    given = [name for name in flags_of_data if getattr(inputs, name)]
    if inputs.data and given[0] != "data":
        raise InputError(
            f"--{given[0]} does nothing with --data, which has its own: give "
            "one of them."
        )
    if given and not table.runs:
        raise InputError(
            f"--{given[0]} does nothing for this table: pre-training is "
            "skipped. Leave it out."
        )
    if steps and all("steps" in own for own in table.runs.values()):
        raise InputError(
            f"--steps={steps} does nothing for this table: pre-training is "
            "skipped, or each of its runs has its own number of steps. Leave "
            "it out."
        )


def run(
    table, scale, output, inputs, seeds=3, pretraining=None, tuning=None, jobs=1
) -> dict:
    """Runs a table, or resumes it; returns what `results.gathered` does.

    Args:
        table, scale, inputs, pretraining, tuning: as of `Work`.
        output: the table's folder.
        seeds: how many.
        jobs: how many runs at once.
    """
    from official_tasks.paper.results import write
    from official_tasks.paper.table_runs import Run, Work

    decided = {
        "table": table.title,
        "scale": scale,
        "pretraining": pretraining,
        "tuning": tuning,
        **inputs._asdict(),
    }
    with RunFolder(output, decided) as folder:
        work = Work(
            folder.path, table, scale, inputs, pretraining or {}, tuning or {}
        )
        results = Run(folder, work, seeds, jobs).finish()
        write(folder, results)
        return results


def options_of(words) -> dict:
    """TASK.NAME=VALUE, some of them, as task -> name -> value."""
    options: dict[str, dict] = {}
    for word in words:
        name, separator, value = word.partition("=")
        task, dot, option = name.partition(".")
        if not (separator and dot):
            raise InputError(f"--option={word}: expected TASK.NAME=VALUE.")
        cls, _ = find_task(task)
        if option not in cls.options:
            raise InputError(
                f"--option={word}: the options of {task} are "
                f"{', '.join(cls.options)}."
            )
        options.setdefault(task, {})[option] = converted(
            f"--option={name}", value, cls.options[option].default
        )
    return options


def _rate(scale, inputs, pretraining, jobs):
    """Operations a second: measured here, or of an A100 in published runs."""
    if scale == "paper":
        return cost.DEVICES["a100"].flops * cost.UTILISATION
    settings = Settings(**{**SCALES[scale], **pretraining})
    phase = phases(settings)[0]
    size = inputs.vocabulary_size
    rate = cost.training_rate(settings, phase, size, phase.batch_size)
    work = cost.sequence_flops(
        cost.model_of(settings, size),
        phase.sequence_length,
        phase.max_predictions,
    )
    return jobs * rate * work


def main(values):
    from bert_keras.training.strategy import choose_dtype
    from official_tasks.paper import table_cost
    from official_tasks.paper.table_runs import Inputs

    table = table_of(values.table, values.scale, values.tasks)
    inputs = Inputs(
        values.data,
        values.corpus,
        values.vocabulary,
        values.vocabulary_size,
        values.data_dir,
        options_of(values.option),
        values.pretrained,
    )
    check_used(table, inputs, values.steps)
    tuning = {"dtype": choose_dtype(values.dtype)} if values.dtype else None
    pretraining = dict(tuning or {})
    if values.steps is not None:
        pretraining["steps"] = values.steps
    scale, output, seeds = values.scale, values.output, values.seeds
    if not values.dry_run:
        run(
            table,
            scale,
            output,
            inputs,
            seeds,
            pretraining=pretraining,
            tuning=tuning,
            jobs=values.jobs,
        )
        return
    rate = values.flops or _rate(scale, inputs, pretraining, values.jobs)
    plan = table_cost.jobs(
        table, scale, inputs, rate, output, pretraining, tuning
    )
    for line in table_cost.lines(plan, table, seeds, rate):
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    script.start(main, define_flags)
