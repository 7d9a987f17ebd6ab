"""How every run is trained: state, progress, TensorBoard, evaluation."""

from bert_keras.errors import InputError
from official_tasks import progress


def training_state(folder, strategy, every, **options):
    """The `TrainingState` of a run in its folder; one worker writes.

    Args:
        folder: an open `RunFolder`; gets state/.
        strategy: of `make_strategy`.
        every: steps between two checkpoints.
        options: further arguments of `TrainingState`.
    """
    from bert_keras.training.loop import any_worker
    from bert_keras.training.state import TrainingState

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
    steps_per_epoch,
    validation,
    title,
    tokens_until=None,
    guesses=None,
    bounds=(),
    callbacks=(),
) -> list[dict]:
    """Trains a compiled, built model in the run folder, or goes on with it.

    Args:
        folder: an open `RunFolder`; gets logs/ and metrics.jsonl.
        batches: function of the first step; returns the batches from it on.
        state: of `training_state`.
        steps_per_epoch: steps between two calls of `validation`.
        validation: function of the step; returns figures by name.
        title: what the progress bar says.
        tokens_until: function of the step: places trained on until then.
        guesses: function of nothing; see `callbacks.Board`.
        bounds: steps at which the batches take another shape.
        callbacks: further ones; they may add to what is logged.

    Returns:
        What was logged after each epoch, in order: dict with "step".

    Raises:
        InputError: the gradients were not finite, many steps in a row.
    """
    from bert_keras.training.loop import NotFiniteError, StopWhenNotFinite, fit
    from official_tasks.engine.callbacks import Board, Meter

    with progress.bar(title, steps) as update:
        meter = Meter(update, state, steps, tokens_until)
        told = [meter, StopWhenNotFinite(), *callbacks]
        if state.writes:
            told.append(Board(folder.file("logs"), meter, guesses))
        try:
            return fit(
                model,
                batches,
                steps,
                steps_per_epoch,
                state,
                folder.file("metrics.jsonl"),
                validation,
                told,
                bounds=bounds,
            )
        except NotFiniteError as error:
            raise InputError(str(error)) from error
