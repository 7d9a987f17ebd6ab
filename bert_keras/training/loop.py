"""Training loop: `model.fit` from the saved state to the end of a run."""

import bisect
import contextlib
import json
import logging
import zlib

import keras

from bert_keras import files, json_files
from bert_keras.errors import InputError
from bert_keras.modeling.keras_adapter import build_metrics, reset_averages
from bert_keras.modeling.weights import split_trainable
from bert_keras.training.state import strategy_scope

logger = logging.getLogger(__name__)


def fit(
    model,
    batches,
    steps,
    epoch_ends,
    state,
    history,
    validation,
    callbacks=(),
    boundaries=(),
    should_end=None,
):
    """Train `model` from the newest checkpoint of `state` to step `steps`.

    A resumed run first finishes the interrupted epoch. So it evaluates at the
    same steps as an uninterrupted run. If the `steps_per_execution` passed to
    `compile` does not divide the steps of an epoch, a smaller value is used.
    With `use_ema`, call `take_averages` afterwards to get the averages.

    Args:
        model: a compiled and built Keras model.
        batches: function of a step that returns a `tf.data.Dataset` of the
            batches from this step on.
        steps: number of steps of the whole run.
        epoch_ends: steps at which an epoch ends. The last epoch always ends
            at `steps`.
        state: `TrainingState`.
        history: path of a JSONL file that gets a line for each epoch: the step,
            the training logs, and the held-out metrics with the prefix `val_`.
        validation: function of the step that returns a dict of held-out
            metrics. `fit` calls this function at the end of each epoch.
        callbacks: further Keras callbacks. They can end the run by
            `model.stop_training`.
        boundaries: steps at which the shape of the batches changes. At each of
            these steps, the epoch ends and `batches` is called again.
        should_end: function of the lines of `history`. `fit` calls this
            function at its start and after each evaluation. The run ends if the
            function returns True.

    Returns:
        list of dict, the lines of `history`.
    """
    step = state.restore(model)  # 0 in a new run
    ends = sorted({*epoch_ends, *boundaries, steps})
    # Epochs after the checkpoint are repeated, so their lines are dropped.
    history = History(history, state, upto=step)
    history.check_complete(ends)
    if step:
        # Build the metrics, because only existing variables can be restored.
        # `build_metrics` needs the shapes of a batch, but reads no batch.
        with strategy_scope(model):
            build_metrics(model, batches(step - 1).element_spec)
    # Add the held-out metrics to `logs`, which all later callbacks read too.
    evaluation = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda _, logs: logs.update(
            _evaluate(validation, state.step)
        )
    )
    callbacks = [evaluation, *callbacks]
    if step in ends:
        epoch = ends.index(step)
        _add_missing_line(history, model, state, callbacks, epoch)
    most_at_once = model.steps_per_execution
    should_end = should_end or (lambda lines: False)

    def end_run(*_):
        if should_end(history.lines):
            model.stop_training = True

    stop = keras.callbacks.LambdaCallback(on_epoch_end=end_run)
    with _changed_model(model):
        while step < steps and not should_end(history.lines):
            epoch, length, epochs = _plan_fit(step, ends, boundaries)
            _set_steps_per_execution(model, most_at_once, length)
            try:
                model.fit(
                    batches(step),
                    steps_per_epoch=length,
                    initial_epoch=epoch,
                    epochs=epoch + epochs,
                    # The order matters: `history` writes the logs that
                    # `callbacks` add, and `stop` reads the lines of `history`.
                    callbacks=[*callbacks, state, history, stop],
                    shuffle=False,
                    verbose=0,
                )
            finally:
                state.release_signals()
            if model.stop_training:
                break
            step += length * epochs
            if step in boundaries:
                # The batches change their shape. Without this line, TensorFlow
                # would trace one graph for both shapes, with unknown sizes.
                model.train_function = model.test_function = None
    return history.lines


@contextlib.contextmanager
def _changed_model(model):
    """Undo the loop's changes of the model and its optimizer at the end."""
    steps, optimizer = model.steps_per_execution, model.optimizer
    # At the end of `model.fit`, Keras would replace the weights by their moving
    # averages. But the next `model.fit` must not start from the averages.
    optimizer.finalize_variable_values = lambda weights: None
    try:
        yield
    finally:
        del optimizer.finalize_variable_values
        if steps != model.steps_per_execution:
            model.steps_per_execution = steps
            model.train_function = model.test_function = None


@contextlib.contextmanager
def averaged_weights(model):
    """Replace the weights by their moving averages during a `with` block.

    If the optimizer has `use_ema=False`, nothing changes.
    """
    if not _find_averaging_optimizer(model):
        yield
        return
    before = [weight.numpy() for weight in model.trainable_weights]
    take_averages(model)
    try:
        yield
    finally:
        with strategy_scope(model):
            for weight, value in zip(
                model.trainable_weights, before, strict=True
            ):
                weight.assign(value)


