"""Runs of pairs, spans, choices and ranking: train, save, score, serve."""

import json

import numpy as np
import pytest

from bert_keras import (
    BertClassifier,
    BertEmbedder,
    BertPreprocessor,
    BertSpanPredictor,
    InputError,
)
from official_tasks.engine import finetuning, splits
from official_tasks.engine.models import load_model, load_trained
from official_tasks.engine.scoring import predict_task
from official_tasks.evaluate import evaluate
from official_tasks.tasks.embedding import embed_task
from official_tasks.tasks.own_tasks import (
    choices_task,
    classify_task,
    spans_task,
)
from official_tasks.tasks.pairs import Pair
from official_tasks.tasks.retrieval import rank_task
from tests.golden import record_sentences
from tests.support import tiny
from tests.support.model_samples import fill
from tests.support.served_samples import live_answer, live_signatures
from tests.support.task_samples import eager_functions, write_csv

pytestmark = pytest.mark.heavy

RUN = {
    "epochs": 1,
    "batch_size": 4,
    "sequence_length": 16,
    "pad_to_longest": False,  # one shape for all batches
}


def keep(task, init, run):
    """Save a model of the task with random weights; return its folder."""
    preprocess = BertPreprocessor.from_preset(init)
    fill(load_model(task, init)).save_preset(run / "model", preprocess)
    return run / "model"


@pytest.fixture
def init(place):
    return str(place / "init")


def learn(*arguments, **settings):
    """Return the results of a short run, whose steps are not traced."""
    with eager_functions():
        return finetuning.run(*arguments, **RUN | settings)


def test_spans_are_learned_kept_scored_and_served(init, tmp_path):
    long = "one two three four " * 3  # the context needs several rows
    rows = [
        # All rows differ: equal rows would have equal null odds, which no
        # threshold can separate.
        (f"was it {fill}", f"the cat sat {word} {long}a dog ran", answer)
        for word in ("red", "blue", "book")
        for fill, answer in (
            ("one", "cat"),
            ("two", "dog ran"),
            ("three", ""),
            ("four", "the cat sat"),
        )
    ]
    data = write_csv(
        tmp_path / "t.csv", rows, ("question", "context", "answer")
    )
    task = spans_task(train=data, dev=data, stride=4)
    run = tmp_path / "run"
    results = learn(task, init, run, epochs=0.5, tune_thresholds=True)
    assert results["rows"] > len(rows)  # counts windows
    assert results["f1"] == results["best_f1"]
    assert results["majority_baseline"] == 1 / 4
    again = spans_task(dev=data, stride=4)
    loaded = evaluate(again, [str(run)])
    for key in ("exact_match", "f1", "best_f1_threshold", "unanswerable_f1"):
        assert loaded[key] == pytest.approx(results[key], abs=1e-5)
    predictions = run / "predictions"
    assert len(json.loads((predictions / "null_odds.json").read_text())) == 12
    read = evaluate(again, predictions=predictions / "predictions.json")
    assert read["f1"] == pytest.approx(results["f1"])
    model = BertSpanPredictor.from_preset(run / "model")
    assert model.null_threshold != 0
    preprocess = BertPreprocessor.from_preset(run / "model")
    questions, contexts, _ = zip(*rows, strict=True)
    answers = live_answer(model, preprocess, questions, contexts)
    odds = answers["null_score"] - answers["score"][:, 0]
    np.testing.assert_array_equal(
        answers["has_answer"], odds <= model.null_threshold
    )
    fixed = spans_task(train=data, dev=data, null_threshold=2.5)
    assert fixed.tune([], []) == {}
    assert load_model(fixed, run).arguments()["null_threshold"] == 2.5


def test_spans_of_a_test_file_may_have_no_answer_where_the_model_learned_it(
    init, tmp_path
):
    columns = ("question", "context")
    row = ("was it good", "the cat sat")
    answers = [(*row, answer) for answer in ("cat", "") * 2]
    data = write_csv(tmp_path / "t.csv", answers, (*columns, "answer"))
    test = write_csv(tmp_path / "test.csv", [row] * 4, columns)
    run = tmp_path / "run"
    learned = spans_task(train=data, dev=data)
    learned.read("train")
    keep(learned, init, run)
    # The threshold is below all null odds, so every answer is empty.
    asked = spans_task(test=test, null_threshold=-1e9)
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
        predict_task(spans_task(test=test), [str(run)], tmp_path)


