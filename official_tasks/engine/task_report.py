"""The report of a fine-tuning run."""

from official_tasks import page

MISTAKES = 20
TEXT_SHOWN = 400  # characters of a text
MOST_DRAWN = 30  # classes of a confusion matrix that can be read
COUNTS = ("rows", "dev_rows", "best_step", "cut")  # no metrics


def metrics_of(results) -> dict:
    """The metrics among what `finetuning.run` returns."""
    others = (*COUNTS, "majority_baseline")
    return {
        name: value
        for name, value in results.items()
        if isinstance(value, float) and name not in others
    }


def render(name, metric, results, mistakes, settings) -> str:
    """The page of one run.

    Args:
        name: the task's.
        metric: the key by which runs are compared.
        results: what `finetuning.run` returns.
        mistakes: what the task's `mistakes` returns.
        settings: dict of what decided the run.
    """
    counts = (
        f"{results['rows']:,} training rows, {results['dev_rows']:,} dev "
        f"examples; the weights of step {results['best_step']:,} are kept; "
        f"{results['cut']:.1%} of the training texts are cut."
    )
    rows = [(name, str(value)) for name, value in sorted(settings.items())]
    sections = [
        page.tiles(_figures(metric, results)),
        _notes(results["notes"]),
        _curves(metric, results["curve"]),
        _classes(results.get("classes")),
        _confusion(results),
        _mistakes(mistakes),
        page.section("Settings", "", page.table(rows, numbers=(1,))),
    ]
    heading = f"Fine-tuning: {name}"
    return page.page(f"bert_keras: {name}", heading, counts, sections)


def _notes(notes):
    rows = page.table(zip(notes))
    return page.section("Worth a look", "", rows) if notes else ""


def _figures(metric, results):
    """Each metric in large, the one that decides first."""
    for name in sorted(metrics_of(results), key=lambda name: name != metric):
        meaning = name.replace("_", " ")
        if name == metric and "majority_baseline" in results:
            baseline = results["majority_baseline"]
            meaning += f"; the best constant guess: {baseline:.3f}"
        yield f"{results[name]:.3f}", meaning


def _curves(metric, curve):
    steps = [line["step"] for line in curve]
    values = {
        ("Training loss", "training"): [line.get("loss") for line in curve],
        (f"Dev {metric.replace('_', ' ')}", "dev"): [
            line[f"val_{metric}"] for line in curve
        ],
    }
    drawn = [
        page.line_chart(title, "step", {label: (steps, y)})
        for (title, label), y in values.items()
        if None not in y
    ]
    return page.charts("After each epoch.", drawn)


def _classes(classes):
    if not classes:
        return ""
    columns = list(next(iter(classes.values())))
    rows = [
        [
            label,
            *(
                f"{figures[name]:,.0f}"
                if name == "support"
                else float(figures[name])
                for name in columns
            ),
        ]
        for label, figures in classes.items()
    ]
    numbers = range(1, len(columns) + 1)
    return page.section(
        "Classes",
        "On dev; support is the number of examples.",
        page.table(rows, ("class", *columns), numbers),
    )


def _confusion(results):
    labels = list(results.get("classes", ()))
    if "confusions" in results:
        rows = [map(_clipped, row.values()) for row in results["confusions"]]
        heads = ("label", "predicted", "rows")
        return page.section(
            "Confusion",
            "The most frequent errors.",
            page.table(rows[:MISTAKES], heads, numbers=(2,)),
        )
    if "confusion" not in results or not 0 < len(labels) <= MOST_DRAWN:
        return ""
    return page.section(
        "Confusion",
        "Rows are the truth, columns the predictions; darker is a larger "
        "share of the row.",
        page.confusion_chart(labels, results["confusion"]),
    )


def _mistakes(mistakes):
    if not mistakes:
        return ""
    shown = mistakes[:MISTAKES]
    return page.section(
        "Most confidently wrong",
        f"{len(shown)} of {len(mistakes):,} on dev.",
        page.table(
            [map(_clipped, row.values()) for row in shown], list(shown[0])
        ),
    )


def _clipped(value):
    if isinstance(value, float):
        return value
    text = str(value)
    return text if len(text) <= TEXT_SHOWN else text[: TEXT_SHOWN - 1] + "…"
