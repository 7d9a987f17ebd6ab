"""Folders, losses and metrics compared with sentence-transformers.

Each library loads the folders of the other library.
Needs: pip install torch sentence-transformers
"""

import os

import numpy as np
import pytest

import bert_keras
from bert_keras import BertEmbedder, BertPreprocessor
from bert_keras.interop.saving import save_model
from official_tasks.tasks.metrics import retrieval_scores
from tests.support import tiny

TOLERANCE = 1e-5
WEIGHTS = os.path.join(
    os.environ.get("BERT_KERAS_DATA", ""), "weights", "all-MiniLM-L6-v2"
)
TEXTS = ["good bad", "badly bad good", "good", "bad badly", "bad", "good good"]


@pytest.fixture
def sentences():
    pytest.importorskip("torch")
    return pytest.importorskip("sentence_transformers", minversion="5")


def embedder(pooling="mean", normalize=True):
    """Return an embedder, with real weights if available, and texts for it."""
    if os.path.isdir(WEIGHTS):
        model = BertEmbedder.from_preset(
            WEIGHTS, pooling=pooling, normalize=normalize
        )
        text = BertPreprocessor.from_preset(WEIGHTS, sequence_length=32)
        texts = ["An hour well spent.", "Rain fell.", "It rained all day."]
        return model, text, [*texts, "She sings; he dances. " * 9, "", "?!"]
    model = BertEmbedder(tiny.model("BertEncoder"), pooling, normalize)
    return model, tiny.preprocessor(), TEXTS


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_theirs_gives_the_vectors_of_a_folder_of_ours(
    sentences, tmp_path, check_difference, pooling, normalize
):
    model, text, texts = embedder(pooling, normalize)
    save_model(tmp_path / "a", model, text)
    theirs = sentences.SentenceTransformer(str(tmp_path / "a"), device="cpu")
    ours = np.asarray(model(text(texts)))
    difference = np.abs(theirs.encode(texts) - ours).max()
    check_difference(f"written, {pooling}, {normalize}", difference)
    assert theirs.max_seq_length == text.sequence_length
    # The folder that sentence-transformers saves gives the same model.
    theirs.save(str(tmp_path / "b"))
    again = BertEmbedder.from_preset(tmp_path / "b")
    text = BertPreprocessor.from_preset(tmp_path / "b")
    assert again.arguments() == model.arguments()
    assert text.sequence_length == theirs.max_seq_length
    difference = np.abs(theirs.encode(texts) - again(text(texts))).max()
    check_difference(f"read, {pooling}, {normalize}", difference)


@pytest.mark.parametrize("texts_each", [2, 3])
def test_a_batch_has_the_losses_of_theirs(
    sentences, tmp_path, check_difference, texts_each
):
    import torch
    from sentence_transformers import losses

    model, text, texts = embedder()
    save_model(tmp_path / "a", model, text)
    theirs = sentences.SentenceTransformer(str(tmp_path / "a"), device="cpu")
    theirs.eval()
    columns = [texts[i::texts_each] for i in range(texts_each)]
    labels = np.linspace(0, 1, len(columns[0]), dtype="float32")
    distance = losses.TripletDistanceMetric.COSINE
    pairs = {
        "in-batch": (
            bert_keras.InBatchNegatives(),
            losses.MultipleNegativesRankingLoss(theirs),
        ),
        "cosine": (
            bert_keras.CosineRegression(),
            losses.CosineSimilarityLoss(theirs),
        ),
        "triplet": (
            bert_keras.Triplet(),
            losses.TripletLoss(theirs, distance, triplet_margin=0.5),
        ),
    }
    del pairs["triplet" if texts_each == 2 else "cosine"]
    vectors = model(text.each(tuple(columns)))
    for name, (loss, peer) in pairs.items():
        with torch.no_grad():
            features = [theirs.preprocess(column) for column in columns]
            expected = float(peer(features, torch.tensor(labels)))
        difference = abs(float(loss(labels, vectors)) - expected)
        check_difference(f"{name} loss {expected:.4f}", difference)


def test_a_ranking_model_scores_as_their_cross_encoder(
    sentences, tmp_path, check_difference
):
    encoder = tiny.model("BertEncoder", activation="gelu_exact")
    model = bert_keras.BertClassifier(encoder, problem="ranking", pair=True)
    text = tiny.preprocessor()
    save_model(tmp_path / "a", model, text)
    theirs = sentences.CrossEncoder(str(tmp_path / "a"), device="cpu")
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    logits = np.asarray(model(text((TEXTS, TEXTS[::-1]))))[:, 0]
    ours = 1 / (1 + np.exp(-logits))
    difference = np.abs(theirs.predict(pairs) - ours).max()
    check_difference("cross-encoder", difference)
    # `from_preset` loads a folder that CrossEncoder saved. Its modules.json has
    # one module.
    theirs.save_pretrained(str(tmp_path / "b"))
    again = bert_keras.BertClassifier.from_preset(
        tmp_path / "b", problem="ranking", pair=True
    )
    text = BertPreprocessor.from_preset(tmp_path / "b")
    found = np.asarray(again(text((TEXTS, TEXTS[::-1]))))[:, 0]
    assert np.abs(found - logits).max() < TOLERANCE


def test_rankings_have_the_scores_of_their_evaluator(sentences):
    random = np.random.default_rng(0)
    cosines = random.normal(size=(30, 50))
    relevant = [
        {int(p): 1.0 for p in random.choice(50, random.integers(1, 6), False)}
        for _ in cosines
    ]
    from sentence_transformers.evaluation import (
        InformationRetrievalEvaluator,
    )

    evaluator = InformationRetrievalEvaluator(
        {str(q): "" for q in range(30)},
        {str(p): "" for p in range(50)},
        {str(q): {str(p) for p in of} for q, of in enumerate(relevant)},
        mrr_at_k=[50],
        ndcg_at_k=[10],
        precision_recall_at_k=[1, 10],
    )
    orders = np.argsort(-cosines)
    found = [
        [{"corpus_id": str(p), "score": row[p]} for p in order]
        for row, order in zip(cosines, orders, strict=True)
    ]
    theirs = evaluator.compute_metrics(found)
    ours = retrieval_scores(orders.tolist(), relevant, (1, 10))
    assert ours == pytest.approx(
        {
            "recall_at_1": theirs["recall@k"][1],
            "recall_at_10": theirs["recall@k"][10],
            "mrr": theirs["mrr@k"][50],
            "ndcg_at_10": theirs["ndcg@k"][10],
        }
    )
