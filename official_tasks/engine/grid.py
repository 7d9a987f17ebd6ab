"""Several runs of one task: learning rates, seeds; the best is kept."""

import math
import os
import shutil

import numpy as np
from rich.table import Table

from bert_keras.errors import InputError
from bert_keras.files import write_json
from official_tasks import progress
from official_tasks.engine import finetuning
from official_tasks.engine.finetuning import has_failed


def run(
    task,
    init,
    output,
    *,
    learning_rates=None,
    seeds=1,
    learning_rate=None,
    seed=0,
    settings=None,
    **arguments,
) -> dict:
    """Fine-tunes once for each learning rate and seed; tells all in a table.

    One run alone is the folder `output` itself. Of several, each has a
    folder in it, and the model, the predictions and the report of the one
    that scored best on dev are copied up.

    Args:
        learning_rates: the rates to try; None tries `learning_rate` alone.
        seeds: how many, from `seed` on.
        settings, arguments: as for `finetuning.run`.

    Returns:
        The results of the best run; of several with "runs", "mean",
        "deviation" and "failed" of the task's metric, see `summary`.
    """
    if learning_rates and learning_rate is not None:
        raise InputError(
            "A grid tries its own learning rates: leave --learning_rate or "
            "--grid out."
        )
    rates = learning_rates or [learning_rate]
    plan = [(rate, seed + i) for rate in rates for i in range(seeds)]
    if len(plan) == 1:
        results = finetuning.run(
            task,
            init,
            output,
            learning_rate=rates[0],
            seed=seed,
            settings=settings,
            **arguments,
        )
        show(task, [results])
        return results
    refuse_several_hosts(arguments.get("distribution", "off"))
    return _several(task, init, output, plan, settings, arguments)


def refuse_several_hosts(distribution):
    """For runs in a row: their folder has one writer and no other readers."""
    from bert_keras.training.strategy import named

    if named(distribution) == "multi_worker":
        raise InputError(
            "Several runs in a row go on one host, and this is one of the "
            f"hosts of TF_CONFIG (--distribution={distribution}). Start each "
            "run by itself: one --task, without --grid and --seeds, with an "
            "--output of its own; or take --distribution=mirrored."
        )


def _several(task, init, output, plan, settings, arguments):
    from bert_keras.run_folder import RunFolder

    decided = {
        "task": task.name,
        "init": str(init),
        "plan": plan,
        **{k: v for k, v in arguments.items() if k not in DEVICES},
        **(settings or {}),
    }
    with RunFolder(output, decided) as folder:
        names = [_name(rate, seed) for rate, seed in plan]
        runs = [
            finetuning.run(
                task,
                init,
                folder.file("runs", name),
                learning_rate=rate,
                seed=seed,
                settings=settings,
                **arguments,
            )
            for name, (rate, seed) in zip(names, plan, strict=True)
        ]
        results = summary(
            task.metric,
            dict(zip(names, runs, strict=True)),
            {n: rate for n, (rate, _) in zip(names, plan, strict=True)},
        )
        if folder.done("several") is None:
            _take_up(folder, results)
            folder.finish("several", {}, outputs=["model"])
        show(task, runs, names, results)
        return results


DEVICES = ("distribution", "tpu")


def _name(rate, seed):
    return f"seed-{seed}" if rate is None else f"rate-{rate:g}_seed-{seed}"


def summary(metric, runs: dict, rates: dict | None = None) -> dict:
    """The best run's results, with what all of them say together.

    A run failed where it learned nothing: its metric is no better than the
    best constant guess's, or no number. Mean and deviation are over the
    seeds of the best run's learning rate, where there are several, and leave
    failed ones out.

    Args:
        metric: the key by which runs are compared.
        runs: name -> results.
        rates: name -> learning rate; None: the same in all.
    """
    values = {name: runs[name][metric] for name in runs}
    failed = [name for name in runs if has_failed(metric, runs[name])]
    best = max(values, key=lambda name: _comparable(values[name]))
    tries = [n for n in runs if rates is None or rates[n] == rates[best]]
    sound = [values[n] for n in tries if n not in failed and len(tries) > 1]
    return {
        **runs[best],
        "best_run": best,
        "runs": {
            name: finetuning.scalars(results) for name, results in runs.items()
        },
        "mean": float(np.mean(sound)) if sound else None,
        "deviation": float(np.std(sound, ddof=1)) if len(sound) > 1 else None,
        "failed": failed,
    }


def _comparable(value):
    return value if math.isfinite(value) else -math.inf


def _take_up(folder, results):
    """Copies what the best run wrote into the folder of all."""
    best = folder.file("runs", results["best_run"])
    for name in ("model", "predictions"):
        with folder.output(name) as path:
            shutil.copytree(f"{best}/{name}", path)
    if os.path.exists(f"{best}/report.html"):
        with folder.output("report.html") as path:
            shutil.copyfile(f"{best}/report.html", path)
    with folder.output(finetuning.RESULTS) as path:
        write_json(results, path)


def show(task, runs, names=None, results=None):
    """One table: a line a run, then what they say together."""
    rows = {}
    for name, figures in zip(names or [task.name], runs, strict=True):
        failed = has_failed(task.metric, figures)
        rows[f"{name} (failed)" if failed else name] = figures
    progress.console.print(table_of(task.name, rows))
    if results:
        told = [f"best: {results['best_run']}"]
        if results["mean"] is not None:
            told.append(
                f"over the seeds of its learning rate: mean {task.metric} "
                f"{results['mean']:.4f}"
            )
        if results["deviation"] is not None:
            told.append(f"standard deviation {results['deviation']:.4f}")
        told.append(f"failed: {len(results['failed'])}")
        progress.console.print("; ".join(told))


def table_of(title, rows) -> Table:
    """A table of the metrics of one or more results: name -> results."""
    rows = {run: finetuning.scalars(figures) for run, figures in rows.items()}
    names = [
        # A row of failed runs lacks what the others have.
        name
        for name in dict.fromkeys(
            n for figures in rows.values() for n in figures
        )
        if name not in finetuning.COUNTS
    ]
    table = Table(title=title, title_justify="left")
    table.add_column("")
    if len(rows) == 1:  # metrics below each other: there may be many
        ((run, figures),) = rows.items()
        table.add_column(run, justify="right")
        for name in names:
            table.add_row(name, f"{figures[name]:.4f}")
        return table
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for run, figures in rows.items():
        cells = (
            f"{figures[name]:.4f}" if name in figures else "" for name in names
        )
        table.add_row(run, *cells)
    return table
