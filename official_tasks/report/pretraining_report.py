"""The report of a pre-training run."""

from official_tasks.pretraining.settings import phases, tokens_until
from official_tasks.report.page import (
    charts,
    guesses_section,
    line_chart,
    page,
    section,
    table,
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
    tokens = tokens_until(settings.steps, settings)
    counts = (
        f"{settings.objectives}; a model of {results['parameters']:,} "
        f"parameters; {settings.steps:,} steps, {tokens:,} tokens; seed "
        f"{settings.seed}."
    )
    rows = [(name, str(v)) for name, v in settings._asdict().items()]
    sections = [
        tiles(_figures(results)),
        _curves(results["curve"], settings),
        guesses_section(results["guesses"], GUESSES),
        _data(results["data"]),
        section(
            "Settings",
            "Everything that decides the run.",
            table(rows, numbers=(1,)),
        ),
    ]
    return page("bert_keras pre-training", "Pre-training", counts, sections)


def _figures(results):
    for name, meaning in TILES.items():
        if name not in results:
            continue
        value = results[name]
        if name in BASELINES:
            baseline = results[BASELINES[name]]
            meaning += f"; always guessing the commonest: {baseline:.1%}"
        if results["before"]:
            before = results["before"][name]
            meaning += f"; before the first step: {before:.3g}"
        is_share = "perplexity" not in name
        yield f"{value:.1%}" if is_share else f"{value:.1f}", meaning


def _curves(curve, settings):
    bounds = [phase.last for phase in phases(settings)[:-1]]
    steps = [line["step"] for line in curve]
    tokens = [tokens_until(step, settings) / 1e6 for step in steps]

    def lines(names, x):
        return {
            label: (x, [line.get(name) for line in curve])
            for name, label in names.items()
            # An evaluation that a kill put off has held-out figures alone.
            if any(name in line for line in curve)
        }

    def by_step(title, names):
        return line_chart(title, "step", lines(names, steps), bounds=bounds)

    drawn = [
        by_step("Loss", LOSSES),
        line_chart(
            "Held-out accuracy",
            "million tokens",
            lines(ACCURACIES, tokens),
            share=True,
        ),
        by_step("Learning rate", {"learning_rate": "learning rate"}),
        by_step("Throughput", {"tokens_per_second": "tokens a second"}),
    ]
    text = "Held-out documents were never trained on."
    if bounds:
        text += " After the dotted line the sequences are longer."
    return charts(text, drawn)


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
    text = "The first batches of the run."
    return section("Data", text, table(rows, numbers=(1,)))
