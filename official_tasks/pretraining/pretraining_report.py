"""The report of a pre-training run."""

import dataclasses

from official_tasks import page
from official_tasks.pretraining.settings import (
    note_masks,
    phases,
    tokens_until,
)

# Metric -> text next to the metric's value.
TILES = {
    "mlm_accuracy": "accuracy on masked tokens of unseen documents",
    "lm_accuracy": "accuracy on next or previous tokens of unseen documents",
    "nsp_accuracy": "accuracy of next-sentence prediction",
    "mlm_perplexity": "perplexity of masked tokens",
    "lm_perplexity": "perplexity of next or previous tokens",
}
# Name of an accuracy -> name of the best constant prediction's accuracy.
BASELINES = {
    "mlm_accuracy": "mlm_unigram_baseline",
    "lm_accuracy": "lm_unigram_baseline",
    "nsp_accuracy": "nsp_majority_baseline",
}
LOSSES = {"loss": "training", "val_loss": "held out"}
ACCURACIES = {
    "val_mlm_accuracy": "masked tokens",
    "val_lm_accuracy": "next or previous tokens",
    "val_nsp_accuracy": "next sentence",
}


def render(results, settings) -> str:
    """Return the report as HTML, from the results of `runner.run`."""
    tokens = tokens_until(settings.steps, settings)
    counts = (
        f"{settings.objectives}; a model of {results['parameters']:,} "
        f"parameters; {settings.steps:,} steps, {tokens:,} tokens; seed "
        f"{settings.seed}."
    )
    rows = [(name, str(v)) for name, v in dataclasses.asdict(settings).items()]
    sections = [
        page.tiles(_describe_metrics(results)),
        page.notes([*note_masks(settings), *results["notes"]]),
        _draw_curves(results["curve"], settings),
        page.show_predictions(
            results["predictions"],
            "Held-out texts: the true token in bold, then the model's best "
            "predictions.",
        ),
        _describe_data(results["data"], settings),
        page.section("Settings", "", page.table(rows, numbers=(1,))),
    ]
    return page.page(
        "bert_keras pre-training", "Pre-training", counts, sections
    )


def _describe_metrics(results):
    for name, meaning in TILES.items():
        if name not in results:
            continue
        value = results[name]
        if name in BASELINES:
            baseline = results[BASELINES[name]]
            meaning += f"; the best constant prediction: {baseline:.1%}"
        if results["before"]:
            before = results["before"][name]
            meaning += f"; before the first step: {before:.3g}"
        is_perplexity = "perplexity" in name
        yield f"{value:.1f}" if is_perplexity else f"{value:.1%}", meaning


def _draw_curves(curve, settings):
    bounds = [phase.last for phase in phases(settings)[:-1]]
    steps = [line["step"] for line in curve]
    tokens = [tokens_until(step, settings) / 1e6 for step in steps]

    def lines(names, x):
        return {
            label: (x, [line.get(name) for line in curve])
            for name, label in names.items()
            # Omit metrics that no line has, such as those of other objectives.
            if any(name in line for line in curve)
        }

    def by_step(title, names):
        return page.line_chart(
            title, "step", lines(names, steps), bounds=bounds
        )

    drawn = [
        by_step("Loss", LOSSES),
        page.line_chart(
            "Held-out accuracy",
            "million tokens",
            lines(ACCURACIES, tokens),
            is_fraction=True,
        ),
        by_step("Learning rate", {"learning_rate": "learning rate"}),
        by_step("Throughput", {"tokens_per_second": "tokens a second"}),
    ]
    text = "Held-out documents were never trained on."
    if bounds:
        text += " After the dotted line the sequences are longer."
    return page.charts(text, drawn)


def _describe_data(measured, settings):
    rows = [
        ("second sentences that are random", f"{measured['random_next']:.1%}"),
        ("padding", f"{measured['padding']:.1%}"),
        ("[UNK]", f"{measured['unknown']:.2%}"),
    ]
    if settings.objectives.startswith("mlm"):  # otherwise nothing is masked
        masked = f"{measured['mask_rate']:.1%}"
        rows.insert(0, ("predictions per token", masked))
    text = "Measured on the first batches of the run."
    return page.section("Data", text, page.table(rows, numbers=(1,)))
