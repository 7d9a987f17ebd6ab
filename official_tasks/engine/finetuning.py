"""Fine-tunes a model on a task and writes a run folder."""

import functools
import math

import keras
import numpy as np

import bert_keras
from bert_keras import files, json_files
from bert_keras.errors import InputError, format_count, require_tensorflow
from bert_keras.interop.opening import open_checkpoint
from bert_keras.modeling.weights import copy_weights, untrained_weights
from bert_keras.run_folder import RunFolder, resume_dtype
from bert_keras.training.loop import averaged_weights, take_averages
from bert_keras.training.state import Preempted
from bert_keras.training.strategy import choose_dtype, make_strategy
from official_tasks import page, progress
from official_tasks.engine import (
    batches,
    calibration,
    models,
    notes,
    scoring,
    splits,
    task_report,
    training,
)
from official_tasks.engine.balance import balance, smooth
from official_tasks.engine.best_weights import (
    BEST,
    BestWeights,
    Rescale,
    rescaled_head,
)
from official_tasks.engine.dev_metric import (
    LOSS,
    check_metric,
    choose_metric,
    compute_loss,
)
from official_tasks.engine.hyperparameters import EXECUTION, Hyperparameters
from official_tasks.tasks import registry

RESULTS = "results.json"
ADAPTERS = "adapter"
FAILED = "failed"  # stage of a run whose training diverged


def run(
    task,
    init,
    output,
    *,
    from_scratch=False,
    epochs=None,
    batch_size=None,
    learning_rate=None,
    sequence_length=None,
    seed=0,
    dtype="float32",
    pad_to_longest=None,
    distribution="off",
    tpu="local",
    settings=None,
    callbacks=(),
    load=None,
    **hyperparameters,
) -> dict:
    """Fine-tune a model on `task`, score it on dev and write a run folder.

    The dev split is scored after each epoch, or as often as `evaluations`
    says; the best weights are kept.

    Args:
        task: a `Task`.
        init: model folder, folder of an earlier run, or name of a preset.
        output: local run folder. The same call resumes an interrupted run and
            does not repeat a finished or failed run. Changed data or changed
            initial weights raise an InputError. If `output` is None, `run`
            only prints the sizes of the run and the notes on its data.
        from_scratch: True to use only the sizes and vocabulary of `init`.
        epochs: passes over the training rows. For this and the next three
            arguments, None means the task's default.
        batch_size: rows of a step on all devices together.
        learning_rate: peak learning rate; the default is higher for smaller
            models, see `scale_rate`.
        sequence_length: maximum number of tokens of a row.
        seed: seed of new weights, of the order of rows, and of dropout.
        dtype: Keras policy, or "auto"; see `choose_dtype`. A resumed run with
            "auto" keeps its dtype.
        pad_to_longest: True to bucket rows by length and pad each batch to its
            longest row, see `training_batches`. False to pad all rows to
            `sequence_length`. None means True, except on a TPU, which compiles
            each new shape.
        distribution: devices; see `make_strategy`.
        tpu: name of the TPU; see `make_strategy`.
        settings: dict to store in the run folder, such as the task's files. A
            run resumes only if this dict is the same.
        callbacks: Keras callbacks; `on_epoch_end` gets the scores of dev as
            `val_...`. A run may call `on_train_begin` several times: when it
            resumes, and before a shorter last epoch.
        load: function of `sequence_length` and `max_rows` that returns the
            `Data`; None means `splits.load`.
        **hyperparameters: fields of `Hyperparameters`.

    Returns:
        The scores of the task on its dev split, with "rows" (number of training
        rows), "dev_rows" (number of dev examples), "best_step", "cut" (fraction
        of the training texts that are cut), "notes" (list of str), and "curve"
        (the logs of each evaluation, a list of dicts). The dict is empty if
        `output` is None. After training, the dict is also empty in all workers
        but the chief, because only the chief has the best weights.

    Raises:
        DivergedError: training failed, now or in an earlier call.
    """
    require_tensorflow("Fine-tuning")
    if output is not None and files.is_remote(output):
        raise InputError(
            f"`output` is {output}, which is remote. Fine-tuning writes to "
            "local folders only. Name a local folder, and copy it afterwards."
        )
    hyperparameters = Hyperparameters(**hyperparameters)
    arguments = choose_arguments(
        task,
        init,
        hyperparameters,
        from_scratch,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        sequence_length=sequence_length,
    )
    strategy = make_strategy(distribution, tpu)
    if pad_to_longest is None:
        pad_to_longest = strategy.name != "tpu"
    arguments = {
        "init": str(init),
        "from_scratch": from_scratch,
        **arguments,
        "seed": seed,
        "dtype": choose_dtype(resume_dtype(dtype, output), strategy.name),
        "pad_to_longest": pad_to_longest,
        **hyperparameters.changed(),
    }
    progress.show_devices(strategy, arguments["dtype"])
    kept = {k: v for k, v in arguments.items() if k not in EXECUTION}
    identity = {"task": task.name, **kept, **(settings or {})}
    if output is not None:
        identity = registry.keep_old_name(output, identity)
    # A run does not resume with another version of the user's task.
    inputs = [*task.data_files(), *registry.find_task_file(task)]
    prepare = functools.partial(
        _Run,
        task,
        strategy=strategy,
        hyperparameters=hyperparameters,
        load=load or functools.partial(splits.load, task, init),
        **arguments,
    )
    if output is None:
        prepare(folder=None).describe()
        return {}
    weights = models.list_model_files(init)
    with RunFolder(
        output, identity, inputs, strategy.is_chief, weights
    ) as folder:
        results = folder.read_results("finetune")
        if results is None:
            if failed := folder.read_results(FAILED):
                raise training.DivergedError(
                    f"{failed['error']} The run in {folder.path} failed "
                    "before, and would fail again. To repeat it anyway, remove "
                    "this folder."
                )
            results = _train(prepare(folder=folder), callbacks)
        else:
            page.note_finished(folder)
        _remove_state(folder, strategy)
        return results


