"""Progress bars of all scripts, made with rich, and the line about devices.

Without a terminal, a bar prints a line every half minute and a last line.
"""

import datetime
import os
import time
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from bert_keras.errors import format_count
from official_tasks import cli, stopping


class _Console(Console):
    """Console that goes silent when its pipe's reader, such as `head`, ends."""

    def on_broken_pipe(self):
        """Print nothing more; the script goes on and writes its files."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


# Print the user's texts unchanged, even if they contain [bold] or :key:.
console = _Console(highlight=False, markup=False, emoji=False)
LINE_EVERY = 30.0  # seconds between two lines, if the output is no terminal
_printed: list = []  # the line of `show_devices`, once it is printed


def _format_rate(rate):
    """Return a rate as text: units per second, or seconds per unit if slow."""
    if not rate:
        return ""
    if rate < 1:
        return f"{1 / rate:,.1f} s each"
    return f"{rate:,.1f}/s" if rate < 10 else f"{rate:,.0f}/s"


class _Bar(Progress):
    """Bar with a note on the next line, because 80 columns cannot show both."""

    def get_renderables(self):
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if task.fields["note"]:
                yield Text(f"  {task.fields['note']}")


def show_devices(strategy=None, dtype="float32"):
    """Print the devices, the strategy and the dtype, once in a process.

    Args:
        strategy: `Strategy`; None means one device.
        dtype: name of the Keras policy.
    """
    from bert_keras.training.strategy import describe_devices, make_strategy

    if _printed:
        return
    line, warning = describe_devices(strategy or make_strategy(), dtype)
    _printed.append(line)
    console.print(line, soft_wrap=True)
    if warning:
        console.print(f"warning: {warning}", soft_wrap=True)


def print_version(folder, served):
    """Print which version of a folder of versions is loaded, if it is one."""
    number = os.path.basename(served.folder)
    if number != os.path.basename(os.path.abspath(folder)):
        console.print(f"{folder}: version {number}", soft_wrap=True)


def print_notes(notes):
    """Print each note once. In a script, flags replace argument names."""
    for note in dict.fromkeys(notes):
        console.print(f"note: {cli.with_flags(note)}", soft_wrap=True)


@contextmanager
def bar(title: str, total: int | None = None, done: int = 0):
    """Yield the function `update(done, total=None, note="")` of a progress bar.

    `update` gets the number of all finished units, including those of an
    earlier run. After a signal, it raises `Stopped`.

    Args:
        title: name of the work.
        total: units of work; None if unknown.
        done: units that an earlier run has finished.
    """
    columns = (
        TextColumn("  {task.description:<22}", markup=False),
        BarColumn(bar_width=28),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("{task.fields[speed]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with _Bar(*columns, console=console, transient=False) as progress:
        task = progress.add_task(
            title, total=total, completed=done, note="", count="", speed=""
        )
        report = _Lines(title)

        def update(done: int, total: int | None = None, note: str = ""):
            stopping.check()
            progress.update(task, completed=done, total=total, note=note)
            (shown,) = progress.tasks
            most = "" if shown.total is None else f"/{shown.total:,.0f}"
            progress.update(
                task,
                count=f"{done:,.0f}{most}",
                speed=_format_rate(shown.finished_speed or shown.speed),
            )
            if not console.is_terminal:
                report(done, shown.total, note)

        try:
            yield update
        except BaseException:
            # Keep an unfinished bar out of a log file.
            progress.live.transient = not console.is_terminal
            raise


class _Lines:
    """Lines of progress for a log file, one every half minute."""

    def __init__(self, title):
        self.title, self.start = title, None
        self.last = time.monotonic()

    def __call__(self, done, total, note):
        now = time.monotonic()
        if self.start is None:
            # Measure the rate from here, because the first step includes
            # tracing.
            self.first, self.start = done, now
            return
        if now - self.last < LINE_EVERY:
            return
        self.last = now
        rate = (done - self.first) / (now - self.start)
        line = f"{self.title} {note}".rstrip() + f": {done:,}"
        line += f" of {total:,.0f}" if total else ""
        if rate > 0:
            line += f", {_format_rate(rate)}"
        if total and rate > 0:
            left = datetime.timedelta(seconds=round((total - done) / rate))
            line += f", {left} left"
        console.print(line, soft_wrap=True)


def note_unread(source):
    """Print a note that names the files of a folder that are not read."""
    from bert_keras.data.corpus import list_unread

    paths = list_unread(source)
    if paths:
        names = ", ".join(os.path.relpath(path, source) for path in paths[:20])
        more = f" and {len(paths) - 20} others" if len(paths) > 20 else ""
        count = format_count(len(paths), "file is", "files are")
        console.print(
            f"note: {source}: {count} not read because of the ending: {names}"
            f"{more}"
        )
