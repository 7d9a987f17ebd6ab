"""Measures this package and its peers in one run on one machine.

    python tools/benchmark/steps.py --rows=small,base \
        --environments=runs/peers --output=runs/benchmark.json
    python tools/benchmark/steps.py \
        --draw=runs/benchmark.json --output=runs/chart.png

In: pip; each peer gets an environment of its own in --environments, made on
first use (transformers brings PyTorch: gigabytes). An existing one is used as
it is. Some rows need text (--input, --vocabulary), a task's
official files (--data) or weights (--init) and say so. Out: a table on the
terminal and as JSON, for each row the seconds an example of every contender,
median and spread of turns that alternate, the ratio to the best peer, and the
limit: the matrix products of the step and nothing else; for rows of growth,
the exponent. --check=RECORDED compares the ratios with those of an earlier file
and fails where one fell by more than --margin. Rows in bfloat16 are left out on
a processor without it, and so are peers that take longer than --limit. Takes 1
to 5 minutes a row.
"""

import tempfile

from absl import flags

from official_tasks import script


def define_flags():
    flags.DEFINE_list("rows", [], "Rows to measure; all where none is named.")
    flags.DEFINE_string("environments", "runs/peers", "Where peers lie.")
    flags.DEFINE_string("output", None, "JSON file, or chart, to write.")
    script.define_overwrite()
    flags.DEFINE_integer("turns", 9, "Steps of each contender.", lower_bound=1)
    flags.DEFINE_float(
        "limit",
        600,
        "Seconds that a contender may take to be ready, and for a step.",
        lower_bound=1,
    )
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
        *("init", "check", "limit"),
    )


def main(values):
    from contenders import table
    from contenders.turns import kind, machine

    from bert_keras.errors import InputError
    from bert_keras.files import write_json
    from official_tasks import progress

    def print_rows(what, rows):
        if rows:
            progress.console.print(f"{what}: {', '.join(rows)}")

    script.prepare_output(values)
    if values.draw:
        if not values.output:
            raise InputError("Give --output, the chart to write.")
        left_out = table.draw(recorded(values.draw), values.output)
        print_rows("not drawn", left_out)
        return
    # Read before anything is measured: it may be broken.
    earlier = recorded(values.check, kind()) if values.check else None
    results = {"machine": machine(), "rows": {}}
    for name, row in measured_rows(values):
        results["rows"][name] = row
        if values.output:  # after each row: a later one may fail
            write_json(results, values.output)
    text = table.as_text(results)
    progress.console.print(text, markup=False, soft_wrap=True)
    if values.check:
        print_rows("not compared", table.check(results, earlier, values.margin))


def recorded(path, kind=None):
    """The results in a file, or one sentence where they are none.

    Args:
        path: what --output wrote, or one of these for each kind of processor.
        kind: which of them, as `turns.kind` names it.
    """
    from bert_keras.errors import InputError
    from bert_keras.files import read_json

    try:
        results = read_json(path)
        results = results.get(kind, results)
        results["rows"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        of_kind = f" of a processor with {kind}" if kind else ""
        raise InputError(
            f"{path} holds no results{of_kind}. Expected a file that --output "
            "wrote."
        ) from None
    return results


def measured_rows(values):
    """Each row asked for: name, and title, goal and figures."""
    from contenders import turns
    from contenders.inputs import Inputs
    from contenders.rows import ROWS

    from bert_keras.errors import InputError
    from official_tasks import progress

    names = values.rows or list(ROWS)
    for name in names:
        if name not in ROWS:
            raise InputError(f"No row {name!r}: expected {', '.join(ROWS)}")
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
            row = ROWS[name]
            head = {k: row[k] for k in ("title", "goal", "growth") if k in row}
            try:
                measured = turns.measure_row(
                    row, inputs, values.turns, values.limit
                )
            except turns.LeftOutError as error:
                progress.console.print(f"{name} is left out: {error}")
            else:
                yield name, head | measured


if __name__ == "__main__":
    script.start(main, define_flags)
