"""Hard negatives that an embedder mines from a file of text pairs."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest

from bert_keras.errors import InputError
from official_tasks.tasks import embedding
from official_tasks.tasks.embedding import Query
from tests.support.run_script import ROOT, call_script
from tests.support.task_samples import save_toy_model, sentences, write_csv
from tools import mine_negatives
from tools.mine_negatives import mine

PASSAGES = [f"passage {number}" for number in range(30)]


def queries_and_vectors(seed):
    random = np.random.default_rng(seed)
    vectors = [random.normal(size=(n, 4)) for n in (9, len(PASSAGES))]
    vectors = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in vectors]
    queries = [
        Query(
            f"text {number}",
            dict.fromkeys(
                random.choice(30, 1 + number % 3, replace=False).tolist(), 1.0
            ),
            PASSAGES,
        )
        for number in range(9)
    ]
    return queries, *vectors


def mine_as_published(
    queries, texts, passages, num, range_min, range_max, absolute, relative
):
    """Mine with the steps of sentence-transformers' `mine_hard_negatives`."""
    scores = texts @ passages.T
    most = max(len(query.relevant) for query in queries)
    found = []
    for query, row in zip(queries, scores, strict=True):
        positive = min(row[index] for index in query.relevant)
        kept = np.full(len(row), -np.inf)
        top = np.argsort(-row)[: range_max + most]
        kept[top] = row[top]
        kept[[*query.relevant]] = -np.inf
        if absolute is not None:
            kept[kept + absolute > positive] = -np.inf
        if relative is not None:
            kept[kept > positive - abs(positive) * relative] = -np.inf
        order = np.argsort(-kept)[:range_max][range_min:][:num]
        found.append([int(i) for i in order if np.isfinite(kept[i])])
    return found


@pytest.mark.parametrize(
    ("range_min", "range_max", "absolute", "relative"),
    [
        (0, 30, None, None),
        (2, 5, None, None),
        (0, 30, 0.1, None),
        (1, 20, None, 0.2),
        (0, 12, 0.05, 0.3),
    ],
)
def test_negatives_are_those_of_sentence_transformers(
    range_min, range_max, absolute, relative, monkeypatch
):
    monkeypatch.setattr(embedding, "MAX_COSINES", 4 * len(PASSAGES))
    queries, texts, passages = queries_and_vectors(range_max)
    chosen = 3, range_min, range_max, absolute, relative
    found = mine(texts, passages, queries, *chosen)
    assert found == mine_as_published(queries, texts, passages, *chosen)
    for query, negatives in zip(queries, found, strict=True):
        assert not {*negatives} & query.relevant.keys()
    assert any(found) and all(len(negatives) <= 3 for negatives in found)


@pytest.mark.parametrize("count", [1, 3, 7, 40, 41, 90])
def test_the_nearest_are_those_of_a_stable_sort(count):
    random = np.random.default_rng(count)
    cosines = random.integers(-4, 4, (3, 40)) / np.float32(4)
    cosines[1, random.choice(40, 5, replace=False)] = np.nan  # ranks first
    known = np.where(np.isnan(cosines), np.inf, cosines)
    expected = np.argsort(-known, axis=1, kind="stable")[:, :count]
    ranking = embedding.Ranking.best(cosines, count)
    np.testing.assert_array_equal(ranking.order, expected)
    expected = np.take_along_axis(cosines, expected, axis=1)
    np.testing.assert_array_equal(ranking.cosine, expected)
    assert embedding.select_highest(cosines[0], count).tolist() == (
        ranking.order[0].tolist()
    )


def test_a_text_is_not_its_own_negative():
    query = Query("a", {1: 1.0}, ["a", "b", "c"])
    vectors = np.eye(3)
    (found,) = mine(vectors[:1], vectors, [query])
    assert found == [2]
    query = Query("a", {1: 1.0}, ["a", "b", "c", "d", "e", "f"])
    passages = np.array([[1, 0.9, 0.8, 0.7, 0.6, 0.5]]).T
    (found,) = mine(np.ones((1, 1)), passages, [query], 3, range_max=3)
    assert found == [2, 3, 4]


def test_a_range_that_holds_too_few_is_refused():
    queries, texts, passages = queries_and_vectors(0)
    with pytest.raises(InputError, match="--range_max=2: expected at least"):
        mine(texts, passages, queries, 2, range_min=1, range_max=2)


def test_a_vector_that_is_not_finite_is_named(monkeypatch):
    monkeypatch.setattr(
        "bert_keras.text.preprocessor.with_search_prompt", lambda *_: None
    )
    vectors = np.array([[1.0, 0.0], [np.nan, 1.0]], np.float32)
    model = SimpleNamespace(encode=lambda texts, preprocess: vectors)
    with pytest.raises(InputError, match="'bad' has NaN"):
        mine_negatives.embed(model, None, ["good", "bad"], "query")


@pytest.mark.long
def test_the_file_is_one_that_finetune_reads(tmp_path):
    save_toy_model(tmp_path / "toy")
    texts = [text for text, _ in sentences(24)]
    pairs = list(zip(texts[:12], texts[12:], strict=True))
    write_csv(tmp_path / "pairs.csv", pairs, ("text", "text_pair"))
    script = ROOT / "tools/mine_negatives.py"
    words = ["--train=pairs.csv", "--model=toy", "--num_negatives=2"]
    done = call_script(script, *words, "--output=a.csv", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "24 rows of 12 texts, 0 texts without" in done.stdout
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    partner = dict(pairs)
    assert all(row["text_pair"] == partner[row["text"]] for row in rows)
    assert all(row["negative"] != partner[row["text"]] for row in rows)
    words = ["--task=embed", "--train=a.csv", "--negative=negative"]
    words += ["--init=toy", "--output=run", "--epochs=1", "--matryoshka=16,4"]
    words += ["--sequence_length=16", "--batch_size=8"]
    done = call_script("-m", "official_tasks.finetune", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for more, message in (
        (["--output=a.txt"], "expected a .csv file"),
        (["--output=b.csv", "--absolute_margin=3"], "No passage is left"),
        (["--output=b.csv", "--train=absent.csv"], "no such file"),
    ):
        words = ["--train=pairs.csv", "--model=toy", *more]
        done = call_script(script, *words, folder=tmp_path)
        assert done.returncode == 2 and message in done.stderr, done.stderr
