"""Base class of tasks that rank passages, and the cross-encoder task."""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks import metrics
from official_tasks.tasks.base import (
    Defaults,
    Encoded,
    Examples,
    list_metrics,
)
from official_tasks.tasks.encoding import encode_texts
from official_tasks.tasks.forms.delimited import add_ids, write_csv
from official_tasks.tasks.pairs import (
    PairOptions,
    PairTable,
    parse_numbers,
)
from official_tasks.tasks.source import Problem, RecipeOptions

CUTOFFS = (1, 10)  # values of k in recall at k


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankOptions(PairOptions, RecipeOptions):
    """Options of `rank_task`."""


class RetrievalTask(Problem):
    """Base of tasks that score pairs of texts and rank passages.

    Args:
        source: `PairTable`.
        recall_at: the values of k in recall at k, separated by commas. The
            default is 1 and, if there are at least 10 passages, also 10.
        recipe, pooling: see `Problem`.
    """

    defaults = Defaults(64, 3.0, 2e-5, 128)

    def __init__(self, source, recall_at=None, recipe=None, pooling=None):
        super().__init__(source, recipe=recipe, pooling=pooling)
        self.cutoffs = parse_numbers("--recall_at", recall_at)
        self.metrics = list_metrics(
            *("ndcg_at_10", "mrr"),
            *(f"recall_at_{k}" for k in self.cutoffs or CUTOFFS),
        )

    def _targets(self, pairs):
        """Return scores (R,) divided by `max_score`; None if one is unknown."""
        labels = [pair.label for pair in pairs]
        if None in labels:
            return None
        return np.array(labels, np.float32) / self.source.max_score

    def _check_cutoffs(self, most):
        if max(self.cutoffs or [0]) > most:
            raise InputError(
                f"--recall_at={','.join(map(str, self.cutoffs))}: expected at "
                f"most {most}, the number of passages to choose from"
            )

    def _require_relevant(self, relevant):
        if not any(relevant):
            raise InputError(
                f"The file of {self.name} has no right passage for any query. "
                "Expected a right passage in the second text column; with "
                "--label, its label must be above 0. The file can only be used "
                f"to predict{self.to_score}"
            )

    def _score_rankings(self, rankings, relevant, passages):
        """Return the metrics of the queries with a relevant passage.

        Among passages with equal scores, relevant passages rank last.

        Args:
            rankings: for each query (passages, scores); if a score is NaN,
                all retrieval metrics are NaN.
            relevant: for each query a dict of passage -> gain.
            passages: for each query, the number of passages to search.
        """
        most = max(passages)
        cutoffs = self.cutoffs or [k for k in CUTOFFS if k <= most]
        self._require_relevant(relevant)
        kept = [i for i, gains in enumerate(relevant) if gains]
        rankings, relevant, passages = (
            [values[i] for i in kept]
            for values in (rankings, relevant, passages)
        )
        orders = []
        for (numbers, scores), gains in zip(rankings, relevant, strict=True):
            ranked = [gains.get(number, 0.0) for number in numbers]
            order = np.lexsort((ranked, -np.asarray(scores)))
            orders.append([numbers[i] for i in order])
        results = metrics.retrieval_scores(orders, relevant, cutoffs)
        if any(np.isnan(scores).any() for _, scores in rankings):
            results = dict.fromkeys(results, np.nan)
        return {
            **results,
            "queries": len(kept),
            "majority_baseline": metrics.ndcg_of_chance(relevant, passages),
        }

    def _pair_mistakes(self, pairs, predictions):
        best = self.source.max_score
        errors = np.abs(self._targets(pairs) - predictions) * best
        return [
            {
                "text": pairs[row].texts[0],
                "second": pairs[row].texts[1],
                "truth": f"{pairs[row].label:.3g}",
                "predicted": f"{predictions[row] * best:.3g}",
                "off by": float(errors[row]),
            }
            for row in np.argsort(-errors, kind="stable")
        ]

    def _write_pairs(self, pairs, predictions, folder):
        rows = (
            [*p.texts[:2], "" if p.label is None else p.label, f"{value:.6g}"]
            for p, value in zip(pairs, predictions, strict=True)
        )
        header = ["text", "text_pair", "label", "predicted"]
        path = Path(folder) / "predictions.csv"
        write_csv(path, add_ids([header, *rows], pairs))


