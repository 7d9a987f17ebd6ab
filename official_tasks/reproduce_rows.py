"""What a table of the paper is made of: runs, variants, tasks, figures."""

from typing import NamedTuple


class TaskRow(NamedTuple):
    """A task at one scale.

    Attributes:
        name: of the folder and of the column.
        task: of `TASKS`.
        metric: the key of its scores that is compared.
        rows: training rows; the official number, or the most that are taken.
        tuning: arguments of `finetuning.run`.
        dev_rows: most that are scored; None scores all.
        options: of the task, over those of the command.
        column: the paper's column that it stands for, or None.
        rates: learning rates of which the best on dev counts.
        sentence: whether questions see the sentence of their answer alone.
        windows: what a training row is cut into, on average.
    """

    name: str
    task: str
    metric: str
    rows: int
    tuning: dict
    dev_rows: int | None = None
    options: dict = {}
    column: str | None = None
    rates: tuple[float, ...] | None = None
    sentence: bool = False
    windows: float = 1.0


class Variant(NamedTuple):
    """A row of the table: whose weights, and what stands on them.

    Attributes:
        run: name of the table's pre-training run, or of released weights.
        second: name of the run of the encoder beside it, or None.
        bilstm: whether a BiLSTM stands on the encoder in fine-tuning.
        recipe: of features, see `RECIPES`; None fine-tunes.
        only: names of the tasks; None takes all.
        figures: the paper's, by its columns.
    """

    run: str
    second: str | None = None
    bilstm: bool = False
    recipe: str | None = None
    only: tuple[str, ...] | None = None
    figures: dict = {}


class Table(NamedTuple):
    """A table of the paper at one scale.

    Attributes:
        title: what it shows and where in the paper it stands.
        runs: name -> settings of pre-training, over the scale's.
        variants: name -> `Variant`.
        tasks: list of `TaskRow`.
        comparisons: pairs of variants, the first above the second in the
            paper, except where both figures of a column say otherwise.
        held_out: figure of pre-training that is shown as a column; the lower
            the better.
        steps: pre-training steps of each variant, where it is drawn over
            them.
        deviations: how it differs from the paper, a sentence each.
    """

    title: str
    runs: dict[str, dict]
    variants: dict[str, Variant]
    tasks: list[TaskRow]
    comparisons: list[tuple[str, str]] = []
    held_out: str | None = None
    steps: dict[str, int] | None = None
    deviations: tuple[str, ...] = ()

    def tasks_of(self, name):
        """The tasks that a variant is scored on."""
        only = self.variants[name].only
        return [t for t in self.tasks if only is None or t.name in only]


def claimed_sign(table, one, other, column):
    """Sign of `one` minus `other` in the paper, by its figures or claim.

    Of a figure that is the better the lower it is, the sign of being better.
    """
    figures = [
        table.variants[name].figures.get(column) for name in (one, other)
    ]
    if None in figures:
        return 1
    difference = figures[0] - figures[1]
    sign = (difference > 0) - (difference < 0)
    return -sign if column == table.held_out else sign
