"""The paper's tables: a row of settings for each variant, at both scales.

Figures are those of Devlin et al. 2019, in percent; a perplexity as it is.
"""

from typing import NamedTuple

from official_tasks.tasks.base import RATES
from official_tasks.tasks.recipes import RECIPES


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
        second: name of the run of a second encoder, or None.
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


RELEASED = {
    "base": "hf://google-bert/bert-base-uncased",
    "large": "hf://google-bert/bert-large-uncased",
    "base, cased": "hf://google-bert/bert-base-cased",
}

# Two CPU cores, a table in some two hours.
SMALL = {
    "num_layers": 4,
    "hidden_dim": 128,
    "num_heads": 4,
    # As the paper's 128 and 512: short sequences teach attention sooner.
    "sequence_length": 16,
    "max_predictions": 3,
    "batch_size": 128,
    "steps": 2000,
    "phase_2_steps": 0.5,
    "phase_2_sequence_length": 64,
    "phase_2_max_predictions": 10,
    "phase_2_batch_size": 32,
    "learning_rate": 1.5e-3,
    "warmup": 0.1,
    "bias_correction": True,
    "dropout": 0.0,  # no piece is seen twice
    "evaluations": 2,
    "evaluation_steps": 50,
    "dtype": "mixed_bfloat16",
}
PAPER = {}  # the defaults of `Settings` are the paper's
SCALES = {"small": SMALL, "paper": PAPER}
VOCABULARY = 8000  # pieces, where one is learned at the small scale


def _of(scale, small, paper):
    return small if scale == "small" else paper


def _at_small(scale, deviation):
    return (deviation,) if scale == "small" else ()


def small_task(name, task, metric, rows, epochs, column=None, **more):
    tuning = {
        "epochs": epochs,
        "batch_size": 32,
        "learning_rate": 5e-4,
        "sequence_length": 64,
        "dtype": "mixed_bfloat16",
    }
    return TaskRow(name, task, metric, rows, tuning, column=column, **more)


ENTITIES = small_task(
    "entities",
    "wikiann",
    "f1",
    5000,
    3.0,
    "NER",
    dev_rows=1000,
    options={"lstm_dim": 128},
)
SPANS = small_task(
    "spans",
    "squad1",
    "f1",
    4000,
    3.0,
    "SQuAD",
    dev_rows=1000,
    options={"stride": 24},
    sentence=True,
    windows=1.6,  # 6,464 of 3,989 questions
)
SENTIMENT = small_task("sentiment", "sst2", "accuracy", 5000, 2.0, "SST-2")
SIMILARITY = small_task("similarity", "stsb", "pearson", 5749, 2.0)


def paper_task(name, task, metric, rows, **more):
    tuning = {
        "epochs": 3.0,
        "batch_size": 32,
        "learning_rate": 5e-5,
        "sequence_length": 128,
    }
    return TaskRow(name, task, metric, rows, tuning | more, column=name)


MNLI = paper_task("MNLI", "mnli", "accuracy", 392702)
QNLI = paper_task("QNLI", "qnli", "accuracy", 104743)
MRPC = paper_task("MRPC", "mrpc", "accuracy", 3668)
SST_2 = paper_task("SST-2", "sst2", "accuracy", 67349)
SQUAD = paper_task("SQuAD", "squad1", "f1", 87599, sequence_length=384)
NER = paper_task("NER", "conll2003", "f1", 14041)


def _released(title, tasks, figures, deviations=()) -> Table:
    """A table of the released weights: size -> the paper's by its columns."""
    variants = {
        size: Variant(RELEASED[size], figures=own)
        for size, own in figures.items()
    }
    pairs = [("large", "base")]
    return Table(title, {}, variants, tasks, pairs, deviations=deviations)


def glue(scale) -> Table:
    rows = {  # table 1, on the leaderboard: base, large
        "MNLI": ("mnli", "accuracy", 392702, 84.6, 86.7),
        "QQP": ("qqp", "f1", 363849, 71.2, 72.1),
        "QNLI": ("qnli", "accuracy", 104743, 90.5, 92.7),
        "SST-2": ("sst2", "accuracy", 67349, 93.5, 94.9),
        "CoLA": ("cola", "matthews", 8551, 52.1, 60.5),
        "STS-B": ("stsb", "spearman", 5749, 85.8, 86.5),
        "MRPC": ("mrpc", "f1", 3668, 88.9, 89.3),
        "RTE": ("rte", "accuracy", 2490, 66.4, 70.1),
    }
    return _released(
        "GLUE (table 1)",
        [
            paper_task(name, task, metric, count)._replace(rates=RATES)
            for name, (task, metric, count, *_) in rows.items()
        ],
        {
            "base": {name: row[3] for name, row in rows.items()},
            "large": {name: row[4] for name, row in rows.items()},
        },
        (
            "Ours are on dev, the paper's on the leaderboard's test sets: "
            "official_tasks.finetune --task=glue writes the glue.zip for it.",
        ),
    )


