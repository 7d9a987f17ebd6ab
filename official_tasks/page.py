"""A run's report: one self-contained HTML page with charts as inline SVG.

A page is a list of sections of text, tables and charts. All values but `Html`
are escaped. The sections of a run's report are next to that run's code.
"""

import html
import math

import numpy as np

from bert_keras import files
from official_tasks import progress

LONGEST_LABEL = 40  # characters of a class name in a chart
LONG_WORD = 30  # characters; links are longer
COLOURS = ("#2f6fde", "#e0872b")
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
.cell { display: block; padding: 2px 6px; border-radius: 4px; }
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
        title: title of the browser's window.
        heading: heading of the page.
        text: the sentence below the heading.
        sections: results of `section`, `tiles`, ...; empty ones are left out.
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
        numbers: indices of columns to align right; floats always are.
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


def write_report(folder, content):
    """Write a page to report.html in the folder of a run."""
    with (
        folder.output("report.html") as path,
        open(path, "w", encoding="utf-8") as file,
    ):
        file.write(content)


def note_finished(folder):
    """Print that a run is finished, and whether report or logs are missing.

    No code reads `report.html` and `logs`, so the run counts as finished.
    """
    progress.console.print(
        f"{folder.path}: finished before; nothing trained", soft_wrap=True
    )
    for name in ("logs", "report.html"):
        if not files.exists(folder.file(name)):
            progress.console.print(
                f"note: {folder.file(name)} is missing. A run writes it once; "
                "the results and the model do not need it.",
                soft_wrap=True,
            )


def line_chart(title, axis, lines, is_fraction=False, bounds=()) -> Html:
    """Return a chart of lines over one axis, as SVG.

    Args:
        title: title of the chart.
        axis: name of the x axis.
        lines: name -> (x, y); y is None where it is unknown.
        is_fraction: show y in percent.
        bounds: x of dotted vertical lines.
    """
    drawn = {
        name: [(a, b) for a, b in zip(x, y, strict=True) if _is_number(b)]
        for name, (x, y) in lines.items()
    }
    points = [point for line in drawn.values() for point in line]
    if not points:
        return Html()
    xs, ys = zip(*points, strict=True)
    left, low = min(xs), min(ys)
    width, height = max(xs) - left or 1, max(ys) - low or 1

    def place(x, y):
        return 60 + 380 * (x - left) / width, 250 - 200 * (y - low) / height

    parts = [_text(10, 20, title, 15)]
    for part in (0, 0.5, 1):
        value = low + part * height
        _, y = place(left, value)
        shown = f"{value:.1%}" if is_fraction else _round(value)
        parts.append(f"<path d='M60 {y:.1f}H440' stroke='#e3e7ef'/>")
        parts.append(_text(54, y + 4, shown, 12, "end"))
    parts += [
        _text(60, 270, _round(left), 12),
        _text(250, 290, axis, 12, "middle"),
        _text(440, 270, _round(max(xs)), 12, "end"),
    ]
    for bound in bounds:
        x, _ = place(bound, low)
        parts.append(
            f"<path d='M{x:.1f} 50V250' stroke='#64708a' stroke-dasharray='2'/>"
        )
    for number, (name, line) in enumerate(drawn.items()):
        colour = COLOURS[number % len(COLOURS)]
        positions = [place(*point) for point in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
        for x, y in positions[-1:]:
            parts.append(f"<circle cx={x} cy={y} r=3 fill='{colour}'/>")
        parts.append(
            f"<polyline points='{path}' fill=none stroke='{colour}' "
            "stroke-width=2 stroke-linejoin=round stroke-linecap=round />"
        )
        parts.append(_text(440, 20 + 16 * number, name, 12, "end", colour))
    return Html(f"<div><svg viewBox='0 0 450 300'>{''.join(parts)}</svg></div>")


def _is_number(value):
    return value is not None and math.isfinite(value)


def _round(value):
    """Return a number with three digits, from 100 on without a fraction."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _text(x, y, value, size, anchor="start", colour="#1d2433"):
    return (
        f"<text x={x} y={y:.1f} font-size={size} text-anchor={anchor} "
        f"fill='{colour}'>{escape(value)}</text>"
    )


def confusion_table(labels, counts) -> Html:
    """Return the confusion matrix; a row is a true class."""
    labels = [_shorten(label) for label in labels]
    counts = np.array(counts)
    fractions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    cells = [
        [
            Html(
                "<span class=cell style='background:rgba(47,111,222,"
                f"{0.7 * fraction:.2f})'>{count:,}</span>"
            )
            for count, fraction in zip(*pair, strict=True)
        ]
        for pair in zip(counts, fractions, strict=True)
    ]
    rows = [[label, *row] for label, row in zip(labels, cells, strict=True)]
    return table(rows, ("", *labels), range(1, len(labels) + 1))


def _shorten(label):
    """Return a label in one line that leaves room for the chart."""
    label = " ".join(label.split())
    is_long = len(label) > LONGEST_LABEL
    return f"{label[: LONGEST_LABEL - 1]}…" if is_long else label
