"""Tasks on text pairs: reading, scoring, writing and refusals."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from bert_keras import CoSENT, CosineRegression, InputError
from official_tasks.engine.scoring import predict_split
from official_tasks.tasks import embedding
from official_tasks.tasks.base import Examples
from official_tasks.tasks.embedding import embed_task
from official_tasks.tasks.retrieval import rank_task
from tests.support import tiny
from tests.support.shared_data import shared
from tests.support.task_samples import read_csv, write_csv

pytestmark = pytest.mark.fast

PAIRS = [("is it", "it is"), ("was it", "it was"), ("is it", "yes it is")]


def write(path, rows, header=("text", "text_pair")):
    return write_csv(path, rows, header)


def vectors(task, examples):
    """Return `task.decode` with letter counts as the texts' vectors."""
    letters = "abcdefghijklmnopqrstuvwxyz "

    def of(text):
        return [text.count(letter) for letter in letters]

    if hasattr(examples[0], "passages"):
        texts = [q.text for q in examples] + examples[0].passages
        return task.decode(examples, None, np.array(list(map(of, texts)), "f"))
    rows = [[of(text) for text in pair.texts] for pair in examples]
    return task.decode(examples, None, np.array(rows, "float32"))


def test_the_texts_of_dev_search_all_its_partners(tmp_path):
    path = write(tmp_path / "dev.csv", [*PAIRS, ("no", "zzz")])
    task = embed_task(dev=path, recall_at="2,1,1,2")
    assert task.cutoffs == (1, 2)
    queries = task.read("dev")
    assert [q.text for q in queries] == ["is it", "was it", "no"]
    passages = ["it is", "it was", "yes it is", "zzz"]
    assert all(query.passages == passages for query in queries)
    assert queries[0].relevant == {0: 1.0, 2: 1.0}
    found = vectors(task, queries)
    assert found.order[0].tolist() == [0, 2, 1, 3]
    scores = task.score(queries, found)
    assert scores["recall_at_1"] == (1 / 2 + 1 + 0) / 3
    assert scores["mrr"] == pytest.approx((1 + 1 + 1 / 4) / 3)
    assert scores["queries"] == 3
    assert 0 < scores["majority_baseline"] < scores["ndcg_at_10"]
    (wrong,) = task.mistakes(queries, found)
    assert (wrong["text"], wrong["truth"]) == ("no", "zzz")
    task.write(queries, found, tmp_path)
    rows = read_csv(tmp_path / "predictions.csv")
    assert len(rows) == 3 * 4
    assert (rows[0]["rank"], rows[0]["passage"]) == ("1", "it is")
    assert float(rows[0]["cosine"]) == pytest.approx(1.0)


def test_a_text_does_not_find_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "MAX_COSINES", 4)  # one query at a time
    rows = [("a b", "a c"), ("a c", "c d"), ("e", "e")]
    task = embed_task(dev=write(tmp_path / "t.csv", rows))
    queries = task.read("dev")
    found = vectors(task, queries)
    assert queries[0].passages == ["a c", "c d", "e"]
    # The query "a c" does not find itself; "e" does, as its own partner.
    assert found.order[:, 0].tolist() == [0, 1, 2]
    # The query "a c" ranks two passages, and the others rank three.
    discounts = 1 / np.log2([2, 3, 4])
    chance = (2 * discounts.mean() + discounts[:2].mean()) / 3
    baseline = task.score(queries, found)["majority_baseline"]
    assert baseline == pytest.approx(chance)
    task.write(queries, found, tmp_path)
    written = [
        (r["text"], r["passage"])
        for r in read_csv(tmp_path / "predictions.csv")
    ]
    assert ("a c", "a c") not in written and ("e", "e") in written
    assert len(written) == 3 * 3 - 1


def test_ids_that_are_stored_as_floats_are_found(tmp_path):
    header = ("query", "passage")
    passages = write(tmp_path / "p.csv", [("7", "it is")], ("id", "text"))
    pairs = write(tmp_path / "pairs.csv", [("is it", "7.0")], header)
    task = embed_task(
        dev=pairs, passages=passages, text=header[0], text_pair=header[1]
    )
    (query,) = task.read("dev")
    assert (query.passages, query.relevant) == (["it is"], {0: 1.0})