def squad(scale) -> Table:
    longer = {"sequence_length": 384, "batch_size": 48, "epochs": 2.0}
    return _released(
        "SQuAD 1.1 and 2.0 (tables 2 and 3), F1 on dev",
        [
            SQUAD._replace(name="SQuAD 1.1", column="SQuAD 1.1"),
            paper_task("SQuAD 2.0", "squad2", "f1", 130319, **longer),
        ],
        {
            "base": {"SQuAD 1.1": 88.5},
            "large": {"SQuAD 1.1": 90.9, "SQuAD 2.0": 81.9},
        },
        (
            "Single models; the paper's ensemble is evaluate --model=A,B,C, "
            "and TriviaQA first is finetune --task=triviaqa, then its folder "
            "as --init.",
        ),
    )


def swag(scale) -> Table:
    tuning = {"batch_size": 16, "learning_rate": 2e-5}
    return _released(
        "SWAG (table 4), accuracy on dev",
        [paper_task("SWAG", "swag", "accuracy", 73546, **tuning)],
        {"base": {"SWAG": 81.6}, "large": {"SWAG": 86.6}},
    )


def pretraining_tasks(scale) -> Table:
    columns = ("MNLI", "QNLI", "MRPC", "SST-2", "SQuAD")
    rows = {  # variant -> its run, the paper's figures
        "BERT": ("mlm+nsp", 84.4, 88.4, 86.7, 92.7, 88.5),
        "no NSP": ("mlm", 83.9, 84.9, 86.5, 92.6, 87.9),
        "LTR, no NSP": ("left_to_right", 82.1, 84.3, 77.5, 92.1, 77.8),
        "LTR + BiLSTM": ("left_to_right", 82.1, 84.1, 75.7, 91.6, 84.9),
    }
    variants = {
        name: Variant(
            run,
            bilstm="BiLSTM" in name,
            figures=dict(zip(columns, figures, strict=True)),
        )
        for name, (run, *figures) in rows.items()
    }
    variants["LTR and RTL"] = Variant("left_to_right", second="right_to_left")
    runs = ("mlm+nsp", "mlm", "left_to_right", "right_to_left")
    return Table(
        "Pre-training tasks (table 5)",
        {run: {"objectives": run} for run in runs},
        variants,
        _of(
            scale,
            [ENTITIES, SPANS, SENTIMENT, SIMILARITY],
            [MNLI, QNLI, MRPC, SST_2, SQUAD],
        ),
        [
            ("BERT", "no NSP"),
            ("no NSP", "LTR, no NSP"),
            ("LTR + BiLSTM", "LTR, no NSP"),
            ("no NSP", "LTR + BiLSTM"),
            ("no NSP", "LTR and RTL"),
        ],
        deviations=(
            "The paper names no figures for the two directions side by side; "
            "it holds them for weaker than one deep bidirectional model.",
            "A left-to-right model classifies from its last token, as [CLS] "
            "sees nothing; the paper does not say what it did.",
            *_at_small(
                scale,
                "Questions are read with the one sentence that holds "
                "their answer, in training and in scoring.",
            ),
        ),
    )


def model_size(scale) -> Table:
    paper = {
        (3, 768, 12): (5.84, 77.9, 79.8, 88.4),
        (6, 768, 3): (5.24, 80.6, 82.2, 90.7),
        (6, 768, 12): (4.68, 81.9, 84.8, 91.3),
        (12, 768, 12): (3.99, 84.4, 86.7, 92.9),
        (12, 1024, 16): (3.54, 85.7, 86.9, 93.3),
        (24, 1024, 16): (3.23, 86.6, 87.8, 93.7),
    }
    small = {  # a third of the layers, a sixth of the width
        (3, 768, 12): (1, 128, 4),
        (6, 768, 3): (2, 128, 1),
        (6, 768, 12): (2, 128, 4),
        (12, 768, 12): (4, 128, 4),
        (12, 1024, 16): (4, 160, 5),
        (24, 1024, 16): (8, 160, 5),
    }
    columns = ("mlm_perplexity", "MNLI", "MRPC", "SST-2")
    runs, variants = {}, {}
    for size, figures in paper.items():
        name = "{}x{}x{}".format(*size)
        numbers = _of(scale, small[size], size)
        keys = ("num_layers", "hidden_dim", "num_heads")
        runs[name] = dict(zip(keys, numbers, strict=True))
        variants[name] = Variant(
            name, figures=dict(zip(columns, figures, strict=True))
        )
    names = list(variants)
    return Table(
        "Model size (table 6): layers x width x heads",
        runs,
        variants,
        _of(scale, [ENTITIES, SENTIMENT, SIMILARITY], [MNLI, MRPC, SST_2]),
        list(zip(names[1:], names, strict=False)),
        held_out="mlm_perplexity",
        deviations=_at_small(
            scale,
            "A third of the paper's layers and about a sixth of its width: "
            f"{'; '.join('{}x{}x{}'.format(*n) for n in small.values())}.",
        ),
    )


