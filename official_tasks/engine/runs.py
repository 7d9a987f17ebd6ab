"""Fine-tunes several times; a run that fails is a result like the others."""

import functools
import math
import os
import shutil
from typing import NamedTuple

import numpy as np
from rich.table import Table

from bert_keras.errors import InputError
from bert_keras.json_files import (
    without_nan,
    write_json,
)
from bert_keras.manifest import check_same_settings
from bert_keras.run_folder import RunFolder
from bert_keras.training.strategy import resolve_auto
from official_tasks import progress
from official_tasks.engine import (
    finetuning,
    hyperparameters,
    splits,
    task_report,
)
from official_tasks.engine.dev_metric import choose_metric
from official_tasks.engine.finetuning import scalars
from official_tasks.engine.notes import has_failed
from official_tasks.engine.training import DivergedError
from official_tasks.options import LARGEST_SEED
from official_tasks.tasks import registry

MAX_CLASSES = 20  # the scores of more classes are only in the report
# Arguments that may change when a set resumes.
_EXECUTION = ("distribution", "tpu", "callbacks", *hyperparameters.EXECUTION)


class Failure(NamedTuple):
    """The result of a run whose training failed; `message` says why."""

    message: str


def run_all(plan, least=1) -> dict:
    """Start each run of a plan; return name -> its results or a `Failure`.

    A run whose training fails ends no other. When the command is started again,
    it fails again at once, without training.

    Args:
        plan: name of the run -> function without arguments.
        least: number of runs that must succeed.

    Raises:
        DivergedError: fewer than `least` runs succeeded.
    """
    results: dict = {}
    for name, start in plan.items():
        try:
            results[name] = start()
        except DivergedError as error:
            results[name] = Failure(str(error))
            progress.print_notes([f"{name} failed. {error}"])
    failures = {k: v for k, v in results.items() if isinstance(v, Failure)}
    if len(plan) - len(failures) < least:
        name, failure = next(iter(failures.items()))
        raise DivergedError(
            f"{len(failures)} of {len(plan)} runs failed, so there are no "
            f"results. {name}: {failure.message}"
        )
    return results


def list_errors(results) -> dict[str, str]:
    """Return the messages of the failed runs by name.

    A result may be that of several runs; the name is then "NAME/RUN".
    """
    errors = {}
    for name, result in results.items():
        if isinstance(result, Failure):
            errors[name] = result.message
            continue
        for run, message in result.get("errors", {}).items():
            errors[f"{name}/{run}"] = message
    return errors


def run(
    task,
    init,
    output,
    *,
    learning_rate=None,
    seeds=1,
    seed=0,
    settings=None,
    **arguments,
) -> dict:
    """Fine-tune once for each learning rate and seed; tabulate the runs.

    A single run writes to `output` itself. Each of several runs writes to its
    own folder in `output`. The model, the predictions and the report of the run
    with the best score on dev are copied to `output`. The data are read and
    encoded once for all runs.

    Args:
        task: a `Task`.
        init: see `finetuning.run`.
        output: the folder. If it is None, only the sizes and the notes of the
            first run are printed.
        learning_rate: see `finetuning.run`; or a list of rates to try.
        seeds: number of seeds; the seeds are `seed`, `seed` + 1, ...
        seed: the first seed.
        settings: see `finetuning.run`.
        **arguments: further arguments of `finetuning.run`.

    Returns:
        The results of the best run, see `finetuning.run`. For several runs they
        include the summary of `summarize`, and "errors": name of a run whose
        training failed -> message. Such a run does not end the others, and the
        same call does not repeat it.
    """
    rates = list_rates(learning_rate)
    if seeds < 1:
        raise InputError(f"`seeds` is {seeds}; expected 1 or more.")
    if seed + seeds - 1 > LARGEST_SEED:
        raise InputError(
            f"With seed={seed} and seeds={seeds}, the last seed would be "
            f"{seed + seeds - 1}; expected at most {LARGEST_SEED}. Choose a "
            "smaller seed."
        )
    plan = [(rate, seed + i) for rate in rates for i in range(seeds)]
    load = functools.cache(functools.partial(splits.load, task, init))

    def run_one(folder, rate, seed):
        return finetuning.run(
            task,
            init,
            folder,
            learning_rate=rate,
            seed=seed,
            settings=settings,
            load=load,
            **arguments,
        )

    if len(plan) > 1:
        refuse_several_hosts(arguments.get("distribution", "off"))
    if output is None:
        return run_one(None, *plan[0])
    metric = choose_metric(task, arguments.get("metric"))
    if len(plan) == 1:
        results = run_one(output, *plan[0])
        if results:  # only the chief worker has any
            _show(task.name, metric, {task.name: results})
        return results
    more = {"learning_rate": rates if rates[1:] else rates[0]}
    more |= {"seeds": seeds, "seed": seed}
    identity = identify(task, init, output, arguments, settings, **more)
    return _run_several(task, metric, output, identity, plan, run_one)


