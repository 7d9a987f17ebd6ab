"""Pre-training by one call: a run folder from data and settings."""

from bert_keras.errors import require_tensorflow
from bert_keras.json_files import (
    without_nan,
    write_json,
)
from bert_keras.run_folder import RunFolder
from official_tasks import page, progress
from official_tasks.pretraining.settings import (
    check_settings,
    note_masks,
    phase_at,
    phases,
    prepare,
    tokens_until,
)

SHOWN = 4  # held-out texts whose guesses are shown
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


def run(data, output, callbacks=(), **arguments) -> dict:
    """Pre-trains on `data` and writes the run folder `output`.

    Args:
        data: folder of `create_pretraining_data`.
        output: folder of the run; the same call resumes it. Data or weights
            to start from that changed since it began are refused.
        callbacks: Keras callbacks; `on_epoch_end` gets the held-out figures
            as `val_...`. `on_train_begin` comes once for each phase, and
            again in a resumed run.
        **arguments: the fields of `Settings` and of `Execution`.

    Returns:
        Figures on the held-out documents: "mlm_accuracy", "mlm_perplexity",
        "nsp_accuracy" ("lm_accuracy" and "lm_perplexity" of a directional
        model), "mlm_unigram_baseline" and "nsp_majority_baseline" (always
        guessing the commonest piece, the commoner answer), "parameters", and
        "curve", what was logged at each evaluation.
    """
    from official_tasks.engine.models import weights_of
    from official_tasks.pretraining.source import list_manifests

    require_tensorflow("Pre-training")
    settings, execution, strategy = prepare(arguments)
    progress.show_devices(strategy, settings.dtype)
    check_settings(settings, strategy.num_replicas)
    weights = weights_of(settings.init) if settings.init else []
    decided = {"data": str(data), **settings._asdict()}
    inputs = [*weights, *list_manifests(data, settings)]
    with RunFolder(output, decided, inputs, strategy.is_chief) as folder:
        results = folder.read_results("pretrain")
        if results is None:
            results = pretrain(
                data, folder, settings, execution, strategy, callbacks
            )
            outputs = "model", "metrics.jsonl", "results.json"
            folder.finish("pretrain", results, outputs)
        else:
            page.note_finished(folder)
        return results


def pretrain(data, folder, settings, execution, strategy, callbacks=()):
    """Train in an open `RunFolder`, or resume; return the results."""
    import keras

    from official_tasks.pretraining.model import OBJECTIVES, compiled_model
    from official_tasks.pretraining.source import PretrainingSource

    objective = OBJECTIVES[settings.objectives]
    source = PretrainingSource(data, settings, objective)
    data_files = source.check_once(folder)
    keras.utils.set_random_seed(settings.seed)
    with strategy.scope():
        model = compiled_model(settings, objective, source, execution)
    folder.finish("data_files", data_files)
    used = phases(settings)
    measured = _stage(folder, "data", lambda: source.measure_data(used[0]))
    run = Run(folder, settings, source, model, strategy)
    before = None
    if settings.init:
        # At the length of the last figures, to which they are compared.
        before = _stage(folder, "before", lambda: run.evaluate(used[-1].last))
    curve = run.train(execution, callbacks)
    last, baselines = curve[-1], source.baselines(used[-1])
    results = {
        **{k[4:]: last[k] for k in last if k.startswith("val_")},
        f"{objective.headline}_unigram_baseline": baselines["unigram"],
        "nsp_majority_baseline": baselines["nsp_majority"],
        "before": before,
        "parameters": model.count_params(),
        "data": measured,
        "curve": curve,
        "guesses": run.guesses(),
    }
    results["notes"] = find_notes(results)
    if strategy.is_chief:
        run.write(results)
    return results


def _stage(folder, name, measure):
    """Figures that are measured once in a run."""
    figures = folder.read_results(name)
    if figures is None:
        figures = measure()
        folder.finish(name, figures)
    return figures


