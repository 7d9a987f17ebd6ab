"""The page of a pre-training run; a pure function of results and settings."""

import html

from official_tasks.pretraining.settings import phases, tokens_until
from official_tasks.report.page import (
    charts,
    guesses_section,
    line_chart,
    page,
    table_section,
    tiles,
)

# Figure -> what its tile says.
TILES = {
    "mlm_accuracy": "of the masked pieces of unseen documents guessed",
    "lm_accuracy": "of the neighbouring pieces of unseen documents guessed",
    "nsp_accuracy": "of the next-sentence questions right",
    "mlm_perplexity": "perplexity of masked pieces",
    "lm_perplexity": "perplexity of neighbouring pieces",
}
BASELINES = {
    "mlm_accuracy": "mlm_unigram_baseline",
    "lm_accuracy": "lm_unigram_baseline",
    "nsp_accuracy": "nsp_majority_baseline",
}
LOSSES = {"loss": "training", "val_loss": "held out"}
ACCURACIES = {
    "val_mlm_accuracy": "masked pieces",
    "val_lm_accuracy": "neighbouring pieces",
    "val_nsp_accuracy": "next sentence",
}
GUESSES = (
    "Held-out texts; in bold what stood there, then the model's best guesses."
)


def render(results, settings) -> str:
    """The page of `results.json` and the run's `Settings`."""
    parts = [
        _head(results, settings),
        _tiles(results),
        _curves(results["curve"], settings),
        guesses_section(results["guesses"], GUESSES),
        _data(results["data"]),
        table_section(
            "Settings", "All that decides the run.", settings._asdict().items()
        ),
    ]
    return page("bert_keras pre-training", parts)


def _head(results, settings):
    tokens = tokens_until(settings.steps, settings)
    told = (
        f"{html.escape(settings.objectives)}; a model of "
        f"{results['parameters']:,} parameters; {settings.steps:,} steps, "
        f"{tokens:,} tokens; seed {settings.seed}."
    )
    return f"<h1>Pre-training</h1><p>{told}</p>"


def _tiles(results):
    shown = []
    for name, told in TILES.items():
        if name not in results:
            continue
        value = results[name]
        figure = f"{value:.1f}" if "perplexity" in name else f"{value:.1%}"
        if name in BASELINES:
            baseline = results[BASELINES[name]]
            told = f"{told}; always guessing the commonest: {baseline:.1%}"
        if results["before"]:
            before = results["before"][name]
            told = f"{told}; before the first step: {before:.3g}"
        shown.append((figure, told))
    return tiles(shown)


def _curves(curve, settings):
    bounds = [phase.last for phase in phases(settings)[:-1]]
    steps = [line["step"] for line in curve]
    tokens = [tokens_until(step, settings) / 1e6 for step in steps]

    def lines(names, x):
        return {
            told: (x, [line.get(name) for line in curve])
            for name, told in names.items()
            # An evaluation that a kill put off has held-out figures alone.
            if any(name in line for line in curve)
        }

    drawn = [
        line_chart("Loss", "step", lines(LOSSES, steps), bounds=bounds),
        line_chart(
            "Held-out accuracy",
            "million tokens",
            lines(ACCURACIES, tokens),
            share=True,
        ),
        line_chart(
            "Learning rate",
            "step",
            lines({"learning_rate": "learning rate"}, steps),
            bounds=bounds,
        ),
        line_chart(
            "Throughput",
            "step",
            lines({"tokens_per_second": "tokens a second"}, steps),
            bounds=bounds,
        ),
    ]
    told = "Held-out documents were never trained on."
    if bounds:
        told += " The dotted line: from there on the sequences are longer."
    return charts("Learning", told, drawn)


def _data(facts):
    rows = [
        ("predicted pieces per piece", f"{facts['mask_rate']:.1%}"),
        ("second sentences that are random", f"{facts['random_next']:.1%}"),
        ("padding", f"{facts['padding']:.1%}"),
        (
            "pieces a second that the input gives alone",
            f"{facts['input_tokens_per_second']:,.0f}",
        ),
    ]
    told = "The first batches of the run."
    return table_section("Data", told, rows)
