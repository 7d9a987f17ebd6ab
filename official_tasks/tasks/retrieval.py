"""Texts that find texts: embeddings to compare, scores of pairs to rank.

Both read the same rows: a text and its partner, with a score or a further text
that is no partner; or ids of texts, which stand in files of their own.
"""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks import metrics
from official_tasks.tasks.base import Defaults, Encoded, Option, check_labelled
from official_tasks.tasks.encoding import encode_texts, fold_choices
from official_tasks.tasks.file_task import DataRow
from official_tasks.tasks.own_data import (
    DROP_UNLABELLED,
    TABLE_OPTIONS,
    OwnData,
    format_lines,
)
from official_tasks.tasks.table import (
    LARGEST_NUMBER,
    read_index,
    read_rows,
    write_csv,
)

OBJECTIVES = ("in_batch", "cosine", "triplet")
WRITTEN = 10  # passages of a query in predictions.csv
COSINES = 2**24  # that are in memory at once: 64 MB, and twice for their order


class Pair(NamedTuple):
    """A text, its partner, perhaps a negative; the score, None if unknown."""

    texts: tuple[str, ...]
    label: float | None


class Query(NamedTuple):
    """A text to search with.

    Attributes:
        relevant: number of a passage -> its gain.
        passages: all that are searched, the same list for every query.
    """

    text: str
    relevant: dict[int, float]
    passages: list[str]