def test_ids_stand_for_texts_of_other_files_as_in_beir(tmp_path):
    texts = {"q1": "is it", "q2": "was it"}
    lines = [json.dumps({"_id": k, "text": v}) for k, v in texts.items()]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines))
    passages = [("p1", "it is"), ("p2", "it was"), ("p3", "of none")]
    passages = write(tmp_path / "p.csv", passages, ("_id", "text"))
    header = ("query-id", "corpus-id", "score")
    rows = [("q1", "p1", "2"), ("q1", "p2", "0"), ("q2", "p2", "1")]
    columns = {
        "queries": str(tmp_path / "queries.jsonl"),
        "passages": passages,
        "id": "_id",
        "text": header[0],
        "text_pair": header[1],
        "label": header[2],
        "max_score": 2.0,
        "objective": "in_batch",
    }
    dev = write(tmp_path / "dev.csv", rows, header)
    test = write(tmp_path / "test.csv", [("q2",)], header[:1])
    task = embed_task(train=dev, dev=dev, test=test, **columns)
    assert {path.name for path in task.data_files()} == {
        "dev.csv",
        "queries.jsonl",
        "p.csv",
    }
    queries = task.read("dev")
    assert [q.relevant for q in queries] == [{0: 2.0}, {1: 1.0}]
    assert queries[0].passages == ["it is", "it was", "of none"]
    # Pairs with the score 0 are left out of training.
    assert [pair.texts for pair in task.read("train")] == [
        ("is it", "it is"),
        ("was it", "it was"),
    ]
    # `evaluate` reads dev even if the training file is gone.
    task = embed_task(train=tmp_path / "gone.csv", dev=dev, **columns)
    assert [q.relevant for q in task.read("dev")] == [{0: 2.0}, {1: 1.0}]
    task = embed_task(train=dev, dev=dev, test=test, **columns)
    (query,) = task.read("test")
    assert (query.text, query.relevant) == ("was it", {})
    with pytest.raises(
        InputError, match="no right passage .* can only be used to predict"
    ):
        task.score([query], vectors(task, [query]))
    with pytest.raises(InputError, match="--split=train has no scores"):
        pairs = task.read("train")
        task.score(pairs, vectors(task, pairs))
    # In TREC's form, blanks separate four columns, and names are missing.
    rows = ["q1 0 q1 2", "q2 0 q2 1"]
    trec = tmp_path / "trec.tsv"
    trec.write_text("\n".join(rows))
    with pytest.raises(InputError, match="name it .csv, and give --separator="):
        embed_task(dev=str(trec), **columns).read("dev")
    trec = tmp_path / "trec.csv"
    blank = {"dev": str(trec), "separator": " ", "passages": columns["queries"]}
    trec.write_text("\n".join(rows))
    with pytest.raises(InputError, match="add a line of names"):
        embed_task(**columns | blank).read("dev")
    names = f"{header[0]} iteration {header[1]} {header[2]}"
    trec.write_text("\n".join([names, *rows]))
    found = embed_task(**columns | blank).read("dev")
    assert [q.relevant for q in found] == [{0: 2.0}, {1: 1.0}]
    wrong = write(tmp_path / "wrong.csv", [("q7", "p1", "1")], header)
    with pytest.raises(
        InputError, match=r"wrong.csv, line 2: the id 'q7' is not in --queries"
    ):
        embed_task(dev=wrong, **columns).read("dev")
    again = write(tmp_path / "again.csv", [("p1", "a")] * 2, ("_id", "text"))
    with pytest.raises(InputError, match="line 3: the id 'p1' occurs twice"):
        embed_task(dev=dev, **columns | {"passages": again}).read("dev")
    empty = write(tmp_path / "empty.csv", [], ("_id", "text"))
    with pytest.raises(InputError, match="empty.csv: expected at least one"):
        embed_task(dev=dev, **columns | {"passages": empty}).read("dev")


def test_titles_and_unknown_ids_are_read_as_in_beir(tmp_path):
    folder = shared("forms/beir")
    columns = {
        "queries": str(folder / "queries.jsonl"),
        "passages": str(folder / "corpus.jsonl"),
        "id": "_id",
        "text": "query-id",
        "text_pair": "corpus-id",
        "label": "score",
        "max_score": 2.0,
        "objective": "in_batch",
    }
    dev = folder / "qrels" / "test.tsv"
    queries = embed_task(dev=str(dev), **columns).read("dev")
    assert len(queries) == 4
    assert queries[0].relevant == {0: 2.0, 4: 1.0}
    assert len(queries[0].passages) == 12
    bergen = "Bergen is a town with a harbour number 0."
    assert queries[0].passages[0] == f"About Bergen {bergen}"
    notes = " ".join(queries.notes)
    assert "12 passages are read with title and text" in notes
    assert "1 row is left out for unknown ids." in notes
    assert "line 14: the id 'd99' is not in --passages" in notes
    columns["queries"] = columns["passages"]
    with pytest.raises(InputError, match="line 2: the id 'q0' is not in"):
        embed_task(dev=str(dev), **columns).read("dev")


