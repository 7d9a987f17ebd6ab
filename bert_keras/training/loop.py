"""`model.fit` from wherever the saved training state left off."""

import json
import os

import keras


def fit(
    model,
    batches,
    steps,
    steps_per_epoch,
    state,
    history,
    validation=None,
    callbacks=(),
):
    """Trains `model` to `steps` steps in all; goes on where `state` stopped.

    A broken epoch is finished first, so that an epoch's end, and with it the
    evaluation, falls on the same steps as in a run that was never broken.

    Args:
        model: a compiled and built Keras model.
        batches: function of the first step; returns a `tf.data.Dataset` of
            the batches from that step on, at least `steps` minus it.
        steps: steps of the whole run.
        steps_per_epoch: steps between two evaluations.
        state: `TrainingState`.
        history: path of a JSONL file; gets one object an epoch: the step and
            what `fit` logs, `val_` before the names of held-out figures.
        validation: held-out batches, evaluated at the end of each epoch.
        callbacks: further Keras callbacks.

    Returns:
        list of dict, the lines of `history`.
    """
    step = state.restore(model)
    history = History(history, state, upto=step)
    if step and step % steps_per_epoch == 0 and history.last_step < step:
        # Killed between the save and the evaluation: made up for here.
        logs = model.evaluate(validation, verbose=0, return_dict=True)
        history.add({f"val_{name}": logs[name] for name in logs})
    while step < steps:
        length, epochs = _next_stretch(step, steps, steps_per_epoch)
        epoch = step // steps_per_epoch
        model.fit(
            batches(step),
            steps_per_epoch=length,
            initial_epoch=epoch,
            epochs=epoch + epochs,
            validation_data=validation,
            callbacks=[*callbacks, state, history],
            shuffle=False,  # the batches come in their order
            verbose=0,
        )
        step += length * epochs
    return history.lines


def _next_stretch(step, steps, steps_per_epoch):
    """Steps an epoch and epochs of the next call of `fit`."""
    whole = (steps - step) // steps_per_epoch
    if step % steps_per_epoch == 0 and whole:
        return steps_per_epoch, whole
    end = (step // steps_per_epoch + 1) * steps_per_epoch
    return min(steps, end) - step, 1


class History(keras.callbacks.Callback):
    """What each epoch logged, kept in a JSONL file over broken runs."""

    def __init__(self, path, state, upto):
        super().__init__()
        self.path, self.state, self.lines = path, state, []
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                # A kill may leave a last line that is cut.
                whole = [line for line in file if line.endswith("\n")]
            self.lines = [json.loads(line) for line in whole]
        self.lines = [line for line in self.lines if line["step"] <= upto]
        self._write("w", self.lines)

    @property
    def last_step(self):
        return self.lines[-1]["step"] if self.lines else 0

    def on_epoch_end(self, epoch, logs=None):
        self.add(logs or {})

    def add(self, logs):
        logs = {name: float(value) for name, value in logs.items()}
        self.lines.append({"step": self.state.step, **logs})
        self._write("a", self.lines[-1:])

    def _write(self, mode, lines):
        with open(self.path, mode, encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
