"""A run's report as one self-contained HTML page: figures, charts, examples.

`render` is a pure function of the report's dictionary, the one that is also
written as `report.json`; charts are inline SVG drawn by matplotlib.
"""

import html
import io

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
.small svg { max-width: 560px; }
table { border-collapse: collapse; width: 100%; font-size: 15px; }
td, th { padding: 7px 10px; border-top: 1px solid var(--line);
  text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 500; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
mark { background: #fff0c2; border-radius: 4px; padding: 0 4px; }
.chip { display: inline-block; margin: 2px 4px 2px 0; padding: 0 8px;
  border-radius: 10px; background: #eef2f9; font-size: 14px; }
.chip.right { background: #d9f2e5; color: var(--good); font-weight: 600; }
pre { background: #1d2433; color: #eef2f9; border-radius: 8px; margin: 0;
  padding: 14px 16px; overflow-x: auto; font-size: 14px; }
"""


def render(report: dict) -> str:
    """The page for `report`: see `tools/demo.py` for its keys."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>bert_keras demo</title><style>{STYLE}</style><main>",
        _head(report),
        _tiles(report),
        _curves(report["curves"]),
        _confusion(report["confusion"]),
        _guesses(report["guesses"]),
        _answers(report["answers"]),
        _times(report),
        _command(report["command"]),
        "</main></html>",
    ]
    return "\n".join(parts)


def _head(report):
    counts = (
        f"{report['documents']:,} documents, {report['sentences']:,} "
        f"sentences, {report['tokens']:,} tokens; a model of "
        f"{report['parameters']:,} parameters; "
        f"{sum(report['seconds'].values()):.0f} seconds; seed "
        f"{report['seed']}."
    )
    return f"<h1>From raw text to a served BERT</h1><p>{counts}</p>"


def _tiles(report):
    gain = (
        report["classify_accuracy_pretrained"]
        - report["classify_accuracy_scratch"]
    )
    tiles = [
        (
            f"{report['mlm_accuracy']:.1%}",
            "of the masked pieces of unseen documents guessed; always "
            f"guessing the commonest: {report['mlm_unigram_baseline']:.1%}",
        ),
        (
            f"{report['nsp_accuracy']:.1%}",
            "of the next-sentence questions right; by chance: 50 %",
        ),
        (
            f"{report['classify_accuracy_pretrained']:.1%}",
            f"of {report['classify_held_out']:,} unseen sentences given "
            "their library; the largest class: "
            f"{report['classify_majority_baseline']:.1%}",
        ),
        (
            f"{100 * gain:+.1f} points",
            "from pre-training: random weights reach "
            f"{report['classify_accuracy_scratch']:.1%} with the same "
            f"{report['classify_labels']:,} labels",
        ),
        (
            f"{report['export_max_difference']:.1e}",
            "greatest difference between the SavedModel in a fresh process "
            "and the model that was trained",
        ),
    ]
    cells = [
        f"<div class=tile><b>{value}</b><span>{text}</span></div>"
        for value, text in tiles
    ]
    return f"<div class=tiles>{''.join(cells)}</div>"


def _curves(curves):
    lines = curves["pretraining"]
    steps = [line["step"] for line in lines]

    def of(name):
        return [line.get(name) for line in lines]

    charts = [
        _line_chart(
            "Pre-training loss",
            "step",
            {
                "training": (steps, of("loss")),
                "held out": (steps, of("val_loss")),
            },
        ),
        _line_chart(
            "Held-out accuracy",
            "step",
            {
                "masked pieces": (steps, of("val_mlm_accuracy")),
                "next sentence": (steps, of("val_nsp_accuracy")),
            },
            share=True,
        ),
        _line_chart(
            "Fine-tuning, held-out accuracy",
            "step",
            {
                name: (
                    [line["step"] for line in lines],
                    [line["val_accuracy"] for line in lines],
                )
                for name, lines in curves["finetuning"].items()
            },
            share=True,
        ),
    ]
    return (
        "<section><h2>Learning</h2><p>Held-out documents were never trained "
        f"on.</p><div class=charts>{''.join(charts)}</div></section>"
    )


def _figure(width, height):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure):
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "0"}):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _line_chart(title, axis, lines, share=False):
    figure, axes = _figure(4.6, 3.2)
    colours = ("#2f6fde", "#e0872b")
    for (name, (x, y)), colour in zip(lines.items(), colours, strict=True):
        axes.plot(x, y, label=name, color=colour, marker="o", markersize=3)
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(axis)
    axes.grid(axis="y", color="#e3e7ef")
    if share:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(frameon=False, fontsize=9)
    return f"<div>{_svg(figure)}</div>"


def _confusion(confusion):
    import numpy as np

    labels, counts = confusion["labels"], np.array(confusion["counts"])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure, axes = _figure(0.62 * len(labels) + 2.6, 0.42 * len(labels) + 1.5)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, column in np.ndindex(*counts.shape):
        axes.text(
            column,
            row,
            f"{counts[row, column]:,}",
            ha="center",
            va="center",
            fontsize=9,
            color="white" if shares[row, column] > 0.55 else "#1d2433",
        )
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    return (
        "<section><h2>Which library documents this sentence?</h2><p>Held-out "
        "sentences, from the pre-trained encoder.</p>"
        f"<div class=small>{_svg(figure)}</div></section>"
    )


def _guesses(guesses):
    rows = []
    for guess in guesses:
        text = html.escape(guess["text"]).replace(
            "[MASK]", "<mark>&nbsp;?&nbsp;</mark>"
        )
        masks = []
        for mask in guess["masks"]:
            chips = [
                f"<span class='chip{' right' * (piece == mask['truth'])}'>"
                f"{html.escape(piece)} {probability:.0%}</span>"
                for piece, probability in mask["guesses"]
            ]
            truth = html.escape(mask["truth"])
            masks.append(f"<div><b>{truth}</b>: {''.join(chips)}</div>")
        rows.append(f"<tr><td>{text}</td><td>{''.join(masks)}</td></tr>")
    return (
        "<section><h2>Masked pieces</h2><p>Held-out sentences; in bold what "
        "stood there, then the model's five best guesses, from the "
        "SavedModel's <code>fill_mask</code>.</p><table><tr><th>sentence</th>"
        f"<th>guesses</th></tr>{''.join(rows)}</table></section>"
    )


def _answers(answers):
    rows = [
        f"<tr><td>{html.escape(answer['text'])}</td>"
        f"<td>{html.escape(answer['label'])}</td>"
        f"<td class=number>{answer['probability']:.1%}</td></tr>"
        for answer in answers
    ]
    return (
        "<section><h2>Raw text in, answers out</h2><p>A process that imports "
        "only tensorflow and tensorflow_text loaded the SavedModel and was "
        "asked these.</p><table><tr><th>text</th><th>library</th>"
        f"<th class=number>probability</th></tr>{''.join(rows)}</table>"
        "</section>"
    )


def _times(report):
    rows = [
        f"<tr><td>{stage}</td><td class=number>{seconds:.1f} s</td></tr>"
        for stage, seconds in report["seconds"].items()
    ]
    versions = ", ".join(
        f"{name} {version}" for name, version in report["versions"].items()
    )
    return (
        f"<section><h2>Time</h2><p>{html.escape(versions)}; corpus "
        f"{report['corpus_hash'][:16]}.</p><table>{''.join(rows)}</table>"
        "</section>"
    )


def _command(command):
    return (
        "<section><h2>Now with your own data</h2><p>A CSV file with the "
        "columns <code>text</code> and <code>label</code>:</p>"
        f"<pre>{html.escape(command)}</pre></section>"
    )
