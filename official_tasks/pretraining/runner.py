"""Pre-training by one call: a run folder from data and settings."""

from bert_keras.errors import require_tensorflow
from bert_keras.files import write_json
from bert_keras.run_folder import RunFolder
from official_tasks.pretraining.settings import (
    phases,
    prepare,
    split,
    tokens_until,
)
from official_tasks.report import page, pretraining_report

SHOWN = 4  # held-out texts whose guesses are shown


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
    from official_tasks.engine.models import checked_files, weights_of

    require_tensorflow("Pre-training")
    init = split(arguments)[0].init
    weights = weights_of(init) if init else []
    settings, execution, strategy = prepare(arguments)
    from official_tasks.pretraining.source import manifests

    decided = {"data": str(data), **settings._asdict()}
    with RunFolder(output, decided, writes=strategy.is_chief) as folder:
        first = checked_files([*manifests(data, settings), *weights], folder)
        results = folder.done("pretrain")
        if results is None:
            results = pretrain(
                data, folder, settings, execution, strategy, first, callbacks
            )
            folder.finish("pretrain", results, outputs=["model"])
        return results


def pretrain(
    data, folder, settings, execution, strategy, first_files, callbacks=()
):
    """Trains from the start, or resumes; returns the results.

    Args:
        data: folder of pre-training data.
        folder: an open `RunFolder`.
        settings: `Settings`.
        execution: `Execution`.
        strategy: of `make_strategy`.
        first_files: of `checked_files`; kept once nothing is refused.
        callbacks: Keras callbacks.
    """
    import keras

    from official_tasks.pretraining.model import OBJECTIVES, compiled_model
    from official_tasks.pretraining.source import PretrainingSource

    objective = OBJECTIVES[settings.objectives]
    source = PretrainingSource(data, settings, objective)
    source.check()
    keras.utils.set_random_seed(settings.seed)
    with strategy.scope():
        model = compiled_model(settings, objective, source, execution)
    folder.finish("files", first_files)
    used = phases(settings)
    facts = _stage(folder, "data", lambda: source.facts(used[0]))
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
        "data": facts,
        "curve": curve,
        "guesses": run.guesses(),
    }
    if strategy.is_chief:
        run.write(results)
    return results


def _stage(folder, name, measure):
    """Figures that are measured once in a run."""
    figures = folder.done(name)
    if figures is None:
        figures = measure()
        folder.finish(name, figures)
    return figures


class Run:
    """The training of one run: batches, evaluation and output by the step."""

    def __init__(self, folder, settings, source, model, strategy):
        from official_tasks.engine.training import InputWatch

        self.folder, self.settings, self.source = folder, settings, source
        self.model, self.strategy = model, strategy
        self.phases = phases(settings)
        self.state = None
        self.watch = InputWatch()

    def train(self, execution, callbacks=()):
        """All phases in one schedule; returns the curve."""
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
            bounds=[phase.last for phase in self.phases],
            callbacks=[self.watch, *callbacks],
        )

    def phase_of(self, step):
        """The phase whose batch step number `step`, from 1, sees."""
        return next(phase for phase in self.phases if step <= phase.last)

    def batches(self, first_step):
        """Training batches from a step on, to the end of its phase."""
        phase = self.phase_of(first_step + 1)
        batches = self.watch.watched(self.source.batches(phase, first_step))
        return self.strategy.batches(batches)

    def evaluate(self, step):
        """Held-out figures, at the length of the phase of `step`."""
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
        """The model, the figures and the report that shows them."""
        from official_tasks.pretraining.model import with_rows_of

        with self.folder.output("model") as path:
            single = with_rows_of(self.model, None)
            single.save_preset(path, self.source.preprocessor())
        with self.folder.output("results.json") as path:
            write_json(results, path)
        page.write_report(
            self.folder,
            lambda: pretraining_report.render(results, self.settings),
        )
