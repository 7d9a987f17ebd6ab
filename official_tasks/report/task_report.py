"""The report of a fine-tuning run: one self-contained HTML page."""

import html

from official_tasks.report.page import (
    charts,
    confusion_chart,
    line_chart,
    page,
    table_section,
    tiles,
)

MISTAKES = 20
TEXT_SHOWN = 400  # characters of a text
LONG_WORD = 30  # characters; links are longer
MOST_DRAWN = 30  # classes of a confusion matrix that can be read


def render(name, metric, results, mistakes, settings) -> str:
    """The page of one run.

    Args:
        name: the task's.
        metric: the key by which runs are compared.
        results: what `finetuning.run` returns.
        mistakes: what the task's `mistakes` returns.
        settings: dict of what decided the run.
    """
    parts = [
        f"<h1>Fine-tuning: {html.escape(name)}</h1><p>{_counts(results)}</p>",
        tiles(_figures(metric, results)),
        _notes(results["notes"]),
        _curves(metric, results),
        _classes(results.get("classes")),
        _confusion(results),
        _mistakes(mistakes),
        table_section("Settings", "", sorted(settings.items())),
    ]
    return page(f"bert_keras: {name}", [part for part in parts if part])


def _counts(results):
    return (
        f"{results['rows']:,} training rows, {results['dev_rows']:,} dev "
        f"examples; the weights of step {results['best_step']:,} are kept; "
        f"{results['cut']:.1%} of the training texts are cut."
    )


def _figures(metric, results):
    """Each metric in large, the one that decides first."""
    left_out = ("rows", "dev_rows", "best_step", "cut", "majority_baseline")
    named = [
        name
        for name, value in results.items()
        if isinstance(value, float) and name not in left_out
    ]
    named.sort(key=lambda name: name != metric)
    figures = []
    for name in named:
        told = html.escape(name.replace("_", " "))
        if name == metric and "majority_baseline" in results:
            baseline = results["majority_baseline"]
            told += f"; the best constant guess: {baseline:.3f}"
        figures.append((f"{results[name]:.3f}", told))
    return figures


def _notes(notes):
    if not notes:
        return ""
    lines = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f"<section><h2>Worth a look</h2><ul>{lines}</ul></section>"


def _curves(metric, results):
    steps = [line["step"] for line in results["curve"]]
    drawn = [
        line_chart(title, "step", {label: (steps, values)})
        for title, label, values in (
            (
                "Training loss",
                "training",
                [line.get("loss") for line in results["curve"]],
            ),
            (
                f"Dev {metric.replace('_', ' ')}",
                "dev",
                [line[f"val_{metric}"] for line in results["curve"]],
            ),
        )
        if None not in values
    ]
    return charts("Learning", "After each epoch.", drawn)


def _classes(classes):
    if not classes:
        return ""
    columns = list(next(iter(classes.values())))
    rows = [
        f"<tr><td>{html.escape(label)}</td>"
        + "".join(
            f"<td class=number>{_shown(name, figures[name])}</td>"
            for name in columns
        )
        + "</tr>"
        for label, figures in classes.items()
    ]
    head = "".join(
        f"<th class=number>{html.escape(name)}</th>" for name in columns
    )
    return (
        "<section><h2>Classes</h2><p>On dev; support is the number of "
        f"examples.</p><table><tr><th>class</th>{head}</tr>"
        f"{''.join(rows)}</table></section>"
    )


def _shown(name, value):
    return f"{value:,.0f}" if name == "support" else f"{value:.3f}"


def _confusion(results):
    if "confusion" not in results or "classes" not in results:
        return ""
    labels = list(results["classes"])
    if len(labels) > MOST_DRAWN:
        return ""
    return (
        "<section class=small><h2>Confusion</h2><p>Rows are the truth, "
        "columns what was predicted; darker is a larger share of the row."
        f"</p>{confusion_chart(labels, results['confusion'])}</section>"
    )


def _mistakes(mistakes):
    if not mistakes:
        return ""
    shown = mistakes[:MISTAKES]
    columns = list(shown[0])
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    rows = [
        "<tr>" + "".join(_cell(row[name]) for name in columns) + "</tr>"
        for row in shown
    ]
    return (
        f"<section><h2>Most confidently wrong</h2><p>{len(shown)} of "
        f"{len(mistakes):,} on dev.</p><table><tr>{head}</tr>"
        f"{''.join(rows)}</table></section>"
    )


def _cell(value):
    if isinstance(value, float):
        return f"<td class=number>{value:.3f}</td>"
    text = str(value)
    if len(text) > TEXT_SHOWN:
        text = text[: TEXT_SHOWN - 1] + "…"
    # A word that no column can hold would push the others off the page.
    is_long = any(len(word) > LONG_WORD for word in text.split())
    opened = "<td class=long>" if is_long else "<td>"
    return f"{opened}{html.escape(text)}</td>"
