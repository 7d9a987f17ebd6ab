"""Draws the Mermaid flowcharts of the pages as SVG, for a site without network.

Only what docs/architecture.md uses is read: boxes `name["text"]`, and arrows
`a --> b` and `a -->|text| b`, with boxes defined where they first occur.
"""

import html
import re

BOX = r"(\w+)(?:\[\"(.*?)\"\])?"
ARROW = re.compile(rf"^\s*{BOX}\s*-->\s*(?:\|\"?(.*?)\"?\|\s*)?{BOX}\s*$")
BLOCK = re.compile(r"^```mermaid\n(.*?)^```\n", re.M | re.S)
WIDTH, HEIGHT, GAP, LEFT = 380, 48, 40, 20  # of a box; between boxes; margin
STEP, SIDE = 26, 90  # between two curved arrows; room for the first


def draw_all(text):
    """Return a page's text with its flowcharts as SVG."""
    return BLOCK.sub(lambda match: draw(match[1]), text)


def read_flowchart(source):
    """Return (boxes, arrows): name -> text, and a list of (from, to, text)."""
    boxes, arrows = {}, []
    for line in source.splitlines():
        if not line.strip() or line.startswith("flowchart"):
            continue
        match = ARROW.match(line)
        if match is None:
            raise ValueError(
                f"Expected an arrow between two boxes, got {line!r}"
            )
        start, start_text, label, end, end_text = match.groups()
        for name, text in ((start, start_text), (end, end_text)):
            if text or name not in boxes:
                boxes[name] = text or name
        arrows.append((start, end, label or ""))
    return boxes, arrows


def draw(source):
    """Return a flowchart as an SVG element.

    The boxes stand in one column, in the order of the source. An arrow to the
    next box is straight; other arrows go around the right side.
    """
    boxes, arrows = read_flowchart(source)
    tops = {name: n * (HEIGHT + GAP) + 4 for n, name in enumerate(boxes)}
    parts = [_draw_box(tops[name], text) for name, text in boxes.items()]
    curves = 0
    for start, end, label in arrows:
        if tops[end] - tops[start] == HEIGHT + GAP:
            parts.append(_draw_straight(tops[end], label))
        else:
            parts.append(_draw_curve(tops[start], tops[end], label, curves))
            curves += 1
    width = LEFT + WIDTH + SIDE + STEP * curves + 220
    height = len(boxes) * (HEIGHT + GAP) - GAP + 8
    return (
        f'<svg class="diagram" viewBox="0 0 {width} {height}" role="img" '
        'xmlns="http://www.w3.org/2000/svg"><defs><marker id="tip" '
        'viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
        f"{''.join(parts)}</svg>\n"
    )


def _draw_box(top, text):
    file, _, function = text.partition("<br/>")
    middle = LEFT + WIDTH / 2
    return (
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
        f'<text x="{middle}" y="{top + 19}">{html.escape(file)}</text>'
        f'<text x="{middle}" y="{top + 38}" class="function">'
        f"{html.escape(function)}</text>"
    )


def _draw_straight(end, label):
    x = LEFT + WIDTH / 2
    return (
        f'<path class="arrow" d="M{x} {end - GAP} V{end}"/>'
        f'<text x="{x + 8}" y="{end - GAP / 2 + 5}" class="label">'
        f"{html.escape(label)}</text>"
    )


def _draw_curve(start, end, label, number):
    right = LEFT + WIDTH
    x = right + SIDE / 3 + STEP * number
    # Arrows leave in the lower part of a box and arrive in the upper part.
    begin, finish = start + HEIGHT * 2 / 3, end + HEIGHT / 3
    return (
        f'<path class="arrow" d="M{right} {begin} H{x} V{finish} H{right}"/>'
        f'<text x="{x + 8}" y="{(begin + finish) / 2}" class="label">'
        f"{html.escape(label)}</text>"
    )
