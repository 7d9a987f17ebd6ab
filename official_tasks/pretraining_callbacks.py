"""What is told of a pre-training run while it runs: a bar, figures, a board."""

import time

import keras
import tensorflow as tf

BAR_EVERY = 10  # steps between two states of the bar
BOARD_EVERY = 50  # steps between two points of a curve


class Meter(keras.callbacks.Callback):
    """Moves the bar; adds to each evaluation what `fit` does not know.

    These are "learning_rate", "tokens" (places, padding included, trained on
    so far), "tokens_per_second" since the last evaluation and
    "gradient_norm" of the last step.

    Args:
        update: of a `progress.bar`.
        state: `TrainingState`.
        steps: steps of the whole run.
        tokens_until: function of the step.
    """

    def __init__(self, update, state, steps, tokens_until):
        super().__init__()
        self.update, self.state = update, state
        self.steps, self.tokens_until = steps, tokens_until
        self._told = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._first = self.state.step
        self._timed = []

    def on_train_batch_end(self, batch, logs=None):
        # The state comes later and has not counted this step yet; `batch`
        # grows by more than 1 under `steps_per_execution`.
        step = self._first + batch + 1
        # The first step traces the graph: time is taken from its end on.
        self._timed = [*self._timed[:1], (step, time.monotonic())]
        if step // BAR_EVERY > self._told // BAR_EVERY or step == self.steps:
            self._told = step
            self.update(step, self.steps, note=self._note(logs or {}))

    def on_epoch_end(self, epoch, logs):
        logs["tokens"] = self.tokens_until(self.state.step)
        logs["tokens_per_second"] = self.rate()
        logs |= optimizer_figures(self.model.optimizer)

    def rate(self):
        """Tokens a second since the last evaluation."""
        if len(self._timed) < 2:
            return 0.0
        (first, began), (last, ended) = self._timed
        tokens = self.tokens_until(last) - self.tokens_until(first)
        return tokens / max(ended - began, 1e-9)

    def _note(self, logs):
        shown = [f"loss {float(logs['loss']):.3f}"] if "loss" in logs else []
        shown += [
            f"{name.removesuffix('_accuracy')} {float(value):.1%}"
            for name, value in logs.items()
            if name.endswith("_accuracy")
        ]
        return "  ".join([*shown, f"{self.rate():,.0f} tokens/s"])


class Board(keras.callbacks.Callback):
    """Curves and guesses for TensorBoard, by the step of the whole run.

    Keras's own callback counts from 0 again in a run that goes on.

    Args:
        folder: of the logs; gets train/ and held_out/.
        state: `TrainingState`.
        guesses: function of nothing that returns a list of dict, "text" and
            "masks"; shown at each evaluation.
        rate: function of nothing: tokens a second.
    """

    def __init__(self, folder, state, guesses, rate):
        super().__init__()
        self.state, self.guesses, self.rate = state, guesses, rate
        self.train = tf.summary.create_file_writer(f"{folder}/train")
        self.held_out = tf.summary.create_file_writer(f"{folder}/held_out")
        self._told = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._first = self.state.step

    def on_train_batch_end(self, batch, logs=None):
        step = self._first + batch + 1
        if step // BOARD_EVERY == self._told // BOARD_EVERY:
            return
        self._told = step
        with self.train.as_default(step=step):
            for name, value in (logs or {}).items():
                tf.summary.scalar(name, value)
            tf.summary.scalar("tokens_per_second", self.rate())
            for name, value in optimizer_figures(self.model.optimizer).items():
                tf.summary.scalar(name, value)

    def on_epoch_end(self, epoch, logs):
        with self.held_out.as_default(step=self.state.step):
            for name, value in logs.items():
                if name.startswith("val_"):
                    tf.summary.scalar(name.removeprefix("val_"), value)
            for number, guess in enumerate(self.guesses()):
                tf.summary.text(f"guesses/{number}", as_markdown(guess))
        self.train.flush()
        self.held_out.flush()

    def on_train_end(self, logs=None):
        self.train.flush()


def optimizer_figures(optimizer):
    """The learning rate of the next step; the last gradient's norm."""
    # Under mixed_float16 Keras wraps ours in one that scales the loss.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    figures = {"learning_rate": optimizer.learning_rate}
    if hasattr(optimizer, "gradient_norm"):
        figures["gradient_norm"] = optimizer.gradient_norm
    numbers = keras.ops.convert_to_numpy  # of mirrored variables too
    return {name: float(numbers(value)) for name, value in figures.items()}


def as_markdown(guess):
    """A text with the guesses at each of its masks, for TensorBoard."""
    lines = [guess["text"], ""]
    for mask in guess["masks"]:
        guesses = ", ".join(
            f"{'**' * (piece == mask['truth'])}{piece}"
            f"{'**' * (piece == mask['truth'])} {probability:.0%}"
            for piece, probability in mask["guesses"]
        )
        lines.append(f"- `{mask['truth']}`: {guesses}")
    return "\n".join(lines)