def rank_task(**options):
    """Return the task "rank"; its options are `RankOptions`."""
    chosen = RankOptions(**options)
    source = PairTable("rank", chosen)
    has_others = source.label_column or len(source.text_columns) > 2
    if "train" in source.files and not has_others:
        raise InputError(
            "--task=rank needs wrong passages: expected --negative=COLUMN "
            "with wrong passages, or --label=COLUMN with scores"
        )
    return RankingTask(source, chosen.recall_at, chosen.recipe, chosen.pooling)


class RankingTask(RetrievalTask):
    """Task that trains a cross-encoder, which reads a query with a passage.

    The sigmoid of a `BertClassifier` with problem "ranking" learns score /
    `max_score`. Each negative of a row gives another pair. In dev, each
    query ranks only the passages of its own rows.
    """

    def read(self, split):
        rows = self.source.read(split)
        best = self.source.max_score
        pairs = Examples(notes=rows.notes)
        for row in rows:
            if len(row.texts) > 2:
                pairs.append(row._replace(texts=row.texts[:2], label=best))
                for negative in row.texts[2:]:
                    texts = row.texts[0], negative
                    pairs.append(row._replace(texts=texts, label=0.0))
            else:
                pairs.append(row)
        if split == "train" and len({pair.label for pair in pairs}) == 1:
            raise InputError(
                f"{self.source.files['train']}: every training row has the "
                f"score {pairs[0].label:g}: ranking needs right and wrong "
                "passages. Add rows with other scores, or a column of wrong "
                "passages that --negative=COLUMN names"
            )
        if split == "dev":
            counts = Counter(query for query, _ in {p.texts for p in pairs})
            self._check_cutoffs(max(counts.values()))
        return pairs

    def encode(self, examples, preprocess):
        texts = [[pair.texts[side] for pair in examples] for side in (0, 1)]
        inputs, cut = encode_texts(preprocess, *texts)
        targets = self._targets(examples)
        return Encoded(
            inputs, targets if targets is None else targets[:, None], cut=cut
        )

    def build(self, encoder):
        from bert_keras import BertClassifier

        return BertClassifier(
            encoder,
            problem="ranking",
            pair=True,
            recipe=self.recipe,
            pooling=self.pooling,
        )

    def loss(self):
        import keras

        return keras.losses.BinaryCrossentropy(from_logits=True)

    def decode(self, examples, encoded, outputs):
        """Return the scores (R,), from 0 to 1."""
        return metrics.sigmoid(outputs[:, 0])

    def score(self, examples, predictions):
        self.check_labels(examples)
        # Query -> passage -> the row of the pair with the highest label. A
        # passage that several rows of a query repeat counts once.
        rows: dict[str, dict[str, int]] = {}
        for row, pair in enumerate(examples):
            query, passage = pair.texts
            passages = rows.setdefault(query, {})
            best = passages.setdefault(passage, row)
            if examples[best].label < pair.label:
                passages[passage] = row
        numbers = [[*passages.values()] for passages in rows.values()]
        rankings = [(some, predictions[some]) for some in numbers]
        relevant = [
            {row: examples[row].label for row in some if examples[row].label}
            for some in numbers
        ]
        return self._score_rankings(
            rankings, relevant, [len(some) for some in numbers]
        )

    def mistakes(self, examples, predictions):
        return self._pair_mistakes(examples, predictions)

    def write(self, examples, predictions, folder):
        """Write the scores of all pairs to predictions.csv."""
        self._write_pairs(examples, predictions, folder)
