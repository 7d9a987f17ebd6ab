"""One fine-tuning run: any task, from any weights, into one folder."""

import contextlib
import math
from typing import NamedTuple

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from official_tasks import progress
from official_tasks.engine.batches import (
    row_lengths,
    training_batches,
    training_steps,
)
from official_tasks.engine.models import (
    Predictor,
    checked_files,
    load_model,
    preset_of,
    weights_of,
)
from official_tasks.engine.training import train, training_state
from official_tasks.report import page, task_report

# What a look at encoded rows tells before any time is spent on training.

CUT_SHARE = 0.1  # of the texts, from which on cutting is worth a note
UNKNOWN_SHARE = 0.1  # of the pieces; English in its own vocabulary: under 1 %


def check_encoded(task, split, encoded):
    """Returns rows that can be learned from; refuses those that cannot."""
    if not len(row_lengths(encoded.inputs)):
        raise InputError(f"The {split} split of {task.name} has no examples.")
    if encoded.targets is None:
        raise InputError(
            f"The {split} split of {task.name} has no labels: expected one "
            "for each example. A test file without labels can only be "
            "predicted."
        )
    return encoded


def notes_on_rows(task, encoded, preprocess) -> list[str]:
    """What deserves a look: in the data, in their length, in their pieces."""
    # One task serves several runs, and may read its files in each.
    found = list(dict.fromkeys(task.advice))
    share = cut_share(encoded)
    if share > CUT_SHARE:
        lengths = np.asarray(encoded.cut)[np.asarray(encoded.cut) > 0]
        wanted = preprocess.sequence_length + int(np.percentile(lengths, 95))
        every = "all" if share == 1 else f"{share:.0%} of the"
        found.append(
            f"{every} texts are longer than {preprocess.sequence_length} "
            f"pieces and are cut: sequence_length={wanted} would hold most"
        )
    unknown = _unknown_share(encoded, preprocess)
    if unknown > UNKNOWN_SHARE:
        found.append(
            f"{unknown:.0%} of the pieces are [UNK]: the vocabulary of these "
            "weights does not fit the texts; take weights of their language"
        )
    return found


def cut_share(encoded) -> float:
    """The share of the rows whose text did not fit."""
    return 0.0 if encoded.cut is None else float(np.mean(encoded.cut > 0))


def _unknown_share(encoded, preprocess):
    ids = encoded.inputs["token_ids"].flat_values.numpy()
    return float(np.mean(ids == preprocess.tokenizer.unk_id))


# One fine-tuning run: any task, from any weights, into one folder.

RESULTS = "results.json"
SAVE_EVERY = 1000  # steps between two checkpoints
FAILED = (
    "{metric} on dev is {value:.3f}, no better than the best constant guess, "
    "{baseline:.3f}: the model has learned nothing that it can use from the "
    "texts. Either the labels do not follow from the texts, or {steps} steps "
    "on {rows} rows are too few, or the learning rate does not fit (2e-5 to "
    "5e-5 for weights that were pre-trained, 1e-4 and more for small or new "
    "ones), or this seed failed, as some do with large models: try another"
)
COUNTS = ("rows", "dev_rows", "best_step", "cut")  # no metrics


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
) -> dict:
    """Fine-tunes on `task`, scores it, and writes the run folder `output`.

    After each epoch the dev split is scored; the weights that scored best by
    the task's metric are kept.

    Args:
        task: a `Task`.
        init: model folder, run folder of another task, or name of weights.
        output: the run's folder; a broken run goes on, a finished one is
            not trained again. Data or weights to start from that changed
            since it began are refused.
        from_scratch: keep the sizes and the vocabulary of `init` only.
        epochs, batch_size, learning_rate, sequence_length: the task's
            `defaults` where None.
        dtype: Keras policy, or "auto"; see `choose_dtype`.
        pad_to_longest: batches of rows of like length, padded to the longest
            of each; without, rows of `sequence_length`, as a TPU wants them.
        distribution, tpu: devices; see `make_strategy`.
        settings: further settings that tell this run from another, such as
            the files that the task reads.

    Returns:
        The scores of the task on its dev split, with "rows", "dev_rows",
        "best_step", "cut" (the share of training texts that are cut),
        "notes", and "curve", what was logged after each epoch.
    """
    given = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "sequence_length": sequence_length,
    }
    arguments = {
        "init": str(init),
        "from_scratch": from_scratch,
        **{
            name: getattr(task.defaults, name) if value is None else value
            for name, value in given.items()
        },
        "seed": seed,
        "dtype": dtype,
        "pad_to_longest": pad_to_longest,
    }
    from bert_keras.errors import require_tensorflow
    from bert_keras.run_folder import RunFolder
    from bert_keras.training.strategy import choose_dtype, make_strategy

    require_tensorflow("Fine-tuning")
    if not 0 < arguments["epochs"] < math.inf:
        raise InputError(
            f"epochs is {arguments['epochs']}; expected a number above 0."
        )
    strategy = make_strategy(distribution, tpu)
    arguments["dtype"] = choose_dtype(dtype, strategy.name)
    decided = {"task": task.name, **arguments, **(settings or {})}
    with RunFolder(output, decided, writes=strategy.is_chief) as folder:
        hashes = checked_files([*task.data_files(), *weights_of(init)], folder)
        results = folder.done("finetune")
        if results is None:
            run = _Run(task, folder, strategy, **arguments)
            folder.finish("files", hashes)
            results = run.finish()
            folder.finish("finetune", results, outputs=["model"])
        else:
            progress.console.print(
                f"{output}: finished before; nothing trained", soft_wrap=True
            )
        if strategy.is_chief:
            # Three times the model's size, and of no use any more.
            files.remove(folder.file("state"))
        return results


