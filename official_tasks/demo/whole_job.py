"""The demo: every stage that the run folder lacks, then the report."""

import importlib.util
import os
import platform
import shlex
import sys
import time
from typing import Any

from rich.markup import escape

import bert_keras
from bert_keras import files
from bert_keras.data.corpus import corpus_hash
from bert_keras.errors import InputError
from bert_keras.run_folder import RunFolder
from bert_keras.training.strategy import choose_dtype
from official_tasks import page, progress
from official_tasks.demo.stages import STAGES, Demo, Settings

# What fits six minutes on two CPU cores with AVX-512, and some eight on two
# with AVX2 alone.
FULL = Settings(
    vocabulary_size=8000,
    sequence_length=32,
    max_predictions=5,
    num_layers=2,
    hidden_dim=256,
    batch_size=64,
    steps=900,
    learning_rate=1e-3,
    labels=1000,
    dev_rows=2000,
    epochs=5.0,
    rates=(1.5e-4, 3e-4, 6e-4),
    seeds=3,
)
# For continuous integration: every stage, little learning.
QUICK = FULL._replace(
    vocabulary_size=3000,
    num_layers=1,
    hidden_dim=128,
    steps=60,
    dev_rows=600,
    epochs=1.0,
    rates=(3e-4,),
    seeds=1,
)

GUESSES = page.Html(
    "Held-out sentences; in bold the true word, then the model's five best "
    "guesses, from the SavedModel's <code>fill_mask</code>; next to them those "
    "of <code>bert_keras_mini_en</code>, which comes with the package and was "
    "pre-trained on books."
)
PRETRAINING_FIGURES = (
    *("mlm_accuracy", "mlm_unigram_baseline"),
    *("nsp_accuracy", "nsp_majority_baseline"),
)


def run(output, corpus, seed, settings) -> dict:
    """Runs every stage in the folder `output`; returns the report.

    Finished stages of an earlier run are skipped.

    Args:
        output: run folder.
        corpus: source for `read_documents`.
        seed: of everything random.
        settings: `Settings`.
    """
    dtype = choose_dtype()
    decided = {"corpus": corpus, "seed": seed, **settings._asdict()}
    with RunFolder(output, {**decided, "dtype": dtype}) as folder:
        demo = Demo(folder, corpus, seed, settings, dtype)
        draws = page.can_draw("report.html")
        # A run that resumes must find the corpus of its finished stages.
        before = folder.done("Corpus")
        if before and corpus_hash(demo.documents()) != before["corpus_hash"]:
            raise InputError(
                f"{folder.path} was begun with another corpus: {corpus} "
                "changed since. Name another --output for the current one."
            )
        results: dict[str, Any] = {}
        for number, (name, stage) in enumerate(STAGES.items(), 1):
            text = " ".join(stage.__doc__.split())
            title = f"[bold]{number}. {name}[/bold]  {text}"
            progress.console.print(title, markup=True)
            figures = folder.done(name)
            if figures is None:
                began = time.monotonic()
                figures = stage(demo, results)
                figures["seconds"] = round(time.monotonic() - began, 1)
                folder.finish(name, figures)
            results[name] = figures
            line, seconds = escape(figures["line"]), figures["seconds"]
            progress.console.print(
                f"   {line}  [dim]{seconds} s[/dim]", markup=True
            )
        figures = _report(demo, results)
        with folder.output("report.json") as path:
            files.write_json(figures, path)
        if draws:
            page.write_report(folder, lambda: render(figures))
        return figures


def _report(demo, results):
    corpus, examples = results["Corpus"], results["Examples"]
    pretraining, tuned = results["Pre-training"], results["Fine-tuning"]
    pretrained, scratch = tuned["pretrained"], tuned["scratch"]
    return {
        **{name: pretraining[name] for name in PRETRAINING_FIGURES},
        **{
            f"classify_{name}_{side}": tuned[side][name]
            for side in ("pretrained", "scratch")
            for name in ("accuracy", "deviation", "rate")
        },
        "classify_seeds": demo.settings.seeds,
        "classify_majority_baseline": pretrained["majority_baseline"],
        "classify_labels": tuned["train_rows"],
        "classify_held_out": tuned["dev_rows"],
        "export_max_difference": results["Proof"]["export_max_difference"],
        "documents": corpus["documents"],
        "sentences": examples["sentences"],
        "tokens": examples["tokens"],
        "parameters": pretraining["parameters"],
        "seconds": {name: results[name]["seconds"] for name in results},
        "seed": demo.seed,
        "dtype": demo.dtype,
        "corpus": demo.corpus,
        "corpus_hash": corpus["corpus_hash"],
        "versions": _versions(),
        "curves": {
            "pretraining": pretraining["curve"],
            "finetuning": {
                "pre-trained": pretrained["curve"],
                "from scratch": scratch["curve"],
            },
        },
        "confusion": {
            "labels": tuned["classes"],
            "counts": pretrained["confusion"],
        },
        "guesses": results["Proof"]["guesses"],
        "answers": results["Proof"]["answers"],
        "command": _command(demo),
    }


