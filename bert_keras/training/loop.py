"""`model.fit` from the saved training state on, to the end of the run.

`fit` trains, evaluates at each epoch's end and keeps the history; at the end
of the file what stops a run whose gradients stay broken, and what the workers
of a run agree on.
"""

import json
import logging
import zlib

import keras

from bert_keras import files, json_files
from bert_keras.errors import InputError
from bert_keras.modeling.keras_adapter import build_metrics
from bert_keras.training.optimizers import AdamW
from bert_keras.training.state import strategy_scope

logger = logging.getLogger(__name__)


def fit(
    model,
    batches,
    steps,
    steps_per_epoch,
    state,
    history,
    validation,
    callbacks=(),
    bounds=(),
    ended=None,
):
    """Train `model` to `steps` steps in all, from where `state` stopped.

    An interrupted epoch is finished first, so that an epoch's end, and with it
    the evaluation, falls on the same steps as in an uninterrupted run.
    `steps_per_execution` is that of `compile`, or less where an epoch is no
    multiple of it.

    Args:
        model: a compiled and built Keras model.
        batches: function of the first step; returns a `tf.data.Dataset` of
            the batches from that step on, at least `steps` minus it.
        steps: steps of the whole run.
        steps_per_epoch: steps between two evaluations.
        state: `TrainingState`.
        history: path of a JSONL file; gets one object an epoch: the step and
            what `fit` logs, `val_` before the names of held-out figures.
        validation: function of the step that returns held-out figures by
            name, called at the end of each epoch.
        callbacks: further Keras callbacks.
        bounds: steps at which the batches take another shape: `batches` is
            called again there, and an epoch that spans one ends there.
        ended: function of the lines of `history` so far: whether the run ends
            after this evaluation. A callback that sets `stop_training` ends
            it too.

    Returns:
        list of dict, the lines of `history`.
    """
    # 0 of a new run.
    step = state.restore(model)
    ends = {*bounds, steps}
    # Lines of epochs behind the checkpoint are dropped: they come again.
    history = History(history, state, upto=step)
    history.check_complete({*range(0, step, steps_per_epoch), *ends})
    if step:
        _build_metrics(model, batches(step - 1))
    if step % steps_per_epoch == 0 or step in ends:
        epoch = (step - 1) // steps_per_epoch
        _add_missing_line(history, model, validation, state, callbacks, epoch)
    # Keras hands the same dict on to the callbacks that come later.
    evaluation = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda _, logs: logs.update(
            _evaluate(validation, state.step)
        )
    )
    most_at_once = model.steps_per_execution
    ended = ended or (lambda lines: False)

    def stop_where_ended(*_):
        if ended(history.lines):
            model.stop_training = True

    watch = keras.callbacks.LambdaCallback(on_epoch_end=stop_where_ended)
    while step < steps and not ended(history.lines):
        end = min(end for end in ends if end > step)
        length, epochs = _next_stretch(step, end, steps_per_epoch)
        _execute_at_once(model, most_at_once, length)
        epoch = step // steps_per_epoch
        try:
            model.fit(
                batches(step),
                steps_per_epoch=length,
                initial_epoch=epoch,
                epochs=epoch + epochs,
                # The figures first; the line when they are saved.
                callbacks=[evaluation, *callbacks, state, history, watch],
                shuffle=False,  # the batches come in their order
                verbose=0,
            )
        finally:
            state.release_signals()
        if model.stop_training:
            break
        step += length * epochs
        if step in ends:
            # Otherwise TensorFlow makes one graph for both shapes, with its
            # sizes unknown, and a run resumed here would compute differently.
            model.train_function = model.test_function = None
    return history.lines


def _build_metrics(model, batches):
    """Make the variables of the metrics, for their sums to be restored."""
    with strategy_scope(model):
        # From shapes alone: no batch is read and no step taken.
        build_metrics(model, batches.element_spec)


def _add_missing_line(history, model, validation, state, callbacks, epoch):
    """Make up for the end of an epoch before which the run was killed."""
    if history.last_step == state.step:
        return
    logs = state.restored_figures(model)
    # As numbers: the evaluation resets the metrics.
    logs = {name: float(value) for name, value in logs.items()}
    logs |= _evaluate(validation, state.step)
    for callback in callbacks:  # they add the learning rate and the like
        callback.set_model(model)
        callback.on_epoch_end(epoch, logs)
    history.add(logs)


def _evaluate(validation, step):
    return {f"val_{name}": x for name, x in validation(step).items()}


