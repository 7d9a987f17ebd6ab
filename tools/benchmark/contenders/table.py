"""The results as a table, as a chart, and next to earlier ones."""

import importlib.util

import numpy as np

from bert_keras.errors import InputError


def ratio(row):
    """How many times as fast as the best peer, and which that is.

    Returns:
        (float, peer's name), or None for a row without a peer.
    """
    if "times" in row:
        best = min(row["times"], key=row["times"].get)
        return row["times"][best], best
    figures = row["contenders"]
    peers = {k: v["median"] for k, v in figures.items() if is_peer(k)}
    if "growth" in row or not peers:
        return None
    best = min(peers, key=peers.get)
    return peers[best] / our_median(figures), best


def is_peer(name):
    """Neither this package in another way, nor the limit."""
    return not name.startswith(("ours", "limit", "padded"))


def our_median(figures):
    return min(v["median"] for k, v in figures.items() if k.startswith("ours"))


def exponent(row):
    """p of the power law: seconds of a step grow as size to the power p."""
    figures = row["contenders"]
    sizes = np.log([float(name) for name in figures])
    steps = [f["median"] * f["examples"] for f in figures.values()]
    return float(np.polyfit(sizes, np.log(steps), 1)[0])


def as_text(results) -> str:
    lines = []
    for row in results["rows"].values():
        lines += ["", row["title"]]
        if "times" in row:
            lines += [
                f"  {times:.2f} times as fast as {name}{_goal(row, name)}"
                for name, times in row["times"].items()
            ]
        elif "growth" in row:
            lines += _growth(row)
        else:
            lines += _contenders(row["contenders"])
        for name, reason in row.get("left_out", {}).items():
            lines.append(f"  {name} is left out: {reason}")
        if "times" not in row and ratio(row):
            times, best = ratio(row)
            lines.append(f"  {times:.2f} times {best}{_goal(row, best)}")
    return "\n".join(lines)


def _goal(row, peer):
    goal = row["goal"]
    if isinstance(goal, dict):  # of each peer its own
        goal = goal[peer.partition(",")[0]]
    return f" (goal {goal})" if goal else ""


def _growth(row):
    for name, figure in row["contenders"].items():
        seconds = figure["median"] * figure["examples"]
        yield f"  {name:>8} {row['growth']}: {seconds:.3f} s"
    yield f"  grows as {row['growth']} to the power {exponent(row):.2f}"


def _contenders(figures):
    """A line each, the fastest first."""
    ours = our_median(figures)
    limit = figures.get("limit", {"median": None})["median"]
    yield (
        f"  {'':<24}{'ms an example':>14}{'least':>9}{'most':>9}{'by ours':>9}"
        f"{'of the limit':>14}{'peak MB':>9}"
    )
    order = sorted(figures, key=lambda name: figures[name]["median"])
    for name in order:
        figure = figures[name]
        of_limit = f"{limit / figure['median']:.2f}" if limit else ""
        yield (
            f"  {name:<24}{1000 * figure['median']:>14.1f}"
            f"{1000 * figure['least']:>9.1f}{1000 * figure['most']:>9.1f}"
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


def draw(results, path):
    """A group of bars a row: examples a second of every contender.

    Returns:
        names of the rows that were left out: other tools' have ratios alone.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(
            "A chart needs matplotlib: pip install 'bert_keras[plots]'."
        )
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    from official_tasks.report.page import save

    rows = [r for r in results["rows"].values() if "contenders" in r]
    left = [k for k, r in results["rows"].items() if "contenders" not in r]
    if not rows:
        raise InputError(
            f"Nothing to draw: the rows ({', '.join(left)}) have no contenders "
            "with seconds of their own. Give results of other rows."
        )
    figure, axes = plt.subplots(
        len(rows), 1, figsize=(7, 0.9 + 1.9 * len(rows)), squeeze=False
    )
    for axis, row in zip(axes[:, 0], rows, strict=True):
        items = sorted(
            row["contenders"].items(), key=lambda item: -item[1]["median"]
        )
        rates = [1 / value["median"] for _, value in items]
        least = [
            r - 1 / v["most"] for r, (_, v) in zip(rates, items, strict=True)
        ]
        most = [
            1 / v["least"] - r for r, (_, v) in zip(rates, items, strict=True)
        ]
        colours = [
            "#1f77b4" if name.startswith("ours") else "#bbbbbb"
            for name, _ in items
        ]
        axis.barh(
            [name for name, _ in items],
            rates,
            xerr=[least, most],
            color=colours,
        )
        axis.set_title(row["title"], fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
    axes[-1, 0].set_xlabel("examples a second (median; least and most)")
    figure.set_layout_engine("tight")
    save(figure, path, dpi=120)
    return left
