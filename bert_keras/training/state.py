"""The state of a training run, saved and restored bit for bit.

A callback saves and restores model, optimizer and dropout seeds. The data need
no saved state, because they are a function of the step.
"""

import concurrent.futures
import contextlib
import dataclasses
import platform
import re
import threading

import keras
import numpy as np

import bert_keras
from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interrupts import Stopped, StopRequest
from bert_keras.manifest import check_same_settings
from bert_keras.training import checkpoint

# Folder -> future of the last save to this folder. After an interrupted `fit`,
# this save may still run when `restore` is called for the next `fit`.
_saves: dict[str, concurrent.futures.Future] = {}
_writer = concurrent.futures.ThreadPoolExecutor(1)


class Preempted(Stopped):
    """Raised by `fit` after Ctrl-C or SIGTERM, once the state is saved.

    A script then ends with exit code 75. `step` is the saved step.
    """

    def __init__(self, step):
        super().__init__(
            f"Stopped after step {step}. The state is saved. Run the same "
            "command again to resume."
        )
        self.step = step


@dataclasses.dataclass
class Progress:
    """How far a run is.

    Args:
        step: number of steps of the run so far, with those before a resume.
        metrics: dict of name -> NumPy array, the variables of the model's
            metrics over the steps of the current epoch, when it was saved. At
            the end of an epoch, they are not yet those of the next epoch.
            Empty if `fit` does not know the number of steps.
        lines: list of dict, the logs of each finished epoch with its "step".
    """

    step: int = 0
    metrics: dict = dataclasses.field(default_factory=dict)
    lines: list = dataclasses.field(default_factory=list)


