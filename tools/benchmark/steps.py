"""Measures this package and its peers in one run on one machine.

    python tools/benchmark/steps.py --rows=small,base \
        --environments=runs/peers --output=runs/benchmark.json

In: pip; each peer gets an environment of its own in --environments, made on
first use (transformers brings PyTorch: gigabytes). An existing one is used as
it is. Some rows need text (--input, --vocabulary), a task's
official files (--data) or weights (--init) and say so. Out: a table on the
terminal and as JSON, for each row the seconds an example of every contender,
median and spread of turns that alternate, the ratio to the best peer, and the
limit: the matrix products of the step and nothing else. --check=RECORDED
compares the ratios with those of an earlier file and fails where one fell by
more than --margin. Rows in bfloat16 are left out on a processor without it, and
so are peers that take longer than --limit. Takes 1 to 5 minutes a row.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import tempfile

from absl import flags
from contenders import turns
from contenders.inputs import Inputs
from contenders.rows import ROWS
from contenders.turns import kind, machine

from bert_keras.errors import InputError
from bert_keras.files import read_json, write_json
from official_tasks import progress, script


def define_flags():
    flags.DEFINE_list("rows", [], "Rows to measure; all where none is named.")
    flags.DEFINE_string("environments", "runs/peers", "Where peers lie.")
    flags.DEFINE_string("output", None, "JSON file to write.")
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
    flags.DEFINE_string("check", None, "Earlier results that must hold.")
    flags.DEFINE_float("margin", 0.15, "Share by which a ratio may fall.")
    script.applies_only("with --check", lambda v: v.check, "margin")


def main(values):
    script.prepare_output(values)
    # Read before anything is measured: it may be broken.
    earlier = recorded(values.check, kind()) if values.check else None
    results = {"machine": machine(), "rows": {}}
    for name, row in measured_rows(values):
        results["rows"][name] = row
        if values.output:  # after each row: a later one may fail
            write_json(results, values.output)
    text = as_text(results)
    progress.console.print(text, markup=False, soft_wrap=True)
    if values.check:
        apart = check(results, earlier, values.margin)
        if apart:
            progress.console.print(f"not compared: {', '.join(apart)}")


def recorded(path, kind):
    """The results in a file, or one sentence where they are none.

    Args:
        path: what --output wrote, or one of these for each kind of processor.
        kind: which of them, as `turns.kind` names it.
    """
    try:
        results = read_json(path)
        results = results.get(kind, results)
        results["rows"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(
            f"{path} holds no results of a processor with {kind}. Expected a "
            "file that --output wrote."
        ) from None
    return results


def measured_rows(values):
    """Each row asked for: name, and title, goal and figures."""
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
            head = {"title": row["title"], "goal": row["goal"]}
            try:
                measured = turns.measure_row(
                    row, inputs, values.turns, values.limit
                )
            except turns.LeftOutError as error:
                progress.console.print(f"{name} is left out: {error}")
            else:
                yield name, head | measured


# The results as a table, and next to earlier ones.


def ratio(row):
    """How many times as fast as the best peer, and which that is.

    Returns:
        (float, peer's name), or None for a row without a peer.
    """
    figures = row["contenders"]
    not_peers = ("ours", "limit", "padded")  # ours in some way, and the limit
    peers = {
        k: v["median"]
        for k, v in figures.items()
        if not k.startswith(not_peers)
    }
    if not peers:
        return None
    best = min(peers, key=peers.get)
    return peers[best] / our_median(figures), best


def our_median(figures):
    return min(v["median"] for k, v in figures.items() if k.startswith("ours"))


def as_text(results) -> str:
    lines = []
    for row in results["rows"].values():
        lines += ["", row["title"], *_contenders(row["contenders"])]
        for name, reason in row.get("left_out", {}).items():
            lines.append(f"  {name} is left out: {reason}")
        if ratio(row):
            goal = f" (goal {row['goal']})" if row["goal"] else ""
            times, best = ratio(row)
            lines.append(f"  {times:.2f} times {best}{goal}")
    return "\n".join(lines)


def _contenders(figures):
    """A line each, the fastest first."""
    ours = our_median(figures)
    limit = figures.get("limit", {"median": None})["median"]
    yield (
        f"  {'':<24}{'ms an example':>14}{'least':>9}{'most':>9}"
        f"{'CPU ms':>9}{'by ours':>9}"
        f"{'of the limit':>14}{'peak MB':>9}"
    )
    order = sorted(figures, key=lambda name: figures[name]["median"])
    for name in order:
        figure = figures[name]
        of_limit = f"{limit / figure['median']:.2f}" if limit else ""
        yield (
            f"  {name:<24}{1000 * figure['median']:>14.1f}"
            f"{1000 * figure['least']:>9.1f}{1000 * figure['most']:>9.1f}"
            f"{1000 * figure['processor']:>9.1f}"
            f"{figure['median'] / ours:>9.2f}{of_limit:>14}"
            f"{figure['peak_megabytes']:>9}"
        )


def check(results, recorded, margin):
    """Refuses ratios that fell by more than a share of what they were.

    Returns:
        names of the rows that have no ratio now, or had none then.
    """
    fallen, apart = [], []
    for name, row in results["rows"].items():
        before = recorded["rows"].get(name)
        now, then = ratio(row), before and ratio(before)
        if now is None or then is None:
            apart.append(name)
        elif now[0] < then[0] * (1 - margin):
            fallen.append(f"{name} from {then[0]:.2f} to {now[0]:.2f}")
    if fallen:
        raise InputError(f"Slower than recorded: {', '.join(fallen)}")
    if len(apart) == len(results["rows"]):
        raise InputError(
            f"Nothing to compare: of {', '.join(apart)} there is no ratio to a "
            "peer both here and in what was recorded. Name other rows, or "
            "another file."
        )
    return apart


if __name__ == "__main__":
    script.start(main, define_flags)
