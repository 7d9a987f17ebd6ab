"""Sentence embeddings: a text and its partner get similar vectors."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.errors import InputError, format_count
from official_tasks.options import option
from official_tasks.tasks import metrics
from official_tasks.tasks.base import (
    Encoded,
    Examples,
    list_metrics,
)
from official_tasks.tasks.encoding import (
    concat_rows,
    encode_with_prompt,
    fold_choices,
)
from official_tasks.tasks.forms.delimited import add_ids, write_csv
from official_tasks.tasks.pairs import (
    PairOptions,
    PairTable,
    parse_numbers,
)
from official_tasks.tasks.retrieval import RetrievalTask

OBJECTIVES = ("in_batch", "cosine", "cosent", "triplet")
SCORED = ("cosine", "cosent")  # objectives that learn --label
MAX_WRITTEN = 10  # passages for each query in predictions.csv
MAX_COSINES = 2**24  # in one array: 64 MB in float32


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbedOptions(PairOptions):
    """Options of `embed_task`."""

    objective: str | None = option(
        None,
        f"Training objective: {', '.join(OBJECTIVES)}. By default cosine with "
        "--label, else in_batch.",
    )
    pooling: str | None = option(
        None,
        "Pooling of token vectors: mean, max, cls, last, pooled. By default as "
        "saved with the weights, or mean.",
    )
    matryoshka: str | None = option(
        None,
        "Also train vectors that are cut to these sizes, such as 256,128,64.",
    )
    truncate_dim: int = option(
        0, "Size of the vectors; 0: the size saved with the weights."
    )


class Query(NamedTuple):
    """A text to search with.

    Attributes:
        relevant: index of each relevant passage -> gain of the passage.
        passages: the texts to search; all queries share one list.
        row_id: that of the first row of the query; see `Example`.
    """

    text: str
    relevant: dict[int, float]
    passages: list[str]
    row_id: str = ""


def embed_task(**options):
    """Return the task "embed"; its options are `EmbedOptions`."""
    chosen = EmbedOptions(**options)
    objective = chosen.objective
    if objective is None:
        objective = "cosine" if chosen.label else "in_batch"
    if objective not in OBJECTIVES:
        raise InputError(
            f"--objective={objective}: expected one of {', '.join(OBJECTIVES)}"
        )
    missing = None
    if objective in SCORED and not chosen.label:
        missing = "--label=COLUMN, the column of scores"
    if objective == "triplet" and not chosen.negative:
        missing = "--negative=COLUMN, the column of negatives"
    if missing:
        raise InputError(f"--objective={objective}: expected {missing}")
    if objective in SCORED and chosen.recall_at:
        raise InputError(
            f"--recall_at only applies to a search, and --objective={objective}"
            " (the default with --label is cosine) does not search. Leave "
            "--recall_at out"
        )
    # A search scores the model, unless it learns scores.
    source = PairTable("embed", chosen, is_search=objective not in SCORED)
    return EmbeddingTask(
        source,
        objective,
        chosen.pooling,
        chosen.recall_at,
        parse_numbers("--matryoshka", chosen.matryoshka),
        chosen.truncate_dim or None,
    )


class EmbeddingTask(RetrievalTask):
    """Task that trains a `BertEmbedder` to give partners similar vectors.

    With "cosine", the loss is (cosine - score / `max_score`) squared; with
    "cosent", it is `CoSENT`, which reads only the order of the scores. Both
    have Spearman's correlation as the metric. With the other objectives, the
    first text of each row in dev or test is a query. A query searches the
    second and third texts of all rows of the split, or the file of passages.

    Args:
        source: `PairTable`.
        objective: one of `OBJECTIVES`. With "in_batch", texts with a score
            above 0 are partners, and the score is the gain in nDCG.
        pooling: see `BertEmbedder`.
        recall_at: see `RetrievalTask`.
        matryoshka: sizes of cut vectors in the loss `Matryoshka`; None trains
            full vectors only.
        truncate_dim: see `BertEmbedder`.
    """

    averages = False  # each model has its own vector space

    def __init__(
        self,
        source,
        objective,
        pooling=None,
        recall_at=None,
        matryoshka=None,
        truncate_dim=None,
    ):
        super().__init__(source, recall_at, pooling=pooling)
        self.objective = objective
        self.matryoshka, self.truncate_dim = matryoshka, truncate_dim
        # A search has no loss, and that of CoSENT depends on the batches.
        self.has_dev_loss = objective == "cosine"
        self.learns_scores = objective in SCORED
        if self.learns_scores:
            self.metrics = list_metrics("spearman", "pearson")

    def read(self, split):
        pairs = self.source.read(split)
        if self.learns_scores:
            return pairs
        if split == "train" and self.objective == "triplet":
            triplets = (
                pair._replace(texts=(*pair.texts[:2], negative))
                for pair in pairs
                for negative in pair.texts[2:]
            )
            return Examples(triplets, pairs.notes)
        if split == "train":
            return self._select_partners(pairs)
        queries = self.collect_queries(pairs)
        if split == "dev":
            self._check_cutoffs(len(queries[0].passages))
        return queries

    def _select_partners(self, pairs):
        """Return the pairs that have a score above 0 or no score."""
        kept = Examples([p for p in pairs if p.label != 0], pairs.notes)
        dropped = (
            f"{self.source.files['train']}: "
            f"{format_count(len(pairs) - len(kept), 'row has', 'rows have')} "
            f"the score 0 in column {self.source.label_column!r}"
        )
        if not kept:
            raise InputError(
                f"{dropped}: no pairs are left to learn from. Add rows with "
                "scores above 0, or leave --objective out to learn the scores"
            )
        if len(kept) < len(pairs):
            kept.notes.append(
                f"{dropped} and are left out, because training needs pairs "
                "with scores above 0"
            )
        return kept

    def collect_queries(self, pairs):
        """Return a `Query` for each distinct first text of the pairs."""
        known = (self.source.passages or {}).values()
        partners = (text for pair in pairs for text in pair.texts[1:])
        passages = list(dict.fromkeys([*known, *partners]))
        number = {text: index for index, text in enumerate(passages)}
        relevant: dict[str, dict[int, float]] = {}
        for pair in pairs:
            gains = relevant.setdefault(pair.texts[0], {})
            gain = 1.0 if pair.label is None else pair.label
            if gain and len(pair.texts) > 1:
                passage = number[pair.texts[1]]
                gains[passage] = max(gain, gains.get(passage, 0.0))
        ids = {pair.texts[0]: pair.row_id for pair in reversed(pairs)}
        queries = (
            Query(q, gains, passages, ids[q]) for q, gains in relevant.items()
        )
        return Examples(queries, pairs.notes)

    def encode(self, examples, preprocess):
        import tensorflow as tf

        if examples and isinstance(examples[0], Query):
            columns = [[query.text for query in examples], examples[0].passages]
            inputs, cut = self._encode_columns(columns, preprocess)
            return Encoded(inputs, np.zeros(len(cut), np.float32), cut=cut)
        count = len(examples[0].texts) if examples else 2
        columns = [[pair.texts[k] for pair in examples] for k in range(count)]
        inputs, cut = self._encode_columns(columns, preprocess)  # (K R, None)
        order = np.arange(len(cut)).reshape(count, -1).T  # (R, K)
        inputs = {n: tf.gather(x, order.ravel()) for n, x in inputs.items()}
        cut = cut[order]
        texts = [text for pair in examples for text in pair.texts]
        if self.learns_scores:
            targets = self._targets(examples)
        elif self.objective == "in_batch":
            # Equal texts get equal numbers. By these, the loss finds and
            # excludes false negatives.
            numbers: dict[str, int] = {}
            for text in texts:
                numbers.setdefault(text, len(numbers))
            targets = np.array([numbers[text] for text in texts], np.int32)
            targets = targets.reshape(-1, count)
        else:  # the triplet loss reads no targets
            targets = np.zeros(len(examples), np.float32)
        return Encoded(
            fold_choices(inputs, count),
            targets,
            cut=cut.max(axis=1),
        )

    def _encode_columns(self, columns, preprocess):
        """Encode all texts, column after column; see `encode_with_prompt`.

        Unless the model learns scores, the first column gets the query
        prompt, and the other columns get the document prompt.
        """
        from bert_keras.text.preprocessor import with_search_prompt

        sides = [preprocess] * len(columns)
        if not self.learns_scores:
            kinds = ["query", *["document"] * (len(columns) - 1)]
            sides = [with_search_prompt(preprocess, kind) for kind in kinds]
        parts = map(encode_with_prompt, sides, columns)
        rows, cuts = zip(*parts, strict=True)
        return concat_rows(rows), np.concatenate(cuts)

    def build(self, encoder):
        from bert_keras import BertEmbedder

        model = BertEmbedder(
            encoder, pooling=self.pooling, truncate_dim=self.truncate_dim
        )
        # In an evaluation, --truncate_dim can be below the largest size in
        # --matryoshka. In training, `loss` refuses this.
        is_cut = self.truncate_dim is not None
        width = encoder.hidden_dim if is_cut else model.output_shape[-1]
        self._check_matryoshka(width, "the size of the model's vectors")
        return model

    def _check_matryoshka(self, width, what):
        if max(self.matryoshka or [0]) > width:
            raise InputError(
                f"--matryoshka={','.join(map(str, self.matryoshka))}: expected "
                f"sizes of at most {width}, {what}"
            )

    def loss(self):
        from bert_keras.training import similarity

        loss = {
            "in_batch": similarity.InBatchNegatives,
            "cosine": similarity.CosineRegression,
            "cosent": similarity.CoSENT,
            "triplet": similarity.Triplet,
        }[self.objective]()
        if self.truncate_dim is not None:
            self._check_matryoshka(
                self.truncate_dim, "the value of --truncate_dim"
            )
        if self.matryoshka:
            return similarity.Matryoshka(loss, self.matryoshka)
        return loss

    def decode(self, examples, encoded, outputs):
        """Return the cosines of pairs, (R,), or a `Ranking` for queries."""
        from bert_keras.modeling.heads import normalize_vectors

        vectors = np.array(normalize_vectors(outputs))
        if not isinstance(examples[0], Query):
            return np.sum(vectors[:, 0] * vectors[:, 1], axis=-1)
        queries, passages = np.split(vectors, [len(examples)])
        number = {text: i for i, text in enumerate(examples[0].passages)}
        depth, parts = max([metrics.MRR_DEPTH, *(self.cutoffs or [])]), []
        step = max(1, MAX_COSINES // len(passages))
        for first in range(0, len(queries), step):
            cosines = queries[first : first + step] @ passages.T
            for row, query in zip(cosines, examples[first:], strict=False):
                if _skips_own_text(query, number):
                    row[number[query.text]] = -1.0
            parts.append(Ranking.best(cosines, depth))
        return Ranking(*map(np.concatenate, zip(*parts, strict=True)))

    def check_labels(self, examples):
        if isinstance(examples[0], Query):
            self._require_relevant([query.relevant for query in examples])
        elif not self.learns_scores:
            raise InputError(
                f"--split=train has no scores with --objective={self.objective}"
                ". Give the training file as --dev=FILE, with --split=dev."
            )
        else:
            super().check_labels(examples)

    def score(self, examples, predictions):
        self.check_labels(examples)
        if isinstance(examples[0], Query):
            number = {text: i for i, text in enumerate(examples[0].passages)}
            counts = [
                len(number) - _skips_own_text(q, number) for q in examples
            ]
            return self._score_rankings(
                list(zip(*predictions, strict=True)),
                [query.relevant for query in examples],
                counts,
            )
        truth = [pair.label for pair in examples]
        return {
            "spearman": metrics.spearman(truth, predictions),
            "pearson": metrics.pearson(truth, predictions),
            "majority_baseline": 0.0,
        }

    def mistakes(self, examples, predictions):
        """Return all pairs, or the queries whose top passage is wrong."""
        if not isinstance(examples[0], Query):
            return self._pair_mistakes(examples, predictions)
        rows = zip(
            examples,
            predictions.order[:, 0],
            predictions.cosine[:, 0],
            strict=True,
        )
        wrong = [
            {
                "text": query.text,
                "truth": query.passages[
                    max(query.relevant, key=query.relevant.__getitem__)
                ],
                "predicted": query.passages[first],
                "cosine": float(cosine),
            }
            for query, first, cosine in rows
            if query.relevant and first not in query.relevant
        ]
        return sorted(wrong, key=lambda mistake: -mistake["cosine"])

    def write(self, examples, predictions, folder):
        """Write the cosines of pairs or the best passages of queries as CSV."""
        if not isinstance(examples[0], Query):
            self._write_pairs(examples, predictions, folder)
            return
        rows = [
            (query, [query.text, rank, query.passages[number], f"{cosine:.6g}"])
            for query, order, cosines in zip(
                examples, predictions.order, predictions.cosine, strict=True
            )
            for rank, (number, cosine) in enumerate(
                zip(order[:MAX_WRITTEN], cosines, strict=False), 1
            )
            # Leave out the query's own text, unless it is relevant.
            if number in query.relevant or query.passages[number] != query.text
        ]
        queries, cells = zip(*rows, strict=True) if rows else ((), ())
        header = ["text", "rank", "passage", "cosine"]
        path = Path(folder) / "predictions.csv"
        write_csv(path, add_ids([header, *cells], queries))


def _skips_own_text(query, number):
    """Return True if the search leaves out the query's own text.

    A query finds its own text only if the text is also its partner.

    Args:
        query: a `Query`.
        number: dict of each passage -> its index.
    """
    index = number.get(query.text)
    return index is not None and index not in query.relevant


class Ranking(NamedTuple):
    """The passages nearest to each query, best first.

    Attributes:
        order: int (Q, N), indices of the passages.
        cosine: float (Q, N), cosine of each passage with the query.
    """

    order: Any
    cosine: Any

    @classmethod
    def best(cls, cosines, depth):
        """Rank passages by cosines (Q, P), and keep the first `depth`.

        NaN ranks first. Passages with equal cosines keep their order.
        """
        order = np.stack([select_highest(row, depth) for row in cosines])
        return cls(order, np.take_along_axis(cosines, order, axis=1))


def select_highest(cosines, count):
    """Return the indices of the highest values, at most `count`, highest first.

    NaN is higher than all numbers. Of equal values, the lower index comes
    first. Sorting all of 20,000 values would take thirty times as long.
    """
    distances = -np.where(np.isnan(cosines), np.inf, cosines)
    indices = np.arange(len(distances))
    if count < len(distances):
        farthest = np.partition(distances, count - 1)[count - 1]
        # More than `count` if several are as far away.
        indices = np.flatnonzero(distances <= farthest)
    order = np.argsort(distances[indices], kind="stable")
    return indices[order][:count]