def identify(task, init, output, arguments, settings, **more) -> dict:
    """Return all that must be the same when the set in `output` resumes.

    The order of the learning rates may differ. `more` is what the arguments of
    its runs do not say.
    """
    kept = {k: v for k, v in arguments.items() if k not in _EXECUTION}
    identity = {"task": task.name, "init": str(init), **more, **kept}
    identity = registry.keep_old_name(output, identity | (settings or {}))
    return _keep_old_rates(output, identity)


def _keep_old_rates(output, identity) -> dict:
    """Return `identity` with the learning rates in their recorded order.

    Do so only if the set in `output` has the same rates.
    """
    old = registry.read_settings(output)
    if "plan" in old and "seeds" in identity:
        # An earlier version recorded a list of [rate, seed].
        rates, seeds = (
            sorted({*column}) for column in zip(*old["plan"], strict=True)
        )
        before = {"learning_rate": rates, "seeds": len(seeds), "seed": seeds[0]}
        now = {name: identity[name] for name in before}
        now["learning_rate"] = sorted(list_rates(now["learning_rate"]))
        check_same_settings(before, now, output)
        rest = {k: v for k, v in identity.items() if k not in before}
        return {**rest, "plan": old["plan"]}
    rates, before = (x.get("learning_rate") for x in (identity, old))
    if isinstance(before, list) and {*list_rates(rates)} == {*before}:
        return {**identity, "learning_rate": before}
    return identity


def _run_several(task, metric, output, identity, plan, run_one):
    """Run each rate and seed of `plan`; summarize the runs.

    The outputs of the best run are copied to `output`. See `summarize` for the
    returned dict.
    """
    with RunFolder(output, identity, task.data_files()) as folder:
        rates = {_name(rate, seed): rate for rate, seed in plan}
        runs = run_all(
            {
                run: functools.partial(
                    run_one, folder.file("runs", run), rate, seed
                )
                for run, (rate, seed) in zip(rates, plan, strict=True)
            }
        )
        errors = list_errors(runs)
        score = {metric.name: math.nan}  # of a failed run
        runs = {
            name: score if name in errors else result
            for name, result in runs.items()
        }
        results = {**summarize(metric, runs, rates), "errors": errors}
        if folder.read_results("several") != errors:
            _copy_best(folder, results)
            outputs = "model", "predictions", finetuning.RESULTS
            folder.finish("several", errors, outputs)
        _show(task.name, metric, runs, results)
        return results


def list_rates(learning_rate) -> list:
    """Return a learning rate, which may be None, or several, as a list.

    Raises:
        InputError: there is no rate, a rate is invalid or it is given twice.
    """
    if not isinstance(learning_rate, list | tuple):
        return [learning_rate]
    are_valid = all(0 <= rate < math.inf for rate in learning_rate)
    names = {f"{rate:g}" for rate in learning_rate}  # in the names of the runs
    if not (are_valid and 0 < len(learning_rate) == len(names)):
        words = ", ".join(f"{rate:g}" for rate in learning_rate)
        raise InputError(
            f"`learning_rate` is {words or 'empty'}; expected a number, 0 or "
            "more, or several different ones."
        )
    return list(learning_rate)


def refuse_several_hosts(distribution):
    """Raise InputError if `distribution` resolves to "multi_worker".

    Successive runs share a folder, and only one process may write to it.
    """
    if resolve_auto(distribution) == "multi_worker":
        raise InputError(
            "Several runs in a row need a single host, but the distribution is "
            f"multi_worker (--distribution={distribution}). Start each run "
            "with its own --output, one --task and one --learning_rate, "
            "without --seeds and --folds. Or use --distribution=mirrored."
        )


