"""What the runs of a table say together, and the files that tell it."""

from bert_keras import files
from official_tasks import page, progress
from official_tasks.reproduce_rows import claimed_sign
from official_tasks.reproduce_statistics import compare


def gathered(table, seeds, scores, held_out) -> dict:
    """The results of a table.

    Args:
        scores: variant -> task -> values, one a seed.
        held_out: pre-training run -> figures, one dict a seed.

    Returns:
        dict of "title", "seeds", "columns" (tasks and, where the table has
        one, the figure of pre-training), "scores" and "paper" (of each
        variant by column; the paper's in percent), "steps", "held_out",
        "comparisons" (list of dict, what `compare` returns with "one",
        "other", "task" and "claimed", the sign in the paper) and
        "deviations".
    """
    columns = {row.name: row.column for row in table.tasks}
    values = {name: dict(own) for name, own in scores.items()}
    if table.held_out:
        columns[table.held_out] = table.held_out
        for name, variant in table.variants.items():
            figures = held_out[variant.run]
            values[name][table.held_out] = [f[table.held_out] for f in figures]
    comparisons = [
        _compared(table, values, one, other, task, column)
        for one, other in table.comparisons
        for task, column in columns.items()
        if task in values[one] and task in values[other]
    ]
    return {
        "title": table.title,
        "seeds": seeds,
        "columns": list(columns),
        "scores": values,
        "paper": {
            name: {
                task: variant.figures[column]
                for task, column in columns.items()
                if column in variant.figures
            }
            for name, variant in table.variants.items()
        },
        "steps": table.steps,
        "held_out": held_out,
        "comparisons": comparisons,
        "deviations": list(table.deviations),
    }


def _compared(table, values, one, other, task, column):
    claimed = claimed_sign(table, one, other, column)
    first, second = values[one][task], values[other][task]
    if task == table.held_out:  # the lower the better
        first, second = second, first
    found = compare(first, second, claimed)
    return {
        "one": one,
        "other": other,
        "task": task,
        "claimed": claimed,
    } | found


def write(folder, results):
    """results.json, table.txt and, with matplotlib, table.svg."""
    from official_tasks import reproduce_report

    text = reproduce_report.text(results)
    with folder.output("results.json") as path:
        files.write_json(results, path)
    with (
        folder.output("table.txt") as path,
        open(path, "w", encoding="utf-8") as file,
    ):
        file.write(text)
    progress.console.print(text, soft_wrap=True)
    if not page.can_draw("table.svg"):
        return
    with page.may_fail("table.svg"), folder.output("table.svg") as path:
        reproduce_report.draw(results, path)
