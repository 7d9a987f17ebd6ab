"""What a table would take before it runs: runs, hours, disk, commands."""

from typing import NamedTuple

from bert_keras.modeling.sizes import SIZES
from official_tasks.paper.table_runs import options_of, plain, tuning_of
from official_tasks.paper.tables import SCALES
from official_tasks.pretraining import cost
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
    """What a seed of a table takes, in order; arguments as of `Work`.

    Args:
        rate: operations a second that all devices together sustain.
        output: folder of the table.
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
    size = next(size for size in RELEASED_SIZES if size in name)
    return cost.Model(**SIZES[size], vocabulary_size=VOCABULARY_SIZE)


def _pretraining(run, settings, model, rate, output):
    machine = cost.Machine(1, rate, float("inf"), utilisation=1.0)
    phases = cost.phase_costs(settings, model, machine)
    usual = Settings()._asdict()
    given = {k: v for k, v in settings._asdict().items() if v != usual[k]}
    return Job(
        f"pre-train {run}",
        sum(phase["seconds"] for phase in phases) / cost.HOUR,
        cost.run_bytes(model.parameters),
        _command(
            "pretrain",
            {"data": "DATA", "output": f"{output}/{plain(run)}", **given},
        ),
    )


def _finetuning(name, variant, row, model, rate, inputs, output, over):
    tuning = tuning_of(variant, row, over)
    tries = len(row.rates or (1,))
    encoders = 2 if variant.second else 1
    choices = 4 if row.task == "swag" else 1  # each is a row of its own
    epochs = tuning.get("epochs", row.tuning["epochs"])
    sequences = tries * choices * epochs * row.rows * row.windows
    work = cost.sequence_flops(model, tuning["sequence_length"], 0)
    title = f"{name} on {row.name}"
    if tries > 1:
        title += f", best of {tries} learning rates"
    command = None
    released = variant.run.startswith("hf://")
    if released and not (variant.second or variant.bilstm):
        # Where nothing names the files, the command shows what to fill in.
        known = inputs._replace(data_dir=inputs.data_dir or "DATA_DIR")
        given = {
            "task": row.task,
            **options_of(row, known, variant.recipe),
            "init": variant.run,
            "output": f"{output}/{plain(name)}/{plain(row.name)}",
            **tuning,
            "grid": bool(row.rates),
        }
        command = _command("finetune", given)
    return Job(
        title,
        encoders * work * sequences / rate / cost.HOUR,
        encoders * tries * cost.run_bytes(model.parameters),
        command,
    )


def _command(script, values):
    words = [f"python -m official_tasks.{script}"]
    for name, value in values.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False and value is not None:
            if isinstance(value, tuple):
                value = ",".join(map(str, value))
            words.append(f"--{name}={value}")
    return " ".join(words)


def lines(plan, table, seeds, rate) -> list[str]:
    """The plan as text."""
    text = [
        f"{table.title}: {len(plan)} runs for each of {seeds} seed(s), at "
        f"{rate:.2e} operations a second"
    ]
    for job in plan:
        disk = cost.format_bytes(job.disk)
        text.append(f"  {job.name}: {_hours(job.hours)}, {disk}")
        if job.command:
            text.append(f"    {job.command} --seed=0")
    hours = seeds * sum(job.hours for job in plan)
    disk = seeds * sum(job.disk for job in plan)
    text.append(f"Together: {_hours(hours)}, {cost.format_bytes(disk)} of disk")
    text += [f"Otherwise than in the paper: {x}" for x in table.deviations]
    return text


def _hours(hours):
    return f"{hours:,.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