def _train(run, callbacks):
    """Train a `_Run`, and record its results or its failure."""
    folder = run.folder
    # Files may have changed since this run began, or since an earlier run of
    # the set read them.
    for versions in (splits.read_versions(run.task, run.init), run.versions):
        folder.check_inputs(versions)
    try:
        results = run.finish(callbacks)
    except training.DivergedError as error:
        folder.finish(FAILED, {"error": str(error)})
        _remove_state(folder, run.strategy)
        raise
    outputs = ["model", "predictions", training.HISTORY, BEST, RESULTS]
    outputs += [ADAPTERS] * bool(run.hyperparameters.lora_rank)
    folder.finish("finetune", results, outputs)
    return results


def _remove_state(folder, strategy):
    # Free disk space: the state is three times as large as the model.
    if strategy.is_chief:
        files.remove(folder.file("state"))


def choose_arguments(
    task, init, hyperparameters, from_scratch=False, **arguments
) -> dict:
    """Return `arguments` as a dict, with the task's defaults instead of None.

    A default learning rate is scaled to the size of `init`, see `scale_rate`.

    Raises:
        InputError: `epochs`, `batch_size`, a hyperparameter or a combination of
            arguments is invalid.
    """
    chosen = {
        name: getattr(task.defaults, name) if value is None else value
        for name, value in arguments.items()
    }
    if not 0 < chosen["epochs"] < math.inf:
        raise InputError(
            f"`epochs` is {chosen['epochs']}; expected a number above 0."
        )
    if chosen["batch_size"] < 1:
        raise InputError(
            f"`batch_size` is {chosen['batch_size']}; expected 1 or more."
        )
    hyperparameters.check()
    keeping = {"lora_rank", "freeze_layers"} & {*hyperparameters.changed()}
    if from_scratch and keeping:
        raise InputError(
            "`lora_rank` and `freeze_layers` keep trained weights, which "
            "`from_scratch` discards. Leave `from_scratch` or the other two "
            "out."
        )
    if arguments["learning_rate"] is None:
        chosen["learning_rate"] = models.scale_rate(
            task.defaults.learning_rate, init
        )
    return chosen