def masking_mix(scale) -> Table:
    # MASK, SAME, RND -> MNLI fine-tuned, NER fine-tuned, NER on features.
    paper = {
        (80, 10, 10): (84.2, 95.4, 94.9),
        (100, 0, 0): (84.3, 94.9, 94.0),
        (80, 0, 20): (84.1, 95.2, 94.6),
        (80, 20, 0): (84.4, 95.2, 94.7),
        (0, 20, 80): (83.7, 94.8, 94.6),
        (0, 0, 100): (83.6, 94.9, 94.6),
    }
    sentiment = SENTIMENT._replace(column="MNLI")  # in whose place it stands
    entities, other = _of(scale, (ENTITIES, sentiment), (NER, MNLI))
    runs, variants, comparisons = {}, {}, []
    usual = "80/10/10"
    for (mask, same, random), (mnli, tuned, features) in paper.items():
        name = f"{mask}/{same}/{random}"
        # The setting's order is masked, replaced, kept.
        runs[name] = {"mask_mix": (mask, random, same)}
        variants[name] = Variant(name, figures={"MNLI": mnli, "NER": tuned})
        variants[f"{name}, features"] = Variant(
            name,
            recipe="concat_last_four",
            only=(entities.name,),
            figures={"NER": features},
        )
        if name != usual:
            comparisons += [
                (usual, name),
                (f"{usual}, features", f"{name}, features"),
            ]
    return Table(
        "Masking (table 8): MASK / same / random, in percent",
        runs,
        variants,
        [other, entities],
        comparisons,
        deviations=_at_small(
            scale, "Sentiment, SST-2, stands where the paper has MNLI."
        ),
    )


def steps(scale) -> Table:
    most = _of(scale, SMALL["steps"], 1_000_000)
    runs, variants, at = {}, {}, {}
    for objective, short in (("mlm", "masked"), ("left_to_right", "LTR")):
        for share in (8, 4, 2, 1):
            count = most // share
            name = f"{short}, {count:,} steps"
            runs[name] = {"objectives": objective, "steps": count}
            variants[name], at[name] = Variant(name), count
    pairs = [
        (name, name.replace("masked", "LTR"))
        for name in variants
        if name.startswith("masked")
    ]
    longest = [f"masked, {most // share:,} steps" for share in (1, 2)]
    return Table(
        "Pre-training steps (figure 5)",
        runs,
        variants,
        _of(scale, [ENTITIES, SENTIMENT], [MNLI]),
        [tuple(longest), *pairs],
        steps=at,
        deviations=(
            "Each point is a run of its own, whose learning rate falls to 0 "
            "at its end; the paper fine-tunes checkpoints of one run.",
        ),
    )


def feature_based(scale) -> Table:
    paper = {
        "embeddings": 91.0,
        "second_to_last": 95.6,
        "last": 94.9,
        "weighted_sum_last_four": 95.9,
        "concat_last_four": 96.1,
        "weighted_sum_all": 95.5,
    }
    run = _of(scale, "mlm+nsp", RELEASED["base, cased"])
    variants = {
        name: Variant(run, recipe=name, figures={"NER": paper[name]})
        for name in RECIPES
    }
    variants["fine-tuning"] = Variant(run, figures={"NER": 96.4})
    others = [name for name in variants if name != "embeddings"]
    return Table(
        "Features and fine-tuning (table 7)",
        _of(scale, {"mlm+nsp": {}}, {}),
        variants,
        [_of(scale, ENTITIES, NER)],
        [
            *[(name, "embeddings") for name in others],
            ("fine-tuning", "concat_last_four"),
        ],
        deviations=(
            "Fine-tuning sees one sentence at a time; the paper's saw as much "
            "of the document as fits (--option=conll2003.context=document).",
            *_at_small(
                scale, "With four layers the last four are all: two sums alike."
            ),
        ),
    )


TABLES = {
    "pretraining_tasks": pretraining_tasks,
    "model_size": model_size,
    "masking_mix": masking_mix,
    "steps": steps,
    "feature_based": feature_based,
    "glue": glue,
    "squad": squad,
    "swag": swag,
}
PAPER_ONLY = ("glue", "squad", "swag")  # from released weights
