"""A table's results as text and as a chart beside the paper's figures."""

import numpy as np

from official_tasks.page import save

PERCENT = 100
COLOURS = ("#2f6fde", "#e0872b", "#1a8f5a", "#b5478f", "#64708a", "#a08a2c")


def text(results) -> str:
    """Means, spread over the seeds, the paper's figures, the comparisons."""
    columns = results["columns"]
    lines = [
        f"{results['title']}; {results['seeds']} seed(s), mean ± deviation "
        "(paper)"
    ]
    rows = [["", *(column.replace("_", " ") for column in columns)]]
    rows += [
        [name, *(_cell(results, name, column) for column in columns)]
        for name in results["scores"]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += [
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
    lines += ["", "Compared, paired over the seeds:"]
    lines += [_comparison(found) for found in results["comparisons"]]
    if results["deviations"]:
        lines += ["", "Otherwise than in the paper:"]
        lines += [f"- {line}" for line in results["deviations"]]
    return "\n".join(lines) + "\n"


def shown(column, value):
    """A score in percent; a perplexity as it is."""
    return value if column.endswith("perplexity") else PERCENT * value


def _cell(results, name, column):
    values = results["scores"][name].get(column)
    paper = results["paper"][name].get(column)
    told = []
    if values:
        numbers = [shown(column, value) for value in values]
        told.append(f"{np.mean(numbers):.1f}")
        if len(numbers) > 1:
            told.append(f"± {np.std(numbers, ddof=1):.1f}")
        if paper is not None:
            told.append(f"({paper:g})")
    return " ".join(told)


def _comparison(found):
    sign = {1: "above", 0: "level with", -1: "below"}[found["claimed"]]
    difference = shown(found["task"], found["difference"])
    p = "" if found["p"] is None else f", p {found['p']:.3f}"
    task = found["task"].replace("_", " ")
    return (
        f"- {found['one']} {sign} {found['other']} on {task}: "
        f"{found['verdict']} ({difference:+.1f}{p})"
    )


def draw(results, path):
    """Writes the chart as SVG: points, or lines over steps, with error bars.

    A row of panels for each column: ours, and beside it the paper's where it
    has figures.
    """
    from matplotlib.figure import Figure

    columns = results["columns"]
    theirs = {column: _papers(results, column) for column in columns}
    beside = any(theirs.values())
    height = max(2.4, 0.34 * len(results["scores"]) + 0.9)
    figure = Figure(
        figsize=(9.5 if beside else 5.7, height * len(columns)),
        layout="constrained",
    )
    panels = figure.subplots(
        len(columns),
        1 + beside,
        squeeze=False,
        width_ratios=(3, 2)[: 1 + beside],
    )
    paint = _lines if results["steps"] else _ours
    for (ours, *rest), (column, figures) in zip(
        panels, theirs.items(), strict=True
    ):
        paint(ours, results, column)
        ours.set_title(f"{column.replace('_', ' ')}: ours", loc="left")
        for axes in rest:
            _theirs(axes, figures)
    figure.suptitle(results["title"], x=0.01, ha="left")
    save(figure, path, format="svg", metadata={"Date": None})


def _summary(results, name, column):
    """Mean and deviation of a variant; None where it was not scored."""
    values = results["scores"][name].get(column)
    if not values:
        return None
    numbers = [shown(column, value) for value in values]
    spread = np.std(numbers, ddof=1) if len(numbers) > 1 else 0.0
    return float(np.mean(numbers)), float(spread)


def _ours(axes, results, column):
    found = {
        name: summary
        for name in results["scores"]
        if (summary := _summary(results, name, column))
    }
    means, spreads = zip(*found.values(), strict=True)
    _points(axes, list(found), means, spreads, COLOURS[0])


def _papers(results, column):
    """The paper's figures of the variants that have a score of ours."""
    return {
        name: figures[column]
        for name, figures in results["paper"].items()
        if column in figures and results["scores"][name].get(column)
    }


def _theirs(axes, figures):
    """Draws the paper's figures, or nothing where it has none."""
    if not figures:
        axes.set_axis_off()
        return
    names, values = zip(*figures.items(), strict=True)
    _points(axes, names, values, None, COLOURS[1])
    axes.set_title("the paper's", loc="left")


def _points(axes, names, values, spreads, colour):
    """A point a name, from the top down, its value beside it."""
    axes.errorbar(values, names, xerr=spreads, color=colour, fmt="o", capsize=3)
    for name, value in zip(names, values, strict=True):
        axes.annotate(
            f"{value:.1f}",
            (value, name),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    axes.margins(x=0.15, y=0.2)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _lines(axes, results, column):
    groups: dict[str, list] = {}
    for name, step in results["steps"].items():
        summary = _summary(results, name, column)
        if summary:
            group = name.split(",")[0]
            groups.setdefault(group, []).append((step, *summary))
    for (group, points), colour in zip(groups.items(), COLOURS, strict=False):
        steps, means, spreads = zip(*sorted(points), strict=True)
        axes.errorbar(
            steps,
            means,
            yerr=spreads,
            label=group,
            color=colour,
            marker="o",
            markersize=4,
            capsize=3,
        )
    axes.set_xlabel("steps of pre-training")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
