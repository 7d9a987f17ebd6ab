"""Pre-trains a model and writes a run folder."""

import dataclasses
import math

from bert_keras.errors import format_count, require_tensorflow
from bert_keras.json_files import (
    without_nan,
    write_json,
)
from bert_keras.run_folder import RunFolder
from official_tasks import page, progress
from official_tasks.pretraining.pretraining_report import BASELINES, render
from official_tasks.pretraining.settings import (
    check_settings,
    phase_at,
    phases,
    prepare,
    tokens_until,
)

SHOWN = 4  # number of held-out texts to show with predictions
MAX_UNKNOWN = 0.01  # a larger fraction of [UNK] tokens gets a note
# The report has a note if the held-out loss is at least this much above the
# training loss, in nats.
OVERFIT = 1.0


def run(data, output, callbacks=(), **arguments) -> dict:
    """Pre-train on `data` and write the run folder `output`.

    Args:
        data: folder that `create_pretraining_data` wrote.
        output: run folder. The same call resumes an interrupted run. It raises
            `InputError` if the data or the initial weights have changed.
        callbacks: Keras callbacks; `on_epoch_end` gets the held-out metrics
            as `val_...`. `on_train_begin` is called at least once for each
            phase, and again in a resumed run.
        **arguments: the fields of `Settings` and of `Execution`.

    Returns:
        Dict with the metrics on held-out documents: "loss", "mlm_accuracy",
        "mlm_perplexity" and, for mlm+nsp, "nsp_accuracy". Left-to-right and
        right-to-left objectives have "lm_accuracy" and "lm_perplexity" instead.
        Keys that end in "_baseline" are accuracies of constant predictions.
        "before" has the metrics before the first step, or None without `init`.
        "parameters" is the number of parameters, and "curve" holds the logs of
        each evaluation. "data" has statistics of the first batches. "notes" has
        advice. "predictions" has predictions for some held-out texts.
    """
    from official_tasks.engine.models import list_model_files
    from official_tasks.pretraining.source import list_manifests

    require_tensorflow("Pre-training")
    settings, execution, strategy = prepare(arguments, output)
    progress.show_devices(strategy, settings.dtype)
    check_settings(settings, strategy.num_replicas)
    weights = list_model_files(settings.init) if settings.init else []
    identity = {"data": str(data), **dataclasses.asdict(settings)}
    inputs = [*weights, *list_manifests(data, settings)]
    with RunFolder(output, identity, inputs, strategy.is_chief) as folder:
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

    from official_tasks.pretraining.model import compiled_model
    from official_tasks.pretraining.objectives import OBJECTIVES
    from official_tasks.pretraining.source import PretrainingSource

    objective = OBJECTIVES[settings.objectives]
    source = PretrainingSource(data, settings, objective)
    data_files = source.check_once(folder)
    keras.utils.set_random_seed(settings.seed)
    with strategy.scope():
        model = compiled_model(settings, objective, source, execution)
    folder.check_inputs()
    folder.finish("data_files", data_files)
    used = phases(settings)
    measured = _compute_once(
        folder, "data", lambda: source.measure_data(used[0])
    )
    run = Run(folder, settings, source, model, strategy)
    before = None
    if settings.init:
        # Use the last phase's sequences, because the final metrics use them.
        before = _compute_once(
            folder, "before", lambda: run.evaluate(used[-1].last)
        )
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
        "predictions": run.predict(),
    }
    results["notes"] = find_notes(results)
    if strategy.is_chief:
        run.write(results)
    return results


def _compute_once(folder, stage, compute):
    results = folder.read_results(stage)
    if results is None:
        results = compute()
        folder.finish(stage, results)
    return results