class Run:
    """The training of one run: batches, evaluation and output by the step."""

    def __init__(self, folder, settings, source, model, strategy):
        self.folder, self.settings, self.source = folder, settings, source
        self.model, self.strategy = model, strategy
        self.state = None

    def train(self, execution, callbacks=()):
        """Train all phases in one schedule; return the curve."""
        from official_tasks.engine.training import train, training_state

        settings = self.settings
        self.state = training_state(
            self.folder,
            self.strategy,
            execution.save_every,
            keep=execution.keep,
            keep_every=execution.keep_every,
            settings=settings._asdict(),
        )
        return train(
            self.folder,
            self.model,
            self.batches,
            self.state,
            steps=settings.steps,
            steps_per_epoch=settings.steps_per_evaluation,
            validation=self.evaluate,
            title="Pre-training",
            tokens_until=lambda step: tokens_until(step, settings),
            guesses=self.guesses,
            bounds=[phase.last for phase in phases(settings)],
            callbacks=callbacks,
        )

    def batches(self, first_step):
        """Training batches from a step on, to the end of its phase."""
        phase = phase_at(first_step + 1, self.settings)
        return self.strategy.batches(self.source.batches(phase, first_step))

    def evaluate(self, step):
        """Held-out figures, at the length of the phase of `step`."""
        held_out = self.source.held_out(phase_at(step, self.settings))
        return self.model.evaluate(
            self.strategy.batches(held_out),
            callbacks=[self.state] if self.state else [],
            verbose=0,
            return_dict=True,
        )

    def guesses(self):
        """Return what the model guesses in some held-out texts."""
        phase = phase_at(self.state.step, self.settings)
        batch = next(iter(self.source.held_out(phase).unbatch().batch(SHOWN)))
        objective = self.source.objective
        return objective.guesses(self.model, batch, self.source.vocabulary)

    def write(self, results):
        """Write the model, the results and the report."""
        from official_tasks.pretraining.model import with_rows_of

        with self.folder.output("model") as path:
            single = with_rows_of(self.model, None)
            single.save_preset(path, self.source.preprocessor())
        with self.folder.output("results.json") as path:
            write_json(without_nan(results), path)
        page.write_report(self.folder, lambda: render(results, self.settings))


# What of a run deserves a look.

MOST_UNKNOWN = 0.01
OVERFIT = 1.0  # nats from the loss of training to that of held-out text


def find_notes(results) -> list[str]:
    """Return a sentence, with advice, for each sign of a fault."""
    last, data = results["curve"][-1], results["data"]
    notes = []
    if data["unknown"] > MOST_UNKNOWN:
        notes.append(
            f"{data['unknown']:.1%} of the tokens are [UNK]: the vocabulary is "
            "of another language, or of another case than the data was made "
            "with."
        )
    name = "lm_accuracy" if "lm_accuracy" in results else "mlm_accuracy"
    if results[name] <= results[BASELINES[name]]:
        notes.append(
            f"The model predicts tokens no better ({results[name]:.1%}) than "
            f"the most frequent token does ({results[BASELINES[name]]:.1%}). "
            "Take more steps, another learning_rate (1e-3 suits models of a "
            "few million parameters), or a shorter warmup."
        )
    loss = last.get("loss", last["val_loss"])
    if last["val_loss"] - loss >= OVERFIT:
        notes.append(
            f"The held-out loss is {last['val_loss'] - loss:.2f} above the one "
            "of training: take more text, fewer steps or more dropout."
        )
    if skipped := last.get("skipped_steps"):
        notes.append(
            f"{skipped:,.0f} steps had gradients that were not finite and were "
            "skipped. Take a lower learning_rate, or float32."
        )
    return notes


# The run's report.


def render(results, settings) -> str:
    """Return the page of `results.json` and the run's `Settings`."""
    tokens = tokens_until(settings.steps, settings)
    counts = (
        f"{settings.objectives}; a model of {results['parameters']:,} "
        f"parameters; {settings.steps:,} steps, {tokens:,} tokens; seed "
        f"{settings.seed}."
    )
    rows = [(name, str(v)) for name, v in settings._asdict().items()]
    sections = [
        page.tiles(_figures(results)),
        _curves(results["curve"], settings),
        page.guesses_section(results["guesses"], GUESSES),
        _notes([*note_masks(settings), *results["notes"]]),
        _data(results["data"], settings),
        page.section(
            "Settings",
            "Everything that decides the run.",
            page.table(rows, numbers=(1,)),
        ),
    ]
    return page.page(
        "bert_keras pre-training", "Pre-training", counts, sections
    )


def _notes(notes):
    rows = page.table(zip(notes))
    return page.section("Worth a look", "", rows) if notes else ""


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
        return page.line_chart(
            title, "step", lines(names, steps), bounds=bounds
        )

    drawn = [
        by_step("Loss", LOSSES),
        page.line_chart(
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
    return page.charts(text, drawn)


def _data(measured, settings):
    rows = [
        ("second sentences that are random", f"{measured['random_next']:.1%}"),
        ("padding", f"{measured['padding']:.1%}"),
        ("[UNK]", f"{measured['unknown']:.2%}"),
    ]
    if settings.objectives.startswith("mlm"):  # otherwise nothing is masked
        masked = f"{measured['mask_rate']:.1%}"
        rows.insert(0, ("predicted pieces per piece", masked))
    text = "The first batches of the run."
    return page.section("Data", text, page.table(rows, numbers=(1,)))
