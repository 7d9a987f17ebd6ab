r"""Mines hard negatives: wrong passages that an embedder finds for a text.

    bert-keras mine_negatives --train=partners.csv \
        --model=runs/embedder --range_min=3 --output=triplets.csv

In: a file of texts and their partners, as for --task=embed, and a model
folder, a run or a name of weights. With --queries and --passages, the file has
ids in place of texts. Out: a CSV file with the columns text, text_pair and
negative. A text has a line for each combination of a partner and a negative.
To train with the file:

    bert-keras finetune --task=embed --train=triplets.csv \
        --negative=negative --init=runs/embedder --output=runs/better

The negatives of a text are chosen from the partners of all other texts, or from
--passages. The text itself and its partners are left out. With
--absolute_margin=0.05, the cosine of a negative is at least 0.05 below the
lowest cosine of the text's partners. With --relative_margin=0.05, it is at
least 5 % below. Of the passages within the margins, --range_min=3 skips the
three nearest. They may be right answers that nobody marked. These flags work as
in `mine_hard_negatives` of sentence-transformers. --max_score differs: it is
the highest possible score in the column that --label names, not a limit on the
negatives.

Takes as long as embedding all texts.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses

import numpy as np

from bert_keras.errors import InputError, format_count
from official_tasks import cli, options, progress
from official_tasks.options import list_options, option
from official_tasks.outputs import prepare_output
from official_tasks.tasks import embedding
from official_tasks.tasks.base import Examples
from official_tasks.tasks.forms.delimited import write_csv
from official_tasks.tasks.pairs import PairOptions

COLUMNS = ("text", "text_pair", "label", "queries", "passages", "id")
COLUMNS += ("separator", "encoding", "max_score", "train")


def _column(name):
    column = list_options(PairOptions)[name]
    return option(column.default, column.help)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    model: str = option(
        help="Embedder: a model folder, a run folder or a name of weights."
    )
    output: str = option(help="CSV file to write.")
    overwrite: bool = options.define_overwrite()
    train: str = option(help=list_options(PairOptions)["train"].help)
    text: str = _column("text")
    text_pair: str = _column("text_pair")
    label: str | None = _column("label")
    max_score: float = _column("max_score")
    queries: str | None = _column("queries")
    passages: str | None = _column("passages")
    id: str = _column("id")
    separator: str | None = _column("separator")
    encoding: str = _column("encoding")
    num_negatives: int = option(3, "Maximum negatives of a text.", at_least=1)
    range_min: int = option(
        0,
        "Skip this many nearest passages, of those within the margins.",
        at_least=0,
    )
    range_max: int | None = option(
        None,
        "The negatives come from the --range_max + P nearest passages. P is "
        "the largest number of partners of a text. These passages include "
        "partners, and passages that --range_min or a margin excludes. The "
        "default is --range_min + 10 * --num_negatives + P.",
        at_least=1,
    )
    absolute_margin: float | None = option(
        None,
        "A negative's cosine is at least this much below the lowest cosine of "
        "the text's partners.",
        at_least=0,
    )
    relative_margin: float | None = option(
        None,
        "Like --absolute_margin, but as a fraction of the lowest cosine of the "
        "text's partners.",
        at_least=0,
    )


def main(values):
    from official_tasks.engine.models import load_trained

    inputs = values.train, values.queries, values.passages, values.model
    prepare_output(values, *inputs)
    if not values.output.endswith(".csv"):
        raise InputError(f"--output={values.output}: expected a .csv file")
    columns = {name: getattr(values, name) for name in COLUMNS}
    task = embedding.embed_task(objective="in_batch", **columns)
    rows = task.source.rows("train")
    progress.print_notes(rows.notes)
    pairs = Examples((pair for _, pair in rows), rows.notes)
    queries = [q for q in task.collect_queries(pairs) if q.relevant]
    if not queries:
        raise InputError(f"{values.train}: no text has a partner. Add pairs.")
    passages = queries[0].passages
    model, preprocess = load_trained(task, values.model)
    mined = mine(
        embed(model, preprocess, [query.text for query in queries], "query"),
        embed(model, preprocess, passages, "document"),
        queries,
        num_negatives=values.num_negatives,
        range_min=values.range_min,
        range_max=values.range_max,
        absolute_margin=values.absolute_margin,
        relative_margin=values.relative_margin,
    )
    rows = [
        (query.text, passages[partner], passages[negative])
        for query, negatives in zip(queries, mined, strict=True)
        for partner in query.relevant
        for negative in negatives
    ]
    if not rows:
        raise InputError(
            "No passage is left as a negative. Lower the margins or "
            "--range_min, or raise --range_max."
        )
    write_csv(values.output, [("text", "text_pair", "negative"), *rows])
    without = sum(not len(negatives) for negatives in mined)
    progress.console.print(
        f"{values.output}: {format_count(len(rows), 'row')} of "
        f"{format_count(len(queries), 'text')}, "
        f"{format_count(without, 'text')} without negatives"
    )


def embed(model, preprocess, texts, kind):
    """Return unit vectors of texts, NumPy float32 (N, D).

    Args:
        model: `BertEmbedder`.
        preprocess: the model's `BertPreprocessor`.
        texts: N strings.
        kind: "query" or "document", whose prompt is put before the texts.
    """
    from bert_keras.modeling.heads import normalize_vectors
    from bert_keras.text.preprocessor import with_search_prompt

    vectors = model.encode(texts, with_search_prompt(preprocess, kind))
    vectors = np.array(normalize_vectors(vectors))
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=-1))
    if len(wrong):
        raise InputError(
            f"The vector of {texts[wrong[0]][:60]!r} has NaN or infinity. Use "
            "earlier weights, or train again with a lower learning rate."
        )
    return vectors


def mine(
    texts,
    passages,
    queries,
    num_negatives=3,
    range_min=0,
    range_max=None,
    absolute_margin=None,
    relative_margin=None,
):
    """Return for each query a list of indices of negatives, nearest first.

    Args:
        texts: float (Q, D), unit vectors of the queries.
        passages: float (P, D), unit vectors of the passages.
        queries: list of `Query`.
        num_negatives: maximum number of negatives of a query.
        range_min: number of the nearest passages within the margins to skip.
        range_max: the negatives come from the `range_max` + M nearest passages.
            M is the largest number of partners of a query. These passages
            include partners, skipped passages, and passages that the margins
            exclude. None means the default of --range_max.
        absolute_margin: minimum difference between the lowest cosine of a
            query's partners and the cosine of a negative; None: no margin.
        relative_margin: the same, as a fraction of this lowest cosine.
    """
    most_partners = max(len(query.relevant) for query in queries)
    if range_max is None:
        range_max = range_min + 10 * num_negatives + most_partners
    if range_min + num_negatives > range_max:
        raise InputError(
            f"--range_max={range_max}: expected at least "
            f"{range_min + num_negatives}, the sum of --range_min and "
            "--num_negatives."
        )
    number = {text: i for i, text in enumerate(queries[0].passages)}
    mined = []
    for cosines, query in zip(_rows(texts, passages), queries, strict=True):
        partners = [*query.relevant]
        worst = cosines[partners].min()
        limit = np.inf
        if absolute_margin is not None:
            limit = worst - absolute_margin
        if relative_margin is not None:
            limit = min(limit, worst - abs(worst) * relative_margin)
        excluded = {*partners, number.get(query.text)} - {None}
        num_nearest = range_max + max(most_partners, len(excluded))
        candidates = [
            index
            for index in embedding.select_highest(cosines, num_nearest).tolist()
            if index not in excluded and cosines[index] <= limit
        ]
        mined.append(candidates[range_min:range_max][:num_negatives])
    return mined


def _rows(texts, passages):
    """Yield the cosines of each text with all passages, float (P,)."""
    step = max(1, embedding.MAX_COSINES // len(passages))
    for start in range(0, len(texts), step):
        yield from texts[start : start + step] @ passages.T  # (step, P)


if __name__ == "__main__":
    cli.start(main, Options)
