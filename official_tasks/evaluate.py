r"""Scores models, or files of predictions, by a task's official metrics.

    bert-keras evaluate --model=runs/mrpc
    bert-keras evaluate --model=runs/reviews --dev=other.csv
    bert-keras evaluate --task=squad1 --data_dir=squad \
        --predictions=predictions.json
    bert-keras evaluate --task=mlm --input='texts/*.txt' \
        --model=runs/pretrain/model

In: --model, the folder of a fine-tuning run or of a model; or --predictions, a
file in the task's official format. --model=A,B,C averages the outputs of
several models. The task and its options come from the run, unless flags set
them. --task=mlm masks tokens of --input and scores how well pre-trained weights
predict them. --input names files with one text on each line, or tables with
the texts in the column --text. Out: a table of all official metrics. --output
also writes results.json and, except for mlm, the official prediction files.

Takes about 10 seconds for 1,000 short texts with a small model on 2 CPU cores.
"""

import dataclasses
import os

from bert_keras.data.data_sets import is_data_set
from bert_keras.errors import InputError
from bert_keras.files import (
    exists,
    find,
    is_file,
    same_content,
    sha256,
    size,
    split_paths,
)
from bert_keras.json_files import without_nan, write_json
from bert_keras.run_folder import find_changed
from official_tasks import cli, options, progress
from official_tasks.options import Condition, option
from official_tasks.tasks import registry
from official_tasks.tasks.base import SPLITS, Task
from official_tasks.tasks.forms.class_folders import find_changes, list_files
from official_tasks.tasks.forms.text_files import make_dialect
from official_tasks.tasks.own_data import Table
from official_tasks.tasks.source import Source

MLM = "mlm"


def _is_masked_lm(values):
    return (values.task or "").lower() == MLM


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(registry.TaskOptions):
    """Options of this script."""

    task: str | None = registry.task_option(None, MLM)
    others = {MLM: ("text", "separator", "encoding")}
    model: str | None = option(
        None, "Folder of a model or run. A,B averages the outputs of A and B."
    )
    input: str | None = option(None, "With --task=mlm: files of texts.")
    sequence_length: int = option(
        128, "With --task=mlm: maximum tokens of a row."
    )
    seed: int = options.define_seed(
        "With --task=mlm: seed of the random masks."
    )
    predictions: str | None = option(
        None, "File of predictions to score instead of --model."
    )
    split: str = option("dev", "The split to score on.", choices=SPLITS)
    output: str | None = option(
        None, "Folder for results.json and official prediction files."
    )
    overwrite: bool = options.define_overwrite()
    conditions = (
        Condition(
            ("input", "sequence_length", "seed"),
            "with --task=mlm",
            _is_masked_lm,
        ),
        Condition(
            ("predictions", "split"),
            "without --task=mlm",
            lambda v: not _is_masked_lm(v),
        ),
    )


def evaluate(
    task, models=(), predictions=None, split="dev", output=None, overwrite=False
):
    """Return the scores, a dict, of models or of a file of predictions.

    Args:
        task: a `Task`.
        models: folders of models or runs, whose outputs are averaged.
        predictions: file in the task's official format, instead of models.
        split: one of `SPLITS`.
        output: folder for results.json and official files; None for no files.
        overwrite: True to replace existing files.
    """
    from official_tasks.engine.scoring import (
        input_files,
        new_files,
        predict_split,
        refuse_file_name,
    )

    notes: list[str] = []
    refuse_file_name(output)
    if predictions is None:
        progress.show_devices()
        notes = _check_held_out(task, models, split)
        examples, predicted = predict_split(
            task, models, split, task.check_labels
        )
    else:
        if type(task).read_predictions is Task.read_predictions:
            # The task has no reader for predictions, so the base method raises.
            # Raise here, before the slow `read`.
            task.read_predictions(predictions, [])
        examples = task.read(split)
        task.check_labels(examples)
        predicted = task.read_predictions(predictions, examples)
    progress.print_notes([*notes, *getattr(examples, "notes", ())])
    scores = task.score(examples, predicted)
    if output is not None:
        inputs = [*input_files(task), *filter(None, [predictions])]
        with new_files(output, overwrite, inputs) as folder:
            task.write(examples, predicted, folder)
            write_json(
                without_nan(scores), os.path.join(folder, "results.json")
            )
    return scores


