"""Records vectors of sentence-transformers in sentences.json.

    python -m tests.golden.record_sentences

Writes the model, tiny and random, to sentences/. Needs the extra `peers`.
"""

import json
import shutil
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c ##b query passage : hour well"
TEXTS = ["a b c", "An hour well", "cb: a"]
PROMPTS = {"query": "query: ", "document": "passage: ", "other": "c "}
POOLING, SETTINGS = "1_Pooling/config.json", "config_sentence_transformers.json"
# Name of the recorded vectors -> {file of `sentences/`: changed settings}.
CHANGES = {
    "truncate_dim": {SETTINGS: {"truncate_dim": 3}},
    **{
        f"without_prompt_{mode}": {
            POOLING: {"pooling_mode": mode, "include_prompt": False}
        }
        for mode in ("mean", "max", "cls", "lasttoken")
    },
}


def changed(folder, name):
    """Write a copy of `sentences/` with other settings; return its path."""
    shutil.copytree(HERE / "sentences", folder)
    for file, change in CHANGES.get(name, {}).items():
        settings = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(settings | change))
    return folder


def record():
    from sentence_transformers import SentenceTransformer

    found = json.loads((HERE / "sentences.json").read_text())
    for name in CHANGES:
        folder = changed(Path(tempfile.mkdtemp()) / name, name)
        model = SentenceTransformer(str(folder), device="cpu")
        found[name] = {
            "embed": model.encode(TEXTS).tolist(),
            "embed_query": model.encode_query(TEXTS).tolist(),
            "none": model.encode(TEXTS, prompt="").tolist(),
        }
    (HERE / "sentences.json").write_text(json.dumps(found) + "\n", "utf-8")


def vector_model():
    """Return a model whose vectors are its inputs."""
    import torch
    from sentence_transformers import SentenceTransformer

    class Given(torch.nn.Module):
        def forward(self, features):
            return {"sentence_embedding": features["vectors"]}

    return SentenceTransformer(modules=[Given()], device="cpu")


def record_matryoshka():
    """Record the Matryoshka losses of random vectors."""
    import torch
    from sentence_transformers import losses

    model = vector_model()
    vectors = torch.randn(6, 3, 8, generator=torch.Generator().manual_seed(5))
    scores, dims = torch.linspace(0, 1, 6), [8, 3]
    distance = losses.TripletDistanceMetric.COSINE
    inner = {
        "in_batch": losses.MultipleNegativesRankingLoss(model),
        "cosine": losses.CosineSimilarityLoss(model),
        "triplet": losses.TripletLoss(model, distance, triplet_margin=0.5),
    }
    found = {"vectors": vectors.tolist(), "scores": scores.tolist()}
    found["dims"] = dims
    for name, loss in inner.items():
        texts = range(2 if name == "cosine" else 3)
        features = [{"vectors": vectors[:, text]} for text in texts]
        found[name] = [
            losses.MatryoshkaLoss(model, loss, dims, weights)(
                features, scores
            ).item()
            for weights in (None, [2.0, 0.5])
        ]
    recorded = json.loads((HERE / "sentences.json").read_text())
    recorded["matryoshka"] = found
    (HERE / "sentences.json").write_text(json.dumps(recorded) + "\n", "utf-8")


def record_losses():
    """Record losses that compare the rows of a batch, and their gradients."""
    import sentence_transformers
    import torch
    from sentence_transformers import SentenceTransformer, losses

    generator = torch.Generator().manual_seed(6)
    vectors = torch.randn(6, 2, 8, generator=generator, requires_grad=True)
    scores = torch.tensor([0.2, 1.0, 0.2, 0.0, 0.7, 0.5])
    features = [{"vectors": vectors[:, text]} for text in (0, 1)]
    loss = losses.CoSENTLoss(vector_model())(features, scores)
    loss.backward()
    found = {
        "version": sentence_transformers.__version__,
        "cosent": {
            "vectors": vectors.tolist(),
            "scores": scores.tolist(),
            "loss": loss.item(),
            "gradient": vectors.grad.tolist(),
        },
    }
    model = SentenceTransformer(str(HERE / "sentences"), device="cpu").eval()
    body = model[0].auto_model
    with torch.no_grad():  # else all texts have almost the same vector
        for name, weight in body.named_parameters():
            if name.endswith("bias"):
                weight.fill_(0)
            if name.endswith("LayerNorm.weight"):
                weight.fill_(1)
    loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=2)
    columns = [
        ["a b c", "well", "cb: a", "hour", "c"],
        ["An hour well", "a", "b c b", "hour hour b", "cc"],
        ["query", "passage: a b", "hour", "a well", "bb c: a"],
    ]
    loss = loss([model.preprocess(texts) for texts in columns], None)
    loss.backward()
    query = body.encoder.layer[0].attention.self.query.weight
    found["in_batch"] = {
        "columns": columns,
        "loss": loss.item(),
        "token": body.embeddings.word_embeddings.weight.grad.tolist(),
        "query": query.grad.T.tolist(),
    }
    recorded = json.loads((HERE / "sentences.json").read_text())
    recorded["losses"] = found
    (HERE / "sentences.json").write_text(json.dumps(recorded) + "\n", "utf-8")


if __name__ == "__main__":
    import torch
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizer

    folder = HERE / "sentences"
    plain = tempfile.mkdtemp()
    torch.manual_seed(0)
    pieces = {piece: index for index, piece in enumerate(PIECES.split())}
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
    )
    BertModel(config).save_pretrained(plain)
    BertTokenizer(pieces).save_pretrained(plain)
    body = models.Transformer(plain, max_seq_length=12)
    with torch.no_grad():
        for weight in body.auto_model.parameters():
            weight.normal_(0, 0.5)
    model = SentenceTransformer(
        modules=[body, models.Pooling(8), models.Normalize()],
        device="cpu",
        prompts=PROMPTS,
        default_prompt_name="other",
    )
    model.save_pretrained(str(folder), create_model_card=False)
    found = {
        "texts": TEXTS,
        "embed": model.encode(TEXTS).tolist(),
        "embed_query": model.encode_query(TEXTS).tolist(),
        "embed_document": model.encode_document(TEXTS).tolist(),
        "none": model.encode(TEXTS, prompt="").tolist(),
    }
    (HERE / "sentences.json").write_text(json.dumps(found) + "\n", "utf-8")
    record()
    record_matryoshka()
    record_losses()
