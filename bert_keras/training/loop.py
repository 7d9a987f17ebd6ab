"""Training loop: `model.fit` from the saved state to the end of a run."""

import bisect
import contextlib
import json
import logging

import keras

from bert_keras import files
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
            It is only written: a resumed run writes the checkpoint's lines.
        validation: function of the step that returns a dict of held-out
            metrics. `fit` calls this function at the end of each epoch.
        callbacks: further Keras callbacks. They can end the run by
            `model.stop_training`.
        boundaries: steps at which the shape of the batches changes. At each of
            these steps, the epoch ends and `batches` is called again.
        should_end: function of the lines so far. `fit` calls this function at
            its start and after each evaluation. The run ends if the function
            returns True.

    Returns:
        list of dict, the lines of all epochs.
    """
    step = resumed = state.restore(model)  # 0 in a new run
    lines = state.progress.lines
    ends = sorted({*epoch_ends, *boundaries, steps})
    should_end = should_end or (lambda lines: False)
    if step:
        # Build the metrics, because only existing variables can be restored.
        # `build_metrics` needs the shapes of a batch, but reads no batch.
        with strategy_scope(model):
            build_metrics(model, batches(step - 1).element_spec)
    # Add the held-out metrics to `logs`, which all later callbacks read too.
    evaluation = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda _, logs: logs.update(
            _evaluate(validation, state.progress.step)
        )
    )

    def continue_epoch(*_):
        if state.progress.step == resumed and resumed not in ends:
            state.restore_metrics(model)

    def add_line(_, logs):
        logs = {name: float(value) for name, value in logs.items()}
        lines.append({"step": state.progress.step, **logs})
        if state.writes:
            _write_lines(history, lines)
        if should_end(lines):
            model.stop_training = True

    # A line has the logs that the callbacks before this one add.
    last = keras.callbacks.LambdaCallback(
        on_epoch_begin=continue_epoch, on_epoch_end=add_line
    )
    callbacks = [evaluation, *callbacks]
    if state.writes:
        _write_lines(history, lines)
    if step in ends and step not in {line["step"] for line in lines}:
        state.restore_metrics(model)
        _end_epoch(model, [*callbacks, last], epoch=ends.index(step))
    most_at_once = model.steps_per_execution
    with _changed_model(model):
        while step < steps and not should_end(lines):
            epoch, length, epochs = _plan_fit(step, ends, boundaries)
            _set_steps_per_execution(model, most_at_once, length)
            try:
                model.fit(
                    batches(step),
                    steps_per_epoch=length,
                    initial_epoch=epoch,
                    epochs=epoch + epochs,
                    callbacks=[*callbacks, state, last],
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
    return lines


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


def _end_epoch(model, callbacks, epoch):
    """Call the callbacks at the end of an epoch whose steps are done."""
    # As in `model.fit`, call all callbacks, because they add to the logs.
    callbacks = keras.callbacks.CallbackList(
        callbacks, model=model, epochs=epoch + 1, steps=None
    )
    callbacks.on_train_begin()
    callbacks.on_epoch_end(epoch, model.get_metrics_result())
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


def _write_lines(path, lines):
    """Write JSON Lines: a line for each dict, with its step first."""
    with (
        files.atomic_output(path) as partial,
        open(partial, "w", encoding="utf-8") as file,
    ):
        for line in lines:
            # Sorted, because lines from a checkpoint are.
            ordered = {"step": line["step"]} | dict(sorted(line.items()))
            file.write(json.dumps(ordered) + "\n")
