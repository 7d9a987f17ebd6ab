"""Parts of all training runs: state, progress bar, metrics, TensorBoard."""

import time

import keras
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.training import loop, not_finite
from bert_keras.training.state import TrainingState
from bert_keras.training.strategy import any_worker
from official_tasks import cli, progress

HISTORY = "metrics.jsonl"
BAR_EVERY = 1.0  # seconds between bar updates; an update waits for the loss
BOARD_EVERY = 50  # steps between two points of a TensorBoard curve
MAX_SKIPPED = 0.5  # fraction of a run's steps that may be skipped


class DivergedError(InputError):
    """Raised when the gradients of a run are not finite, so that it failed.

    The same settings and files would give the same result.
    """

    exit_code = cli.FAILED_RUN


def training_state(folder, strategy, every, **options):
    """Return the `TrainingState` of a run; only the chief worker writes it.

    Args:
        folder: an open `RunFolder`; its subfolder state/ gets the state.
        strategy: `Strategy`.
        every: steps between two checkpoints.
        **options: further arguments of `TrainingState`.
    """
    return TrainingState(
        folder.file("state"),
        every=every,
        check=folder.check,
        writes=strategy.is_chief,
        any_worker=any_worker(strategy),
        **options,
    )


def train(
    folder,
    model,
    batches,
    state,
    *,
    steps,
    epoch_ends,
    validation,
    title,
    tokens_until=None,
    predict=None,
    boundaries=(),
    callbacks=(),
    should_end=None,
) -> list[dict]:
    """Train a compiled and built model in a run folder, or resume training.

    Args:
        folder: an open `RunFolder`; gets logs/ and metrics.jsonl.
        model: the model.
        batches: function of a step; returns the batches from this step on.
        state: the `TrainingState` that `training_state` returns.
        steps: steps of the whole run, including steps before a resume.
        epoch_ends: steps after which `validation` is called.
        validation: function of a step; returns a dict: name -> metric.
        title: text of the progress bar.
        tokens_until: function of a step; returns the number of tokens, with
            padding, in all steps up to this step.
        predict: see `Board`.
        boundaries: steps after which the batches have another shape.
        callbacks: further callbacks; they may add to the logs.
        should_end: see `bert_keras.training.loop.fit`.

    Returns:
        The logs of each epoch, in order, as dicts with "step".

    Raises:
        DivergedError: the gradients were not finite for many steps in a row,
            or for more than half of the steps.
    """
    with progress.bar(title, steps) as update:
        meter = Meter(update, state, steps, tokens_until)
        callbacks = [meter, not_finite.StopWhenNotFinite(), *callbacks]
        if state.writes:
            callbacks.append(Board(folder.file("logs"), meter, predict))
        try:
            curve = loop.fit(
                model,
                batches,
                steps,
                epoch_ends,
                state,
                folder.file(HISTORY),
                validation,
                callbacks,
                boundaries=boundaries,
                should_end=should_end,
            )
        except not_finite.NotFiniteError as error:
            raise DivergedError(str(error)) from error
    skipped = curve[-1].get("skipped_steps", 0) if curve else 0
    if skipped > MAX_SKIPPED * steps:
        raise DivergedError(
            f"{skipped:.0f} of {steps} steps were skipped, because their "
            f"gradients were not finite; expected at most {MAX_SKIPPED:.0%}. "
            "Train in a new folder with a lower learning rate, or in float32 "
            "if a half precision was used."
        )
    return curve


