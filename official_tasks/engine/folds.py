"""Cross-validation: fine-tune once for each fold; list labels that look wrong.

Each row is predicted by the run that was not trained on the row. Rows with the
same text are in the same fold. If each row has one class, all folds have
similar class frequencies.
"""

import copy
import functools
import hashlib
import itertools

import numpy as np
import tensorflow as tf

from bert_keras import files
from bert_keras.errors import InputError, format_count
from bert_keras.json_files import without_nan, write_json
from bert_keras.run_folder import RunFolder
from official_tasks import page, progress
from official_tasks.engine import (
    finetuning,
    runs,
    scoring,
    splits,
    task_report,
)
from official_tasks.tasks.base import Encoded, Examples
from official_tasks.tasks.classify import TextTask
from official_tasks.tasks.data_notes import note_labels
from official_tasks.tasks.metrics import probabilities
from official_tasks.tasks.own_data import Table


def cross_validate(
    task, init, output, folds, *, seed=0, settings=None, **arguments
) -> dict:
    """Fine-tune once for each fold: train on the others, score on the fold.

    Writes a run folder for each fold (runs/fold-1, ...), the predictions of all
    rows, results.json and a report. Each run folder keeps its model. No model
    is trained on all rows. The same call resumes after an interruption. If the
    training of a fold fails, its rows have no predictions.

    Args:
        task: a `TextTask` without a dev file.
        init: see `finetuning.run`.
        output: the folder.
        folds: number of folds, 2 or more.
        seed: seed of the folds and of every run.
        settings: see `finetuning.run`.
        **arguments: further arguments of `finetuning.run`.

    Returns:
        dict with the scores of all predictions together; "runs" (name of a run
        -> its metrics); "mean" and "deviation" (metric -> mean and standard
        deviation over the folds); "errors", see `runs.run`; and, if each text
        has one class, "wrong_labels" (number of labels that look wrong).
    """
    check(task, folds, arguments)
    settings = {**(settings or {}), "folds": folds}
    identity = runs.identify(task, init, output, arguments, settings, seed=seed)
    with RunFolder(output, identity, task.data_files()) as folder:
        examples = read_all(task)
        if most := arguments.get("max_rows"):
            examples = splits.draw_rows(examples, most, "train")
        folder.check_inputs(splits.read_versions(task))
        numbers = assign_folds(
            examples, folds, seed, is_stratified=task.problem == "single"
        )
        tasks = {
            f"fold-{number + 1}": make_fold(task, examples, numbers, number)
            for number in range(folds)
        }
        trained = _train_folds(
            task, tasks, init, folder, examples, settings, seed, arguments
        )
        errors = runs.list_errors(trained)
        results = folder.read_results("folds")
        if results is None or results.get("errors", {}) != errors:
            results = _finish(task, folder, examples, numbers, tasks, trained)
        rows = {**trained, "mean": results["mean"], "std": results["deviation"]}
        progress.console.print(runs.make_table(task.name, rows, errors))
        runs.show_classes(results)
        if "wrong_labels" in results:
            progress.console.print(
                f"{format_count(results['wrong_labels'], 'label')} may be "
                "wrong: see "
                f"{folder.file('report.html')}",
                soft_wrap=True,
            )
        return results


def _train_folds(task, tasks, init, folder, examples, settings, seed, more):
    """Train one run for each fold; return the results of `run_all`.

    The rows are encoded once for all folds.
    """

    @functools.cache
    def encode(length):
        preprocess = splits.load_preprocessor(init, length)
        encoded = splits.encode_rows(task, examples, preprocess, "train")
        return preprocess, encoded, splits.read_versions(task, init)

    def load(fold, length, max_rows):
        preprocess, encoded, versions = encode(length)
        in_dev = fold.source.in_dev
        kept = {"train": ~in_dev, "dev": in_dev}
        return splits.Data(
            preprocess,
            {split: fold.read(split) for split in kept},
            {split: select(encoded, rows) for split, rows in kept.items()},
            versions,
        )

    return runs.run_all(
        {
            name: functools.partial(
                finetuning.run,
                fold,
                init,
                folder.file("runs", name),
                seed=seed,
                settings={**settings, "fold": name},
                load=functools.partial(load, fold),
                **more,
            )
            for name, fold in tasks.items()
        },
        least=2,
    )


