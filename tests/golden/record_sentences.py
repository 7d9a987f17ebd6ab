"""Records vectors of sentence-transformers: sentences.json and sentences/.

    python tests/golden/record_sentences.py

A tiny random model with prompts. Needs the extra `peers`.
"""

import json
import tempfile
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer, models
from transformers import BertConfig, BertModel, BertTokenizer

HERE = Path(__file__).parent
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c ##b query passage : hour well"
TEXTS = ["a b c", "An hour well", "cb: a"]
PROMPTS = {"query": "query: ", "document": "passage: ", "other": "c "}

if __name__ == "__main__":
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
