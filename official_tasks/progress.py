"""Progress bars for long work, one look for all: rich, on the terminal.

Where the output is no terminal, a bar leaves only its last state.
"""

import time
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(highlight=False)


@contextmanager
def bar(title: str, total: int | None = None):
    """A progress bar; yields `update(done, total=None, note="")`."""
    columns = (
        TextColumn("  {task.description:<22}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=False) as progress:
        task = progress.add_task(title, total=total, note="")

        def update(done: int, total: int | None = None, note: str = ""):
            progress.update(task, completed=done, total=total, note=note)

        yield update


@contextmanager
def stages(title: str):
    """As `bar`, for work in parts; yields `update(part, done, total)`."""
    with bar(title) as update:
        yield lambda part, done, total: update(done, total, note=part)


def fit_callback(update, steps: int, tokens_per_step: int = 0):
    """A Keras callback that shows `fit`'s step, logs and tokens a second.

    Args:
        update: of a `bar`.
        steps: steps of the whole run.
        tokens_per_step: tokens of a batch; 0 where it varies.
    """
    import keras

    class FitBar(keras.callbacks.Callback):
        first, began = None, None

        def on_train_batch_end(self, batch, logs=None):
            step = int(self.model.optimizer.iterations)
            if self.first is None:
                # The first step traces the graph: it tells no speed.
                self.first, self.began = step, time.monotonic()
            if step % 10 == 0 or step == steps:
                update(step, steps, note=self._note(step, logs or {}))

        def _note(self, step, logs):
            shown = [
                f"{name} {float(value):.3f}"
                for name, value in logs.items()
                if name == "loss" or name.endswith("accuracy")
            ]
            seconds = time.monotonic() - self.began
            if tokens_per_step and seconds > 0:
                rate = (step - self.first) * tokens_per_step / seconds
                shown.append(f"{rate:,.0f} tokens/s")
            return "  ".join(shown)

    return FitBar()
