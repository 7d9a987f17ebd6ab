"""Draws the held-out figures of pre-training runs, one after another.

    python tools/maintenance/draw_curve.py --runs=runs/mini_short,runs/mini \
        --output=docs/charts/own_model.svg

In: run folders of official_tasks.pretrain, each of which began with the
weights of the one before. Out: an SVG picture of the shares of masked pieces
and of next sentences that were predicted right, over all tokens, dotted where
the rows become longer; and the rows of the table of docs/own_model.md, printed.
Takes a second.
"""

import json
from pathlib import Path

from absl import flags

from bert_keras import files
from official_tasks import page, script
from official_tasks.pretraining.settings import (
    phase_at,
    phases,
    recorded,
    tokens_until,
)

LINES = {
    "val_mlm_accuracy": "masked pieces",
    "val_nsp_accuracy": "next sentence",
}


def define_flags():
    flags.DEFINE_list("runs", None, "Run folders, with commas between.")
    flags.DEFINE_string("output", None, "SVG file to write.")
    flags.mark_flags_as_required(["runs", "output"])


def read_runs(folders):
    """The evaluations of all runs, and the tokens at which rows grow.

    Returns:
        list of dict, the lines of metrics.jsonl with "tokens" counted from
        the first run on and "length", pieces a row; and list of float,
        million tokens.
    """
    points, bounds, before = [], [], 0
    for folder in map(Path, folders):
        settings = recorded(files.read_json(folder / "run.json")["settings"])
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            point = json.loads(line)
            point["tokens"] += before
            phase = phase_at(point["step"], settings)
            point["length"] = phase.sequence_length
            points.append(point)
        for phase in phases(settings):
            end = before + tokens_until(phase.last, settings)
            bounds.append(end / 1e6)
        before += tokens_until(settings.steps, settings)
    return points, bounds[:-1]


def main(values):
    points, bounds = read_runs(values.runs)
    tokens = [point["tokens"] / 1e6 for point in points]
    lines = {
        name: (tokens, [point[key] for point in points])
        for key, name in LINES.items()
    }
    drawn = page.line_chart(
        "Predicted right, held out", "million tokens", lines, True, bounds
    )
    picture = str(drawn).removeprefix("<div>").removesuffix("</div>")
    Path(values.output).write_text(picture, encoding="utf-8")
    for point in points:
        print(
            f"| {point['length']} | {point['step']:,} "
            f"| {point['tokens'] / 1e6:.2f} "
            f"| {point['val_mlm_accuracy']:.1%} "
            f"| {point['val_mlm_perplexity']:,.0f} "
            f"| {point['val_nsp_accuracy']:.1%} |"
        )


if __name__ == "__main__":
    script.start(main, define_flags, tensorflow=False)