def test_a_model_of_pairs_is_served_as_one_by_default(init, tmp_path):
    rows = [("the cat sat", "a dog ran", str(i % 2)) for i in range(8)]
    data = write_csv(tmp_path / "t.csv", rows, ("text", "other", "label"))
    folder = keep(
        classify_task(data, text_pair="other"), init, tmp_path / "run"
    )

    def inputs(**options):
        model = BertClassifier.from_preset(folder)
        preprocess = BertPreprocessor.from_preset(folder)
        (made,) = live_signatures(model, preprocess, **options).values()
        return [*made.inputs]

    assert inputs() == ["text", "text_pair"]
    assert inputs(pair=False) == ["text"]
    config = json.loads((folder / "config.json").read_text())
    stored = config["bert_keras"]["arguments"]
    assert stored["pair"] is True
    stored["pair"] = "yes"
    tiny.edit_config(folder, block_arguments=stored)
    with pytest.raises(InputError, match="pair"):
        inputs()


def test_choices_are_learned_kept_and_scored_from_their_files(init, tmp_path):
    rows = [
        ("the film was", "very good", "awful", "a dog ran", str(i % 3))
        for i in range(12)
    ]
    data = write_csv(
        tmp_path / "t.csv", rows, ("prompt", "a", "b", "c", "label")
    )
    columns = {"choices": "a,b,c"}
    task = choices_task(train=data, dev=data, **columns)
    results = learn(task, init, tmp_path / "run")
    assert results["accuracy"] == pytest.approx(1 / 3)  # all rows are alike
    assert (results["rows"], results["dev_rows"]) == (12, 12)
    again = choices_task(dev=data, **columns)
    loaded = evaluate(again, [str(tmp_path / "run")])
    assert loaded["accuracy"] == results["accuracy"]
    predictions = tmp_path / "run" / "predictions" / "predictions.csv"
    read = evaluate(again, predictions=predictions)
    assert read["accuracy"] == results["accuracy"]


def test_partners_are_learned_kept_and_found_from_their_files(init, tmp_path):
    words = "good bad fine awful film book cat dog sat ran red blue".split()
    rows = [(f"the {word}", f"{word} was") for word in words]
    data = write_csv(tmp_path / "t.csv", rows, ("text", "text_pair"))
    task = embed_task(train=data, dev=data, pooling="max")
    before = evaluate(task, [init])  # an embedder has no head to train
    run = tmp_path / "run"
    hyperparameters = {"epochs": 3, "learning_rate": 1e-2, "accumulation": 2}
    results = learn(task, init, run, **hyperparameters)
    assert (results["rows"], results["dev_rows"]) == (12, 12)
    assert results["ndcg_at_10"] > before["ndcg_at_10"]
    # The pooling is stored with the model.
    again = embed_task(dev=data)
    loaded = evaluate(again, [str(run)], output=tmp_path / "out")
    assert loaded["ndcg_at_10"] == pytest.approx(results["ndcg_at_10"])
    lines = (tmp_path / "out" / "predictions.csv").read_text().splitlines()
    assert len(lines) == 1 + 12 * 10  # header; 10 passages for each query
    # In an evaluation, `truncate_dim` may be below all matryoshka sizes.
    task = embed_task(dev=data, matryoshka="4,2", truncate_dim=1)
    cut = evaluate(task, [str(run)])
    assert cut["ndcg_at_10"] < loaded["ndcg_at_10"]
    with pytest.raises(InputError, match="at most 1, .* --truncate_dim"):
        task.loss()
    with pytest.raises(InputError, match="--matryoshka=4,99: .* at most"):
        evaluate(embed_task(dev=data, matryoshka="4,99"), [str(run)])
    model = BertEmbedder.from_preset(run / "model")
    assert model.arguments() == {
        "pooling": "max",
        "normalize": True,
        "truncate_dim": None,
    }