class _Run:
    """The rows, the model and the best weights of one run."""

    def __init__(
        self,
        task,
        folder,
        strategy,
        hyperparameters,
        load,
        *,
        init,
        seed,
        **arguments,
    ):
        self.task, self.folder, self.strategy = task, folder, strategy
        self.init, self.seed, self.arguments = init, seed, arguments
        self.hyperparameters = hyperparameters
        keras.utils.set_random_seed(seed)
        length = arguments["sequence_length"]
        self.preprocess, self.examples, encoded, self.versions = load(
            length, hyperparameters.max_rows
        )
        # Targets and weights of the rows may change, but not for other runs.
        self.encoded = dict(encoded)
        train = self.encoded["train"]
        # What the saved head does to the outputs of the trained head.
        self.rescale = None
        if hyperparameters.calibrate:
            calibration.check_task(task, "calibrate", True)
        if hyperparameters.min_precision is not None:
            value = hyperparameters.min_precision
            calibration.check_task(task, "min_precision", value)
        if task.standardises:
            self.rescale = Rescale.fit(train.targets)
            targets = self.rescale.undo(np.asarray(train.targets, np.float64))
            train = train._replace(targets=targets.astype(train.targets.dtype))
        self.encoded["train"] = train
        self.rows = len(batches.row_lengths(train.inputs))
        self.evaluations = batches.plan_evaluations(
            self.rows,
            arguments["epochs"],
            arguments["batch_size"],
            hyperparameters.evaluations,
        )
        self.steps = self.evaluations[-1]
        self.loss = self._make_loss()
        with strategy.scope():
            self.model = self._compile_model()
        self.predictor = scoring.Predictor(
            self.model, task.per_token, self.preprocess.packer.pad_id
        )
        self.metric = choose_metric(task, hyperparameters.metric)
        check_metric(self.metric, task, hyperparameters)
        self.notes = notes.note_data(
            self.examples,
            train,
            self.preprocess,
            self.model.encoder.max_sequence_length,
        )

    def _make_loss(self):
        """Return the loss; weight the training rows if classes are balanced."""
        loss = self.task.loss()
        if self.hyperparameters.class_weights:
            self.encoded["train"], loss = balance(
                self.task, self.encoded["train"]
            )
        if fraction := self.hyperparameters.label_smoothing:
            loss = smooth(self.task, loss, fraction)
        return loss

    def _compile_model(self):
        from_scratch = self.arguments["from_scratch"]
        hyperparameters = self.hyperparameters
        model = models.load_model(
            self.task,
            self.init,
            self.arguments["dtype"],
            from_scratch,
            hyperparameters.bilstm_dim,
            **hyperparameters.encoder_arguments(),
        )
        hyperparameters.adapt(model)
        if self.rescale and not from_scratch:
            stored = open_checkpoint(self.init).head_arguments
            is_new = "classifier/kernel" in untrained_weights(model)
            if stored.get("problem") == "regression" and not is_new:
                # The stored head predicts in the data's units, but the model
                # is trained on z-scores.
                self.rescale.take_out_of(model.classifier)
        model.compile(
            hyperparameters.make_optimizer(
                self.arguments["learning_rate"], self.steps
            ),
            self.loss,
            loss_weights=self.task.loss_weights,
            # XLA would compile once for each length.
            jit_compile=False if self.arguments["pad_to_longest"] else "auto",
            steps_per_execution=hyperparameters.steps_per_execution,
        )
        return model

    def describe(self):
        """Print the run's sizes and the notes on its data, without training."""
        train = self.encoded["train"]
        cut = 0 if train.cut is None else int(np.sum(train.cut))
        tokens = len(train.inputs["token_ids"].flat_values)
        unknown = notes.unknown_fraction(train, self.preprocess)
        labels, dev = self.task.labels or (), self.examples["dev"]
        counts = notes.count_labels(labels, self.examples["train"])
        batch_size = self.arguments["batch_size"]
        for line in (
            f"rows: {self.rows:,} to train on, {len(dev):,} to score on",
            f"classes: {len(labels) or 'none'}{counts}",
            f"tokens: {tokens:,}; {cut:,} more are cut off",
            f"[UNK]: {unknown:.2%} of the tokens",
            f"steps: {self.steps:,} of {format_count(batch_size, 'row')}",
            f"learning rate: {self.arguments['learning_rate']:g}",
        ):
            progress.console.print(line, soft_wrap=True)
        progress.print_notes(self.notes)

    def finish(self, callbacks=()) -> dict:
        """Train to the end, write the run's files and return its results.

        Workers other than the chief write no results, and return {}.
        """
        self.best = BestWeights(self.folder)
        self.best_answers = None  # predictions and scores of the best step
        progress.print_notes(self.notes)
        self.state = training.training_state(
            self.folder, self.strategy, self.hyperparameters.save_every
        )
        curve = training.train(
            self.folder,
            self.model,
            self._batches,
            self.state,
            steps=self.steps,
            epoch_ends=self.evaluations,
            validation=self._evaluate,
            title=f"Fine-tuning {self.task.name}",
            callbacks=callbacks,
            should_end=functools.partial(
                self.hyperparameters.has_stopped, self.metric
            ),
        )
        if not self.strategy.is_chief:
            return {}
        best_step = self.best.check()
        predictions, scores = self._score_best(best_step, curve)
        results = {
            **scores,
            "rows": self.rows,
            "dev_rows": len(self.examples["dev"]),
            "best_step": best_step,
            "cut": notes.cut_fraction(self.encoded["train"]),
            "curve": curve,
        }
        rate = self.arguments["learning_rate"]
        more = notes.note_results(self.metric, results, self.steps, rate)
        progress.print_notes(more)
        results["notes"] = self.notes + more
        self._write(results, predictions)
        return results

    def _batches(self, step):
        length = self.arguments["sequence_length"]
        return self.strategy.batches(
            batches.training_batches(
                self.encoded["train"],
                self.arguments["batch_size"],
                self.seed,
                self.steps,
                step,
                pad_id=self.preprocess.packer.pad_id,
                length=None if self.arguments["pad_to_longest"] else length,
            )
        )

    def _predict_and_score(self, check=lambda: None):
        """Return the predictions and scores of dev.

        With `calibrate`, the temperature is fitted on dev first. With
        `tunes`, thresholds are chosen on dev before scoring.
        """
        encoded = self.encoded["dev"]
        examples = self.examples["dev"]
        outputs = self.predictor(encoded, check=check)
        if self.hyperparameters.calibrate:
            before = self.task.decode(examples, encoded, outputs)
            temperature = calibration.calibrate(
                self.task, examples, encoded, outputs
            )
            self.rescale = Rescale(1 / temperature)
        if self.rescale:
            outputs = self.rescale.apply(outputs)
        predictions = self.task.decode(examples, encoded, outputs)
        if self.hyperparameters.tunes:
            self._tune(predictions)
        scores = self.task.score(examples, predictions)
        if self.metric.name == LOSS and self.task.has_dev_loss:
            scores[LOSS] = compute_loss(self.task, encoded, outputs)
        if self.metric != self.task.metrics[0]:
            # The baseline is for the first metric, not for `self.metric`.
            scores.pop("majority_baseline", None)
        if self.hyperparameters.calibrate:
            scores["temperature"] = temperature
            scores |= calibration.describe(examples, before, predictions)
        if self.metric.name not in scalars(scores):
            raise InputError(
                f"The `metrics` of the task {self.task.name} have "
                f"{self.metric.name}, but its scores of dev are the numbers "
                f"{', '.join(scalars(scores))}. Correct "
                "`metrics` or the scores, or name another `metric`."
            )
        return predictions, scores

    def _tune(self, predictions):
        """Choose thresholds on dev, and set them in the task and the model."""
        least = self.hyperparameters.min_precision
        options = {} if least is None else {"min_precision": least}
        chosen = self.task.tune(self.examples["dev"], predictions, **options)
        self.task.take_arguments(chosen)
        for name, value in chosen.items():
            setattr(self.model, name, value)

    def _evaluate(self, step) -> dict:
        """Score the dev split; save the weights if they are the best so far."""
        check = functools.partial(self.state.check_stop_request, saves=False)
        try:
            with averaged_weights(self.model):
                answers = self._predict_and_score(check=check)
                scores = answers[1]
                if self.strategy.is_chief:
                    value = self.metric.rank(scores)
                    is_first = not self.state.progress.lines
                    if self.best.update(step, value, self._save, is_first):
                        self.best_answers = answers
        except Preempted:
            # Save the training state here, not in the block above, where the
            # weights may be averages.
            self.state.check_stop_request()  # raises again
        return scalars(scores)

    def _save(self):
        head = getattr(self.model, "classifier", None)
        with rescaled_head(self.rescale, head):
            with self.folder.output("model") as path:
                self.model.save_preset(path, self.preprocess)
            if self.hyperparameters.lora_rank:
                with self.folder.output(ADAPTERS) as path:
                    bert_keras.save_lora(self.model, path)

    def _score_best(self, step, curve):
        """Return the predictions and scores of the best weights on dev.

        If this process evaluated the best step, return the results of that
        evaluation. But score a rescaled head again, because rescaling changes
        the rounding. Choose and score tuned thresholds again, because later
        evaluations change them.
        """
        tunes = self.hyperparameters.tunes
        if self.best_answers and not (self.rescale or tunes):
            return self.best_answers
        self._load_best(step, curve)
        return self._predict_and_score()

    def _load_best(self, step, curve):
        """Load the best weights into the model.

        Afterwards, the head of a regression predicts in the data's units.
        """
        if step != self.steps:
            best = type(self.model).from_preset(
                self.folder.file("model"), **self.model.arguments()
            )
            copy_weights(best, self.model)
            # Undo the saved calibration: `_predict_and_score` calibrates again.
            if self.hyperparameters.calibrate:
                line = next(line for line in curve if line["step"] == step)
                rescale = Rescale(1 / line["val_temperature"])
                rescale.take_out_of(self.model.classifier)
        else:
            take_averages(self.model)
            if self.rescale and not self.hyperparameters.calibrate:
                self.rescale.put_into(self.model.classifier)
        self.rescale = None

    def _write(self, results, predictions):
        with self.folder.output("predictions") as path:
            files.make_folder(path)
            self.task.write(self.examples["dev"], predictions, path)
        with self.folder.output(RESULTS) as path:
            json_files.write_json(json_files.without_nan(results), path)
        report = task_report.render(
            self.task.name,
            self.metric.name,
            results,
            self.task.mistakes(self.examples["dev"], predictions),
            {"init": self.init, "seed": self.seed, **self.arguments},
        )
        page.write_report(self.folder, report)


def scalars(scores) -> dict:
    """Return the numeric entries of `scores` as a dict of floats."""
    return {
        name: float(value)
        for name, value in scores.items()
        if isinstance(value, int | float | np.number)
    }
