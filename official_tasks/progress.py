"""Progress bars for long work, one look for all: rich, on the terminal.

Where the output is no terminal, a bar leaves only its last state.
"""

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

from official_tasks import stopping

# Lines may hold text and names of the user's, with [ and ] in them.
console = Console(highlight=False, markup=False)


@contextmanager
def bar(title: str, total: int | None = None):
    """A progress bar; yields `update(done, total=None, note="")`."""
    columns = (
        TextColumn("  {task.description:<22}", markup=False),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console, transient=False) as progress:
        task = progress.add_task(title, total=total, note="")

        def update(done: int, total: int | None = None, note: str = ""):
            stopping.check()
            progress.update(task, completed=done, total=total, note=note)

        try:
            yield update
        except BaseException:
            # In a log file the error stands alone, without an empty bar.
            progress.live.transient = not console.is_terminal
            raise


@contextmanager
def stages(title: str):
    """As `bar`, for work in parts; yields `update(part, done, total)`."""
    with bar(title) as update:
        yield lambda part, done, total: update(done, total, note=part)
