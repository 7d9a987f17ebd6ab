"""Measures this package beside its peers, in one run on one machine.

    python tools/benchmark/steps.py --rows=small,base \
        --environments=runs/peers --output=runs/benchmark.json
    python tools/benchmark/steps.py \
        --draw=runs/benchmark.json --output=runs/chart.png

In: pip; each peer gets an environment of its own in --environments, made on
first use (transformers brings PyTorch: gigabytes). One that lies there already
is taken as it is. Some rows need text (--input, --vocabulary), a task's
official files (--data) or weights (--init) and say so. Out: a table on the
terminal and as JSON, for each row the seconds an example of every contender,
median and spread of turns that alternate, the ratio to the best peer, and the
limit: the matrix products of the step and nothing else; for rows of growth,
the exponent. --check=RECORDED compares the ratios with those of an earlier file
and fails where one fell by more than --margin. Takes 1 to 5 minutes a row.
"""

import os
import platform
import subprocess
import tempfile

from absl import flags

from official_tasks import script


def define_flags():
    flags.DEFINE_list("rows", [], "Rows to measure; all where none is named.")
    flags.DEFINE_string("environments", "runs/peers", "Where peers lie.")
    flags.DEFINE_string("output", None, "JSON file, or chart, to write.")
    script.define_overwrite()
    flags.DEFINE_integer("turns", 9, "Steps of each contender.", lower_bound=1)
    flags.DEFINE_string("input", None, "Text of any kind.")
    flags.DEFINE_string("vocabulary", None, "Uncased vocabulary, for text.")
    flags.DEFINE_string("data", None, "Folder of glue/ and squad/.")
    flags.DEFINE_string("init", None, "Weights that are fine-tuned.")
    flags.DEFINE_string("draw", None, "Results to draw; measures nothing.")
    flags.DEFINE_string("check", None, "Earlier results that must hold.")
    flags.DEFINE_float("margin", 0.15, "Share by which a ratio may fall.")
    script.applies_only("with --check", lambda v: v.check, "margin")
    script.applies_only(
        "without --draw, which measures nothing",
        lambda v: not v.draw,
        *("rows", "environments", "turns", "input", "vocabulary", "data"),
        *("init", "check"),
    )


def main(values):
    from bert_keras.errors import InputError
    from bert_keras.files import write_json
    from official_tasks import progress
    from official_tasks.tools.benchmark.contenders import table

    script.prepare_output(values)
    if values.draw:
        if not values.output:
            raise InputError("Give --output, the chart to write.")
        left = table.draw(recorded(values.draw), values.output)
        return tell("not drawn", left)
    # Read before anything is measured: it may be broken.
    earlier = recorded(values.check) if values.check else None
    results = {"machine": machine(), "rows": {}}
    for name, row in measured_rows(values):
        results["rows"][name] = row
        if values.output:  # after each row: a later one may fail
            write_json(results, values.output)
    text = table.as_text(results)
    progress.console.print(text, markup=False, soft_wrap=True)
    if values.check:
        left = table.check(results, earlier, values.margin)
        tell("not compared", left)
    return None


def tell(what, rows):
    from official_tasks import progress

    if rows:
        progress.console.print(f"{what}: {', '.join(rows)}")


def recorded(path):
    """The results in a file, or one sentence where they are none."""
    from bert_keras.errors import InputError
    from bert_keras.files import read_json

    try:
        results = read_json(path)
        results["rows"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(
            f"{path} holds no results. Expected a file that --output wrote."
        ) from None
    return results


def measured_rows(values):
    """Each row asked for: name, and title, goal and figures."""
    from bert_keras.errors import InputError
    from official_tasks.tools.benchmark.contenders.inputs import Inputs
    from official_tasks.tools.benchmark.contenders.other_tools import (
        TOOL_ROWS,
        run_tool,
    )
    from official_tasks.tools.benchmark.contenders.rows import ROWS

    rows = ROWS | TOOL_ROWS
    names = values.rows or list(rows)
    for name in names:
        if name not in rows:
            raise InputError(f"No row {name!r}: expected {', '.join(rows)}")
    with tempfile.TemporaryDirectory() as folder:
        inputs = Inputs(
            folder,
            values.environments,
            values.input,
            values.data,
            values.init,
            values.vocabulary,
        )
        for name in names:
            row = rows[name]
            if "tool" in row:
                found = run_tool(row, inputs)
            else:
                found = take_turns(row, inputs, values.turns)
            told = {k: row[k] for k in ("title", "goal", "growth") if k in row}
            yield name, {**told, **found}


def take_turns(row, inputs, turns):
    """Lets a row's contenders take turns; returns their figures."""
    from official_tasks import progress
    from official_tasks.tools.benchmark.contenders.environments import (
        interpreter,
    )
    from official_tasks.tools.benchmark.contenders.turns import measured

    turns = min(turns, row.get("turns", turns))
    ready = {
        name: (
            interpreter(inputs.environments, peer),
            file,
            inputs.fill(settings),
        )
        for name, (peer, file, settings) in row["contenders"].items()
    }
    with progress.bar(row["title"], turns) as update:
        return {"contenders": measured(ready, turns, update)}


def machine() -> dict:
    """What decides the figures beside the package."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line for line in file if line.startswith("model name")]
    return {
        "processor": models[0].split(":")[1].strip() if models else "",
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "commit": _commit() or "unknown",
    }


def _commit():
    """That of this checkout; none of a wheel, or where there is no git."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            cwd=os.path.dirname(os.path.abspath(__file__)),
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    script.start(main, define_flags)
