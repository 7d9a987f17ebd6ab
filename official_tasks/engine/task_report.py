"""The report of a fine-tuning run."""

from official_tasks import page

MAX_SHOWN = 20  # maximum number of mistakes or confusions in a table
MAX_TEXT_LENGTH = 400  # maximum number of characters of a text in a table
MAX_ROWS = 200  # maximum number of classes in the table of classes
MAX_CLASSES = 30  # confusion matrices of more classes are not shown
# Keys of the results that are not metrics.
COUNTS = ("rows", "dev_rows", "best_step", "cut")


def select_metrics(results) -> dict:
    """Return the metrics in `finetuning.run`'s results as name -> value."""
    others = (*COUNTS, "majority_baseline")
    return {
        name: value
        for name, value in results.items()
        if isinstance(value, float) and name not in others
    }


def render(name, metric, results, mistakes, settings) -> str:
    """Return the report of one run as HTML.

    Args:
        name: name of the task.
        metric: key of `results` by which runs are compared.
        results: results of `finetuning.run`.
        mistakes: wrong predictions, see `Task.mistakes`.
        settings: dict of the run's settings.
    """
    counts = (
        f"{results['rows']:,} training rows, {results['dev_rows']:,} dev "
        f"examples; the weights of step {results['best_step']:,} are kept; "
        f"{results['cut']:.1%} of the training texts are cut."
    )
    rows = [(name, str(value)) for name, value in sorted(settings.items())]
    sections = [
        page.tiles(_describe_metrics(metric, results)),
        page.notes(results["notes"]),
        _draw_curves(metric, results["curve"]),
        _show_classes(results.get("classes")),
        _show_confusion(results),
        _show_reliability(results),
        show_mistakes(
            "Most confidently wrong",
            f"{min(len(mistakes), MAX_SHOWN)} of {len(mistakes):,} wrong "
            "predictions on dev.",
            mistakes,
        ),
        page.section("Settings", "", page.table(rows, numbers=(1,))),
    ]
    heading = f"Fine-tuning: {name}"
    return page.page(f"bert_keras: {name}", heading, counts, sections)


def _describe_metrics(metric, results):
    """Yield (value, meaning) of each metric as text, `metric` first."""
    metrics = select_metrics(results)
    for name in sorted(metrics, key=lambda name: name != metric):
        meaning = name.replace("_", " ")
        if name == metric and "majority_baseline" in results:
            baseline = results["majority_baseline"]
            meaning += f"; the best constant prediction: {baseline:.3f}"
        yield f"{metrics[name]:.3f}", meaning


def _draw_curves(metric, curve):
    steps = [line["step"] for line in curve]
    loss = [line.get("loss") for line in curve]
    scores = [line[f"val_{metric}"] for line in curve]
    drawn = [
        page.line_chart(title, "step", {label: (steps, y)})
        for title, label, y in (
            ("Training loss", "training", loss),
            (f"Dev {metric.replace('_', ' ')}", "dev", scores),
        )
        if None not in y
    ]
    return page.charts("Values at each evaluation.", drawn)


def _show_classes(classes):
    if not classes:
        return ""
    columns = list(next(iter(classes.values())))
    text = "Metrics on dev. Support is how often the class occurs in dev."
    if len(classes) > MAX_ROWS:
        text += (
            f" The {MAX_ROWS} most frequent of {len(classes):,} classes; "
            "results.json has all."
        )
        order = sorted(classes, key=lambda name: -classes[name]["support"])
        classes = {name: classes[name] for name in order[:MAX_ROWS]}
    rows = [
        [
            label,
            *(
                f"{scores[name]:,.0f}"
                if name == "support"
                else float(scores[name])
                for name in columns
            ),
        ]
        for label, scores in classes.items()
    ]
    return page.section(
        "Classes",
        text,
        page.table(rows, ("class", *columns), range(1, len(columns) + 1)),
    )


def _show_confusion(results):
    labels = list(results.get("classes", ()))
    if "confusions" in results:
        rows = [map(_shorten, row.values()) for row in results["confusions"]]
        head = ("label", "predicted", "rows")
        return page.section(
            "Confusion",
            "The most frequent errors.",
            page.table(rows[:MAX_SHOWN], head, numbers=(2,)),
        )
    if "confusion" not in results or not 0 < len(labels) <= MAX_CLASSES:
        return ""
    return page.section(
        "Confusion",
        "Rows are true labels, columns are predicted labels. A darker cell is "
        "a larger fraction of its row.",
        page.confusion_table(labels, results["confusion"]),
    )


def _show_reliability(results):
    if "reliability" not in results:
        return ""
    names = ("from", "rows", "confidence", "accuracy")
    head = ("probability from", "rows", "mean probability", "accuracy")
    tables = [
        page.table(
            [[one[name] for name in names] for one in results[key]],
            head,
            numbers=range(4),
        )
        for key in ("reliability_uncalibrated", "reliability")
    ]
    return page.section(
        "Reliability",
        "Probability of the predicted class on dev, before and after "
        "calibration. Calibration divides the logits by the temperature "
        f"{results['temperature']:.3f}.",
        *tables,
    )


def show_mistakes(heading, text, mistakes):
    """Return a section with the first mistakes, or "" if there are none.

    Args:
        heading: heading of the section.
        text: text below the heading.
        mistakes: wrong predictions, see `Task.mistakes`.
    """
    if not mistakes:
        return ""
    shown = mistakes[:MAX_SHOWN]
    rows = [map(_shorten, row.values()) for row in shown]
    return page.section(heading, text, page.table(rows, list(shown[0])))


def _shorten(value):
    if isinstance(value, float):
        return value
    text = str(value)
    is_long = len(text) > MAX_TEXT_LENGTH
    return f"{text[: MAX_TEXT_LENGTH - 1]}…" if is_long else text