class Meter(keras.callbacks.Callback):
    """Callback that updates the progress bar and adds metrics to the logs.

    The logs of each evaluation get "learning_rate" (of the next step) and
    "gradient_norm" (of the last step). With `tokens_until`, they also get
    "tokens" (number of tokens so far, with padding) and "tokens_per_second"
    (since the last evaluation).

    Args:
        update: function that `progress.bar` yields.
        state: `TrainingState`.
        steps: steps of the whole run, including steps before a resume.
        tokens_until: see `train`.

    Attributes:
        step: number of steps of the run so far, including the current step.
    """

    def __init__(self, update, state, steps, tokens_until=None):
        super().__init__()
        self.update, self.state = update, state
        self.steps, self.tokens_until = steps, tokens_until
        self.step = 0
        self._shown = time.monotonic()
        self._timed = []

    def on_train_begin(self, logs=None):
        done = self.state.progress.step
        if done and not self.step:  # not for a later phase
            progress.console.print(
                f"resumed after step {done:,} of {self.steps:,}"
            )

    def on_epoch_begin(self, epoch, logs=None):
        self._first = self.state.progress.step
        self._timed = []

    def on_train_batch_end(self, batch, logs=None):
        # `TrainingState` is called after this callback, so its step does not
        # count this step yet.
        self.step = self._first + batch + 1
        # Measure from the end of the first step, which also traces the graph.
        now = time.monotonic()
        self._timed = [*self._timed[:1], (self.step, now)]
        if now - self._shown >= BAR_EVERY or self.step == self.steps:
            self._shown = now
            self.update(self.step, self.steps, note=self._note(logs or {}))

    def on_epoch_end(self, epoch, logs):
        if self.tokens_until:
            logs["tokens"] = self.tokens_until(self.state.progress.step)
        logs |= self.rate()
        logs |= _read_optimizer_metrics(self.model.optimizer)

    def rate(self):
        """Return {"tokens_per_second": ...}, or {} without `tokens_until`."""
        if not self.tokens_until:
            return {}
        if len(self._timed) < 2:
            return {"tokens_per_second": 0.0}
        (first, began), (last, ended) = self._timed
        tokens = self.tokens_until(last) - self.tokens_until(first)
        return {"tokens_per_second": tokens / max(ended - began, 1e-9)}

    def _note(self, logs):
        note = [f"loss {float(logs['loss']):.3f}"] if "loss" in logs else []
        note += [
            f"{name.removesuffix('_accuracy')} {float(value):.1%}"
            for name, value in logs.items()
            if name.endswith("accuracy")
        ]
        note += [
            f"{rate:,.0f} tokens/s" for rate in self.rate().values() if rate
        ]
        return "  ".join(note)


class Board(keras.callbacks.Callback):
    """Callback that writes curves and predictions for TensorBoard.

    In a resumed run, Keras's TensorBoard callback counts steps from 0 again.
    After an interrupted `fit`, it also leaves its `record_if` active, so later
    writers in the process lose points. This callback does neither.

    Args:
        folder: folder of the logs; gets train/ and held_out/.
        meter: `Meter`, an earlier callback of the same run.
        predict: function without arguments, called at each evaluation; returns
            a list as `MaskedTokens.predict` does. None shows no predictions.
    """

    def __init__(self, folder, meter, predict=None):
        super().__init__()
        self.meter, self.predict = meter, predict
        self.train = tf.summary.create_file_writer(f"{folder}/train")
        self.held_out = tf.summary.create_file_writer(f"{folder}/held_out")
        self._shown = 0

    def on_train_batch_end(self, batch, logs=None):
        step = self.meter.step
        if step // BOARD_EVERY == self._shown // BOARD_EVERY:
            return
        self._shown = step
        values = {**(logs or {}), **self.meter.rate()}
        values |= _read_optimizer_metrics(self.model.optimizer)
        with self.train.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def on_epoch_end(self, epoch, logs):
        step = self.meter.state.progress.step
        with self.held_out.as_default(step=step):
            for name, value in logs.items():
                if name.startswith("val_"):
                    tf.summary.scalar(name.removeprefix("val_"), value)
            texts = self.predict() if self.predict else []
            for number, text in enumerate(texts):
                tf.summary.text(f"predictions/{number}", _as_markdown(text))
        self.train.flush()
        self.held_out.flush()

    def on_train_end(self, logs=None):
        self.train.flush()


def _read_optimizer_metrics(optimizer):
    """Return the learning rate of the next step, and the last gradient norm."""
    # Unwrap the `LossScaleOptimizer` that Keras adds under mixed_float16.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    values = {"learning_rate": optimizer.learning_rate}
    if hasattr(optimizer, "gradient_norm"):
        values["gradient_norm"] = optimizer.gradient_norm
    convert = keras.ops.convert_to_numpy  # works for mirrored variables too
    return {name: float(convert(value)) for name, value in values.items()}


def _as_markdown(text):
    lines = [text["text"], ""]
    for mask in text["masks"]:
        words = []
        for token, probability in mask["predictions"]:
            bold = "**" * (token == mask["truth"])
            words.append(f"{bold}{token}{bold} {probability:.0%}")
        lines.append(f"- `{mask['truth']}`: {', '.join(words)}")
    return "\n".join(lines)