def test_the_order_of_scores_is_learned_from_a_file(init, tmp_path):
    words = "good bad fine awful film book cat dog sat ran red blue".split()
    rows = [(words[0], word, n / 11) for n, word in enumerate(words)]
    header = ("text", "text_pair", "score")
    data = write_csv(tmp_path / "t.csv", rows, header)
    files = {"train": data, "dev": data, "label": "score"}
    task = embed_task(**files, objective="cosent")
    before = evaluate(embed_task(dev=data, label="score"), [init])
    hyperparameters = {"epochs": 8, "learning_rate": 1e-2, "accumulation": 2}
    results = learn(task, init, tmp_path / "run", **hyperparameters)
    assert results["spearman"] > before["spearman"] + 0.3


def test_ranking_is_learned_and_served_from_its_files(init, tmp_path):
    rows = [
        (f"the {word}", f"{word} was", "not one")
        for word in "good bad fine awful film book cat dog".split()
    ]
    data = write_csv(tmp_path / "t.csv", rows, ("text", "text_pair", "no"))
    task = rank_task(train=data, dev=data, negative="no")
    run = tmp_path / "run"
    results = learn(task, init, run, epochs=3, learning_rate=1e-2)
    assert (results["rows"], results["mrr"]) == (16, 1.0)
    loaded = evaluate(rank_task(dev=data, negative="no"), [str(run)])
    assert loaded["ndcg_at_10"] == pytest.approx(results["ndcg_at_10"])
    model = BertClassifier.from_preset(run / "model")
    preprocess = BertPreprocessor.from_preset(run / "model")
    assert (model.problem, model.pair) == ("ranking", True)
    found = live_answer(
        model,
        preprocess,
        ["the cat"] * 2,
        [["not one", "cat was"], ["cat was", ""]],
    )
    assert found["order"][0].tolist() == [1, 0]
    assert found["score"][0, 1] == pytest.approx(found["score"][1, 0], abs=1e-5)


@pytest.mark.parametrize("name", ["plain", "without_prompt_mean"])
def test_a_search_reads_the_prompts_of_queries_and_documents(tmp_path, name):
    file = record_sentences.HERE / "sentences.json"
    recorded = json.loads(file.read_text())
    texts = recorded["texts"]
    record_sentences.changed(tmp_path / "a", name)
    rows = zip(texts, texts, strict=True)
    file = write_csv(tmp_path / "pairs.csv", rows, ("text", "text_pair"))
    files = {"train": file, "dev": file}
    task = embed_task(**files)
    # A run saves its model in this way.
    load_model(task, tmp_path / "a").save_preset(
        tmp_path / "run", splits.load_preprocessor(tmp_path / "a", 12)
    )
    model, preprocess = load_trained(task, tmp_path / "run")

    def vectors(task, examples):
        rows = task.encode(examples, preprocess).inputs
        rows = {name: x.to_tensor() for name, x in rows.items()}
        return np.array(model(rows))

    recorded |= recorded.get(name, {})
    partners = vectors(task, task.read("train"))  # (R, K, F)
    found = np.split(vectors(task, task.read("dev")), [len(texts)])
    for queries, documents in (partners.swapaxes(0, 1), found):
        np.testing.assert_allclose(queries, recorded["embed_query"], atol=1e-5)
        if name == "plain":
            expected = recorded["embed_document"]
            np.testing.assert_allclose(documents, expected, atol=1e-5)
    # Scored pairs have no queries, so a run trains on them without a prompt.
    task = embed_task(label="text_pair", **files)
    pairs = [Pair((text, text), 1.0) for text in texts]
    np.testing.assert_allclose(
        vectors(task, pairs)[:, 1], recorded["none"], atol=1e-5
    )
    model, preprocess = load_trained(task, tmp_path / "a")
    np.testing.assert_allclose(
        vectors(task, pairs)[:, 1], recorded["embed"], atol=1e-5
    )
