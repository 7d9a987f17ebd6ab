"""A run's report: one self-contained HTML page with charts as inline SVG.

A page is a list of sections of text, tables and charts. Whatever is not `Html`
is text and is escaped. What the page of a kind of run shows is next to that
run's code.
"""

import contextlib
import html
import importlib.util
import io
import warnings

import numpy as np

from bert_keras import files
from official_tasks import progress

LONGEST_LABEL = 40  # characters of a class in a chart
LONG_WORD = 30  # characters; links are longer
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
    """Text that is HTML already: it is not escaped again."""


def escaped(value) -> str:
    return value if isinstance(value, Html) else html.escape(str(value))


def page(title, heading, text, sections) -> str:
    """The page.

    Args:
        title: of the browser's window.
        heading, text: what it opens with.
        sections: what `section` and `tiles` return; empty ones are left out.
    """
    return "\n".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8>",
            "<meta name=viewport content='width=device-width'>",
            f"<title>{escaped(title)}</title>",
            f"<style>{STYLE}</style><main>",
            f"<h1>{escaped(heading)}</h1><p>{escaped(text)}</p>",
            *filter(None, sections),
            "</main></html>",
        ]
    )


def section(heading, text, *parts) -> Html:
    """A heading, a sentence, and tables or charts."""
    return Html(
        f"<section><h2>{escaped(heading)}</h2><p>{escaped(text)}</p>"
        f"{''.join(map(escaped, parts))}</section>"
    )


def tiles(figures) -> Html:
    """Large figures; pairs of a value and what it means."""
    cells = [
        f"<div class=tile><b>{escaped(value)}</b>"
        f"<span>{escaped(meaning)}</span></div>"
        for value, meaning in figures
    ]
    return Html(f"<div class=tiles>{''.join(cells)}</div>")


def charts(text, drawn) -> Html:
    """The section of a run's `line_chart`s."""
    grid = Html(f"<div class=charts>{''.join(drawn)}</div>")
    return section("Learning", text, grid)


def table(rows, head=(), numbers=()) -> Html:
    """A table.

    Args:
        rows: lists of cells. Floats have three digits.
        head: names of the columns; none where it is empty.
        numbers: indices of columns that stand to the right; columns of floats
            do.
    """

    def cell(value, column, kind):
        if isinstance(value, float):
            return f"<{kind} class=number>{value:.3f}</{kind}>"
        style = " class=number" if column in numbers else ""
        words = [] if isinstance(value, Html) else str(value).split()
        # A word that no column can hold would push others off the page.
        if any(len(word) > LONG_WORD for word in words):
            style = " class=long"
        return f"<{kind}{style}>{escaped(value)}</{kind}>"

    lines = [("th", head)] * bool(head) + [("td", row) for row in rows]
    return Html(
        "<table>"
        + "".join(
            "<tr>"
            + "".join(cell(v, i, kind) for i, v in enumerate(line))
            + "</tr>"
            for kind, line in lines
        )
        + "</table>"
    )


def guesses_section(guesses, text) -> Html:
    """Texts with masks and the model's guesses there.

    Args:
        guesses: list of dict, "text" with [MASK] in it, and "masks", each
            with the "truth", "guesses", pairs of piece and probability, and
            maybe "packaged", such pairs of the model that the package brings.
        text: a sentence on where they come from.
    """
    heads = {"guesses": "guesses", "packaged": "the packaged model guesses"}
    masks = [mask for guess in guesses for mask in guess["masks"]]
    shown = [name for name in heads if all(name in mask for mask in masks)]

    def chips(mask, name):
        pieces = [
            f"<span class='chip{' right' * (piece == mask['truth'])}'>"
            f"{escaped(piece)} {probability:.0%}</span>"
            for piece, probability in mask[name]
        ]
        return f"<div><b>{escaped(mask['truth'])}</b>: {''.join(pieces)}</div>"

    mark = "<mark>&nbsp;?&nbsp;</mark>"
    rows = [
        (
            Html(escaped(guess["text"]).replace("[MASK]", mark)),
            *(
                Html("".join(chips(mask, name) for mask in guess["masks"]))
                for name in shown
            ),
        )
        for guess in guesses
    ]
    columns = ("sentence", *map(heads.get, shown))
    return section("Masked pieces", text, table(rows, columns))