def _versions():
    names = ["keras", "tensorflow", "tensorflow_text", "numpy"]
    # The distribution may be tensorflow-cpu; tensorflow_text is optional.
    modules = map(
        importlib.import_module, filter(importlib.util.find_spec, names)
    )
    return {
        "bert_keras": bert_keras.__version__,
        "python": platform.python_version(),
        **{module.__name__: module.__version__ for module in modules},
    }


def _command(demo):
    """The next commands, by this Python: no shell may have activated it."""
    python = os.path.relpath(sys.executable)
    if python.startswith(os.pardir):
        python = sys.executable
    init = os.path.relpath(demo.folder.file("pretrain/model"))
    tune = "--task=custom --train=yours.csv --text=text --label=label"
    export = "--model=runs/yours/model --output=runs/yours/served"
    return "\n".join(
        shlex.join([python, "-m", f"official_tasks.{name}", *words])
        for name, words in (
            (
                "finetune",
                [*tune.split(), f"--init={init}", "--output=runs/yours"],
            ),
            ("tools.export", export.split()),
        )
    )


def render(report: dict) -> str:
    """The page of what `_report` gathered, and of that alone."""
    counts = (
        f"{report['documents']:,} documents, {report['sentences']:,} "
        f"sentences, {report['tokens']:,} tokens; a model of "
        f"{report['parameters']:,} parameters; "
        f"{sum(report['seconds'].values()):.0f} seconds; seed "
        f"{report['seed']}; computed in {report['dtype']}."
    )
    answers = [
        (answer["text"], answer["label"], f"{answer['probability']:.1%}")
        for answer in report["answers"]
    ]
    versions = ", ".join(map(" ".join, report["versions"].items()))
    seconds = [
        (stage, f"{seconds:.1f} s")
        for stage, seconds in report["seconds"].items()
    ]
    confusion = report["confusion"]
    sections = [
        page.tiles(_figures(report)),
        _curves(report["curves"]),
        page.section(
            "Which source says this sentence?",
            "Held-out sentences, from the pre-trained encoder.",
            page.confusion_chart(confusion["labels"], confusion["counts"]),
        ),
        page.guesses_section(report["guesses"], GUESSES),
        page.section(
            "Raw text in, answers out",
            "Answers of the SavedModel in a process that imports only "
            "tensorflow and tensorflow_text.",
            page.table(
                answers, ("text", "source", "probability"), numbers=(2,)
            ),
        ),
        page.section(
            "Time",
            f"{versions}; corpus {report['corpus_hash'][:16]}.",
            page.table(seconds, numbers=(1,)),
        ),
        page.section(
            "Now with your own data",
            page.Html(
                "A CSV file with the columns <code>text</code> and "
                "<code>label</code>:"
            ),
            page.Html(f"<pre>{page.escaped(report['command'])}</pre>"),
        ),
    ]
    heading = "From raw text to a served BERT"
    return page.page("bert_keras demo", heading, counts, sections)


def _figures(report):
    """Pairs of a figure and what it means, with what a simple guess reaches."""
    pretrained = report["classify_accuracy_pretrained"]
    scratch = report["classify_accuracy_scratch"]
    return [
        (
            f"{report['mlm_accuracy']:.1%}",
            "of the masked pieces of unseen documents guessed; always "
            f"guessing the commonest: {report['mlm_unigram_baseline']:.1%}",
        ),
        (
            f"{report['nsp_accuracy']:.1%}",
            "of the next-sentence questions right; always guessing the "
            f"commoner answer: {report['nsp_majority_baseline']:.1%}",
        ),
        (
            f"{pretrained:.1%}",
            f"of {report['classify_held_out']:,} unseen sentences given "
            "their source; the largest class: "
            f"{report['classify_majority_baseline']:.1%}",
        ),
        (
            f"{100 * (pretrained - scratch):+.1f} points",
            f"from pre-training: random weights reach {scratch:.1%} with the "
            f"same {report['classify_labels']:,} labels; means of "
            f"{report['classify_seeds']} seeds at the best learning rate of "
            "each",
        ),
        (
            f"{report['export_max_difference']:.1e}",
            "greatest difference between the SavedModel in a fresh process "
            "and the model that was trained",
        ),
    ]


def _curves(curves):
    lines = curves["pretraining"]
    steps = [line["step"] for line in lines]

    def of(**names):
        return {
            label.replace("_", " "): (steps, [line.get(key) for line in lines])
            for label, key in names.items()
        }

    finetuning = {
        name: (
            [line["step"] for line in lines],
            [line["val_accuracy"] for line in lines],
        )
        for name, lines in curves["finetuning"].items()
    }
    accuracies = of(
        masked_pieces="val_mlm_accuracy", next_sentence="val_nsp_accuracy"
    )
    loss = of(training="loss", held_out="val_loss")
    drawn = [
        page.line_chart("Pre-training loss", "step", loss),
        page.line_chart("Held-out accuracy", "step", accuracies, share=True),
        page.line_chart(
            "Fine-tuning, held-out accuracy", "step", finetuning, share=True
        ),
    ]
    return page.charts("Held-out documents were never trained on.", drawn)