class RetrievalTask(OwnData):
    """Rows of two or three texts, from columns of text or of ids.

    Args:
        text, text_pair: columns of a text and of its partner.
        label: column of the score, from 0 to `max_score`; None: all rows are
            partners.
        negative: column of a text that is no partner of the first.
        queries, passages: files of ids and texts; the columns above have ids
            then.
        id: the column of the ids in these.
        recall_at: the k of recall at k, with commas between; None: 1 and 10,
            as far as there are so many passages.
        own: see `OwnData`.
    """

    options = {
        **TABLE_OPTIONS,
        "text": Option("text", "Column of the text."),
        "text_pair": Option("text_pair", "Column of the second text."),
        "label": Option(
            None,
            "Column of the label, a score; without, all pairs are partners.",
        ),
        "max_score": Option(1.0, "Score of the best partners; the least is 0."),
        "negative": Option(None, "Column of a text that is not a partner."),
        "queries": Option(None, "File of id and text; --text then has ids."),
        "passages": Option(
            None, "File of id and text; --text_pair then has ids."
        ),
        "id": Option("id", "Column of the ids in --queries and --passages."),
        "recall_at": Option(
            None, "The k of recall, separated by commas; by default 1,10."
        ),
        **DROP_UNLABELLED,
    }
    lacks = "are empty"
    metric = "ndcg_at_10"
    defaults = Defaults(64, 3.0, 2e-5, 128)

    def __init__(
        self,
        text="text",
        text_pair="text_pair",
        label=None,
        max_score=1.0,
        negative=None,
        queries=None,
        passages=None,
        id="id",
        recall_at=None,
        **own,
    ):
        super().__init__(DataRow(self.name, {}), **own)
        self.columns = [text, text_pair, *([negative] if negative else [])]
        self.label_column, self.max_score = label, max_score
        if label and negative:
            raise InputError(
                f"--label={label} and --negative={negative}: give one of them"
            )
        is_usable = 0 < max_score <= LARGEST_NUMBER
        if not is_usable or not label and max_score != 1:
            raise InputError(
                f"--max_score={max_score:g}: expected a number above 0, at "
                f"most {LARGEST_NUMBER:g}, with --label=COLUMN"
            )
        if id != "id" and not (queries or passages):
            raise InputError(
                f"--id={id} only applies with --queries or --passages"
            )
        self.cutoffs = recall_at and _cutoffs(recall_at)
        self.tables = [path for path in (queries, passages) if path]
        self.queries, self.passages = (
            path and self._read_texts(path, id) for path in (queries, passages)
        )
        self._check()
        if self.drop_unlabelled and not self.columns_of()[1]:
            raise InputError(
                "--drop_unlabelled only applies with --label, --negative or "
                "--passages: these rows have no cell that may be empty"
            )
        if "train" in self.files:  # before there is a run folder
            self.read("train"), self.read("dev")

    def _check(self):
        """Refuses columns that the task cannot learn from."""

    def _read_texts(self, path, column):
        """id -> text, of a file of queries or of passages."""
        texts: dict[str, str] = {}
        for line, (key, text) in read_rows(
            path, [column, "text"], own=self.dialect
        ):
            if key in texts:
                raise InputError(
                    f"{path}, line {line}: the id {key!r} stands twice"
                )
            texts[key] = text
        if not texts:
            raise InputError(f"{path}: expected at least one row, got none")
        return texts

    def data_files(self):
        from bert_keras.data.data_sets import is_data_set

        paths = [Path(p) for p in self.tables if not is_data_set(p)]
        return [*super().data_files(), *paths]

    def columns_of(self):
        label = [self.label_column] if self.label_column else []
        return self.columns[:2], [*self.columns[2:], *label]

    def example_of(self, place, number, cells):
        texts = [
            self._text_of(place, cells[column], table, option)
            for column, table, option in zip(
                self.columns,
                (self.queries, self.passages, self.passages),
                ("queries", "passages", "passages"),
                strict=False,
            )
            if column in cells
        ]
        label = cells.get(self.label_column)
        return Pair(
            tuple(texts), None if label is None else self._score(place, label)
        )

    def _text_of(self, place, cell, table, option):
        """A cell, or the text whose id it is."""
        if table is None or cell in table:
            return cell if table is None else table[cell]
        raise InputError(
            f"{format_lines([place])}: the id {cell!r} is not in --{option}, "
            f"whose {len(table)} ids begin with {next(iter(table))!r}"
        )

    def _score(self, place, cell):
        try:
            score = float(cell)
        except ValueError:
            score = -1.0
        if not 0 <= score <= self.max_score:
            raise InputError(
                f"{format_lines([place])}: expected a score from 0 to "
                f"{self.max_score:g} (--max_score) in column "
                f"{self.label_column!r}, got {cell!r}"
            )
        return score

    def texts_and_label(self, pair):
        return pair.texts, pair.label

    def group_of(self, pair):
        return pair.texts[0]

    def _targets(self, pairs):
        """float (R,): scores as shares of the best one; None if unknown."""
        labels = [pair.label for pair in pairs]
        if None in labels:
            return None
        return np.array(labels, np.float32) / self.max_score

    def _check_cutoffs(self, most):
        """Refuses to recall more passages than there are to choose from."""
        if max(self.cutoffs or [0]) > most:
            raise InputError(
                f"--recall_at={','.join(map(str, self.cutoffs))}: expected at "
                f"most {most}, the number of passages to choose from"
            )

    def _score_rankings(self, rankings, relevant, passages):
        """Metrics of the queries for which anything is relevant.

        Equal scores count against the model: what is relevant comes last.

        Args:
            rankings: for each query passages, and the score of each; where
                one is NaN, so are all metrics.
            relevant: for each query passage -> gain.
            passages: for each query, among how many it searched.
        """
        most = max(passages)
        cutoffs = self.cutoffs or [k for k in (1, 10) if k <= most]
        kept = [i for i, gains in enumerate(relevant) if gains]
        if not kept:
            check_labelled(self, [None])
        rankings, relevant, passages = (
            [values[i] for i in kept]
            for values in (rankings, relevant, passages)
        )
        orders = []
        for (numbers, scores), of in zip(rankings, relevant, strict=True):
            gains = [of.get(number, 0.0) for number in numbers]
            order = np.lexsort((gains, -np.asarray(scores)))
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
        """The pairs whose score is furthest from what was predicted."""
        errors = np.abs(self._targets(pairs) - predictions) * self.max_score
        return [
            {
                "text": pairs[row].texts[0],
                "second": pairs[row].texts[1],
                "truth": f"{pairs[row].label:.3g}",
                "predicted": f"{predictions[row] * self.max_score:.3g}",
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
        write_csv(Path(folder) / "predictions.csv", [header, *rows])


class EmbeddingTask(RetrievalTask):
    """One vector a text; partners have near ones. A `BertEmbedder` learns.

    Scored pairs are learned by the squared difference of cosine and score and
    scored by Spearman's correlation. Otherwise the texts of the rows of dev
    search among its partners and negatives, or among all `passages`.

    Args:
        objective: one of `OBJECTIVES`; None: "cosine" with `label`, otherwise
            "in_batch". With "in_batch" a score above 0 makes partners, and is
            the gain in nDCG.
        pooling: of `BertEmbedder`.
        own: see `RetrievalTask`.
    """

    name = "embedding"
    averages = False  # vectors of two models lie in two spaces
    options = {
        **RetrievalTask.options,
        "objective": Option(
            None,
            f"{', '.join(OBJECTIVES)}; by default cosine with --label, else "
            "in_batch.",
        ),
        "pooling": Option(None, "mean, max, cls, pooled; as the weights say."),
    }

    def __init__(self, objective=None, pooling=None, **own):
        usual = "cosine" if own.get("label") else "in_batch"
        self.objective = usual if objective is None else objective
        self.pooling = pooling
        super().__init__(**own)

    def _check(self):
        if self.objective not in OBJECTIVES:
            raise InputError(
                f"--objective={self.objective}: expected one of "
                f"{', '.join(OBJECTIVES)}"
            )
        lacks = None
        if self.objective == "cosine" and not self.label_column:
            lacks = "--label=COLUMN, the score"
        if self.objective == "triplet" and len(self.columns) < 3:
            lacks = "--negative=COLUMN"
        if lacks:
            raise InputError(
                f"--objective={self.objective}: expected {lacks} of each row"
            )
        if self.objective == "cosine":
            self.metric = "spearman"
            if self.cutoffs:
                raise InputError(
                    "--recall_at only applies to a search: not with "
                    "--objective=cosine, the default with --label"
                )

    def columns_of(self):
        required, others = super().columns_of()
        if self.passages is None or self.objective == "cosine":
            return required, others
        # New queries search all passages; which one is right may be unknown.
        return required[:1], [*required[1:], *others]

    def read(self, split):
        pairs = super().read(split)
        if self.objective == "cosine":
            return pairs
        if split == "train":
            return self._partners(pairs)
        queries = self._queries(pairs)
        if split == "dev":
            self._check_cutoffs(len(queries[0].passages))
        return queries

    def _partners(self, pairs):
        """The pairs without those whose score is 0."""
        kept = [pair for pair in pairs if pair.label != 0]
        dropped = f"{self.files['train']}: {len(pairs) - len(kept)} rows "
        dropped += f"have the score 0 in column {self.label_column!r}"
        if not kept:
            raise InputError(
                f"{dropped} and none has more: there are no partners to learn "
                "from. Add rows, or leave --objective out to learn the scores"
            )
        note = f"{dropped} and are left out: no partners"
        if len(kept) < len(pairs) and note not in self.advice:
            self.advice.append(note)
        return kept

    def _queries(self, pairs):
        """The queries of the rows, each once, over the same passages."""
        known = [] if self.passages is None else self.passages.values()
        partners = (text for pair in pairs for text in pair.texts[1:])
        passages = list(dict.fromkeys([*known, *partners]))
        number = {text: place for place, text in enumerate(passages)}
        relevant: dict[str, dict[int, float]] = {}
        for pair in pairs:
            gains = relevant.setdefault(pair.texts[0], {})
            gain = 1.0 if pair.label is None else pair.label
            if gain and len(pair.texts) > 1:
                passage = number[pair.texts[1]]
                gains[passage] = max(gain, gains.get(passage, 0.0))
        return [Query(q, gains, passages) for q, gains in relevant.items()]

    def encode(self, examples, preprocess):
        if examples and isinstance(examples[0], Query):
            texts = [query.text for query in examples] + examples[0].passages
            inputs, cut = encode_texts(preprocess, texts)  # (Q + P, None)
            return Encoded(inputs, np.zeros(len(texts), np.float32), cut=cut)
        count = len(examples[0].texts) if examples else 2
        texts = [text for pair in examples for text in pair.texts]
        inputs, cut = encode_texts(preprocess, texts)  # (R K, None)
        if self.objective == "cosine":
            targets = self._targets(examples)
        elif self.objective == "in_batch":
            # The loss has to know which texts of a batch are the same.
            numbers: dict[str, int] = {}
            for text in texts:
                numbers.setdefault(text, len(numbers))
            targets = np.array([numbers[text] for text in texts], np.int32)
            targets = targets.reshape(-1, count)
        else:  # which the loss does not read
            targets = np.zeros(len(examples), np.float32)
        return Encoded(
            fold_choices(inputs, count),
            targets,
            cut=cut.reshape(-1, count).max(axis=1),
        )

    def build(self, encoder):
        from bert_keras import BertEmbedder

        return BertEmbedder(encoder, pooling=self.pooling)

    def loss(self):
        from bert_keras.training import similarity

        return {
            "in_batch": similarity.InBatchNegatives,
            "cosine": similarity.CosineRegression,
            "triplet": similarity.Triplet,
        }[self.objective]()

    def decode(self, examples, encoded, outputs):
        """Cosines of pairs (R,); of queries `Ranking`."""
        lengths = np.linalg.norm(outputs, axis=-1, keepdims=True)
        vectors = outputs / np.maximum(lengths, 1e-12)
        if not isinstance(examples[0], Query):
            return np.sum(vectors[:, 0] * vectors[:, 1], axis=-1)
        queries, passages = np.split(vectors, [len(examples)])
        number = {text: i for i, text in enumerate(examples[0].passages)}
        depth, parts = max([metrics.MRR_DEPTH, *(self.cutoffs or [])]), []
        step = max(1, COSINES // len(passages))
        for first in range(0, len(queries), step):
            cosines = queries[first : first + step] @ passages.T
            for row, query in zip(cosines, examples[first:], strict=False):
                itself = number.get(query.text)
                if itself is not None and itself not in query.relevant:
                    row[itself] = -1.0  # a text is not searched to find itself
            parts.append(Ranking.best(cosines, depth))
        return Ranking(*map(np.concatenate, zip(*parts, strict=True)))

    def score(self, examples, predictions):
        if isinstance(examples[0], Query):
            return self._score_rankings(
                list(zip(*predictions, strict=True)),
                [query.relevant for query in examples],
                [len(query.passages) for query in examples],
            )
        if self.objective != "cosine":
            raise InputError(
                "The training split has pairs to learn from. Score them as "
                "queries and passages, by --dev=FILE."
            )
        truth = [pair.label for pair in examples]
        check_labelled(self, truth)
        return {
            "spearman": metrics.spearman(truth, predictions),
            "pearson": metrics.pearson(truth, predictions),
            "majority_baseline": 0.0,
        }

    def mistakes(self, examples, predictions):
        """Of queries those whose first passage is not relevant."""
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
        """predictions.csv: each pair's cosine, or the best passages."""
        if not isinstance(examples[0], Query):
            self._write_pairs(examples, predictions, folder)
            return
        rows = (
            [query.text, place + 1, query.passages[number], f"{cosine:.6g}"]
            for query, order, cosines in zip(
                examples, predictions.order, predictions.cosine, strict=True
            )
            for place, (number, cosine) in enumerate(
                zip(order[:WRITTEN], cosines, strict=False)
            )
            # Last, where it is at all: see `decode`.
            if number in query.relevant or query.passages[number] != query.text
        )
        header = ["text", "rank", "passage", "cosine"]
        write_csv(Path(folder) / "predictions.csv", [header, *rows])


class Ranking(NamedTuple):
    """The passages nearest to each query, best first.

    Attributes:
        order: int (Q, N), their numbers.
        cosine: float (Q, N).
    """

    order: Any
    cosine: Any

    @classmethod
    def best(cls, cosines, depth):
        """Of cosines (Q, P); NaN first, equal ones in the passages' order."""
        known = np.where(np.isnan(cosines), np.inf, cosines)
        order = np.argsort(-known, axis=1, kind="stable")[:, :depth]
        return cls(order, np.take_along_axis(cosines, order, axis=1))


class RankingTask(RetrievalTask):
    """A score for a query with a passage, read together: a cross-encoder.

    A `BertClassifier` with problem "ranking" learns the share of `max_score`
    by a sigmoid; a row with a negative counts as two rows. In dev, the
    passages of the rows of a query are ranked.

    Args:
        own: see `RetrievalTask`.
    """

    name = "ranking"

    def _check(self):
        if "train" in self.files and not (
            self.label_column or len(self.columns) > 2
        ):
            raise InputError(
                "--task=ranking: expected --label=COLUMN, the score, or "
                "--negative=COLUMN of each row: it learns from passages that "
                "are no answers too"
            )

    def read(self, split):
        pairs = [
            pair
            for row in super().read(split)
            for pair in (
                [Pair(row.texts[:2], self.max_score)]
                + [Pair((row.texts[0], row.texts[2]), 0.0)]
                if len(row.texts) > 2
                else [row]
            )
        ]
        if split == "train" and len({pair.label for pair in pairs}) == 1:
            raise InputError(
                f"{self.files['train']}: every training row has the score "
                f"{pairs[0].label:g}: ranking learns from passages that are no "
                "answers too. Add rows with the score 0, or give a column of "
                "them by --negative=COLUMN"
            )
        if split == "dev":
            counts = Counter(pair.texts[0] for pair in pairs)
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

        return BertClassifier(encoder, problem="ranking", pair=True)

    def loss(self):
        import keras

        return keras.losses.BinaryCrossentropy(from_logits=True)

    def decode(self, examples, encoded, outputs):
        """The scores (R,), 0 to 1."""
        return metrics.sigmoid(outputs[:, 0])

    def score(self, examples, predictions):
        check_labelled(self, [pair.label for pair in examples])
        rows: dict[str, list[int]] = {}
        for row, pair in enumerate(examples):
            rows.setdefault(pair.texts[0], []).append(row)
        rankings = [(of, predictions[of]) for of in rows.values()]
        relevant = [
            {row: examples[row].label for row in of if examples[row].label}
            for of in rows.values()
        ]
        counts = [len(of) for of in rows.values()]
        return self._score_rankings(rankings, relevant, counts)

    def mistakes(self, examples, predictions):
        return self._pair_mistakes(examples, predictions)

    def write(self, examples, predictions, folder):
        """predictions.csv: each pair's score."""
        self._write_pairs(examples, predictions, folder)


def _cutoffs(text):
    numbers = [word.strip() for word in str(text).split(",")]
    if not all(read_index(word, 10**9) for word in numbers):
        raise InputError(
            f"--recall_at={text}: expected whole numbers above 0 with commas "
            "between, such as 1,10"
        )
    return tuple(sorted({int(word) for word in numbers}))