def _name(rate, seed):
    return f"seed-{seed}" if rate is None else f"rate-{rate:g}_seed-{seed}"


def summarize(metric, runs: dict, rates: dict) -> dict:
    """Return the best run's results, with a summary of all runs.

    The summary has "best_run" (name), "runs" (name -> metrics), "failed" (list
    of names), "mean" and "deviation" (standard deviation). A run failed if its
    metric is not finite, or no better than the best constant prediction. "mean"
    and "deviation" are those of the metric over the successful runs with the
    best run's learning rate. If this rate has a single run or only failed runs,
    both are None. "deviation" is also None for one successful run.

    Args:
        metric: `Metric` by which runs are compared.
        runs: name -> results.
        rates: name -> learning rate.
    """
    values = {name: runs[name][metric.name] for name in runs}
    failed = [name for name in runs if has_failed(metric, runs[name])]
    best = max(runs, key=lambda name: metric.rank(runs[name]))
    seeds = [name for name in runs if rates[name] == rates[best]]
    sound = [values[n] for n in seeds if n not in failed and len(seeds) > 1]
    return {
        **runs[best],
        "best_run": best,
        "runs": {name: scalars(results) for name, results in runs.items()},
        "mean": float(np.mean(sound)) if sound else None,
        "deviation": float(np.std(sound, ddof=1)) if len(sound) > 1 else None,
        "failed": failed,
    }


def _copy_best(folder, results):
    best = folder.file("runs", results["best_run"])
    for name in ("model", "predictions", finetuning.ADAPTERS):
        if os.path.isdir(f"{best}/{name}"):
            with folder.output(name) as path:
                shutil.copytree(f"{best}/{name}", path)
    if os.path.exists(f"{best}/report.html"):
        with folder.output("report.html") as path:
            shutil.copyfile(f"{best}/report.html", path)
    with folder.output(finetuning.RESULTS) as path:
        write_json(without_nan(results), path)


def _show(title, metric, runs, results=None):
    failed = [name for name in runs if has_failed(metric, runs[name])]
    progress.console.print(make_table(title, runs, failed))
    show_classes(results or next(iter(runs.values())))
    if results is None:
        return
    parts = [f"best run: {results['best_run']}"]
    if results["mean"] is not None:
        parts.append(
            f"mean {metric.name} of the successful runs with the learning rate "
            f"of the best run: {results['mean']:.4f}"
        )
    if results["deviation"] is not None:
        parts.append(f"standard deviation: {results['deviation']:.4f}")
    parts.append(f"failed runs: {len(results['failed'])}")
    progress.console.print("; ".join(parts))


def show_classes(results):
    """Print precision, recall, F1 and support of up to `MAX_CLASSES` classes.

    Do nothing if the results have no classes, or more of them.
    """
    classes = results.get("classes") or {}
    if not 0 < len(classes) <= MAX_CLASSES:
        return
    names = ("precision", "recall", "f1", "support")
    table = Table("class", title="classes", title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    for label, scores in classes.items():
        *rates, support = (scores[name] for name in names)
        table.add_row(label, *(f"{x:.4f}" for x in rates), f"{support:,.0f}")
    progress.console.print(table)


def make_table(title, rows, failed=()) -> Table:
    """Return a table of metrics.

    Args:
        title: title of the table.
        rows: run -> its results, or a `Failure`.
        failed: the runs that the table marks as failed.
    """
    rows = {
        f"{run} (failed)" if run in failed else run: {}
        if isinstance(metrics, Failure)
        else {
            name: str(metrics[name])
            if isinstance(metrics[name], int)  # a count
            else f"{value:.4f}"
            for name, value in scalars(metrics).items()
        }
        for run, metrics in rows.items()
    }
    # A failed run may lack metrics that other runs have.
    names = dict.fromkeys(n for metrics in rows.values() for n in metrics)
    names = [name for name in names if name not in task_report.COUNTS]
    table = Table(title=title, title_justify="left")
    table.add_column("")
    # A single run has one line per metric, because one row would be too wide.
    if len(rows) == 1:
        ((run, metrics),) = rows.items()
        table.add_column(run, justify="right")
        for name in names:
            table.add_row(name, metrics[name])
        return table
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for run, metrics in rows.items():
        table.add_row(run, *(metrics.get(name, "") for name in names))
    return table
