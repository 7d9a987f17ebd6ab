"""What a table would take before it runs: jobs, hours, disk, commands."""

from typing import NamedTuple

from official_tasks.paper.table_runs import options_of, plain, tuning_of
from official_tasks.paper.tables import SCALES
from official_tasks.pretraining import cost
from official_tasks.pretraining.cost import HOUR, Machine, format_bytes
from official_tasks.pretraining.settings import Settings

RELEASED_SIZES = ("large", "base")
VOCABULARY_SIZE = 30522


class Job(NamedTuple):
    """One run of a seed; `command` is None where no other script has it."""

    name: str
    hours: float
    disk: float
    command: str | None


def jobs(
    table, scale, inputs, rate, output, pretraining=None, tuning=None
) -> list[Job]:
    """What a seed of a table takes, in order.

    Args:
        table: `Table`.
        scale: of `SCALES`.
        inputs: of `reproduce_run`.
        rate: operations a second that all devices together sustain.
        output: folder of the table.
        pretraining, tuning: settings over those of the scale and the tasks.
    """
    base = {**SCALES[scale], **(pretraining or {})}
    size = inputs.vocabulary_size if scale == "small" else VOCABULARY_SIZE
    plan, models = [], {}
    for run, own in table.runs.items():
        settings = Settings(**{**base, **own})
        models[run] = cost.model_of(settings, size)
        plan.append(_pretraining(run, settings, models[run], rate, output))
    for name, variant in table.variants.items():
        model = models.get(variant.run) or _released(variant.run)
        plan += [
            _finetuning(
                name, variant, row, model, rate, inputs, output, tuning or {}
            )
            for row in table.tasks_of(name)
        ]
    return plan


def _released(name):
    """The `Model` of released weights, by the size in their name."""
    from bert_keras.modeling.sizes import SIZES

    size = next(size for size in RELEASED_SIZES if size in name)
    numbers = dict(SIZES[size])
    return cost.Model(**numbers, vocabulary_size=VOCABULARY_SIZE)


def _pretraining(run, settings, model, rate, output):
    machine = Machine(1, rate, float("inf"), utilisation=1.0)
    phases = cost.phase_costs(settings, model, machine)
    hours = sum(phase["seconds"] for phase in phases) / HOUR
    usual = Settings()._asdict()
    given = {
        name: value
        for name, value in settings._asdict().items()
        if value != usual[name]
    }
    command = _command(
        "pretrain", {"data": "DATA", "output": f"{output}/{plain(run)}"} | given
    )
    disk = cost.run_bytes(model.parameters)
    return Job(f"pre-train {run}", hours, disk, command)


def _finetuning(name, variant, row, model, rate, inputs, output, over):
    tuning = {**tuning_of(variant, row), **over}
    tries = len(row.rates or (1,))
    work = cost.sequence_flops(model, tuning["sequence_length"], 0)
    choices = 4 if row.task == "swag" else 1  # each is a row of its own
    encoders = 2 if variant.second else 1
    epochs = tuning.get("epochs", row.tuning["epochs"])
    work *= encoders * choices * tries * epochs * row.rows * row.windows
    disk = encoders * tries * cost.run_bytes(model.parameters)
    told = f"{name} on {row.name}"
    if tries > 1:
        told += f", best of {tries} learning rates"
    command = None
    if not (variant.second or variant.bilstm or variant.run[:5] != "hf://"):
        folder = f"{output}/{plain(name)}/{plain(row.name)}"
        command = _finetuning_command(variant, row, inputs, folder, tuning)
    return Job(told, work / rate / HOUR, disk, command)


def _finetuning_command(variant, row, inputs, output, tuning):
    # Where nothing names the files, the command shows what to fill in.
    known = inputs._replace(data_dir=inputs.data_dir or "DATA_DIR")
    given = {
        "task": row.task,
        **options_of(row, known, variant.recipe),
        "init": variant.run,
        "output": output,
        **tuning,
        "grid": bool(row.rates),
    }
    return _command("finetune", given)


def _command(script, values):
    words = [f"python -m official_tasks.{script}"]
    for name, value in values.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False and value is not None:
            told = ",".join(map(str, value)) if type(value) is tuple else value
            words.append(f"--{name}={told}")
    return " ".join(words)


def lines(plan, table, seeds, rate) -> list[str]:
    """The plan as text."""
    told = [
        f"{table.title}: {len(plan)} runs for each of {seeds} seed(s), at "
        f"{rate:.2e} operations a second"
    ]
    for job in plan:
        told.append(
            f"  {job.name}: {_hours(job.hours)}, {format_bytes(job.disk)}"
        )
        if job.command:
            told.append(f"    {job.command} --seed=0")
    hours = seeds * sum(job.hours for job in plan)
    disk = seeds * sum(job.disk for job in plan)
    told.append(f"Together: {_hours(hours)}, {format_bytes(disk)} of disk")
    told += [f"Otherwise than in the paper: {x}" for x in table.deviations]
    return told


def _hours(hours):
    return f"{hours:,.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