def _next_stretch(step, steps, steps_per_epoch):
    """Return the steps an epoch and the epochs of the next `fit`."""
    epochs = (steps - step) // steps_per_epoch
    if step % steps_per_epoch == 0 and epochs:
        return steps_per_epoch, epochs
    # What is left of an interrupted epoch, or of the last one.
    end = (step // steps_per_epoch + 1) * steps_per_epoch
    return min(steps, end) - step, 1


def _execute_at_once(model, most, length):
    """Cut an epoch into equal groups: Keras would run over its end."""
    most = min(most, length)
    steps = next(n for n in range(most, 0, -1) if length % n == 0)
    if steps < most:
        logger.warning(
            "%d steps are executed at once and not %d, of which the %d up to "
            "the next evaluation are no multiple.",
            steps,
            most,
            length,
        )
    if steps != model.steps_per_execution:
        model.steps_per_execution = steps
        model.train_function = model.test_function = None


PUT_BACK = (
    "Put back what the run wrote, or remove the run's folder and start again."
)


class History(keras.callbacks.Callback):
    """What each epoch logged, kept in a JSONL file over interrupted runs.

    Each line ends with a checksum of it and of all lines before.
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
            # What follows the last line break was cut: its epoch comes again.
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
                f"{self.path} is damaged or was changed. {PUT_BACK}"
            )
        return lines

    def check_complete(self, steps):
        """Raise if lines of earlier evaluations are missing.

        Args:
            steps: of all evaluations of the run; those that are not before
                the checkpoint do not matter.
        """
        expected = {step for step in steps if 0 < step < self._upto}
        missing = expected - {line["step"] for line in self.lines}
        if missing:
            raise InputError(
                f"{self.path} lacks the line of step {min(missing)}. {PUT_BACK}"
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
        self.add(logs or {})

    def add(self, logs):
        logs = {name: float(value) for name, value in logs.items()}
        self.lines.append({"step": self.state.step, **logs})
        self._write()

    def _write(self):
        if not self.state.writes:
            return
        # Whole, and renamed: a kill cuts no line.
        with (
            files.atomic_output(self.path) as partial,
            open(partial, "w", encoding="utf-8") as file,
        ):
            file.write(self._text(self.lines))


class NotFiniteError(ArithmeticError):
    """Training was stopped, as its gradients were not finite."""


class StopWhenNotFinite(keras.callbacks.Callback):
    """Logs how many steps were skipped; stops after so many in a row.

    Our optimizers skip a step whose gradients are not finite. The count of
    the run is logged as `skipped_steps` at each epoch's end, and a warning
    says when it grew. It is read every `in_a_row` steps, so that no step waits
    for the one before; a run is stopped after `in_a_row` to twice as many.

    Args:
        in_a_row: skipped steps, one after another, that end the run.
    """

    def __init__(self, in_a_row=10):
        super().__init__()
        if in_a_row < 1:
            raise InputError(
                f"in_a_row is a number of steps, 1 or more; got {in_a_row}."
            )
        self.in_a_row = in_a_row
        self._known = 0
        self._unchecked = 0

    def on_train_begin(self, logs=None):
        self._known = 0
        optimizer = self._optimizer()
        if not isinstance(optimizer, AdamW):
            raise InputError(
                "StopWhenNotFinite reads the count that adamw and lamb of "
                f"bert_keras keep; the model has {type(optimizer).__name__}."
            )

    def _optimizer(self):
        optimizer = self.model.optimizer
        return getattr(optimizer, "inner_optimizer", optimizer)

    def on_epoch_begin(self, epoch, logs=None):
        self._seen = 0

    def on_train_batch_end(self, batch, logs=None):
        # `batch` grows by more than 1 under `steps_per_execution`.
        self._unchecked += batch + 1 - self._seen
        self._seen = batch + 1
        if self._unchecked >= self.in_a_row:
            self._check()

    def on_epoch_end(self, epoch, logs=None):
        self._check()
        if logs is not None:
            logs["skipped_steps"] = float(self._known)

    def _check(self):
        self._unchecked = 0
        optimizer = self._optimizer()
        skipped = int(keras.ops.convert_to_numpy(optimizer.skipped_steps))
        in_row = int(keras.ops.convert_to_numpy(optimizer.skipped_in_row))
        if skipped > self._known:
            logger.warning(
                "%d steps so far were skipped: their gradients were not "
                "finite.",
                skipped,
            )
            self._known = skipped
        if in_row >= self.in_a_row:
            raise NotFiniteError(
                f"The gradients of the last {in_row} steps were not finite; "
                f"expected fewer than {self.in_a_row} such steps in a row. The "
                "weights are those before them. Take a lower learning rate, a "
                "longer warm-up, or float32 in place of a half precision; and "
                "look at the data of these steps."
            )


def any_worker(strategy):
    """Return a function of this worker's bool, True if any worker's is.

    All workers call it together, as they take each step together.

    Args:
        strategy: of `make_strategy`.
    """
    if strategy.name != "multi_worker":
        return bool
    import tensorflow as tf

    from bert_keras.training.optimizers_tensorflow import sum_over_replicas

    def total(value):
        # A tensor of the device at hand: one from outside has no device.
        return sum_over_replicas([tf.identity(value)])[0]

    @tf.function
    def asked(value):
        found = strategy.distributed.run(total, args=(value,))
        return strategy.distributed.experimental_local_results(found)[0]

    return lambda flag: bool(asked(tf.constant(float(flag))) > 0)