def test_titles_and_texts_are_joined_as_by_beir_everywhere(tmp_path):
    documents = [
        {"_id": "0", "title": "Ulm", "text": "It is."},
        {"_id": "1", "title": "", "text": " It was. "},
        {"_id": "2", "text": "No title.\n"},
        {"_id": "3", "title": " A ", "text": ""},
        {"_id": "4", "title": None, "text": "b  c"},
    ]
    lines = map(json.dumps, documents)
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    # The expression of BEIR's retrieval models.
    expected = [
        ((d.get("title") or "") + " " + d["text"]).strip() for d in documents
    ]
    rows = [(f"query {d['_id']}", d["_id"]) for d in documents]
    qrels = write(tmp_path / "t.csv", rows)
    options = {"passages": str(tmp_path / "corpus.jsonl"), "id": "_id"}
    files = {"train": qrels, "dev": qrels, "test": qrels}
    task = embed_task(**files, **options)
    assert [pair.texts[1] for pair in task.read("train")] == expected
    assert task.read("dev")[0].passages == expected
    # mine_negatives.py reads by these two functions.
    rows = task.source.read_files("train")
    pairs = Examples((pair for _, pair in rows), rows.notes)
    assert task.collect_queries(pairs)[0].passages == expected
    task = rank_task(dev=qrels, test=qrels, **options)
    for split in ("dev", "test"):
        assert [pair.texts[1] for pair in task.read(split)] == expected


def test_a_row_may_have_several_negatives(tmp_path):
    rows = [("is it", "it is", "it was", "no"), ("was it", "it was", "a", "b")]
    header = ("text", "text_pair", "negative_1", "negative_2")
    asked = {
        "train": write(tmp_path / "t.csv", rows, header),
        "dev": write(tmp_path / "d.csv", [r[:2] for r in rows], header[:2]),
        "negative": "negative_1, negative_2",
    }
    task = embed_task(**asked)
    assert [pair.texts for pair in task.read("train")] == rows
    encoded = task.encode(task.read("train"), tiny.preprocessor())
    assert encoded.targets.tolist() == [[0, 1, 2, 3], [4, 2, 5, 6]]
    assert len(task.read("dev")[0].passages) == 2
    task = embed_task(**asked, objective="triplet")
    triplets = [(*row[:2], n) for row in rows for n in row[2:]]
    assert [pair.texts for pair in task.read("train")] == triplets
    asked["dev"] = asked["train"]
    pairs = rank_task(**asked).read("train")
    assert [(*pair.texts, pair.label) for pair in pairs] == [
        (row[0], text, float(text == row[1]))
        for row in rows
        for text in row[1:]
    ]


@pytest.mark.parametrize("objective", [None, "cosent"])
def test_scored_pairs_are_compared_by_their_cosines(tmp_path, objective):
    rows = [("a b", "a b", "5"), ("a b", "b c", "2.5"), ("a", "z", "0")]
    path = write(tmp_path / "t.csv", rows, ("text", "text_pair", "label"))
    asked = {"label": "label", "max_score": 5.0, "objective": objective}
    task = embed_task(dev=path, test=path, **asked)
    assert task.objective == (objective or "cosine")
    assert task.metrics[0].name == "spearman"
    assert task.has_dev_loss == (objective is None)
    losses = {None: CosineRegression, "cosent": CoSENT}
    assert type(task.loss()) is losses[objective]
    pairs = task.read("dev")
    cosines = vectors(task, pairs)
    scores = task.score(pairs, cosines)
    assert scores["spearman"] == pytest.approx(1.0)
    assert scores["pearson"] < 1
    assert task.mistakes(pairs, cosines)[0]["truth"] == "2.5"
    task.write(task.read("test"), cosines, tmp_path)
    rows = read_csv(tmp_path / "predictions.csv")
    assert [row["label"] for row in rows] == ["", "", ""]
    assert float(rows[0]["predicted"]) == pytest.approx(1.0)
    with pytest.raises(InputError, match="lacks labels"):
        task.score(task.read("test"), cosines)


