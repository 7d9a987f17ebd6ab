"""How every task is trained: bar, TensorBoard, state, evaluation."""


def train(
    folder,
    model,
    batches,
    *,
    steps,
    steps_per_epoch,
    validation,
    title,
    save_every,
    strategy,
) -> list[dict]:
    """Trains a compiled, built model in the run folder, or goes on with it.

    Args:
        folder: an open `RunFolder`; gets state/, logs/ and metrics.jsonl.
        batches: function of the first step; returns the batches from it on.
        steps_per_epoch: steps between two calls of `validation`.
        validation: function of the step; returns figures by name.
        title: what the progress bar says.
        save_every: steps between two checkpoints.
        strategy: of `make_strategy`; one worker writes.

    Returns:
        What was logged after each epoch, in order: dict with "step".
    """
    import keras

    from bert_keras.training.loop import fit
    from bert_keras.training.state import TrainingState
    from bert_keras.training.workers import any_worker
    from official_tasks import progress

    state = TrainingState(
        folder.file("state"),
        every=save_every,
        check=folder.check,
        writes=strategy.is_chief,
        any_worker=any_worker(strategy),
    )
    boards = [
        keras.callbacks.TensorBoard(
            folder.file("logs"), write_graph=False, update_freq=50
        )
    ] * strategy.is_chief
    with progress.bar(title, steps) as update:
        shown = progress.fit_callback(update, steps)
        return fit(
            model,
            batches,
            steps,
            steps_per_epoch,
            state,
            folder.file("metrics.jsonl"),
            validation,
            [shown, *boards],
        )
