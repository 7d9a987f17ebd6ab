"""One pre-training run in its folder: data, model, phases, results."""

import keras

from bert_keras.files import write_json
from official_tasks import page, pretraining_report
from official_tasks.input_watch import InputWatch
from official_tasks.pretraining_model import compiled_model, with_rows_of
from official_tasks.pretraining_objectives import OBJECTIVES
from official_tasks.pretraining_settings import phases, tokens_until
from official_tasks.pretraining_source import PretrainingSource
from official_tasks.train import train, training_state

SHOWN = 4  # held-out texts whose guesses are shown


def pretrain(data, folder, settings, execution, strategy, first_files):
    """Trains from the start, or on; returns the results.

    Args:
        data: folder of pre-training data.
        folder: an open `RunFolder`.
        settings: `Settings`.
        execution: `Execution`.
        strategy: of `make_strategy`.
        first_files: of `checked_files`; noted once nothing is refused.
    """
    objective = OBJECTIVES[settings.objectives]
    source = PretrainingSource(data, settings, objective)
    source.check()
    keras.utils.set_random_seed(settings.seed)
    with strategy.scope():
        model = compiled_model(settings, objective, source, execution)
    folder.finish("files", first_files)
    facts = _stage(folder, "data", lambda: source.facts(phases(settings)[0]))
    run = Run(folder, settings, source, model, strategy)
    before = None
    if settings.init:
        # At the length of the last figures, which stand beside them.
        last = run.phases[-1].last
        before = _stage(folder, "before", lambda: run.evaluate(last))
    curve = run.train(execution)
    baselines = source.baselines(phases(settings)[-1])
    results = {
        **_last_figures(curve),
        f"{objective.headline}_unigram_baseline": baselines["unigram"],
        "nsp_majority_baseline": baselines["nsp_majority"],
        "before": before,
        "parameters": model.count_params(),
        "data": facts,
        "curve": curve,
        "guesses": run.guesses(),
    }
    if strategy.is_chief:
        run.write(results)
    return results


def _stage(folder, name, measure):
    """Figures that are measured once for the whole run."""
    figures = folder.done(name)
    if figures is None:
        figures = measure()
        folder.finish(name, figures)
    return figures


def _last_figures(curve):
    """The held-out figures of the last evaluation, by their plain names."""
    names = [name for name in curve[-1] if name.startswith("val_")]
    return {name.removeprefix("val_"): curve[-1][name] for name in names}


class Run:
    """What the training of one run needs at hand."""

    def __init__(self, folder, settings, source, model, strategy):
        self.folder, self.settings, self.source = folder, settings, source
        self.model, self.strategy = model, strategy
        self.phases = phases(settings)
        self.state = None
        self.watch = InputWatch()

    def phase_of(self, step):
        """The phase whose batch step number `step`, from 1, sees."""
        return next(phase for phase in self.phases if step <= phase.last)

    def train(self, execution):
        """All phases in one schedule; returns the curve."""
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
            bounds=[phase.last for phase in self.phases],
            callbacks=[self.watch],
        )

    def batches(self, first_step):
        """Training batches from a step on, to the end of its phase."""
        phase = self.phase_of(first_step + 1)
        batches = self.watch.watched(self.source.batches(phase, first_step))
        return self.strategy.batches(batches)

    def evaluate(self, step):
        """Held-out figures of now, at the length of the phase of `step`."""
        held_out = self.source.held_out(self.phase_of(step))
        return self.model.evaluate(
            self.strategy.batches(held_out),
            callbacks=[self.state] if self.state else [],
            verbose=0,
            return_dict=True,
        )

    def guesses(self):
        """What the model guesses in some held-out texts."""
        phase = self.phase_of(self.state.step)
        batch = next(iter(self.source.held_out(phase).unbatch().batch(SHOWN)))
        objective = self.source.objective
        return objective.guesses(self.model, batch, self.source.vocabulary)

    def write(self, results):
        """The model, the figures and the page that shows them."""
        with self.folder.output("model") as path:
            single = with_rows_of(self.model, None)
            single.save_preset(path, self.source.preprocessor())
        with self.folder.output("results.json") as path:
            write_json(results, path)
        if not page.can_draw("report.html"):
            return
        with (
            page.may_fail("report.html"),
            self.folder.output("report.html") as path,
            open(path, "w", encoding="utf-8") as file,
        ):
            file.write(pretraining_report.render(results, self.settings))
