"""A run's report: one self-contained HTML page with charts as inline SVG.

A page is a list of sections of text, tables and charts. All values but `Html`
are escaped. The sections of a run's report are next to that run's code.
"""

import html
import importlib.util
import io
import warnings

import numpy as np

from bert_keras import files
from official_tasks import progress

LONGEST_LABEL = 40  # characters of a class in a chart
LONG_WORD = 30  # characters; a link is longer
STYLE = """
:root { --ink: #1d2433; --soft: #64708a; --line: #e3e7ef; --accent: #2f6fde;
  --good: #1a8f5a; --page: #f6f7fa; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 40px 20px 60px; }
h1 { margin: 0; font-size: 30px; } h2 { margin: 0 0 4px; font-size: 19px; }
p { margin: 4px 0 14px; color: var(--soft); }
section { background: #fff; border: 1px solid var(--line); margin-top: 20px;
  border-radius: 12px; padding: 22px 24px; overflow-x: auto; }
.tiles { display: grid; gap: 14px; margin-top: 24px;
  grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); }
.tile { background: #fff; border: 1px solid var(--line); padding: 16px 18px;
  border-radius: 12px; }
.tile b { display: block; font-size: 28px; line-height: 1.2; }
.tile span { color: var(--soft); font-size: 14px; }
.charts { display: grid; gap: 20px;
  grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); }
svg { width: 100%; height: auto; }
.small svg { max-width: 560px; }
table { border-collapse: collapse; width: 100%; font-size: 15px; }
td, th { padding: 7px 10px; border-top: 1px solid var(--line);
  text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 500; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.long { overflow-wrap: anywhere; }
mark { background: #fff0c2; border-radius: 4px; padding: 0 4px; }
.chip { display: inline-block; margin: 2px 4px 2px 0; padding: 0 8px;
  border-radius: 10px; background: #eef2f9; font-size: 14px; }
.chip.right { background: #d9f2e5; color: var(--good); font-weight: 600; }
pre { background: #1d2433; color: #eef2f9; border-radius: 8px; margin: 0;
  padding: 14px 16px; overflow-x: auto; font-size: 14px; }
"""


class Html(str):
    """HTML, which is not escaped again."""


def escape(value) -> str:
    """Return a value as HTML."""
    return value if isinstance(value, Html) else html.escape(str(value))


def page(title, heading, text, sections) -> str:
    """Return the page.

    Args:
        title: of the browser's window.
        heading: of the page.
        text: the sentence below the heading.
        sections: of `section`, `tiles` and the like; empty ones are left out.
    """
    return "\n".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8>",
            "<meta name=viewport content='width=device-width'>",
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style><main>",
            f"<h1>{escape(heading)}</h1><p>{escape(text)}</p>",
            *filter(None, sections),
            "</main></html>",
        ]
    )


def section(heading, text, *parts) -> Html:
    """Return a heading, a sentence, and tables or charts."""
    return Html(
        f"<section><h2>{escape(heading)}</h2><p>{escape(text)}</p>"
        f"{''.join(map(escape, parts))}</section>"
    )


def tiles(metrics) -> Html:
    """Return large numbers, of pairs of a value and its meaning."""
    cells = [
        f"<div class=tile><b>{escape(value)}</b>"
        f"<span>{escape(meaning)}</span></div>"
        for value, meaning in metrics
    ]
    return Html(f"<div class=tiles>{''.join(cells)}</div>")


def notes(lines) -> Html | str:
    """Return the section of a run's notes; nothing where there are none."""
    return section("Worth a look", "", table(zip(lines))) if lines else ""


def charts(text, drawn) -> Html:
    """Return the section of a run's `line_chart`s."""
    grid = Html(f"<div class=charts>{''.join(drawn)}</div>")
    return section("Learning", text, grid)