def test_a_query_ranks_the_passages_of_its_own_rows(tmp_path):
    header = ("text", "text_pair", "label")
    rows = [("q", "a", 0), ("q", "b", 3), ("q", "c", 1), ("r", "a", 0)]
    path = write(tmp_path / "t.csv", rows, header)
    task = rank_task(dev=path, label="label", max_score=3.0, recall_at="2")
    pairs = task.read("dev")
    logits = np.array([[2.0], [1.0], [-1.0], [5.0]])
    predictions = task.decode(pairs, None, logits)
    assert predictions[1] == pytest.approx(1 / (1 + np.exp(-1)))
    scores = task.score(pairs, predictions)
    # "r" has no relevant passage, so it is not scored.
    assert (scores["queries"], scores["mrr"]) == (1, 0.5)
    assert scores["recall_at_2"] == 0.5
    assert task.mistakes(pairs, predictions)[0]["text"] == "r"
    task.write(pairs, predictions, tmp_path)
    assert read_csv(tmp_path / "predictions.csv")[1]["label"] == "3.0"


def test_a_negative_is_a_row_of_its_own_to_rank(tmp_path):
    header = ("text", "text_pair", "no")
    path = write(tmp_path / "t.csv", [("q", "a", "b"), ("r", "b", "c")], header)
    task = rank_task(train=path, dev=path, negative="no")
    assert [(*pair.texts, pair.label) for pair in task.read("dev")] == [
        ("q", "a", 1.0),
        ("q", "b", 0.0),
        ("r", "b", 1.0),
        ("r", "c", 0.0),
    ]
    triplets = embed_task(train=path, negative="no", objective="triplet")
    assert len(triplets.read("train")[0].texts) == 3
    # Dev has one of the two queries, with its partner and negative as passages.
    (query,) = triplets.read("dev")
    assert len(query.passages) == 2


def test_a_partner_with_several_negatives_counts_once(tmp_path):
    header = ("text", "text_pair", "no")
    rows = [("q", "a", "b"), ("q", "a", "c"), ("q", "d", "b")]
    path = write(tmp_path / "t.csv", rows, header)
    task = rank_task(dev=path, negative="no", recall_at="1,2,4")
    pairs = task.read("dev")
    logits = {"a": 2.0, "d": 1.0, "b": 0.0, "c": -1.0}
    outputs = np.array([[logits[pair.texts[1]]] for pair in pairs])
    scores = task.score(pairs, task.decode(pairs, None, outputs))
    # The four passages are a, d, b, c, of which a and d are relevant.
    recalls = [scores[f"recall_at_{k}"] for k in (1, 2, 4)]
    assert recalls == [0.5, 1.0, 1.0]
    discounts = 1 / np.log2([2, 3, 4, 5])
    chance = 2 / 4 * discounts.sum() / discounts[:2].sum()
    assert scores["majority_baseline"] == pytest.approx(chance)
    task.write(pairs, task.decode(pairs, None, outputs), tmp_path)
    assert len(read_csv(tmp_path / "predictions.csv")) == 2 * len(rows)
    with pytest.raises(InputError, match="at most 4"):
        rank_task(dev=path, negative="no", recall_at="5").read("dev")


def test_a_file_without_a_score_above_zero_has_no_metrics(tmp_path):
    rows = [("q", "a", "0"), ("q", "b", "0")]
    path = write(tmp_path / "z.csv", rows, ("text", "text_pair", "score"))
    task = rank_task(dev=path, label="score")
    pairs = task.read("dev")
    outputs = task.decode(pairs, None, np.array([[1.0], [2.0]]))
    with pytest.raises(
        InputError, match="with --label, its label must be above 0"
    ):
        task.score(pairs, outputs)


def test_partners_to_score_on_need_no_wrong_text(tmp_path):
    train = write(
        tmp_path / "t.csv", [("q", "a", "b")], ("text", "text_pair", "no")
    )
    plain = write(
        tmp_path / "d.csv", [("r", "c"), ("s", "d")], ("text", "text_pair")
    )
    mixed = write(
        tmp_path / "e.csv",
        [("r", "c", ""), ("s", "d", "e")],
        ("text", "text_pair", "no"),
    )
    passages = [
        embed_task(train=train, dev=dev, negative="no").read("dev")[0].passages
        for dev in (plain, mixed)
    ]
    assert passages == [["c", "d"], ["c", "d", "e"]]
    with pytest.raises(InputError, match="no column 'no'"):  # needs negatives
        rank_task(train=train, dev=plain, negative="no").read("dev")
    with pytest.raises(InputError, match="without a value"):
        embed_task(train=mixed, negative="no").read("train")