class _Run:
    """The rows, the model and the best weights so far of one run."""

    def __init__(self, task, folder, strategy, *, init, seed, **arguments):
        import keras

        import bert_keras

        self.task, self.folder, self.strategy = task, folder, strategy
        self.init, self.seed, self.arguments = init, seed, arguments
        keras.utils.set_random_seed(seed)
        self.preprocess = bert_keras.BertPreprocessor.from_preset(
            preset_of(init),
            sequence_length=arguments["sequence_length"],
            pad_to_longest=True,
        )
        self.examples = {split: task.read(split) for split in ("train", "dev")}
        self.encoded = {
            split: check_encoded(
                task, split, task.encode(examples, self.preprocess)
            )
            for split, examples in self.examples.items()
        }
        self.scale = None  # while the model answers in standard units
        if task.standardises:
            targets = self._train.targets
            self.scale = Scale.of(targets)
            self.encoded["train"] = self._train._replace(
                targets=self.scale.standardised(targets)
            )
        self.rows = len(row_lengths(self._train.inputs))
        self.steps, self.steps_per_epoch = training_steps(
            self.rows, arguments["epochs"], arguments["batch_size"]
        )
        with strategy.scope():
            self.model = self._compiled(init)
        self.predictor = Predictor(
            self.model, task.per_token, self.preprocess.packer.pad_id
        )

    @property
    def _train(self):
        return self.encoded["train"]

    def _compiled(self, init):
        import bert_keras

        model = load_model(
            self.task,
            init,
            self.arguments["dtype"],
            self.arguments["from_scratch"],
        )
        if self.scale and self._begins_trained(init):
            self.scale.take_out_of(model.classifier)
        # Lengths that vary would be compiled one by one.
        varies = self.arguments["pad_to_longest"]
        model.compile(
            bert_keras.adamw(
                self.arguments["learning_rate"],
                steps=self.steps,
                # Few labels learn more surely with it: see `adamw`.
                bias_correction=True,
            ),
            self.task.loss(),
            loss_weights=self.task.loss_weights,
            jit_compile=False if varies else "auto",
        )
        return model

    def _begins_trained(self, init):
        """Whether the head comes from a run that predicted numbers too."""
        from bert_keras.interop.presets import open_checkpoint

        arguments = open_checkpoint(preset_of(init)).head_arguments
        is_new = self.arguments["from_scratch"]
        return arguments.get("problem") == "regression" and not is_new

    def finish(self) -> dict:
        """Trains to the end and writes all that the run leaves."""
        notes = notes_on_rows(self.task, self._train, self.preprocess)
        for note in notes:
            progress.console.print(f"note: {note}")
        curve = train(
            self.folder,
            self.model,
            self._batches,
            training_state(self.folder, self.strategy, SAVE_EVERY),
            steps=self.steps,
            steps_per_epoch=self.steps_per_epoch,
            validation=self._evaluate,
            title=f"Fine-tuning {self.task.name}",
        )
        best = {"step": self.steps}
        if self.strategy.is_chief:
            best = files.read_json(self.folder.file("best.json"))
        if best["step"] != self.steps:
            self._take_best()
        elif self.scale:
            self.scale.put_into(self.model.classifier)
        self.scale = None
        predictions = self._predict()
        results = {
            **self.task.score(self.examples["dev"], predictions),
            "rows": self.rows,
            "dev_rows": len(self.examples["dev"]),
            "best_step": best["step"],
            "cut": cut_share(self._train),
            "notes": notes,
            "curve": curve,
        }
        if has_failed(self.task.metric, results):
            notes.append(self._told_failed(results))
            progress.console.print(f"note: {notes[-1]}")
        if self.strategy.is_chief:
            self._write(results, predictions)
        return results

    def _told_failed(self, results):
        return FAILED.format(
            metric=self.task.metric,
            value=results[self.task.metric],
            baseline=results["majority_baseline"],
            steps=self.steps,
            rows=self.rows,
        )

    def _batches(self, step):
        length = self.arguments["sequence_length"]
        return self.strategy.batches(
            training_batches(
                self._train,
                self.arguments["batch_size"],
                self.seed,
                self.steps,
                step,
                pad_id=self.preprocess.packer.pad_id,
                length=None if self.arguments["pad_to_longest"] else length,
            )
        )

    def _predict(self):
        encoded = self.encoded["dev"]
        outputs = self.predictor(encoded)
        if self.scale:
            outputs = self.scale.mapped_back(outputs)
        return self.task.decode(self.examples["dev"], encoded, outputs)

    def _evaluate(self, step) -> dict:
        """Scores the dev split; keeps the weights where none were better.

        A run that goes on may come by a step that was scored before: what
        was kept from there on is not yet true for it.
        """
        scores = self.task.score(self.examples["dev"], self._predict())
        if self.strategy.is_chief:
            self._keep_if_best(step, float(scores[self.task.metric]))
        return scalars(scores)

    def _keep_if_best(self, step, value):
        value = value if math.isfinite(value) else -math.inf
        try:
            best = files.read_json(self.folder.file("best.json"))
        except FileNotFoundError:
            best = {"step": step}
        if best["step"] >= step or value > best["value"]:
            with self.folder.output("model") as path, self._in_own_units():
                self.model.save_preset(path, self.preprocess)
            with self.folder.output("best.json") as path:
                files.write_json({"step": step, "value": value}, path)

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
            # Not by arithmetic: training goes on with the same bits.
            head.kernel.assign(before[0])
            head.bias.assign(before[1])

    def _take_best(self):
        from bert_keras.modeling.weights import copy_weights

        kept = type(self.model).from_preset(
            self.folder.file("model"), **self.model.arguments()
        )
        copy_weights(kept, self.model)

    def _write(self, results, predictions):
        with self.folder.output("predictions") as path:
            files.make_folder(path)
            self.task.write(self.examples["dev"], predictions, path)
        with self.folder.output(RESULTS) as path:
            files.write_json(results, path)
        if not page.can_draw("report.html"):
            return
        with (
            page.may_fail("report.html"),
            self.folder.output("report.html") as path,
            open(path, "w", encoding="utf-8") as file,
        ):
            file.write(
                task_report.render(
                    self.task.name,
                    self.task.metric,
                    results,
                    self.task.mistakes(self.examples["dev"], predictions),
                    {"init": self.init, "seed": self.seed, **self.arguments},
                )
            )


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
        # Numbers that are all the same are of any deviation.
        return cls(float(targets.mean()), float(targets.std()) or 1.0)

    def standardised(self, targets):
        numbers = np.asarray(targets, np.float64)
        return ((numbers - self.mean) / self.deviation).astype(targets.dtype)

    def mapped_back(self, outputs):
        return outputs * self.deviation + self.mean

    def put_into(self, head):
        """Has a head that answers in standard units answer in the data's."""
        head.kernel.assign(head.kernel * self.deviation)
        head.bias.assign(self.mapped_back(head.bias))

    def take_out_of(self, head):
        """Has a head that answers in the data's units answer in standard."""
        head.kernel.assign(head.kernel / self.deviation)
        head.bias.assign((head.bias - self.mean) / self.deviation)


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