def select(encoded, is_kept) -> Encoded:
    """Return the rows of some texts.

    Args:
        encoded: `Encoded` rows of a `TextTask`.
        is_kept: bool `(texts,)`.
    """
    # Index of each row's text: a long text may have several rows.
    text = encoded.notes.get("text", np.arange(len(is_kept)))
    rows = np.flatnonzero(is_kept[text])

    def gather(values):
        return None if values is None else values[rows]

    notes = {}
    if "text" in encoded.notes:
        notes["text"] = (np.cumsum(is_kept) - 1)[text[rows]]
    return Encoded(
        {name: tf.gather(x, rows) for name, x in encoded.inputs.items()},
        gather(encoded.targets),
        gather(encoded.weights),
        gather(encoded.cut),
        notes,
    )


def check(task, folds, arguments):
    """Raise InputError if the task or an argument excludes cross-validation."""
    if folds < 2:
        raise InputError(f"`folds` is {folds}; expected 2 or more.")
    if not isinstance(task, TextTask):
        raise InputError(
            f"`folds` is {folds}, but the task {task.name} does not predict a "
            "class or a number for each text. Leave `folds` out."
        )
    if "dev" in task.source.files:
        raise InputError(
            "Folds are scored on rows of `train`, so the `dev` file would not "
            "be read. Leave `dev` out, or add its rows to `train`."
        )
    if len(runs.list_rates(arguments.get("learning_rate"))) > 1:
        raise InputError(
            "`learning_rate` has several values, but the runs of `folds` have "
            "one rate. Leave `folds` out, or choose one rate."
        )
    for name in ("tune_thresholds", "min_precision"):
        if arguments.get(name):
            raise InputError(
                f"`{name}` would choose different thresholds in each fold. "
                f"Leave `{name}` or `folds` out."
            )
    runs.refuse_several_hosts(arguments.get("distribution", "off"))


def read_all(task) -> Examples:
    """Return all rows of train in the order of the file.

    They include the rows that a `Table` would use as dev.
    """
    if not isinstance(task.source, Table):
        return task.read("train")
    rows = task.source.load("train")
    examples = Examples((row for _, row in rows), rows.notes)
    if task.labels or task.problem == "regression":
        examples.notes += note_labels(task.problem, examples, task.labels)
    return examples


def assign_folds(examples, folds, seed=0, is_stratified=True) -> np.ndarray:
    """Return the fold of each row, int `(R,)`, counted from 0.

    Rows with the same texts are in the same fold. Different texts are sorted by
    label and a hash, and assigned to the folds in turn.

    Args:
        examples: list of `Example`.
        folds: number of folds.
        seed: seed of the hash.
        is_stratified: True to spread the texts of each label over all folds.
            False sorts by the hash only.

    Raises:
        InputError: there are fewer different texts than folds.
    """
    groups: dict = {}
    for row, example in enumerate(examples):
        groups.setdefault(example.texts, []).append(row)
    if len(groups) < folds:
        raise InputError(
            f"`folds` is {folds}, but there are {len(groups)} different texts. "
            "Set a smaller number of folds, or add rows."
        )

    def order(texts):
        label = examples[groups[texts][0]].label if is_stratified else 0
        text = "\0".join((str(seed), *texts))
        return label, hashlib.sha256(text.encode()).digest()

    numbers = np.zeros(len(examples), int)
    for position, texts in enumerate(sorted(groups, key=order)):
        numbers[groups[texts]] = position % folds
    return numbers


class FoldSource:
    """A source with one fold as dev split and the others as train split."""

    def __init__(self, source, examples, in_dev):
        self.source, self.examples, self.in_dev = source, examples, in_dev

    def read(self, split):
        """Return the `Examples` of a split.

        Their `notes`, messages to the user, are about the rows of all folds.
        """
        pairs = zip(self.examples, self.in_dev, strict=True)
        rows = [row for row, is_dev in pairs if is_dev == (split == "dev")]
        return Examples(rows, self.examples.notes)

    def __getattr__(self, name):
        return getattr(self.source, name)


def make_fold(task, examples, numbers, number):
    """Return a copy of the task with fold `number` as its dev split."""
    fold = copy.copy(task)
    fold.source = FoldSource(task.source, examples, numbers == number)
    return fold


