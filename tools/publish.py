"""Publishes a trained model on the Hugging Face Hub, with a model card.

    bert-keras publish --model=runs/reviews --repo_id=your-name/reviews

In: the folder of a run, or a model folder; an account's token, from
`hf auth login` or HF_TOKEN. Out: the address of the commit. transformers and
`from_preset("hf://your-name/reviews")` load the published folder. Its
README.md, the card, lists data, metrics, settings, license, limits and code to
load the model. --output=FOLDER writes the folder on this machine and uploads
nothing, so that you can read the card first.

Takes some seconds, and the time of the upload. Needs
the extra `hub`.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses
import os

import bert_keras
from bert_keras import json_files
from bert_keras.data.data_sets import is_data_set
from bert_keras.files import split_paths
from official_tasks import cli, options, progress
from official_tasks.engine.hyperparameters import Hyperparameters
from official_tasks.options import Condition, option
from official_tasks.outputs import prepare_output
from official_tasks.pretraining.settings import Settings

# Settings that the card lists. Paths mean nothing on another machine.
LISTED = {
    "epochs",
    *options.list_options(Hyperparameters),
    *options.list_options(Settings),
} - {"init", "vocabulary", "phase_2_data"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    model: str = option(help="Folder of a run, or a model folder.")
    repo_id: str = option(help="Repository on the Hub, org/name.")
    license: str | None = option(
        None, "License of the weights, such as apache-2.0."
    )
    limits: str | None = option(
        None, "Text of the card's section Limits: uses to avoid."
    )
    private: bool | None = option(None, "Make a new repository private.")
    revision: str | None = option(
        None, "Branch to commit to; it may be new. Default: main."
    )
    output: str | None = option(
        None, "Folder to write to instead of uploading."
    )
    overwrite: bool = options.define_overwrite()
    conditions = (
        Condition(
            ("private", "revision"),
            "without --output, because --output uploads nothing",
            lambda v: not v.output,
        ),
        Condition(("overwrite",), "with --output", lambda v: v.output),
    )


def main(values):
    from bert_keras.interop import publishing
    from bert_keras.interop.convert import model_class
    from bert_keras.interop.opening import open_checkpoint

    prepare_output(values, values.model, is_folder=True)
    checkpoint = open_checkpoint(values.model)
    model = model_class(checkpoint).from_preset(checkpoint)
    preprocess = bert_keras.BertPreprocessor.from_preset(checkpoint)
    card = publishing.model_card(
        model,
        values.repo_id,
        license=values.license,
        **describe_run(values.model, values.limits),
    )
    if values.output:
        publishing.write_model_and_card(
            values.output,
            model,
            preprocess,
            values.repo_id,
            card,
            values.overwrite,
        )
        address = f"Written to {values.output}"
    else:
        address = publishing.push_to_hub(
            model,
            preprocess,
            values.repo_id,
            card=card,
            private=values.private,
            revision=values.revision,
        )
    progress.console.print(address, soft_wrap=True)


def describe_run(folder, limits) -> dict:
    """Return dict of `metrics`, `dataset` and `sections` for `model_card`.

    Args:
        folder: folder of a run, its folder `model`, or another model folder.
            For another one, the dict has only `sections`, with the one section
            Limits.
        limits: text of --limits, or None.
    """
    from official_tasks.engine.task_report import select_metrics

    settings, results = _read_run(folder)
    lines = [limits, *(f"- {note}" for note in results.get("notes", ()))]
    limits = "\n".join(filter(None, lines))
    last = "Limits", limits or "Not stated. Measure the model on your texts."
    if not results:
        return {"sections": [last]}
    dataset, shown = _name_data(settings), select_metrics(results)
    metrics = {
        name: value
        for name, value in shown.items()
        if not name.endswith("_baseline") and name != "temperature"
    }
    shown["best constant prediction"] = results.get("majority_baseline")
    listed = {k: settings[k] for k in settings if k in LISTED}
    sections = [
        ("Data", _describe_data(dataset, results)),
        ("Results", _table(("metric", "value"), shown)),
        ("Settings", _table(("setting", "value"), listed)),
        last,
    ]
    return {"metrics": metrics, "dataset": dataset, "sections": sections}


def _read_run(folder):
    """Return the settings and the results of a run; of several, the best."""
    parent, name = os.path.split(os.path.abspath(folder))
    if name == "model" and os.path.isfile(os.path.join(parent, "run.json")):
        folder = parent
    path = os.path.join(folder, "results.json")
    if not os.path.isfile(path):
        return {}, {}
    results = json_files.read_json(path)
    if "best_run" in results:  # several seeds or learning rates
        return _read_run(os.path.join(folder, "runs", results["best_run"]))
    run = json_files.read_json(os.path.join(folder, "run.json"))
    return run["settings"], results


def _name_data(settings):
    """Return the name of a run's data: of its task, or of its own files."""
    if not settings.get("train"):
        return str(settings.get("task", "held-out documents"))
    names = (
        path if is_data_set(path) else os.path.basename(path.rstrip("/"))
        for path in split_paths(settings["train"])
    )
    return ", ".join(dict.fromkeys(names))


def _describe_data(dataset, results):
    if "rows" not in results:
        return f"Measured on {dataset}."
    return (
        f"{dataset}: {results['rows']:,} training rows; measured on "
        f"{results['dev_rows']:,} dev examples, on which the best weights were "
        f"chosen. {results['cut']:.1%} of the training texts were cut."
    )


def _table(columns, rows):
    lines = [columns, ("---", "---")]
    lines += [
        (name, f"{value:.4g}" if isinstance(value, float) else value)
        for name, value in rows.items()
        if value is not None
    ]
    return "\n".join(f"| {name} | {value} |" for name, value in lines)


if __name__ == "__main__":
    cli.start(main, Options)