def can_draw(name) -> bool:
    """Whether charts can be drawn; if not, prints that `name` is left out."""
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    progress.console.print(
        f"note: no {name}, which needs matplotlib: pip install "
        "'bert_keras[plots]'"
    )
    return False


@contextlib.contextmanager
def may_fail(name):
    """Prints why there is no `name`, where writing it fails.

    What is drawn at the end of a run is not worth the run.
    """
    try:
        yield
    except Exception as error:  # whatever it is
        progress.console.print(
            f"note: no {name}: it cannot be drawn ({type(error).__name__}: "
            f"{error})"
        )


def note_finished(folder):
    """Print that a run trains no more, and what of it to look at is missing.

    `report.html` and `logs` are for people: nothing else reads them.
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


def write_report(folder, render):
    """Writes report.html to a run's folder: the HTML that `render()` returns.

    Without matplotlib, or where drawing fails, a note says why there is none.
    """
    if not can_draw("report.html"):
        return
    with (
        may_fail("report.html"),
        folder.output("report.html") as path,
        open(path, "w", encoding="utf-8") as file,
    ):
        file.write(render())


def figure_of(width, height):
    """An empty figure and its axes, in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure, path, **settings):
    """Writes a matplotlib figure, in which any text is shown as it is.

    matplotlib reads what stands between two dollar signs as a formula, and
    warns of characters that its font lacks; a browser has others.

    Args:
        settings: as for `Figure.savefig`.
    """
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    style = {"svg.fonttype": "none", "svg.hashsalt": "0"}
    # For the texts that are made only now, such as those of ticks.
    style["text.parse_math"] = False
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(path, **settings)


def svg(figure):
    """A matplotlib figure as SVG, the same bytes for the same figure."""
    text = io.StringIO()
    save(figure, text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def line_chart(title, axis, lines, share=False, bounds=()):
    """Lines over one axis.

    Args:
        lines: name -> (x, y).
        share: whether y is shown in percent.
        bounds: x of dotted upright lines.
    """
    figure, axes = figure_of(4.6, 3.2)
    colours = ("#2f6fde", "#e0872b")
    for (name, (x, y)), colour in zip(lines.items(), colours, strict=False):
        axes.plot(x, y, label=name, color=colour, marker="o", markersize=3)
    for x in bounds:
        axes.axvline(x, color="#64708a", linestyle=":", linewidth=1)
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(axis)
    if axis == "step":  # there is no half a step
        steps = {"integer": True, "min_n_ticks": 1}
        axes.xaxis.get_major_locator().set_params(**steps)
    axes.grid(axis="y", color="#e3e7ef")
    if share:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(frameon=False, fontsize=9)
    return Html(f"<div>{svg(figure)}</div>")


def confusion_chart(labels, counts):
    """How often each class, a row, was taken for each, as a chart."""
    labels = [_clipped(label) for label in labels]
    counts = np.array(counts)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axes = figure_of(0.62 * len(labels) + 2.6, 0.42 * len(labels) + 1.5)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, column in np.ndindex(*counts.shape):
        colour = "white" if shares[row, column] > 0.55 else "#1d2433"
        number = f"{counts[row, column]:,}"
        axes.text(column, row, number, ha="center", va="center", color=colour)
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    return Html(f"<div class=small>{svg(figure)}</div>")


def _clipped(label):
    """A label that leaves room for the chart, in one line."""
    label = " ".join(label.split())
    long = len(label) > LONGEST_LABEL
    return f"{label[: LONGEST_LABEL - 1]}…" if long else label
