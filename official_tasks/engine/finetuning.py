"""One fine-tuning run: any task, from any weights, into one folder."""

import contextlib
import functools
import math
import os
from typing import NamedTuple

import keras
import numpy as np

import bert_keras
from bert_keras import files, json_files
from bert_keras.errors import InputError, collect_faults, require_tensorflow
from bert_keras.interop.presets import open_checkpoint
from bert_keras.manifest import (
    check_entries,
    check_fields,
    check_files,
    describe_files,
    read_manifest,
    write_manifest,
)
from bert_keras.modeling.weights import copy_weights
from bert_keras.run_folder import RunFolder
from bert_keras.training.loop import PUT_BACK
from bert_keras.training.strategy import choose_dtype, make_strategy
from official_tasks import page, progress
from official_tasks.engine import batches, models, task_report, training
from official_tasks.engine.balance import balance
from official_tasks.engine.dev_metric import (
    LOSS,
    check_metric,
    compute_loss,
    rank_value,
)
from official_tasks.engine.hyperparameters import Hyperparameters

RESULTS = "results.json"
BEST = "best.json"
ADAPTERS = "adapter"
HISTORY = "metrics.jsonl"
SAVE_EVERY = 1000  # steps between two checkpoints
CUT_SHARE = 0.1  # of the texts, from which on cutting is worth a note
UNKNOWN_SHARE = 0.1  # of the pieces; English in its own vocabulary: under 1 %
FAILED = (
    "{metric} on dev is {value:.3f}, no better than the best constant guess, "
    "{baseline:.3f}: the model has learned nothing that it can use from the "
    "texts. Either the labels do not follow from the texts, or {steps} steps "
    "on {rows} rows are too few, or the learning rate does not fit (2e-5 to "
    "5e-5 for weights that were pre-trained, 1e-4 and more for small or new "
    "ones), or this seed failed, as some do with large models: try another"
)
MISSED_RECALL, MISSED_SHARE = 0.1, 0.05


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
    pad_to_longest=True,
    distribution="off",
    tpu="local",
    settings=None,
    callbacks=(),
    **hyperparameters,
) -> dict:
    """Fine-tunes on `task`, scores it, and writes the run folder `output`.

    After each epoch the dev split is scored; the weights that scored best by
    the task's metric are kept.

    Args:
        task: a `Task`.
        init: model folder, run folder of another task, or name of weights.
        output: the run's folder; an interrupted run is resumed, a finished
            one not trained again. Data or weights to start from that
            changed since it began are refused.
        from_scratch: keep the sizes and the vocabulary of `init` only.
        epochs, batch_size, learning_rate, sequence_length: the task's
            `defaults` where None; the rate grows as the model gets smaller,
            see `scale_rate`.
        dtype: Keras policy, or "auto"; see `choose_dtype`.
        pad_to_longest: batches of rows of like length, padded to the longest
            of each; without, rows of `sequence_length`, as a TPU wants them.
        distribution, tpu: devices; see `make_strategy`.
        settings: further settings that distinguish this run, such as
            the files that the task reads.
        callbacks: Keras callbacks; `on_epoch_end` gets the scores of dev
            as `val_...`. A resumed run begins with `on_train_begin` again.
        hyperparameters: fields of `Hyperparameters`.

    Returns:
        The scores of the task on its dev split, with "rows", "dev_rows",
        "best_step", "cut" (the share of training texts that are cut),
        "notes", and "curve", what was logged after each epoch.
    """
    require_tensorflow("Fine-tuning")
    hyperparameters = Hyperparameters(**hyperparameters)
    usual = choose_arguments(
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
    arguments = {
        "init": str(init),
        "from_scratch": from_scratch,
        **usual,
        "seed": seed,
        "dtype": choose_dtype(dtype, strategy.name),
        "pad_to_longest": pad_to_longest,
        **hyperparameters.changed(),
    }
    progress.show_devices(strategy, arguments["dtype"])
    decided = {"task": task.name, **arguments, **(settings or {})}
    inputs = [*task.data_files(), *models.weights_of(init)]
    with RunFolder(output, decided, inputs, strategy.is_chief) as folder:
        results = folder.read_results("finetune")
        if results is None:
            run = _Run(task, folder, strategy, hyperparameters, **arguments)
            results = run.finish(callbacks)
            folder.finish("finetune", results, run.outputs())
        else:
            page.note_finished(folder)
        if strategy.is_chief:
            # Three times the model's size, and of no use any more.
            files.remove(folder.file("state"))
        return results


def choose_arguments(
    task, init, hyperparameters, from_scratch=False, **given
) -> dict:
    """Return epochs, batch size, rate and length: the task's where None.

    Raises:
        InputError: a value of these or of the hyperparameters does not fit.
    """
    usual = {
        name: getattr(task.defaults, name) if value is None else value
        for name, value in given.items()
    }
    if not 0 < usual["epochs"] < math.inf:
        raise InputError(
            f"epochs is {usual['epochs']}; expected a number above 0."
        )
    hyperparameters.check()
    if from_scratch and {"lora_rank", "freeze_layers"} & {
        *hyperparameters.changed()
    }:
        raise InputError(
            "lora_rank and freeze_layers keep trained weights as they are, and "
            "from_scratch has none. Leave out one or the other."
        )
    accumulation = hyperparameters.accumulation
    if accumulation > 1 and getattr(task.loss(), "compares_rows", False):
        raise InputError(
            f"--accumulation={accumulation}: the loss of --task={task.name} "
            "compares every row of a batch with every other one, which "
            "micro-batches would part. Leave it out, and take a smaller "
            "--batch_size if the memory is short."
        )
    if given["learning_rate"] is None:
        usual["learning_rate"] = models.scale_rate(
            task.defaults.learning_rate, init
        )
    return usual


def check(task, init, *, from_scratch=False, settings=None, **arguments):
    """Read the data and print what `run` would train, and train nothing.

    Args:
        arguments: of `run`.

    Raises:
        InputError: the faults of the data, a line each.
    """
    names = "epochs", "batch_size", "learning_rate", "sequence_length"
    usual = choose_arguments(
        task,
        init,
        Hyperparameters(
            **{
                n: arguments[n]
                for n in Hyperparameters._fields
                if n in arguments
            }
        ),
        from_scratch,
        **{name: arguments.get(name) for name in names},
    )
    preprocess = load_preprocessor(init, usual["sequence_length"])
    examples, encoded = encode_splits(task, preprocess)
    train = encoded["train"]
    rows = len(batches.row_lengths(train.inputs))
    steps, _ = batches.training_steps(
        rows, usual["epochs"], usual["batch_size"]
    )
    cut = 0 if train.cut is None else int(np.sum(train.cut))
    tokens = len(train.inputs["token_ids"].flat_values)
    lines = {
        "rows": f"{rows:,} to train on, {len(examples['dev']):,} to score on",
        "classes": str(len(task.labels)) if task.labels else "none",
        "tokens": f"{tokens:,}; {cut:,} others are cut",
        "[UNK]": f"{unknown_share(train, preprocess):.2%} of the tokens",
        "steps": f"{steps:,} of {usual['batch_size']} rows",
        "learning rate": f"{usual['learning_rate']:g}",
    }
    for name, text in lines.items():
        progress.console.print(f"{name}: {text}", soft_wrap=True)
    for note in notes_on_rows(examples, train, preprocess):
        progress.console.print(f"note: {note}", soft_wrap=True)


def load_preprocessor(init, sequence_length):
    return bert_keras.BertPreprocessor.from_preset(
        init,
        sequence_length=sequence_length,
        pad_to_longest=True,
        prompt=None,  # tasks encode texts without it
    )


def encode_splits(task, preprocess) -> tuple[dict, dict]:
    """Return the examples and the rows of "train" and "dev"."""
    examples, faults = {}, []
    for split in ("train", "dev"):
        with collect_faults(faults):
            examples[split] = task.read(split)
    if faults:
        raise InputError("\n".join(dict.fromkeys(faults)))
    return examples, {
        split: check_encoded(task, split, task.encode(rows, preprocess))
        for split, rows in examples.items()
    }


class _Run:
    """The rows, the model and the best weights so far of one run."""

    def __init__(
        self,
        task,
        folder,
        strategy,
        hyperparameters,
        *,
        init,
        seed,
        **arguments,
    ):
        self.task, self.folder, self.strategy = task, folder, strategy
        self.init, self.seed, self.arguments = init, seed, arguments
        self.hyperparameters = hyperparameters
        keras.utils.set_random_seed(seed)
        self.preprocess = load_preprocessor(init, arguments["sequence_length"])
        self.examples, self.encoded = encode_splits(task, self.preprocess)
        self.scale = None  # while the model answers in standard units
        if task.standardises:
            train = self.encoded["train"]
            self.scale = Scale.of(train.targets)
            self.encoded["train"] = train._replace(
                targets=self.scale.standardised(train.targets)
            )
        self.rows = len(batches.row_lengths(self.encoded["train"].inputs))
        self.steps, self.steps_per_epoch = batches.training_steps(
            self.rows, arguments["epochs"], arguments["batch_size"]
        )
        self.loss = task.loss()
        if hyperparameters.class_weights:
            self.encoded["train"], self.loss = balance(
                task, self.encoded["train"]
            )
        with strategy.scope():
            self.model = self._compiled_model()
        self.predictor = models.Predictor(
            self.model, task.per_token, self.preprocess.packer.pad_id
        )
        self.metric = hyperparameters.metric or task.metric
        if self.metric != task.metric or hyperparameters.tune_thresholds:
            # Refused now, and not after the first epoch.
            check_metric(task, self.metric, self._score()[1])

    def _compiled_model(self):
        from_scratch = self.arguments["from_scratch"]
        chosen = self.hyperparameters
        model = models.load_model(
            self.task,
            self.init,
            self.arguments["dtype"],
            from_scratch,
            chosen.bilstm_dim,
            **chosen.encoder_arguments(),
        )
        chosen.adapt(model)
        if self.scale and not from_scratch:
            stored = open_checkpoint(self.init).head_arguments
            if stored.get("problem") == "regression":
                # Its head was saved in the units of its data.
                self.scale.take_out_of(model.classifier)
        model.compile(
            chosen.make_optimizer(self.arguments["learning_rate"], self.steps),
            self.loss,
            loss_weights=self.task.loss_weights,
            # Lengths that vary would be compiled one by one.
            jit_compile=False if self.arguments["pad_to_longest"] else "auto",
            steps_per_execution=chosen.steps_per_execution,
        )
        return model

    def finish(self, callbacks=()) -> dict:
        """Trains to the end and writes all that the run leaves."""
        notes = notes_on_rows(
            self.examples, self.encoded["train"], self.preprocess
        )
        for note in notes:
            progress.console.print(f"note: {note}")
        curve = training.train(
            self.folder,
            self.model,
            self._batches,
            training.training_state(self.folder, self.strategy, SAVE_EVERY),
            steps=self.steps,
            steps_per_epoch=self.steps_per_epoch,
            validation=self._evaluate,
            title=f"Fine-tuning {self.task.name}",
            callbacks=callbacks,
            ended=functools.partial(
                self.hyperparameters.has_stopped, self.metric
            ),
        )
        best_step = self._take_best()
        predictions, scores = self._score()
        results = {
            **scores,
            "rows": self.rows,
            "dev_rows": len(self.examples["dev"]),
            "best_step": best_step,
            "cut": cut_share(self.encoded["train"]),
            "notes": notes,
            "curve": curve,
        }
        metric, known = self.metric, len(notes)
        if has_failed(metric, results):
            notes.append(
                FAILED.format(
                    metric=metric,
                    value=results[metric],
                    baseline=results.get("majority_baseline", math.nan),
                    steps=self.steps,
                    rows=self.rows,
                )
            )
        else:
            notes += notes_on_classes(
                results.get("classes"), self.arguments["learning_rate"]
            )
        for note in notes[known:]:
            progress.console.print(f"note: {note}")
        if self.strategy.is_chief:
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

    def _score(self):
        """Return the predictions for dev and their scores."""
        encoded = self.encoded["dev"]
        outputs = self.predictor(encoded)
        if self.scale:
            outputs = self.scale.mapped_back(outputs)
        predictions = self.task.decode(self.examples["dev"], encoded, outputs)
        if self.hyperparameters.tune_thresholds:
            self._tune(predictions)
        scores = self.task.score(self.examples["dev"], predictions)
        if self.metric == LOSS and self.task.has_dev_loss:
            scores[LOSS] = compute_loss(self.task, encoded, outputs)
        if self.metric != self.task.metric:
            # It is the baseline of another metric.
            scores.pop("majority_baseline", None)
        return predictions, scores

    def _tune(self, predictions):
        """Choose the thresholds of task and model on dev."""
        chosen = self.task.tune(self.examples["dev"], predictions)
        if not chosen:
            raise InputError(
                f"tune_thresholds is True, but --task={self.task.name} has no "
                "threshold to choose: expected several labels a text, or "
                "questions that may have no answer. Leave it out."
            )
        self.task.take_arguments(chosen)
        for name, value in chosen.items():
            setattr(self.model, name, value)

    def _evaluate(self, step) -> dict:
        """Scores the dev split; keeps the weights if none were better."""
        _, scores = self._score()
        if self.strategy.is_chief:
            self._keep_if_best(step, rank_value(self.metric, scores))
        return scalars(scores)

    def _keep_if_best(self, step, value):
        best = self._read_best() or {"step": step}
        # A resumed run may pass a step that was scored before: what was kept
        # from there on is not true for it yet.
        if best["step"] >= step or value > best["value"]:
            with self._in_own_units():
                with self.folder.output("model") as path:
                    self.model.save_preset(path, self.preprocess)
                if self.hyperparameters.lora_rank:
                    with self.folder.output(ADAPTERS) as path:
                        bert_keras.save_lora(self.model, path)
            kept = files.walk(self.folder.file("model"))
            names = [os.path.relpath(path, self.folder.path) for path in kept]
            write_manifest(
                self.folder.file(BEST),
                {
                    "step": step,
                    "value": value,
                    "files": describe_files(self.folder.path, names),
                },
            )

    def _read_best(self):
        """Return the record of the best weights so far, or None of a new run.

        Raises:
            InputError: it is damaged, or missing after an evaluation.
        """
        path = self.folder.file(BEST)
        history = self.folder.file(HISTORY)
        if not files.is_file(path) and not (
            files.is_file(history) and files.size(history)
        ):
            return None
        try:
            return read_manifest(path, "evaluation", _check_best)
        except InputError as error:
            raise InputError(f"{error} {PUT_BACK}") from None

    @contextlib.contextmanager
    def _in_own_units(self):
        """The model answers in the units of the data; then as before."""
        if not self.scale:
            yield
            return
        head = self.model.classifier
        before = head.kernel.numpy(), head.bias.numpy()
        self.scale.put_into(head)
        try:
            yield
        finally:
            # Not by arithmetic: training continues with the same bits.
            head.kernel.assign(before[0])
            head.bias.assign(before[1])

    def _take_best(self) -> int:
        """Gives the model the best weights; returns the step they are of."""
        step = self.steps
        if self.strategy.is_chief:
            best = self._read_best()
            check_files(self.folder.path, best["files"], PUT_BACK)
            step = best["step"]
        if step != self.steps:
            kept = type(self.model).from_preset(
                self.folder.file("model"), **self.model.arguments()
            )
            copy_weights(kept, self.model)
        elif self.scale:
            self.scale.put_into(self.model.classifier)
        self.scale = None
        return step

    def outputs(self) -> list[str]:
        """Return the names of what the run wrote and may be used later."""
        names = ["model", "predictions", HISTORY, BEST, RESULTS]
        return names + [ADAPTERS] * bool(self.hyperparameters.lora_rank)

    def _write(self, results, predictions):
        with self.folder.output("predictions") as path:
            files.make_folder(path)
            self.task.write(self.examples["dev"], predictions, path)
        with self.folder.output(RESULTS) as path:
            json_files.write_json(json_files.without_nan(results), path)
        page.write_report(
            self.folder,
            lambda: task_report.render(
                self.task.name,
                self.metric,
                results,
                self.task.mistakes(self.examples["dev"], predictions),
                {"init": self.init, "seed": self.seed, **self.arguments},
            ),
        )


def _check_best(best):
    check_fields(best, {"step": int, "value": float, "files": dict})
    check_entries(best["files"])


class Scale(NamedTuple):
    """Mean and standard deviation of the numbers that a model learns.

    A head that answers in standard units x answers in those of the data,
    x * deviation + mean, once its weights are mapped likewise.
    """

    mean: float
    deviation: float

    @classmethod
    def of(cls, targets):
        targets = np.asarray(targets, np.float64)
        # Numbers that are all the same have any deviation.
        return cls(float(targets.mean()), float(targets.std()) or 1.0)

    def standardised(self, targets):
        numbers = np.asarray(targets, np.float64)
        return ((numbers - self.mean) / self.deviation).astype(targets.dtype)

    def mapped_back(self, outputs):
        return outputs * self.deviation + self.mean

    def put_into(self, head):
        """From standard units to those of the data."""
        head.kernel.assign(head.kernel * self.deviation)
        head.bias.assign(self.mapped_back(head.bias))

    def take_out_of(self, head):
        """From the units of the data to standard ones."""
        head.kernel.assign(head.kernel / self.deviation)
        head.bias.assign((head.bias - self.mean) / self.deviation)


def check_encoded(task, split, encoded):
    """Returns rows that can be learned from; refuses those that cannot."""
    if not len(batches.row_lengths(encoded.inputs)):
        raise InputError(f"The {split} split of {task.name} has no examples.")
    if encoded.targets is None:
        raise InputError(
            f"The {split} split of {task.name} has no labels: expected one "
            "for each example. A test file without labels can only be "
            "predicted."
        )
    return encoded


def notes_on_rows(examples, encoded, preprocess) -> list[str]:
    """Return notes on the data, their length and their tokens.

    Args:
        examples: of each split, as the task reads them.
        encoded: the rows to train on.
        preprocess: of the run.
    """
    notes = [
        note
        for rows in examples.values()
        for note in getattr(rows, "notes", ())
    ]
    notes = list(dict.fromkeys(notes))
    share = cut_share(encoded)
    if share > CUT_SHARE:
        cut = np.asarray(encoded.cut)
        enough = preprocess.sequence_length + int(
            np.percentile(cut[cut > 0], 95)
        )
        every = "all" if share == 1 else f"{share:.0%} of the"
        notes.append(
            f"{every} texts are longer than {preprocess.sequence_length} "
            f"pieces and are cut: sequence_length={enough} would hold most"
        )
    unknown = unknown_share(encoded, preprocess)
    if unknown > UNKNOWN_SHARE:
        notes.append(
            f"{unknown:.0%} of the pieces are [UNK]: the vocabulary of these "
            "weights does not fit the texts; take weights of their language"
        )
    return notes


def unknown_share(encoded, preprocess) -> float:
    """Return the fraction of the tokens that are [UNK]."""
    ids = encoded.inputs["token_ids"].flat_values.numpy()
    return float(np.mean(ids == preprocess.tokenizer.unk_id))


def notes_on_classes(classes, rate) -> list[str]:
    """Return a note on each frequent class that is hardly ever predicted.

    Args:
        classes: of `score`: class -> "recall", "support" and others; or None.
        rate: the run's learning rate.
    """
    if not classes:
        return []
    rows = sum(scores["support"] for scores in classes.values())
    return [
        f"the class {name!r} has {scores['support'] / rows:.0%} of the dev "
        f"rows and a recall of {scores['recall']:.2f}: it is hardly ever "
        f"predicted. Try a higher learning_rate ({2 * rate:.1g}), more epochs, "
        "or class_weights='balanced'"
        for name, scores in classes.items()
        if scores["support"] > MISSED_SHARE * rows
        and scores["recall"] < MISSED_RECALL
    ]


def cut_share(encoded) -> float:
    """The share of the rows whose text did not fit."""
    return 0.0 if encoded.cut is None else float(np.mean(encoded.cut > 0))


def has_failed(metric, results) -> bool:
    """Whether a run is no better than the best constant guess."""
    baseline = results.get("majority_baseline", -math.inf)
    return not results[metric] > baseline


def scalars(scores) -> dict:
    """The metrics among what `score` returns."""
    return {
        name: float(value)
        for name, value in scores.items()
        if isinstance(value, int | float | np.number)
    }