def find_wrong_labels(probabilities, labels) -> np.ndarray:
    """Return indices of rows whose label is probably wrong.

    The row whose label has the lowest probability comes first.

    Class c is a candidate for a row if the row's probability of c is at least
    the mean probability of c over the rows with label c. A row is returned if
    its most probable candidate is not its label. These rows are off the
    diagonal of the confident joint (Northcutt et al. 2021, section 3.1).

    Args:
        probabilities: `(R, C)`, each row predicted by a run that was not
            trained on the row.
        labels: int `(R,)`.
    """
    given = probabilities[np.arange(len(labels)), labels]
    count = probabilities.shape[1]
    rows, sums = np.bincount(labels, minlength=count), np.full(count, np.inf)
    sums[rows > 0] = np.bincount(labels, given, minlength=count)[rows > 0]
    least = sums / np.maximum(rows, 1)  # (C,); infinite without rows
    is_likely = probabilities >= least
    likeliest = np.where(is_likely, probabilities, -1).argmax(axis=1)
    rows = np.flatnonzero(is_likely.any(axis=1) & (likeliest != labels))
    return rows[np.argsort(given[rows], kind="stable")]


def _finish(task, folder, examples, numbers, tasks, trained):
    errors = runs.list_errors(trained)
    predictions, done = None, np.zeros(len(examples), bool)
    for number, (name, fold) in enumerate(tasks.items()):
        if name in errors:
            continue
        path = folder.file("runs", name)
        _, outputs = scoring.predict_split(fold, [path], "dev")
        if predictions is None:
            predictions = np.zeros((len(examples), outputs.shape[1]))
        predictions[numbers == number] = outputs
        done |= numbers == number
    # The rows of a failed fold have no predictions.
    examples = list(itertools.compress(examples, done))
    numbers, predictions = numbers[done], predictions[done]
    scores = {k: v for k, v in trained.items() if k not in errors}
    results = {**task.score(examples, predictions), **summarize(scores)}
    results["errors"] = errors
    columns, wrong = {"fold": numbers + 1}, []
    if task.problem == "single":
        more, wrong = _describe_labels(task, examples, predictions)
        columns |= more
        results["wrong_labels"] = len(wrong)
    with folder.output("predictions") as path:
        files.make_folder(path)
        # Call the base method, because a GLUE task's `write` takes no further
        # columns.
        TextTask.write(task, examples, predictions, path, columns)
    with folder.output(finetuning.RESULTS) as path:
        write_json(without_nan(results), path)
    page.write_report(folder, _render(task, results, wrong))
    folder.finish("folds", results, ("predictions", finetuning.RESULTS))
    return results


def summarize(scores) -> dict:
    """Return a dict of "runs", "mean" and "deviation": see `cross_validate`."""
    metrics = [task_report.select_metrics(each) for each in scores.values()]
    values = {
        name: [each[name] for each in metrics if name in each]
        for name in metrics[0]
    }
    return {
        "runs": {k: finetuning.scalars(v) for k, v in scores.items()},
        "mean": {k: float(np.mean(v)) for k, v in values.items()},
        "deviation": {k: float(np.std(v, ddof=1)) for k, v in values.items()},
    }


def _describe_labels(task, examples, predictions):
    """Return columns for the predictions, and rows whose label looks wrong.

    The columns are a dict: name -> array (R,). The rows are a list of dicts.
    """
    labels = np.array([example.label for example in examples])
    each = probabilities(predictions)  # (R, C)
    given = each[np.arange(len(labels)), labels]
    rows = find_wrong_labels(each, labels)
    columns = {
        "label_probability": given.round(4),
        "looks_wrong": np.isin(np.arange(len(labels)), rows) * 1,
    }
    return columns, [
        {
            **dict(zip(("text", "second"), examples[i].texts, strict=False)),
            "label": task.labels[labels[i]],
            "predicted": task.labels[each[i].argmax()],
            "probability of the label": float(given[i]),
        }
        for i in rows
    ]


def _render(task, results, wrong):
    mean, std = results["mean"], results["deviation"]
    names = list(mean)
    rows = [
        [run, *(metrics[name] for name in names)]
        for run, metrics in results["runs"].items()
    ]
    text = f"Mean and standard deviation over {len(rows)} folds."
    sections = [
        page.tiles(
            (f"{mean[name]:.3f} ± {std[name]:.3f}", name.replace("_", " "))
            for name in names
        ),
        page.section("Folds", text, page.table(rows, ["", *names])),
        task_report.show_mistakes(
            "Labels that look wrong",
            f"{min(len(wrong), task_report.MAX_SHOWN)} of {len(wrong):,} rows. "
            "The row with the least probable label comes first. predictions/ "
            "lists all of them.",
            wrong,
        ),
    ]
    heading = f"Cross-validation: {task.name}"
    return page.page(f"bert_keras: {task.name}", heading, text, sections)
