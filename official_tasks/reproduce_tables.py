"""The paper's tables: a row of settings for each variant, at both scales.

Figures are those of Devlin et al. 2019, in percent, perplexity but as it is.
"""

from official_tasks.layer_recipes import RECIPES
from official_tasks.reproduce_released import glue, squad, swag
from official_tasks.reproduce_rows import Table, Variant
from official_tasks.reproduce_scales import (
    ENTITIES,
    MNLI,
    MRPC,
    NER,
    QNLI,
    RELEASED,
    SENTIMENT,
    SIMILARITY,
    SMALL,
    SPANS,
    SQUAD,
    SST_2,
)


def _of(scale, small, paper):
    return small if scale == "small" else paper


def pretraining_tasks(scale) -> Table:
    columns = ("MNLI", "QNLI", "MRPC", "SST-2", "SQuAD")

    def figures(*values):
        return dict(zip(columns, values, strict=True))

    return Table(
        "Pre-training tasks (table 5)",
        {
            "mlm+nsp": {"objectives": "mlm+nsp"},
            "mlm": {"objectives": "mlm"},
            "left_to_right": {"objectives": "left_to_right"},
            "right_to_left": {"objectives": "right_to_left"},
        },
        {
            "BERT": Variant(
                "mlm+nsp", figures=figures(84.4, 88.4, 86.7, 92.7, 88.5)
            ),
            "no NSP": Variant(
                "mlm", figures=figures(83.9, 84.9, 86.5, 92.6, 87.9)
            ),
            "LTR, no NSP": Variant(
                "left_to_right", figures=figures(82.1, 84.3, 77.5, 92.1, 77.8)
            ),
            "LTR + BiLSTM": Variant(
                "left_to_right",
                bilstm=True,
                figures=figures(82.1, 84.1, 75.7, 91.6, 84.9),
            ),
            "LTR and RTL": Variant("left_to_right", second="right_to_left"),
        },
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
            *_of(
                scale,
                (
                    "Questions are read beside the one sentence that holds "
                    "their answer, in training and in scoring.",
                ),
                (),
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
        deviations=_of(
            scale,
            (
                "A third of the paper's layers and about a sixth of its width: "
                + "; ".join(
                    "{}x{}x{}".format(*numbers) for numbers in small.values()
                )
                + ".",
            ),
            (),
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
        deviations=_of(
            scale,
            ("Sentiment, SST-2, stands where the paper has MNLI.",),
            (),
        ),
    )


def steps(scale) -> Table:
    most = _of(scale, SMALL["steps"], 1_000_000)
    runs, variants, at = {}, {}, {}
    for objective, told in (("mlm", "masked"), ("left_to_right", "LTR")):
        for share in (8, 4, 2, 1):
            count = most // share
            name = f"{told}, {count:,} steps"
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
            *_of(
                scale,
                ("With four layers the last four are all: two sums alike.",),
                (),
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