class TrainingState(keras.callbacks.Callback):
    """Callback that saves the training state and restores it bit for bit.

    The state has the variables of the optimizer and of the model, including the
    dropout seeds, and the `Progress`. A run that was killed and resumed ends
    with the same bits as an uninterrupted run. For this, the data must be a
    function of the step, and the model must be made from a fixed seed. Random
    operations in the model must use a seed generator that the model tracks.

    A save first waits until the previous save is written. It then copies the
    state to host memory. A thread writes the copy while training continues. If
    the thread fails, a later step or the end of `fit` raises the error.
    After Ctrl-C or SIGTERM, the callback saves the state after the current step
    and raises `Preempted`. A second signal ends the process.

    If several workers train one model, one worker writes the checkpoints, and
    all workers read the same folder. After a signal to one worker, all workers
    stop after the same step.

    Args:
        folder: path of the folder of all checkpoints.
        every: number of steps between checkpoints. The end of `fit` saves too.
        keep: number of the newest checkpoints to keep.
        keep_every: the first checkpoint at or after each multiple of this
            number is never removed.
        settings: JSON dict that must be the same when the run resumes.
        check: function that is called before each save, such as
            `RunFolder.check`. It raises an error to forbid the save.
        writes: True in the process that writes the checkpoints.
        any_worker: function that all workers call with a bool after each step.
            It returns True if any worker passed True.

    Attributes:
        progress: `Progress` of the run.

    Examples:
        >>> state = TrainingState("runs/mine/state", every=1000)
        >>> step = state.restore(model)
        >>> model.fit(data_from(step), steps_per_epoch=total - step,
        ...           callbacks=[state])
    """

    def __init__(
        self,
        folder,
        every=1000,
        keep=2,
        keep_every=None,
        settings=None,
        check=None,
        writes=True,
        any_worker=bool,
    ):
        super().__init__()
        if every < 1 or keep < 1:
            raise InputError(
                "every and keep must be 1 or more; got "
                f"every={every}, keep={keep}."
            )
        files.check_name(folder)
        self.folder = files.absolute(folder)
        self.every = every
        self.keep = keep
        self.keep_every = keep_every
        self.settings = settings or {}
        self.check = check
        self.writes = writes
        self.any_worker = any_worker
        self.progress = Progress()
        self._saved = (0, 0)  # numbers of steps and lines in the last save
        self._epoch_steps, self._batches_seen = None, 0
        self._restored = False
        self._stop_request = StopRequest()

    def restore(self, model):
        """Restore the newest undamaged checkpoint; return its step.

        `model` must be compiled and built. This method builds the model's
        optimizer. If there is no checkpoint, nothing is restored, and the step
        is that of an earlier `fit` with this object, or 0.

        Raises:
            InputError: the model is not compiled or not built, the model or the
                settings differ from those of the checkpoint, every checkpoint
                is damaged, or another version of this package wrote the
                checkpoint.
        """
        variables = _collect_variables(model)
        if self.folder in _saves:
            concurrent.futures.wait([_saves.pop(self.folder)])
        if self.writes:
            files.make_folder(self.folder)
            files.remove_partials(self.folder)
        self._restored = True
        newest = checkpoint.read_newest(self.folder)
        if newest is None:
            if checkpoint.steps(self.folder):
                raise InputError(
                    f"Every checkpoint in {self.folder} is damaged (the log "
                    "says how). Remove the checkpoints to start from step 0."
                )
            return self.progress.step
        groups, manifest = newest
        check_same_settings(manifest["settings"], self.settings, self.folder)
        # Compare all tensors first, so that an error changes no variable.
        for group, named in variables.items():
            _check_same_tensors(groups.get(group, {}), named, self.folder)
        for group, named in variables.items():
            _assign(named.values(), groups[group])
        self.progress = Progress(
            manifest["step"], groups.get("metrics", {}), manifest["lines"]
        )
        self._saved = self._count()
        return self.progress.step

    def restore_metrics(self, model):
        """Set the metrics of `model`, which are built, to those saved."""
        metrics, variables = self.progress.metrics, model.metrics_variables
        saved = [tensor for _, tensor in sorted(metrics.items())]
        if [v.shape for v in variables] == [v.shape for v in saved]:
            _assign(variables, metrics)

    def _count(self):
        return self.progress.step, len(self.progress.lines)

    def _copy_metrics(self):
        self.progress.metrics = _to_host(
            _name_variables(self.model.metrics_variables)
        )

    def save(self, copies=True):
        """Copy the state to host memory; a thread writes the copy.

        With `copies=False`, the thread copies one weight at a time. Then no
        step may follow before `wait`.
        """
        self._saved = self._count()
        # At the end of an epoch, `on_train_batch_end` has copied the metrics.
        # A later copy could hold the metrics of the validation.
        if self._epoch_steps is None:
            self.progress.metrics = {}
        elif self._batches_seen < self._epoch_steps:
            self._copy_metrics()
        if not self.writes:
            return
        # Wait for the last save, so that memory holds one copy of the state.
        self.wait()
        if self.check is not None:
            self.check()
        groups = _collect_variables(self.model)
        if copies:
            groups = {k: _to_host(named) for k, named in groups.items()}
        groups["metrics"] = self.progress.metrics
        metadata = {
            "lines": list(self.progress.lines),  # the next epoch adds a line
            "settings": self.settings,
            "versions": {
                "bert_keras": bert_keras.__version__,
                "keras": keras.__version__,
                "backend": keras.backend.backend(),
                "python": platform.python_version(),
            },
        }
        _saves[self.folder] = _writer.submit(
            self._write, self.progress.step, groups, metadata
        )

    def wait(self):
        """Wait until the thread has written the last save.

        Raise the error if the thread failed to write.
        """
        if self.folder in _saves:
            _saves.pop(self.folder).result()

    def _write(self, step, groups, metadata):
        checkpoint.write(self.folder, step, groups, metadata)
        checkpoint.prune(self.folder, step, self.keep, self.keep_every)

    def on_train_begin(self, logs=None):
        if not self._restored and checkpoint.steps(self.folder):
            raise InputError(
                f"{self.folder} holds checkpoints that this training would "
                "overwrite. Call `restore(model)` before `fit` to resume, or "
                "name another folder."
            )
        if self.writes:
            files.make_folder(self.folder)
        self.release_signals()
        self._stop_request = StopRequest()
        # Keep the number of steps, because `evaluate(callbacks=[self])` during
        # `fit` changes `params`.
        self._epoch_steps = self.params["steps"]
        # Python allows signal handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            self._stop_request.install()

    def on_epoch_begin(self, epoch, logs=None):
        self._batches_seen = 0

    def on_train_batch_end(self, batch, logs=None):
        # With `steps_per_execution`, `batch` grows by more than 1 per call. In
        # the last call of an epoch, `batch` may exceed the last batch's index.
        seen = min(batch + 1, self._epoch_steps or batch + 1)
        self.progress.step += seen - self._batches_seen
        self._batches_seen = seen
        if seen == self._epoch_steps:
            self._copy_metrics()
        if self.folder in _saves and _saves[self.folder].done():
            self.wait()  # raises the error of the thread
        # With `steps_per_execution`, `step` may skip a multiple of `every`.
        if self.progress.step // self.every > self._saved[0] // self.every:
            self.save()
        self.check_stop_request()

    def on_test_batch_end(self, batch, logs=None):
        self.check_stop_request()

    def on_train_end(self, logs=None):
        self.check_stop_request()
        self._end()

    def check_stop_request(self, saves=True):
        """Save the state and raise `Preempted` after a signal to any worker.

        All workers call this after the same step, so they stop together.

        Args:
            saves: False to raise the error without a save. Then call this
                method again to save the state.
        """
        if not self.any_worker(self._stop_request.is_set):
            return
        if saves:
            self._end()
        raise Preempted(self.progress.step)

    def _end(self):
        if self._count() != self._saved:
            self.save(copies=False)
        self.wait()
        self.release_signals()

    def release_signals(self):
        """Restore the signal handlers from before `fit`.

        Call this if `fit` raised an error, because Keras then skips
        `on_train_end`.
        """
        self._stop_request.restore()


