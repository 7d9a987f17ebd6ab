"""`model.fit` from wherever the saved training state left off."""

import json
import logging

import keras

from bert_keras import files

logger = logging.getLogger(__name__)


def fit(
    model,
    batches,
    steps,
    steps_per_epoch,
    state,
    history,
    validation=None,
    callbacks=(),
    bounds=(),
):
    """Trains `model` to `steps` steps in all; goes on where `state` stopped.

    A broken epoch is finished first, so that an epoch's end, and with it the
    evaluation, falls on the same steps as in a run that was never broken. As
    many steps are executed at once as `compile` was told, or fewer where an
    epoch is no multiple of them.

    Args:
        model: a compiled and built Keras model.
        batches: function of the first step; returns a `tf.data.Dataset` of
            the batches from that step on, at least `steps` minus it.
        steps: steps of the whole run.
        steps_per_epoch: steps between two evaluations.
        state: `TrainingState`.
        history: path of a JSONL file; gets one object an epoch: the step and
            what `fit` logs, `val_` before the names of held-out figures.
        validation: held-out batches, evaluated at the end of each epoch; or
            a function of the step that returns held-out figures by name.
        callbacks: further Keras callbacks.
        bounds: steps at which the batches take another shape: `batches` is
            called anew there, and an epoch that spans one ends there.

    Returns:
        list of dict, the lines of `history`.
    """
    step = state.restore(model)
    history = History(history, state, upto=step)
    if step:
        _build_metrics(model, batches(step - 1))
    ends = {*bounds, steps}
    if step % steps_per_epoch == 0 or step in ends:
        _make_up(history, model, validation, state)
    if callable(validation):
        callbacks = [_Evaluation(validation, state), *callbacks]
    most_at_once = model.steps_per_execution
    while step < steps:
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
                validation_data=None if callable(validation) else validation,
                callbacks=[*callbacks, state, history],
                shuffle=False,  # the batches come in their order
                verbose=0,
            )
        finally:
            state.release_signal()
        step += length * epochs
        if step in ends:
            # Else TensorFlow makes one graph for both shapes, with its sizes
            # unknown; and a run that goes on here would compute otherwise.
            model.train_function = model.test_function = None
    return history.lines


def _build_metrics(model, batches):
    """Has the model's metrics as variables, for their sums to be restored.

    Under a strategy `fit` does it itself, in its scope, before the first step.
    """
    if getattr(model, "_distribute_strategy", None) is None:
        model._symbolic_build(data_batch=batches.element_spec)


def _make_up(history, model, validation, state):
    """For the evaluation before which the run was killed, if it was."""
    if history.last_step < state.step:
        logs = state.restored_figures(model)
        # As numbers: the evaluation begins the metrics anew.
        logs = {name: float(value) for name, value in logs.items()}
        history.add(logs | _evaluated(model, validation, state.step))


def _evaluated(model, validation, step):
    if callable(validation):
        logs = validation(step)
    else:
        logs = model.evaluate(validation, verbose=0, return_dict=True)
    return {f"val_{name}": logs[name] for name in logs}


def _next_stretch(step, steps, steps_per_epoch):
    """Steps an epoch and epochs of the next call of `fit`."""
    whole = (steps - step) // steps_per_epoch
    if step % steps_per_epoch == 0 and whole:
        return steps_per_epoch, whole
    end = (step // steps_per_epoch + 1) * steps_per_epoch
    return min(steps, end) - step, 1


def _execute_at_once(model, most, length):
    """Has an epoch be whole groups of steps: Keras would run over its end."""
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


class _Evaluation(keras.callbacks.Callback):
    """Adds the figures of a function of the step to an epoch's logs."""

    def __init__(self, evaluate, state):
        super().__init__()
        self.evaluate, self.state = evaluate, state

    def on_epoch_end(self, epoch, logs):
        # Keras hands the same dict on to the callbacks that come later.
        logs.update(_evaluated(self.model, self.evaluate, self.state.step))


class History(keras.callbacks.Callback):
    """What each epoch logged, kept in a JSONL file over broken runs."""

    def __init__(self, path, state, upto):
        super().__init__()
        self.path, self.state, self.lines = path, state, []
        if files.is_file(path):
            with files.open_file(path, "r") as file:
                # Somebody else may have cut the last line.
                whole = [line for line in file if line.endswith("\n")]
            lines = map(json.loads, whole)
            self.lines = [line for line in lines if line["step"] <= upto]
        self._write()

    @property
    def last_step(self):
        return self.lines[-1]["step"] if self.lines else 0

    def on_epoch_end(self, epoch, logs=None):
        self.add(logs or {})

    def add(self, logs):
        logs = {name: float(value) for name, value in logs.items()}
        self.lines.append({"step": self.state.step, **logs})
        self.state.notes["best"] = best_figures(self.lines)
        self._write()

    def _write(self):
        if not self.state.writes:
            return
        # Whole, and renamed: a kill cuts no line.
        with (
            files.written_beside(self.path) as partial,
            open(partial, "w", encoding="utf-8") as file,
        ):
            file.writelines(json.dumps(line) + "\n" for line in self.lines)


def best_figures(lines):
    """The best held-out figure of each name, and the step that it is from.

    Of losses and perplexities the least is the best, of all else the
    greatest.
    """
    best = {}
    for line in lines:
        for name, value in line.items():
            least = name.endswith(("loss", "perplexity"))
            sign = -1 if least else 1
            so_far = best.get(name, {"value": -sign * float("inf")})
            if name.startswith("val_") and sign * (value - so_far["value"]) > 0:
                best[name] = {"value": value, "step": line["step"]}
    return best
