"""What the runs of a table say together: comparisons, text and chart."""

import warnings

import numpy as np

from bert_keras import files
from official_tasks import page, progress
from official_tasks.paper.tables import claimed_sign

LEVEL = 0.05  # probability under which a difference counts
AGREES = "agrees"
DISAGREES = "disagrees"
HIDDEN = "hidden by spread"
UNTESTED = "one seed has no spread"
COLOURS = ("#2f6fde", "#e0872b", "#1a8f5a", "#b5478f", "#64708a", "#a08a2c")


def gathered(table, seeds, scores, held_out) -> dict:
    """The results of a table.

    Args:
        scores: variant -> task -> values, one a seed.
        held_out: pre-training run -> figures, one dict a seed.

    Returns:
        dict of "title", "seeds", "columns" (tasks and, where the table has
        one, the figure of pre-training), "scores" and "paper" (of each
        variant by column; the paper's in percent), "steps", "held_out",
        "comparisons" (list of dict, what `compare` returns with "one",
        "other", "task" and "claimed", the sign in the paper) and
        "deviations".
    """
    columns = {row.name: row.column for row in table.tasks}
    values = {name: dict(own) for name, own in scores.items()}
    if table.held_out:
        columns[table.held_out] = table.held_out
        for name, variant in table.variants.items():
            figures = held_out[variant.run]
            values[name][table.held_out] = [f[table.held_out] for f in figures]
    comparisons = [
        _compared(table, values, one, other, task, column)
        for one, other in table.comparisons
        for task, column in columns.items()
        if task in values[one] and task in values[other]
    ]
    return {
        "title": table.title,
        "seeds": seeds,
        "columns": list(columns),
        "scores": values,
        "paper": {
            name: {
                task: variant.figures[column]
                for task, column in columns.items()
                if column in variant.figures
            }
            for name, variant in table.variants.items()
        },
        "steps": table.steps,
        "held_out": held_out,
        "comparisons": comparisons,
        "deviations": list(table.deviations),
    }


def _compared(table, values, one, other, task, column):
    claimed = claimed_sign(table, one, other, column)
    first, second = values[one][task], values[other][task]
    if task == table.held_out:  # the lower the better
        first, second = second, first
    names = {"one": one, "other": other, "task": task, "claimed": claimed}
    return names | compare(first, second, claimed)


def compare(one, other, claimed=1) -> dict:
    """A paired t test of two variants over the same seeds.

    Args:
        one, other: their scores, one a seed.
        claimed: sign of `one` minus `other` in the paper; 0 where it has
            neither above the other.

    Returns:
        dict: "difference", its mean; "deviation" of the differences and "p",
        two-sided (None of one seed); "verdict".
    """
    from scipy import stats

    differences = np.asarray(one, float) - np.asarray(other, float)
    mean = float(differences.mean())
    deviation, p, verdict = None, None, UNTESTED
    if len(differences) > 1:
        deviation = float(differences.std(ddof=1))
        if deviation == 0:
            p = float(mean == 0)
        else:
            with warnings.catch_warnings():  # of differences that are alike
                warnings.simplefilter("ignore", RuntimeWarning)
                p = float(stats.ttest_1samp(differences, 0).pvalue)
        verdict = HIDDEN
        if p < LEVEL:
            verdict = AGREES if mean * claimed > 0 else DISAGREES
    return {
        "difference": mean,
        "deviation": deviation,
        "p": p,
        "verdict": verdict,
    }


def write(folder, results):
    """Writes results.json, table.txt and, with matplotlib, table.svg."""
    text = results_text(results)
    with folder.output("results.json") as path:
        files.write_json(results, path)
    with (
        folder.output("table.txt") as path,
        open(path, "w", encoding="utf-8") as file,
    ):
        file.write(text)
    progress.console.print(text, soft_wrap=True)
    if not page.can_draw("table.svg"):
        return
    with page.may_fail("table.svg"), folder.output("table.svg") as path:
        draw_results(results, path)


def results_text(results) -> str:
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
    lines += [_comparison(each) for each in results["comparisons"]]
    if results["deviations"]:
        lines += ["", "Otherwise than in the paper:"]
        lines += [f"- {line}" for line in results["deviations"]]
    return "\n".join(lines) + "\n"


def in_percent(column, value):
    """A score in percent; a perplexity as it is."""
    return value if column.endswith("perplexity") else 100 * value


def _summary(results, name, column):
    """Mean and deviation of a variant, 0 of one seed; None if not scored."""
    values = results["scores"][name].get(column)
    if not values:
        return None
    numbers = [in_percent(column, value) for value in values]
    spread = np.std(numbers, ddof=1) if len(numbers) > 1 else 0.0
    return float(np.mean(numbers)), float(spread)


def _cell(results, name, column):
    summary = _summary(results, name, column)
    if summary is None:
        return ""
    mean, spread = summary
    words = [f"{mean:.1f}"]
    if results["seeds"] > 1:
        words.append(f"± {spread:.1f}")
    if column in results["paper"][name]:
        words.append(f"({results['paper'][name][column]:g})")
    return " ".join(words)


def _comparison(compared):
    sign = {1: "above", 0: "level with", -1: "below"}[compared["claimed"]]
    task, p = compared["task"], compared["p"]
    difference = in_percent(task, compared["difference"])
    p = "" if p is None else f", p {p:.3f}"
    return (
        f"- {compared['one']} {sign} {compared['other']} on "
        f"{task.replace('_', ' ')}: {compared['verdict']} "
        f"({difference:+.1f}{p})"
    )


def draw_results(results, path):
    """Writes the chart as SVG: points, or lines over steps, with error bars.

    A row of panels for each column: ours, and next to it the paper's where it
    has figures.
    """
    from matplotlib.figure import Figure

    columns = results["columns"]
    paper = {  # of the variants that have a score of ours
        column: {
            name: figures[column]
            for name, figures in results["paper"].items()
            if column in figures and results["scores"][name].get(column)
        }
        for column in columns
    }
    has_paper = any(paper.values())
    height = max(2.4, 0.34 * len(results["scores"]) + 0.9)
    figure = Figure(
        figsize=(9.5 if has_paper else 5.7, height * len(columns)),
        layout="constrained",
    )
    panels = figure.subplots(
        len(columns),
        1 + has_paper,
        squeeze=False,
        width_ratios=(3, 2)[: 1 + has_paper],
    )
    paint = _lines if results["steps"] else _ours
    for (ours, *theirs), (column, figures) in zip(
        panels, paper.items(), strict=True
    ):
        paint(ours, results, column)
        ours.set_title(f"{column.replace('_', ' ')}: ours", loc="left")
        for axes in theirs:
            if figures:
                draw_points(axes, figures, figures.values(), None, COLOURS[1])
                axes.set_title("the paper's", loc="left")
            else:
                axes.set_axis_off()
    figure.suptitle(results["title"], x=0.01, ha="left")
    page.save(figure, path, format="svg", metadata={"Date": None})


def _ours(axes, results, column):
    summaries = {
        name: summary
        for name in results["scores"]
        if (summary := _summary(results, name, column))
    }
    means, spreads = zip(*summaries.values(), strict=True)
    draw_points(axes, summaries, means, spreads, COLOURS[0])


def draw_points(axes, names, values, spreads, colour):
    """A point a name, from the top down, its value above it."""
    names, values = list(names), list(values)
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
