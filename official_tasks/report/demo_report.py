"""A run's report as one self-contained HTML page: figures, charts, examples.

`render` is a pure function of the report's dictionary, the one that is also
written as `report.json`; charts are inline SVG drawn by matplotlib.
"""

import html

from official_tasks.report.page import (
    charts,
    confusion_chart,
    guesses_section,
    line_chart,
    page,
    table_section,
    tiles,
)

GUESSES = (
    "Held-out sentences; in bold what stood there, then the model's five best "
    "guesses, from the SavedModel's <code>fill_mask</code>."
)


def render(report: dict) -> str:
    """The page for `report`; `demo/whole_job.py` has its keys."""
    parts = [
        _head(report),
        _tiles(report),
        _curves(report["curves"]),
        _confusion(report["confusion"]),
        guesses_section(report["guesses"], GUESSES),
        _answers(report["answers"]),
        _times(report),
        _command(report["command"]),
    ]
    return page("bert_keras demo", parts)


def _head(report):
    counts = (
        f"{report['documents']:,} documents, {report['sentences']:,} "
        f"sentences, {report['tokens']:,} tokens; a model of "
        f"{report['parameters']:,} parameters; "
        f"{sum(report['seconds'].values()):.0f} seconds; seed "
        f"{report['seed']}; computed in {report['dtype']}."
    )
    return f"<h1>From raw text to a served BERT</h1><p>{counts}</p>"


def _tiles(report):
    gain = (
        report["classify_accuracy_pretrained"]
        - report["classify_accuracy_scratch"]
    )
    figures = [
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
            f"{report['classify_accuracy_pretrained']:.1%}",
            f"of {report['classify_held_out']:,} unseen sentences given "
            "their source; the largest class: "
            f"{report['classify_majority_baseline']:.1%}",
        ),
        (
            f"{100 * gain:+.1f} points",
            "from pre-training: random weights reach "
            f"{report['classify_accuracy_scratch']:.1%} with the same "
            f"{report['classify_labels']:,} labels; means of "
            f"{report['classify_seeds']} seeds at the learning rate that is "
            "best for each",
        ),
        (
            f"{report['export_max_difference']:.1e}",
            "greatest difference between the SavedModel in a fresh process "
            "and the model that was trained",
        ),
    ]
    return tiles(figures)


def _curves(curves):
    lines = curves["pretraining"]
    steps = [line["step"] for line in lines]

    def of(name):
        return [line.get(name) for line in lines]

    drawn = [
        line_chart(
            "Pre-training loss",
            "step",
            {
                "training": (steps, of("loss")),
                "held out": (steps, of("val_loss")),
            },
        ),
        line_chart(
            "Held-out accuracy",
            "step",
            {
                "masked pieces": (steps, of("val_mlm_accuracy")),
                "next sentence": (steps, of("val_nsp_accuracy")),
            },
            share=True,
        ),
        line_chart(
            "Fine-tuning, held-out accuracy",
            "step",
            {
                name: (
                    [line["step"] for line in lines],
                    [line["val_accuracy"] for line in lines],
                )
                for name, lines in curves["finetuning"].items()
            },
            share=True,
        ),
    ]
    return charts(
        "Learning", "Held-out documents were never trained on.", drawn
    )


def _confusion(confusion):
    drawn = confusion_chart(confusion["labels"], confusion["counts"])
    return (
        "<section><h2>Which source says this sentence?</h2><p>Held-out "
        "sentences, from the pre-trained encoder.</p>"
        f"<div class=small>{drawn}</div></section>"
    )


def _answers(answers):
    rows = [
        f"<tr><td>{html.escape(answer['text'])}</td>"
        f"<td>{html.escape(answer['label'])}</td>"
        f"<td class=number>{answer['probability']:.1%}</td></tr>"
        for answer in answers
    ]
    return (
        "<section><h2>Raw text in, answers out</h2><p>A process that imports "
        "only tensorflow and tensorflow_text loaded the SavedModel and was "
        "asked these.</p><table><tr><th>text</th><th>source</th>"
        f"<th class=number>probability</th></tr>{''.join(rows)}</table>"
        "</section>"
    )


def _times(report):
    versions = ", ".join(
        f"{name} {version}" for name, version in report["versions"].items()
    )
    rows = [
        (stage, f"{seconds:.1f} s")
        for stage, seconds in report["seconds"].items()
    ]
    told = f"{html.escape(versions)}; corpus {report['corpus_hash'][:16]}."
    return table_section("Time", told, rows)


def _command(command):
    return (
        "<section><h2>Now with your own data</h2><p>A CSV file with the "
        "columns <code>text</code> and <code>label</code>:</p>"
        f"<pre>{html.escape(command)}</pre></section>"
    )