def test_equal_scores_count_against_the_model(tmp_path):
    header = ("text", "text_pair", "no")
    rows = [(f"q{i}", f"a{i}", f"b{i}") for i in range(3)]
    path = write(tmp_path / "t.csv", rows, header)
    task = rank_task(dev=path, negative="no")
    pairs = task.read("dev")
    scores = task.score(pairs, np.full(6, 0.5))
    assert (scores["mrr"], scores["recall_at_1"]) == (0.5, 0.0)
    scores = task.score(pairs, np.array([0.9, 0.1, 0.9, 0.1, np.nan, 0.1]))
    assert np.isnan([scores["mrr"], scores["ndcg_at_10"]]).all()
    assert scores["majority_baseline"] > 0.5
    task = embed_task(dev=path, negative="no")
    queries = task.read("dev")
    outputs = np.ones((9, 4), "float32")
    scores = task.score(queries, task.decode(queries, None, outputs))
    assert scores["mrr"] == pytest.approx(1 / 6)
    outputs[-1] = np.nan  # vector of the last passage
    scores = task.score(queries, task.decode(queries, None, outputs))
    assert np.isnan(scores["ndcg_at_10"]) and np.isnan(scores["recall_at_1"])


def test_texts_have_numbers_for_the_loss(tmp_path):
    path = write(tmp_path / "t.csv", PAIRS)
    task = embed_task(train=path, dev=path)
    encoded = task.encode(task.read("train"), tiny.preprocessor())
    assert encoded.targets.tolist() == [[0, 1], [2, 3], [0, 4]]


def test_the_greatest_gain_of_a_repeated_pair_counts(tmp_path):
    rows = [("a", "b", 1), ("a", "b", 3), ("a", "b", 2)]
    path = write(tmp_path / "t.csv", rows, ("text", "text_pair", "label"))
    task = embed_task(
        dev=path, label="label", max_score=3.0, objective="in_batch"
    )
    assert task.read("dev")[0].relevant == {0: 3.0}


def test_rows_without_a_partner_are_counted_and_not_learned(tmp_path):
    header = ("text", "text_pair", "score")
    rows = [("a", "b", 1), ("c", "d", 0), ("e", "f", 0)]
    options = {"label": "score", "objective": "in_batch"}
    path = write(tmp_path / "t.csv", rows, header)
    task = embed_task(train=path, dev=path, **options)
    note = "t.csv: 2 rows have the score 0 in column 'score' and are left out"
    assert note in task.read("train").notes[0]
    path = write(tmp_path / "t.csv", rows[1:], header)
    with pytest.raises(InputError, match="t.csv: 2 rows .* no pairs are left"):
        embed_task(train=path, dev=path, **options).read("train")


def test_rows_with_an_empty_cell_may_be_left_out(tmp_path):
    header = ("text", "text_pair", "no")
    path = write(tmp_path / "t.csv", [("a", "b", "c"), ("d", "e", "")], header)
    task = rank_task(train=path, dev=path, negative="no", drop_unlabelled=True)
    assert len(task.read("train")) == 2


def test_passages_of_a_data_set_are_no_file(tmp_path):
    path = write(tmp_path / "t.csv", [("a", "p")])
    task = embed_task(dev=path, passages="hf:some/corpus")
    assert [str(file) for file in task.data_files()] == [path]


def test_a_repeated_id_of_a_parquet_file_is_named_by_its_row(tmp_path):
    passages = str(tmp_path / "p.parquet")
    rows = {"id": ["1", "1"], "text": ["a", "b"]}
    parquet.write_table(pa.table(rows), passages)
    path = write(tmp_path / "t.csv", [("a", "1")])
    with pytest.raises(InputError, match="row 2: the id '1' occurs twice"):
        embed_task(dev=path, passages=passages).read("dev")


def test_several_embedders_are_not_averaged(tmp_path):
    task = embed_task(dev=write(tmp_path / "t.csv", PAIRS))
    message = "Several models of --task=embed cannot be averaged: name one."
    with pytest.raises(InputError, match=message):
        predict_split(task, ["a", "b"], "dev")


def test_more_passages_than_there_are_cannot_be_recalled(tmp_path):
    path = write(tmp_path / "t.csv", PAIRS)
    task = embed_task(dev=path)
    queries = task.read("dev")
    assert "recall_at_10" not in task.score(queries, vectors(task, queries))
    message = "--recall_at=1,10: expected at most 3, the number of passages"
    with pytest.raises(InputError, match=message):
        embed_task(dev=path, recall_at="10,1").read("dev")
    rows = [(*pair, 1) for pair in PAIRS]
    path = write(tmp_path / "r.csv", rows, ("text", "text_pair", "label"))
    with pytest.raises(InputError, match="expected at most 2, the number"):
        rank_task(dev=path, label="label", recall_at="3").read("dev")
