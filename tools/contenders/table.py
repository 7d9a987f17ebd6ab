"""The results as a table, as a chart, and beside earlier ones."""

from bert_keras.errors import InputError


def ratio(row):
    """How many times as fast as the best peer, and which that is.

    Returns:
        (float, peer's name), or None for a row without a peer.
    """
    figures = row["contenders"]
    ours = min(v["median"] for k, v in figures.items() if k.startswith("ours"))
    peers = {
        name: figure["median"]
        for name, figure in figures.items()
        if not name.startswith("ours") and name != "limit"
    }
    if not peers:
        return None
    best = min(peers, key=peers.get)
    return peers[best] / ours, best


def as_text(results) -> str:
    lines = []
    for row in results["rows"].values():
        lines += ["", row["title"]]
        figures = row["contenders"]
        limit = figures["limit"]["median"]
        lines.append(
            f"  {'':<24}{'ms an example':>14}{'least':>9}{'most':>9}"
            f"{'of the limit':>14}{'peak MB':>9}"
        )
        for name, figure in sorted(
            figures.items(), key=lambda item: item[1]["median"]
        ):
            lines.append(
                f"  {name:<24}{1000 * figure['median']:>14.1f}"
                f"{1000 * figure['least']:>9.1f}{1000 * figure['most']:>9.1f}"
                f"{limit / figure['median']:>14.2f}"
                f"{figure['peak_megabytes']:>9}"
            )
        if ratio(row):
            times, best = ratio(row)
            lines.append(
                f"  {times:.2f} times as fast as {best} (goal {row['goal']})"
            )
    return "\n".join(lines)


def check(results, recorded, margin):
    """Refuses ratios that fell by more than a share of what they were."""
    fallen = []
    for name, row in results["rows"].items():
        if ratio(row) is None or name not in recorded["rows"]:
            continue
        now, then = ratio(row)[0], ratio(recorded["rows"][name])[0]
        if now < then * (1 - margin):
            fallen.append(f"{name} from {then:.2f} to {now:.2f}")
    if fallen:
        raise InputError(f"Slower than recorded: {', '.join(fallen)}")


def draw(results, path):
    """A group of bars a row: examples a second of every contender."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    rows = list(results["rows"].values())
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
    figure.tight_layout()
    figure.savefig(path, dpi=120)
