"""A run's report: one self-contained HTML page with charts as inline SVG.

Other modules make the sections of a page. The templates of sections, tables and
charts are in `official_tasks/report.html`. `write_report` writes the page of a
run to report.html in the run's folder.
"""

import math
from pathlib import Path

import jinja2
import numpy as np
from markupsafe import Markup

from bert_keras import files
from official_tasks import progress

MAX_LABEL_LENGTH = 40  # characters of a class name in the confusion matrix
LONG_WORD = 30  # characters; a longer word makes a table's column too wide
COLOURS = ("#2f6fde", "#e0872b")


def _is_wide(value):
    words = [] if isinstance(value, Markup) else str(value).split()
    return any(len(word) > LONG_WORD for word in words)


_environment = jinja2.Environment(
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
)
_environment.tests["wide"] = _is_wide
_parts = _environment.get_template("report.html").module
page, section, tiles = _parts.page, _parts.section, _parts.tiles
notes, charts, table = _parts.notes, _parts.charts, _parts.table
show_predictions = _parts.show_predictions


def write_report(folder, content):
    """Write a page to report.html in the folder of a run."""
    with (
        folder.output("report.html") as path,
        open(path, "w", encoding="utf-8") as file,
    ):
        file.write(content)


def note_finished(folder):
    """Print that a run is finished, and whether report or logs are missing."""
    progress.console.print(
        f"{folder.path}: already finished; nothing was trained", soft_wrap=True
    )
    for name in ("logs", "report.html"):
        if not files.exists(folder.file(name)):
            progress.console.print(
                f"note: {folder.file(name)} is missing. A finished run does "
                "not write it again. The results and the model do not need it.",
                soft_wrap=True,
            )


def line_chart(title, axis, lines, is_fraction=False, bounds=()) -> str:
    """Return a line chart as SVG, or "" if no y is a finite number.

    Args:
        title: title of the chart.
        axis: name of the x axis.
        lines: dict: name of a line -> (x, y), two lists. y may contain None.
        is_fraction: True to show y in percent.
        bounds: x values at which the chart has dotted vertical lines.
    """
    drawn = {
        name: [
            (a, b)
            for a, b in zip(x, y, strict=True)
            if b is not None and math.isfinite(b)
        ]
        for name, (x, y) in lines.items()
    }
    points = [point for line in drawn.values() for point in line]
    if not points:
        return ""
    xs, ys = zip(*points, strict=True)
    left, low = min(xs), min(ys)
    width, height = max(xs) - left or 1, max(ys) - low or 1

    def place(x, y):
        x, y = 60 + 380 * (x - left) / width, 250 - 200 * (y - low) / height
        return round(float(x), 1), round(float(y), 1)

    values = [low + part * height for part in (0, 0.5, 1)]
    return _parts.chart(
        *(title, axis, (_round(left), _round(max(xs)))),
        [
            (place(left, y)[1], f"{y:.1%}" if is_fraction else _round(y))
            for y in values
        ],
        [place(bound, low)[0] for bound in bounds],
        [
            (name, COLOURS[number % len(COLOURS)], [place(*p) for p in line])
            for number, (name, line) in enumerate(drawn.items())
        ],
    )


def _round(value):
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def confusion_table(labels, counts) -> str:
    """Return the confusion matrix `counts`, `(C, C)`, as an HTML table.

    Rows are true classes, columns are predicted classes.
    """
    counts = np.array(counts)
    parts = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    rows = [zip(*pair, strict=True) for pair in zip(counts, parts, strict=True)]
    return _parts.confusion([_shorten(label) for label in labels], rows)


def _shorten(label):
    label = " ".join(label.split())
    is_long = len(label) > MAX_LABEL_LENGTH
    return f"{label[: MAX_LABEL_LENGTH - 1]}…" if is_long else label
