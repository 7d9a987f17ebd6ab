"""One way to train for every script: bar, TensorBoard, state, evaluation."""


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
    tokens_per_step=0,
) -> list[dict]:
    """Trains a compiled, built model in the run folder, or goes on with it.

    Args:
        folder: an open `RunFolder`; gets state/, logs/ and metrics.jsonl.
        batches: function of the first step; returns the batches from it on.
        steps_per_epoch: steps between two evaluations on `validation`.
        title: what the progress bar says.
        save_every: steps between two checkpoints.
        tokens_per_step: tokens of a batch; 0 where that varies.

    Returns:
        What was logged after each epoch, in order: dict with "step".
    """
    import keras

    from bert_keras.training.loop import fit
    from bert_keras.training.state import TrainingState
    from official_tasks import progress

    state = TrainingState(
        folder.file("state"), every=save_every, check=folder.check
    )
    boards = keras.callbacks.TensorBoard(
        folder.file("logs"), write_graph=False, update_freq=50
    )
    with progress.bar(title, steps) as update:
        shown = progress.fit_callback(update, steps, tokens_per_step)
        return fit(
            model,
            batches,
            steps,
            steps_per_epoch,
            state,
            folder.file("metrics.jsonl"),
            validation,
            [shown, boards],
        )
