"""The report of the demo; a function of its `report.json` alone."""

from official_tasks.report.page import (
    Html,
    charts,
    confusion_chart,
    escaped,
    guesses_section,
    line_chart,
    page,
    section,
    table,
    tiles,
)

GUESSES = Html(
    "Held-out sentences; in bold the true word, then the model's five best "
    "guesses, from the SavedModel's <code>fill_mask</code>; beside them those "
    "of <code>bert_keras_mini_en</code>, which comes with the package and was "
    "trained for hours, on books."
)


def render(report: dict) -> str:
    """The page for `report`; `demo/whole_job.py` has its keys."""
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
        tiles(_figures(report)),
        _curves(report["curves"]),
        section(
            "Which source says this sentence?",
            "Held-out sentences, from the pre-trained encoder.",
            confusion_chart(confusion["labels"], confusion["counts"]),
        ),
        guesses_section(report["guesses"], GUESSES),
        section(
            "Raw text in, answers out",
            "Answers of the SavedModel in a process that imports only "
            "tensorflow and tensorflow_text.",
            table(answers, ("text", "source", "probability"), numbers=(2,)),
        ),
        section(
            "Time",
            f"{versions}; corpus {report['corpus_hash'][:16]}.",
            table(seconds, numbers=(1,)),
        ),
        section(
            "Now with your own data",
            Html(
                "A CSV file with the columns <code>text</code> and "
                "<code>label</code>:"
            ),
            Html(f"<pre>{escaped(report['command'])}</pre>"),
        ),
    ]
    heading = "From raw text to a served BERT"
    return page("bert_keras demo", heading, counts, sections)


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
        line_chart("Pre-training loss", "step", loss),
        line_chart("Held-out accuracy", "step", accuracies, share=True),
        line_chart(
            "Fine-tuning, held-out accuracy", "step", finetuning, share=True
        ),
    ]
    return charts("Held-out documents were never trained on.", drawn)
