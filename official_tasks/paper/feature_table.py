"""Fills the paper's table of features and fine-tuning, on any entity task.

    python -m official_tasks.paper.feature_table --task=wnut17 \
        --data_dir=wnut17 --init=hf://google-bert/bert-base-cased \
        --output=runs/features

In: a task of named entities and its data; weights to start from. For each of
the paper's six recipes the encoder is frozen and two LSTMs learn on the
features of its layers; in the last row it is fine-tuned. Out, in --output: a
folder of its own for each row, as official_tasks.finetune writes it;
results.json; table.png, which draws them. The same command resumes what was
interrupted; --rows=last,fine_tuning fills these rows only.

Takes seven times as long as one fine-tuning, or more: LSTMs are slow.
"""

from absl import flags

from bert_keras.errors import InputError
from bert_keras.files import make_folder, write_json
from official_tasks import page, progress, script
from official_tasks.paper.results import COLOURS, draw_points
from official_tasks.tasks import registry
from official_tasks.tasks.recipes import RECIPES
from official_tasks.tasks.tagging import NerTask

FINE_TUNING = "fine_tuning"
ROWS = (*RECIPES, FINE_TUNING)


def define_flags():
    registry.define_task_flags()
    flags.adopt_module_key_flags(registry)
    flags.DEFINE_string("init", None, "Weights to start from.")
    flags.DEFINE_string("output", None, "Folder of the table.")
    flags.DEFINE_list("rows", list(ROWS), "Which rows to fill.")
    flags.DEFINE_float("epochs", None, "Epochs of fine-tuning.")
    flags.DEFINE_float("feature_epochs", None, "Epochs of the LSTMs.")
    flags.DEFINE_float("learning_rate", None, "Learning rate of fine-tuning.")
    flags.DEFINE_float(
        "feature_learning_rate", None, "Learning rate of the LSTMs."
    )
    flags.DEFINE_integer("batch_size", None, "Rows a step.", lower_bound=1)
    flags.DEFINE_integer("sequence_length", None, "Pieces of a row at most.")
    flags.DEFINE_integer("seeds", 1, "Runs of each row.", lower_bound=1)
    script.applies_only(
        "to rows of features, and --rows has none",
        lambda v: set(v.rows) & set(RECIPES),
        *("feature_epochs", "feature_learning_rate", "lstm_dim"),
    )
    script.applies_only(
        f"to {FINE_TUNING!r}, which is not in --rows",
        lambda v: FINE_TUNING in v.rows,
        *("epochs", "learning_rate"),
    )
    flags.mark_flags_as_required(["task", "init", "output"])


def fill(make_task, init, output, rows=ROWS, seeds=1, features=None, **tuned):
    """Runs each row and gathers the scores.

    Args:
        make_task: function of a recipe, or None for fine-tuning; returns
            `(task, settings)`.
        features, tuned: arguments of `grid.run`, for the rows on features
            and for fine-tuning.

    Returns:
        dict of row -> {"f1", "deviation", "token_f1"} on dev; the mean over
        the seeds where there are several.
    """
    from official_tasks.engine import grid

    table = {}
    for row in rows:
        task, settings = make_task(None if row == FINE_TUNING else row)
        arguments = tuned if row == FINE_TUNING else features or {}
        results = grid.run(
            task,
            init,
            f"{output}/{row}",
            seeds=seeds,
            settings=settings,
            **arguments,
        )
        token_f1 = results["token_f1"]
        if "runs" in results:  # of those that the mean is over
            runs = results["runs"].items()
            sound = [
                r["token_f1"] for n, r in runs if n not in results["failed"]
            ]
            token_f1 = sum(sound) / len(sound) if sound else None
        table[row] = {
            "f1": results.get("mean", results["f1"]),
            "deviation": results.get("deviation"),
            "token_f1": token_f1,
        }
    return table


def draw(table, title, path):
    """Draws the F1 of each row as a point, with its number above it."""
    names = [name.replace("_", " ") for name in table]
    values = [100 * (row["f1"] or 0) for row in table.values()]
    spread = [100 * (row["deviation"] or 0) for row in table.values()]
    figure, axes = page.figure_of(7, 0.5 * len(names) + 1)
    draw_points(axes, names, values, spread, COLOURS[0])
    axes.set_xlabel("F1 of entities on dev, percent")
    axes.set_title(title, loc="left")
    page.save(figure, path, dpi=150)


def main(values):
    from official_tasks.engine import grid

    cls, fixed = registry.find_task(values.task)
    unknown = set(values.rows) - set(ROWS)
    if not issubclass(cls, NerTask) or values["recipe"].present or unknown:
        raise InputError(
            "The table is of a task of named entities without --recipe, and "
            f"its rows are {', '.join(ROWS)}"
        )
    _, options = registry.task_from_flags(values)

    def make_task(recipe):
        own = options if recipe is None else {**options, "recipe": recipe}
        return cls(**fixed, **own), own

    shared = {
        "batch_size": values.batch_size,
        "sequence_length": values.sequence_length,
    }
    features = {
        "epochs": values.feature_epochs,
        "learning_rate": values.feature_learning_rate,
        **shared,
    }
    make_folder(values.output)
    table = fill(
        make_task,
        values.init,
        values.output,
        values.rows,
        values.seeds,
        features,
        epochs=values.epochs,
        learning_rate=values.learning_rate,
        **shared,
    )
    write_json(table, f"{values.output}/results.json")
    progress.console.print(grid.table_of(values.task, table))
    if page.can_draw("table.png"):
        title = f"{values.task}: features, and fine-tuning"
        with page.may_fail("table.png"):
            draw(table, title, f"{values.output}/table.png")


if __name__ == "__main__":
    script.start(main, define_flags)
