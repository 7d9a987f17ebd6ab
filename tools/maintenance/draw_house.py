"""Draws which rooms import which, from the imports themselves.

    python tools/maintenance/draw_house.py --output=docs/charts/house.svg

In: the checkout. Out: an SVG picture, one box a room with its files and lines,
one arrow where a file of a room imports one of another. Takes a second.
"""

import ast
import collections
import html
from pathlib import Path

from absl import flags

from official_tasks import script

ROOT = Path(__file__).resolve().parent.parent.parent
# Rooms from the ground up; a room imports from rows below its own only.
ROWS = (
    ("bert_keras",),
    ("bert_keras/text", "bert_keras/modeling"),
    ("bert_keras/data", "bert_keras/training", "bert_keras/interop"),
    ("bert_keras/serving",),
    ("official_tasks/tasks",),
    ("official_tasks/engine", "official_tasks/pretraining"),
    ("official_tasks/paper", "official_tasks/demo"),
    ("official_tasks", "tools"),
)
WIDTH, HEIGHT, GAP, STEP = 190, 54, 70, 112  # pixels of a box and between them


def define_flags():
    flags.DEFINE_string("output", None, "SVG file to write.")
    flags.mark_flag_as_required("output")


def room_of(module: str) -> str | None:
    """The room of a dotted module name; None where it is none of ours."""
    parts = module.split(".")
    if parts[0] not in ("bert_keras", "official_tasks", "tools"):
        return None
    folder = "/".join(parts[:2])
    return folder if any(folder in row for row in ROWS) else parts[0]


def imported_rooms(path: Path) -> set[str]:
    """The rooms that a file imports from, at the top or when called."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {room_of(name) for name in names} - {None}


def house(root: Path) -> tuple[dict, set]:
    """{room: (files, lines)} and {(room, room that it imports)}."""
    sizes, arrows = collections.defaultdict(lambda: [0, 0]), set()
    for top in ("bert_keras", "official_tasks", "tools"):
        for path in sorted((root / top).rglob("*.py")):
            relative = path.relative_to(root)
            if path.is_symlink() or "tools" in relative.parts[1:]:
                continue  # the link by which scripts are installed
            room = room_of(".".join(relative.with_suffix("").parts))
            sizes[room][0] += 1
            sizes[room][1] += path.read_text(encoding="utf-8").count("\n")
            arrows |= {(room, other) for other in imported_rooms(path)}
    return dict(sizes), {(a, b) for a, b in arrows if a != b}


def draw(sizes: dict, arrows: set) -> str:
    """The SVG text; arrows point down, to what is imported."""
    widest = max(map(len, ROWS))
    width = widest * WIDTH + (widest + 1) * GAP
    height = len(ROWS) * STEP + 40
    centre, boxes = {}, []
    for number, row in enumerate(reversed(ROWS)):
        left = (width - len(row) * WIDTH - (len(row) - 1) * GAP) / 2
        for place, room in enumerate(row):
            x, y = left + place * (WIDTH + GAP), 20 + number * STEP
            centre[room] = (x + WIDTH / 2, y)
            files, lines = sizes.get(room, (0, 0))
            boxes.append(
                f'<rect x="{x:.0f}" y="{y}" width="{WIDTH}" height="{HEIGHT}"'
                ' rx="6" fill="#f4f6fa" stroke="#456"/>'
                f'<text x="{x + WIDTH / 2:.0f}" y="{y + 23}">'
                f"{html.escape(room)}</text>"
                f'<text x="{x + WIDTH / 2:.0f}" y="{y + 42}" fill="#667">'
                f"{files} files, {lines:,} lines</text>"
            )
    lines = []
    for upper, lower in sorted(arrows):
        (x1, y1), (x2, y2) = centre[upper], centre[lower]
        # Dashed, upwards: flags and progress bars that all scripts share, or
        # a function that is imported when it is called.
        dashes = ' stroke-dasharray="3 4"' if y1 >= y2 else ""
        lines.append(
            f'<line x1="{x1:.0f}" y1="{y1 + HEIGHT}" x2="{x2:.0f}" y2="{y2}" '
            f'stroke="#9ab"{dashes} marker-end="url(#tip)"/>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} '
        f'{height}" font-family="sans-serif" font-size="13" '
        'text-anchor="middle"><rect width="100%" height="100%" fill="white"/>'
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" '
        f'fill="#789"/></marker>{"".join(lines)}{"".join(boxes)}</svg>\n'
    )


def main(values):
    with open(values.output, "w", encoding="utf-8") as file:
        file.write(draw(*house(ROOT)))


if __name__ == "__main__":
    script.start(main, define_flags)
