"""Pairs, spans and choices through the engine: learn, keep, score, read."""

import json

import numpy as np
import pytest
import record_sentences
import tiny
from model_samples import fill
from task_samples import write_csv

from bert_keras import (
    BertClassifier,
    BertEmbedder,
    BertPreprocessor,
    InputError,
    export_saved_model,
    load_saved_model,
)
from official_tasks.engine import finetuning
from official_tasks.engine.leaderboard import predict_task
from official_tasks.engine.models import load_model
from official_tasks.evaluate import evaluate
from official_tasks.tasks.custom import (
    custom_choices,
    custom_spans,
    custom_task,
)
from official_tasks.tasks.embedding import embedding_task
from official_tasks.tasks.pairs import Pair
from official_tasks.tasks.retrieval import ranking_task

RUN = {
    "epochs": 1,
    "batch_size": 4,
    "sequence_length": 16,
    "pad_to_longest": False,  # one shape, traced once
}


def keep(task, init, run):
    """A model of the task, as if it had been trained in this folder."""
    task.read("train")  # its labels
    preprocess = BertPreprocessor.from_preset(init)
    fill(load_model(task, init)).save_preset(run / "model", preprocess)
    return run / "model"


@pytest.fixture
def init(place):
    return str(place / "init")


def test_spans_are_learned_kept_and_scored_from_their_files(init, tmp_path):
    long = "one two three four " * 5  # more than a row holds
    rows = [
        ("was it good", f"the cat sat {long}a dog ran", answer)
        for answer in ("cat", "dog ran", "", "the cat sat") * 3
    ]
    data = write_csv(
        tmp_path / "t.csv", rows, ("question", "context", "answer")
    )
    task = custom_spans(train=data, dev=data, stride=4)
    results = finetuning.run(task, init, tmp_path / "run", **RUN)
    assert results["rows"] > len(rows)  # windows
    assert {"exact_match", "f1", "best_f1", "unanswerable_f1"} <= set(results)
    assert results["majority_baseline"] == 1 / 4
    again = custom_spans(dev=data, stride=4)
    loaded = evaluate(again, [str(tmp_path / "run")])
    for key in ("exact_match", "f1", "best_f1_threshold"):
        assert loaded[key] == pytest.approx(results[key], abs=1e-5)
    predictions = tmp_path / "run" / "predictions"
    assert len(json.loads((predictions / "null_odds.json").read_text())) == 12
    read = evaluate(again, predictions=predictions / "predictions.json")
    assert read["f1"] == pytest.approx(results["f1"])


def test_spans_of_a_test_file_may_have_no_answer_where_the_model_learned_it(
    init, tmp_path
):
    columns = ("question", "context")
    row = ("was it good", "the cat sat")
    answers = [(*row, answer) for answer in ("cat", "") * 2]
    data = write_csv(tmp_path / "t.csv", answers, (*columns, "answer"))
    test = write_csv(tmp_path / "test.csv", [row] * 4, columns)
    run = tmp_path / "run"
    keep(custom_spans(train=data, dev=data), init, run)
    # The difference that it takes for no answer is below any that there is.
    asked = custom_spans(test=test, null_threshold=-1e9)
    predict_task(asked, [str(run)], tmp_path / "out")
    texts = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert set(texts.values()) == {""}
    assert (tmp_path / "out" / "null_odds.json").exists()
    config = json.loads((run / "model" / "config.json").read_text())
    stored = config["bert_keras"]["arguments"]
    assert stored["may_be_none"] is True
    stored["may_be_none"] = "yes"
    tiny.edit_config(run / "model", block_arguments=stored)
    with pytest.raises(InputError, match="may_be_none"):
        predict_task(custom_spans(test=test), [str(run)], tmp_path)


def test_a_model_of_pairs_is_served_as_one_by_default(init, tmp_path):
    rows = [("the cat sat", "a dog ran", str(i % 2)) for i in range(8)]
    data = write_csv(tmp_path / "t.csv", rows, ("text", "other", "label"))
    folder = keep(custom_task(data, text_pair="other"), init, tmp_path / "run")

    def inputs(name, **options):
        model = BertClassifier.from_preset(folder)
        preprocess = BertPreprocessor.from_preset(folder)
        path = tmp_path / name
        export_saved_model(model, preprocess, path, **options)
        card = load_saved_model(path).card
        return card["signatures"]["classify"]["input_order"]

    assert inputs("served") == ["text", "text_pair"]
    assert inputs("alone", pair=False) == ["text"]
    config = json.loads((folder / "config.json").read_text())
    stored = config["bert_keras"]["arguments"]
    assert stored["pair"] is True
    stored["pair"] = "yes"
    tiny.edit_config(folder, block_arguments=stored)
    with pytest.raises(InputError, match="pair"):
        inputs("damaged")


def test_choices_are_learned_kept_and_scored_from_their_files(init, tmp_path):
    rows = [
        ("the film was", "very good", "awful", "a dog ran", str(i % 3))
        for i in range(12)
    ]
    data = write_csv(
        tmp_path / "t.csv", rows, ("prompt", "a", "b", "c", "label")
    )
    columns = {"choices": "a,b,c"}
    task = custom_choices(train=data, dev=data, **columns)
    results = finetuning.run(task, init, tmp_path / "run", **RUN)
    assert results["accuracy"] == pytest.approx(1 / 3)  # all rows are alike
    assert (results["rows"], results["dev_rows"]) == (12, 12)
    again = custom_choices(dev=data, **columns)
    loaded = evaluate(again, [str(tmp_path / "run")])
    assert loaded["accuracy"] == results["accuracy"]
    predictions = tmp_path / "run" / "predictions" / "predictions.csv"
    read = evaluate(again, predictions=predictions)
    assert read["accuracy"] == results["accuracy"]