def take_averages(model):
    """Replace the weights by their moving averages, if `use_ema` is True."""
    optimizer = _find_averaging_optimizer(model)
    if optimizer:
        with strategy_scope(model):
            reset_averages(optimizer, split_trainable(model)[1])
            # Call the method of the class, because `fit` replaces the method of
            # the instance.
            type(optimizer).finalize_variable_values(
                optimizer, model.trainable_weights
            )


def _find_averaging_optimizer(model):
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return optimizer if optimizer.use_ema else None


def _add_missing_line(history, model, state, callbacks, epoch):
    """Add the line of the last epoch to `history`, unless it is there."""
    if history.last_step == state.step:
        return
    logs = state.restored_metrics(model)
    # As in `model.fit`, call all callbacks, because they add to `logs`.
    callbacks = keras.callbacks.CallbackList(
        [*callbacks, history], model=model, epochs=epoch + 1, steps=None
    )
    callbacks.on_train_begin()
    callbacks.on_epoch_end(epoch, logs)
    callbacks.on_train_end()


def _evaluate(validation, step):
    return {f"val_{name}": x for name, x in validation(step).items()}


def _plan_fit(step, ends, boundaries):
    """Return the next epoch, its steps, and how many epochs have as many steps.

    One `model.fit` runs these epochs. They do not pass a boundary.

    Args:
        step: number of finished steps.
        ends: sorted steps at which the epochs end.
        boundaries: see `fit`.
    """
    epoch = last = bisect.bisect(ends, step)
    length = ends[epoch] - step
    while ends[last] not in boundaries and ends[last] < ends[-1]:
        if ends[last + 1] - ends[last] != length:
            break
        last += 1
    return epoch, length, last - epoch + 1


def _set_steps_per_execution(model, most, length):
    """Set `steps_per_execution` to `length`'s largest divisor up to `most`.

    If the value did not divide `length`, Keras would run past the epoch's end.
    """
    most = min(most, length)
    steps = next(n for n in range(most, 0, -1) if length % n == 0)
    if steps < most:
        logger.warning(
            "%d steps are executed at once instead of %d, because %d does not "
            "divide the %d steps to the next evaluation.",
            steps,
            most,
            most,
            length,
        )
    if steps != model.steps_per_execution:
        model.steps_per_execution = steps
        model.train_function = model.test_function = None


RESTORE_FILES = (
    "Restore the file that the run wrote, or remove the run's folder and start "
    "again."
)


class History(keras.callbacks.Callback):
    """Callback that writes the logs of each epoch to a JSONL file.

    A resumed run keeps the lines up to `upto`, the step of its checkpoint. Each
    line ends with a checksum of this line and all lines before it.
    """

    def __init__(self, path, state, upto):
        super().__init__()
        self.path, self.state, self.lines = path, state, []
        self._upto = upto
        if files.is_file(path):
            lines = self._read()
            self.lines = [line for line in lines if line["step"] <= upto]
        self._write()

    def _read(self):
        lines = []
        try:
            # Drop an incomplete last line; the run evaluates that epoch again.
            *texts, _ = files.read_bytes(self.path, None).split(b"\n")
            for text in texts:
                line = json_files.parse_json(text)
                del line["crc32"]
                lines.append(line)
            is_whole = self._text(lines).encode() == b"\n".join([*texts, b""])
        except (ValueError, KeyError, TypeError):
            is_whole = False
        if not is_whole:
            raise InputError(
                f"{self.path} is damaged or was changed. {RESTORE_FILES}"
            )
        return lines

    def check_complete(self, steps):
        """Raise `InputError` if lines of earlier evaluations are missing.

        Args:
            steps: steps of evaluations; 0 and those from `upto` on are ignored.
        """
        expected = {step for step in steps if 0 < step < self._upto}
        missing = expected - {line["step"] for line in self.lines}
        if missing:
            raise InputError(
                f"{self.path} lacks the line of step {min(missing)}. "
                f"{RESTORE_FILES}"
            )

    def _text(self, lines):
        checksum, texts = 0, []
        for line in lines:
            text = json.dumps(line)
            checksum = zlib.crc32(text.encode(), checksum)
            texts.append(f'{text[:-1]}, "crc32": "{checksum:08x}"}}\n')
        return "".join(texts)

    @property
    def last_step(self):
        return self.lines[-1]["step"] if self.lines else 0

    def on_epoch_end(self, epoch, logs=None):
        logs = {name: float(value) for name, value in (logs or {}).items()}
        self.lines.append({"step": self.state.step, **logs})
        self._write()

    def _write(self):
        if not self.state.writes:
            return
        # `atomic_output` renames a complete file, so a kill cannot cut a line.
        with (
            files.atomic_output(self.path) as partial,
            open(partial, "w", encoding="utf-8") as file,
        ):
            file.write(self._text(self.lines))