def table(rows, head=(), numbers=()) -> Html:
    """Return a table.

    Args:
        rows: lists of cells; floats are shown with three digits.
        head: names of the columns, or none.
        numbers: indices of right-aligned columns; columns of floats are.
    """

    def cell(value, column, tag):
        if isinstance(value, float):
            return f"<{tag} class=number>{value:.3f}</{tag}>"
        style = " class=number" if column in numbers else ""
        words = [] if isinstance(value, Html) else str(value).split()
        # A word wider than its column would push the others off the page.
        if any(len(word) > LONG_WORD for word in words):
            style = " class=long"
        return f"<{tag}{style}>{escape(value)}</{tag}>"

    lines = [("th", head)] * bool(head) + [("td", row) for row in rows]
    cells = [
        "".join(cell(value, i, tag) for i, value in enumerate(line))
        for tag, line in lines
    ]
    return Html(f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>")


def show_predictions(texts, explanation) -> Html:
    """Return the section of texts with a model's predictions at their masks.

    Args:
        texts: list of dict: "text", with [MASK] in it, and "masks", each with
            the "truth" and "predictions", pairs of token and probability.
        explanation: a sentence on where the texts come from.
    """

    def chips(mask):
        tokens = [
            f"<span class='chip{' right' * (token == mask['truth'])}'>"
            f"{escape(token)} {probability:.0%}</span>"
            for token, probability in mask["predictions"]
        ]
        return f"<div><b>{escape(mask['truth'])}</b>: {''.join(tokens)}</div>"

    mark = "<mark>&nbsp;?&nbsp;</mark>"
    rows = [
        (
            Html(escape(text["text"]).replace("[MASK]", mark)),
            Html("".join(map(chips, text["masks"]))),
        )
        for text in texts
    ]
    head = ("sentence", "predictions")
    return section("Masked tokens", explanation, table(rows, head))


def can_draw(name) -> bool:
    """Return True if charts can be drawn; else print that `name` is missing."""
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    progress.console.print(
        f"note: no {name}, which needs matplotlib: pip install "
        "'bert_keras[plots]'"
    )
    return False


def write_report(folder, render):
    """Write report.html to a run's folder: the HTML that `render()` returns.

    Without matplotlib, or where drawing fails, print a note: the drawing at
    the end of a run is not worth the run.
    """
    if not can_draw("report.html"):
        return
    try:
        with (
            folder.output("report.html") as path,
            open(path, "w", encoding="utf-8") as file,
        ):
            file.write(render())
    except Exception as error:  # of any library
        progress.console.print(
            f"note: no report.html: it cannot be drawn ({type(error).__name__}:"
            f" {error})"
        )


def note_finished(folder):
    """Print that a run is finished, and which of its files for people it lacks.

    Nothing else reads `report.html` and `logs`.
    """
    progress.console.print(
        f"{folder.path}: finished before; nothing trained", soft_wrap=True
    )
    expected = ["logs"]
    if importlib.util.find_spec("matplotlib") is not None:
        expected.append("report.html")
    for name in expected:
        if not files.exists(folder.file(name)):
            progress.console.print(
                f"note: {folder.file(name)} is missing. A run writes it once; "
                "the results and the model do not need it.",
                soft_wrap=True,
            )


def make_figure(width, height):
    """Return an empty figure of this size in inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw(figure):
    """Return a figure as SVG, the same bytes for the same figure.

    All text is shown as it is. By default matplotlib reads text between two
    dollar signs as a formula, and warns of characters that its font lacks; a
    browser has other fonts.
    """
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    style = {"svg.fonttype": "none", "svg.hashsalt": "0"}
    # For the texts that are made later, such as those of ticks.
    style["text.parse_math"] = False
    file = io.StringIO()
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()[file.getvalue().index("<svg") :]


def line_chart(title, axis, lines, is_fraction=False, bounds=()):
    """Return a chart of lines over one axis.

    Args:
        title: of the chart.
        axis: name of the x axis.
        lines: name -> (x, y).
        is_fraction: show y in percent.
        bounds: x of dotted vertical lines.
    """
    figure, axes = make_figure(4.6, 3.2)
    colours = ("#2f6fde", "#e0872b")
    for (name, (x, y)), colour in zip(lines.items(), colours, strict=False):
        axes.plot(x, y, label=name, color=colour, marker="o", markersize=3)
    for x in bounds:
        axes.axvline(x, color="#64708a", linestyle=":", linewidth=1)
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(axis)
    if axis == "step":
        steps = {"integer": True, "min_n_ticks": 1}
        axes.xaxis.get_major_locator().set_params(**steps)
    axes.grid(axis="y", color="#e3e7ef")
    if is_fraction:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(frameon=False, fontsize=9)
    return Html(f"<div>{draw(figure)}</div>")


def confusion_chart(labels, counts):
    """Return the confusion matrix as a chart; a row is a true class."""
    labels = [_shorten(label) for label in labels]
    counts = np.array(counts)
    fractions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axes = make_figure(
        0.62 * len(labels) + 2.6, 0.42 * len(labels) + 1.5
    )
    axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, column in np.ndindex(*counts.shape):
        colour = "white" if fractions[row, column] > 0.55 else "#1d2433"
        number = f"{counts[row, column]:,}"
        axes.text(column, row, number, ha="center", va="center", color=colour)
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    return Html(f"<div class=small>{draw(figure)}</div>")


def _shorten(label):
    """Return a label in one line that leaves room for the chart."""
    label = " ".join(label.split())
    is_long = len(label) > LONGEST_LABEL
    return f"{label[: LONGEST_LABEL - 1]}…" if is_long else label