def test_partners_are_learned_kept_and_found_from_their_files(init, tmp_path):
    words = "good bad fine awful film book cat dog sat ran red blue".split()
    rows = [(f"the {word}", f"{word} was") for word in words]
    data = write_csv(tmp_path / "t.csv", rows, ("text", "text_pair"))
    task = embedding_task(train=data, dev=data, pooling="max")
    before = evaluate(task, [init])  # no head: it needs no training
    run = tmp_path / "run"
    learning = RUN | {"epochs": 10, "learning_rate": 1e-2}
    results = finetuning.run(task, init, run, **learning)
    assert (results["rows"], results["dev_rows"]) == (12, 12)
    assert results["ndcg_at_10"] > before["ndcg_at_10"]
    # How it pools comes with the model.
    loaded = evaluate(embedding_task(dev=data), [str(run)])
    assert loaded["ndcg_at_10"] == pytest.approx(results["ndcg_at_10"])
    # The sign of one value tells few texts apart.
    cut = evaluate(embedding_task(dev=data, truncate_dim=1), [str(run)])
    assert cut["ndcg_at_10"] < loaded["ndcg_at_10"]
    # A model that has learned several sizes is scored by shorter vectors.
    task = embedding_task(dev=data, matryoshka="4,2", truncate_dim=1)
    assert evaluate(task, [str(run)])["ndcg_at_10"] == cut["ndcg_at_10"]
    with pytest.raises(InputError, match="at most 1, --truncate_dim"):
        task.loss()
    with pytest.raises(InputError, match="--matryoshka=4,99: expected at most"):
        evaluate(embedding_task(dev=data, matryoshka="4,99"), [str(run)])
    predict_task(embedding_task(test=data), [str(run)], tmp_path / "out")
    assert len((tmp_path / "out" / "predictions.csv").read_text()) > 12 * 10
    model = BertEmbedder.from_preset(run / "model")
    assert model.arguments() == {
        "pooling": "max",
        "normalize": True,
        "truncate_dim": None,
    }


def test_ranking_is_learned_and_served_from_its_files(init, tmp_path):
    rows = [
        (f"the {word}", f"{word} was", "not one")
        for word in "good bad fine awful film book cat dog".split()
    ]
    data = write_csv(tmp_path / "t.csv", rows, ("text", "text_pair", "no"))
    task = ranking_task(train=data, dev=data, negative="no")
    run = tmp_path / "run"
    learning = RUN | {"epochs": 5, "learning_rate": 1e-2}
    results = finetuning.run(task, init, run, **learning)
    assert (results["rows"], results["mrr"]) == (16, 1.0)
    loaded = evaluate(ranking_task(dev=data, negative="no"), [str(run)])
    assert loaded["ndcg_at_10"] == pytest.approx(results["ndcg_at_10"])
    model = BertClassifier.from_preset(run / "model")
    preprocess = BertPreprocessor.from_preset(run / "model")
    assert (model.problem, model.pair) == ("ranking", True)
    export_saved_model(model, preprocess, tmp_path / "served", portable=True)
    served = load_saved_model(tmp_path / "served")
    found = served.rank(["the cat"] * 2, [["not one", "cat was"], ["cat was"]])
    assert found["order"][0].tolist() == [1, 0]
    assert found["score"][0, 1] == pytest.approx(found["score"][1, 0], abs=1e-5)


@pytest.mark.parametrize("name", ["plain", "without_prompt_mean"])
def test_a_search_reads_the_prompts_of_queries_and_documents(tmp_path, name):
    file = record_sentences.HERE / "sentences.json"
    recorded = json.loads(file.read_text())
    texts = recorded["texts"]
    record_sentences.changed(tmp_path / "a", name)
    model = BertEmbedder.from_preset(tmp_path / "a")
    preprocess = BertPreprocessor.from_preset(tmp_path / "a")
    rows = zip(texts, texts, strict=True)
    file = write_csv(tmp_path / "pairs.csv", rows, ("text", "text_pair"))
    files = {"train": file, "dev": file}
    task = embedding_task(**files)
    recorded |= recorded.get(name, {})
    for split, number in (("train", 2), ("dev", 1)):  # (R, K, T), (Q + P, T)
        rows = task.encode(task.read(split), preprocess).inputs
        rows = {name: x.to_tensor() for name, x in rows.items()}
        vectors = model.predict(rows, verbose=0)
        first, second = (
            vectors.swapaxes(0, 1)
            if number == 2
            else np.split(vectors, [len(texts)])
        )
        np.testing.assert_allclose(first, recorded["embed_query"], atol=1e-5)
        if name == "plain":
            expected = recorded["embed_document"]
            np.testing.assert_allclose(second, expected, atol=1e-5)
    # Scores of pairs have no query.
    task = embedding_task(label="text_pair", **files)
    pairs = [Pair((text, text), 1.0) for text in texts]
    rows = task.encode(pairs, preprocess).inputs
    rows = {name: x.to_tensor() for name, x in rows.items()}
    vectors = model.predict(rows, verbose=0)[:, 1]
    np.testing.assert_allclose(vectors, recorded["embed"], atol=1e-5)
    task = embedding_task(**files)
    small = {**RUN, "sequence_length": 12}
    results = finetuning.run(task, tmp_path / "a", tmp_path / "run", **small)
    again = evaluate(task, [str(tmp_path / "run")])
    assert again["mrr"] == results["mrr"]