class Run:
    """Training batches, evaluations and output files of one run."""

    def __init__(self, folder, settings, source, model, strategy):
        self.folder, self.settings, self.source = folder, settings, source
        self.model, self.strategy = model, strategy
        self.state = None

    def train(self, execution, callbacks=()):
        """Train all phases; return the logs of each evaluation."""
        from official_tasks.engine.batches import space_evaluations
        from official_tasks.engine.training import train, training_state

        settings = self.settings
        self.state = training_state(
            self.folder,
            self.strategy,
            execution.save_every,
            keep=execution.keep_last,
            keep_every=execution.keep_every,
            settings=dataclasses.asdict(settings),
        )
        return train(
            self.folder,
            self.model,
            self.batches,
            self.state,
            steps=settings.steps,
            epoch_ends=space_evaluations(settings.steps, settings.evaluations),
            validation=self.evaluate,
            title="Pre-training",
            tokens_until=lambda step: tokens_until(step, settings),
            predict=self.predict,
            boundaries=[phase.last for phase in phases(settings)],
            callbacks=callbacks,
        )

    def batches(self, first_step):
        """Return batches from `first_step` on, for the phase of this step.

        `first_step` is the number of finished steps in the run.
        """
        phase = phase_at(first_step + 1, self.settings)
        return self.strategy.batches(self.source.batches(phase, first_step))

    def evaluate(self, step):
        """Return the held-out metrics for the phase of `step`.

        Steps count from 1.
        """
        held_out = self.source.held_out(phase_at(step, self.settings))
        metrics = self.model.evaluate(
            self.strategy.batches(held_out),
            callbacks=[self.state] if self.state else [],
            verbose=0,
            return_dict=True,
        )
        # Keras weights a batch's total loss by its number of rows, including
        # the rows that only fill up the last batch. It logs no other loss for a
        # model with one output, so the loss is computed from the perplexity.
        perplexity = metrics[f"{self.source.objective.headline}_perplexity"]
        metrics["loss"] = math.log(perplexity) + metrics.get("nsp_loss", 0.0)
        return metrics

    def predict(self):
        """Return the model's predictions for some held-out texts."""
        phase = phase_at(self.state.progress.step, self.settings)
        batch = next(iter(self.source.held_out(phase).unbatch().batch(SHOWN)))
        objective = self.source.objective
        return objective.predict(self.model, batch, self.source.vocabulary)

    def write(self, results):
        """Write the model, the results and the report."""
        from official_tasks.pretraining.model import change_examples_per_row

        with self.folder.output("model") as path:
            single = change_examples_per_row(self.model, None)
            single.save_preset(path, self.source.preprocessor())
        with self.folder.output("results.json") as path:
            write_json(without_nan(results), path)
        page.write_report(self.folder, render(results, self.settings))


def find_notes(results) -> list[str]:
    """Return a note, with advice, for each sign of a fault in a run."""
    last, data = results["curve"][-1], results["data"]
    notes = []
    if data["unknown"] > MAX_UNKNOWN:
        notes.append(
            f"{data['unknown']:.1%} of the tokens are [UNK]. Make the data "
            "again with a vocabulary for its language and case."
        )
    name = "lm_accuracy" if "lm_accuracy" in results else "mlm_accuracy"
    if results[name] <= results[BASELINES[name]]:
        notes.append(
            f"The accuracy of predicted tokens ({results[name]:.1%}) is no "
            "better than the accuracy of always predicting the most frequent "
            f"token ({results[BASELINES[name]]:.1%}). "
            "Set more steps or another `learning_rate`. 1e-3 suits models of a "
            "few million parameters, with `warmup=0.05` and, for AdamW, "
            "`bias_correction`."
        )
    loss = last.get("loss", last["val_loss"])
    if last["val_loss"] - loss >= OVERFIT:
        notes.append(
            f"The held-out loss is {last['val_loss'] - loss:.2f} above the "
            "training loss. Use more text, fewer steps or more dropout."
        )
    if skipped := last.get("skipped_steps"):
        notes.append(
            f"{format_count(int(skipped), 'step')} had gradients that were not "
            "finite, and changed no weight. Set a lower `learning_rate`, or "
            "use float32."
        )
    return notes