def _collect_variables(model):
    """Return dict: "model" and "optimizer" -> dict of name -> variable."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not model.built:
        raise InputError(
            "The training state needs a compiled and built model. Before "
            "`restore`, call `compile`, then call the model on one batch."
        )
    if not optimizer.built:
        with strategy_scope(model):
            optimizer.build(model.trainable_variables)
    return {
        "model": _name_variables(model.variables),
        "optimizer": _name_variables(optimizer.variables),
    }


def strategy_scope(model):
    """Return the scope of the model's strategy, a context manager."""
    strategy = getattr(model, "distribute_strategy", None)  # None on JAX
    return strategy.scope() if strategy else contextlib.nullcontext()


def _name_variables(variables):
    # Several paths may be equal. The index makes each name unique.
    return {f"{i:05d}/{v.path}": v for i, v in enumerate(variables)}


def _to_host(named):
    """Return dict of name -> NumPy array, a copy that no step changes.

    For metrics, all workers must call this function, because reading a metric
    sums over the workers.
    """
    return {
        name: np.array(keras.ops.convert_to_numpy(v), order="C", copy=True)
        for name, v in named.items()
    }


def _assign(variables, tensors):
    # Names begin with the variable's index: sorting restores the order.
    values = [tensor for _, tensor in sorted(tensors.items())]
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _check_same_tensors(tensors, named, folder):
    saved = [
        _signature(k, t.shape, t.dtype) for k, t in sorted(tensors.items())
    ]
    expected = [_signature(k, v.shape, v.dtype) for k, v in named.items()]
    if saved == expected:
        return
    difference = f"{len(saved)} tensors", str(len(expected))
    pairs = zip(saved, expected, strict=False)
    old, new = next((pair for pair in pairs if len({*pair}) > 1), difference)
    raise InputError(
        f"The checkpoints in {folder} are of another model or optimizer: they "
        f"hold {old}; expected {new}. Build the saved model and optimizer, or "
        "name another folder."
    )


def _signature(name, shape, dtype):
    # Remove the numbers that Keras adds to names, as in `dense_3`. These
    # numbers depend on the layers that the process made before.
    path = re.sub(r"_\d+", "", name.split("/", 1)[1])
    dtype = keras.backend.standardize_dtype(dtype)
    return f"{path} {dtype}{list(shape)}"