def _check_held_out(task, models, split="dev") -> list[str]:
    """Check that the models were not trained on the rows to score.

    Return a note for each dev or test file that a model was trained on.

    Without a dev file, the dev split is a tenth of --train. If a model's run
    also read a file of --train, the model was trained on rows of this tenth in
    these cases:

    - The run had more, fewer or other training files, or another order of them.
    - The run had another split_seed, or a dev file.
    - The run was part of a cross-validation.
    - A file of --train that the run read changed after the run.

    Raises:
        InputError: a model was trained on rows of this tenth.
    """
    source, notes = getattr(task, "source", None), []
    if not isinstance(source, Source):  # possible in a user's own task
        return notes
    is_tenth = split == "dev" and "dev" not in source.files
    holds_out = isinstance(source, Table) and "train" in source.files
    for model in models:
        settings = registry.read_run_record(model, "settings")
        inputs = registry.read_run_record(model, "inputs")
        trained = split_paths(settings.get("train") or "")
        dev, seed = settings.get("dev"), settings.get("split_seed", 0)
        if is_tenth and holds_out:
            fold = settings.get("fold")
            paths = list(map(str, source.paths("train")))
            # The run was not trained on its dev files, so these may change.
            dev_paths = set(map(os.path.abspath, split_paths(dev or "")))
            used = [p for p in paths if os.path.abspath(p) not in dev_paths]
            used = [file for path in used for file in list_files(path)]
            changed = find_changed(inputs, used)
            for folder in filter(os.path.isdir, paths):
                changed += find_changes(folder, inputs)
            if changed:
                raise InputError(
                    f"{changed[0]} changed after the run of {model}. Other "
                    "rows would be held out, and the model was trained on most "
                    "of them. Put the original file back, or give --dev=FILE "
                    "with new rows."
                )
            needed = [f"--dev={dev}"] if dev else []
            if not dev and not _are_same(paths, trained, inputs):
                needed.append(f"--train={settings.get('train')}")
            if not dev and seed != source.split_seed:
                needed.append(f"--split_seed={seed}")
            if (fold or needed) and _have_common(paths, trained, inputs):
                if fold:
                    raise InputError(
                        f"{model} is {fold} of a cross-validation. It was "
                        f"trained on rows of {source.files['train']} that "
                        "would be scored. results.json of that run has the "
                        "scores of its held-out rows. Give --dev=FILE with "
                        "new rows."
                    )
                raise InputError(
                    f"This command would score rows of {source.files['train']} "
                    f"that {model} was trained on. To score only held-out "
                    f"rows, give {' '.join(needed)}."
                )
        elif split != "train":
            parts = () if source.data_set(split) else source.parts(split)
            paths = [path for part in parts for path in source.paths(part)]
            notes += [
                f"{model} was trained on {path}, so these scores say nothing "
                "about new rows"
                for path in map(str, paths)
                if _have_common([path], trained, inputs)
            ]
    return notes


def _are_same(paths, trained, inputs):
    """Return True if the lists have equal files in the same order."""
    return len(paths) == len(trained) and all(
        _have_common([path], [other], inputs)
        for path, other in zip(paths, trained, strict=True)
    )


def _have_common(paths, trained, inputs):
    """Return True if a run was trained on one of the paths.

    Args:
        paths: the files, or folders of files, to score.
        trained: training files of the run. They may have changed since then.
        inputs: the run's record of its files; see `RunFolder`.
    """
    entries = {os.path.abspath(name): inputs[name] for name in inputs}

    def is_same(path, other):
        here, there = os.path.abspath(path), os.path.abspath(other)
        if here == there:
            return True
        if os.path.isdir(path):
            found = {there + x.removeprefix(here): x for x in list_files(here)}
            known = [x for x in entries if x.startswith(f"{there}{os.sep}")]
            return [*found] == sorted(known) != [] and all(
                is_same(file, name) for name, file in found.items()
            )
        entry = entries.get(there)
        if not entry or not is_file(path):
            return same_content(path, other)
        is_long = size(path) == entry["bytes"]
        return is_long and sha256(path) == entry["sha256"]

    return any(is_same(path, o) for path in paths for o in trained if o)


def evaluate_masked_lm(values) -> dict:
    """Return the masked-LM scores of --model on the texts of --input.

    With --output, also write results.json.
    """
    from official_tasks.engine.masked_lm import score_masked_lm
    from official_tasks.engine.prediction import find_inputs, read_inputs
    from official_tasks.engine.scoring import new_files, refuse_file_name

    if not values.input:
        raise InputError("--input is missing: name files of texts")
    refuse_file_name(values.output)
    paths = find_inputs(values.input)
    dialect = make_dialect(values.separator, values.encoding)
    notes: list[str] = []
    columns = [values.text or "text"]
    rows = read_inputs(paths, None, columns, [False], dialect, notes)
    scores = score_masked_lm(
        values.model,
        (text for (text,) in rows),
        values.sequence_length,
        seed=values.seed,
    )
    progress.print_notes(notes)
    if values.output is not None:
        with new_files(values.output, values.overwrite, paths) as folder:
            write_json(scores, os.path.join(folder, "results.json"))
    return scores


def _take_flags_of_run(values):
    """Set the flags that the run of --model names; check that its files exist.

    Raises:
        InputError: the dev rows would be read from a file that is gone.
    """
    is_given = values["dev"].present or values["train"].present
    registry.complete_flags(values)
    if is_given or not values.model or values.split != "dev":
        return
    if values.dev is None and (values.train is None or values.data_dir):
        return
    for path in split_paths(values.dev or values.train):
        if not (is_data_set(path) or exists(path) or find(path)):
            raise InputError(
                f"{path}: no such file. The dev rows of {values.model} come "
                "from it. Put the file back, or give --dev=FILE with new rows."
            )


def main(values):
    from official_tasks.engine.runs import make_table, show_classes

    if bool(values.model) == bool(values.predictions):
        count = "both" if values.model else "neither"
        raise InputError(
            "Give either --model, a folder, or --predictions, a file; got "
            f"{count}."
        )
    if _is_masked_lm(values):
        scores = evaluate_masked_lm(values)
        progress.console.print(make_table(MLM, {"text": scores}))
        return
    _take_flags_of_run(values)
    task, _ = registry.task_from_flags(values)
    scores = evaluate(
        task,
        split_paths(values.model or ""),
        values.predictions,
        values.split,
        values.output,
        values.overwrite,
    )
    progress.console.print(make_table(task.name, {values.split: scores}))
    show_classes(scores)


if __name__ == "__main__":
    cli.start(main, Options)
