"""Records outputs of transformers in transformers.json, toy/ and heads/.

    python -m tests.golden.record

Needs the extra `peers`. PyTorch and TensorFlow do not share a process, so a
second process writes the packaged model as a Hugging Face folder.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForPreTraining

HERE = Path(__file__).parent
PACKAGED = HERE.parents[1] / "bert_keras" / "packaged" / "bert_keras_mini_en"
STRINGS = [
    "",
    " ",
    "The unaffable goat sailed.",
    "Ça va? Ünaffable CAFÉ, cafe\u0301 nai\u0308ve",
    "Ύδωρ καὶ ΓΗ\u0345 ᾿Αθῆναι ΐ",
    "Straße STRASSE ẞ ıi",
    "今日はいい天気。ภาษาไทย 한국어 \u1112\u1161\u11ab",
    "[CLS] a [MASK] b[SEP] [mask] [UNK][PAD]",
    "👩\u200d👩\u200d👧🏽\ufe0f I\u2764 1\u20e3 ﬁﬂ ½ ™",
    "tab\tnew\nline\r\u00a0\u2003\u3000end\u200b\ufeff\u00ad.",
    "2,500.00$ e.g. don't--stop... (a/b) {c} <d> `e`",
    "a" * 99 + " " + "b" * 100 + " " + "c" * 101,
    "nul\x00 bell\x07 \ufffd e\u0301\u0323 o\u0323\u0301",
    "שָׁלוֹם مَرْحَبًا \u202eabc",
    "й Й ё 𝔘𝔫 ǅ Å ㎏ e\u0327\u0301",
]
SETTINGS = {
    "uncased": (True, True),
    "cased": (False, False),
    "lower case with accents": (True, False),
    "cased without accents": (False, True),
}
# Texts for the packaged model, each with two masked positions.
PACKAGED_TEXTS = ["The [MASK] is a [MASK] .", "[MASK] of the [MASK] and more ."]
TOY = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "initializer_range": 0.3,
}
TOY_ROWS = {
    "token_ids": [[2, 7, 9, 4, 3, 30, 31, 3, 0], [2, 39, 4, 5, 6, 3, 8, 10, 3]],
    "segment_ids": [[0] * 5 + [1] * 3 + [0], [0] * 6 + [1] * 3],
    "padding_mask": [[1] * 8 + [0], [1] * 9],
}


def tokenize_strings():
    """Return dict: name in `SETTINGS` -> token ids of each of `STRINGS`."""
    found = {}
    for name, (lowercase, strip_accents) in SETTINGS.items():
        tokenizer = BertWordPieceTokenizer(
            str(PACKAGED / "vocab.txt"),
            lowercase=lowercase,
            strip_accents=strip_accents,
        )
        found[name] = [
            tokenizer.encode(text, add_special_tokens=False).ids
            for text in STRINGS
        ]
    return found


def run_model(model, rows):
    """Return the outputs and the pooled output of a `BertForPreTraining`."""
    ids, segments, mask = (torch.tensor(rows[name]) for name in TOY_ROWS)
    with torch.no_grad():
        outputs = model(
            ids, token_type_ids=segments, attention_mask=mask, return_dict=True
        )
        pooled = model.bert(
            ids, token_type_ids=segments, attention_mask=mask
        ).pooler_output
    return outputs, pooled


# Head -> class name after "BertFor", fields of its `BertConfig`, targets.
HEADS = {
    "classes": (
        "SequenceClassification",
        {"num_labels": 3, "layer_norm_eps": 1e-5},
        {"labels": [2, 0]},
    ),
    "tags": (
        "TokenClassification",
        {"num_labels": 4, "type_vocab_size": 3},
        {"labels": [[0, 1, 3, -100, 2, 2, -100, 1, -100], [1] * 8 + [3]]},
    ),
    "spans": (
        "QuestionAnswering",
        {"hidden_act": "gelu_new"},
        {"start_positions": [1, 6], "end_positions": [3, 6]},
    ),
    "choices": ("MultipleChoice", {}, {"labels": [1]}),
    "pretraining": (
        "PreTraining",
        {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5},
        {
            "labels": [[-100, 5, -100, 9, *[-100] * 5], [7, *[-100] * 7, 30]],
            "next_sentence_label": [0, 1],
        },
    ),
}


def record_head(name):
    """Write heads/NAME/ with gradients; return targets, loss and logits."""
    kind, settings, targets = HEADS[name]
    torch.manual_seed(len(name))
    small = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1}
    dropout = dict.fromkeys(
        ("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0
    )
    config = BertConfig(**{**TOY, **small, **dropout, **settings})
    model = getattr(transformers, f"BertFor{kind}")(config)
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    # With `padding_idx`, [PAD] gets no gradient. The original BERT trains it.
    model.get_input_embeddings().padding_idx = None
    folder = HERE / "heads" / name
    model.save_pretrained(folder)
    ids, segments, mask = (torch.tensor(rows) for rows in TOY_ROWS.values())
    if name == "choices":  # (B, K, T) of one example
        ids, segments, mask = ids[None], segments[None], mask[None]
    outputs = model(
        ids,
        token_type_ids=segments,
        attention_mask=mask,
        **{key: torch.tensor(value) for key, value in targets.items()},
    )
    outputs.loss.backward()
    # Save gradients as weights, so that `from_preset` can read them.
    for weight in model.parameters():
        weight.data = weight.grad
    model.save_pretrained(folder / "gradients")
    logits = [x for key, x in outputs.items() if "logits" in key]
    return {
        "targets": targets,
        "loss": float(outputs.loss.detach()),
        "logits": [
            x.detach().double().numpy().round(7).tolist() for x in logits
        ],
    }


def rounded(tensor):
    return [[round(float(x), 6) for x in row] for row in tensor]


def record_toy():
    """Write the model toy/; return its outputs in transformers."""
    torch.manual_seed(7)
    model = BertForPreTraining(BertConfig(**TOY)).eval()
    for weight in model.parameters():  # also biases and norms
        weight.data += 0.1 * torch.randn_like(weight)
    folder = HERE / "toy"
    model.save_pretrained(folder)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"w{number}" for number in range(5, TOY["vocab_size"])]
    (folder / "vocab.txt").write_text("\n".join([*special, *words]) + "\n")
    outputs, pooled = run_model(model, TOY_ROWS)
    ids, segments, mask = (torch.tensor(rows) for rows in TOY_ROWS.values())
    # The default attention implementation returns no probabilities.
    model = BertForPreTraining.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        attentions = model.bert(
            ids,
            token_type_ids=segments,
            attention_mask=mask,
            output_attentions=True,
        ).attentions
    return {
        "rows": TOY_ROWS,
        "mlm": [rounded(row) for row in outputs.prediction_logits],
        "nsp": rounded(outputs.seq_relationship_logits),
        "pooled_output": rounded(pooled),
        "attention_probabilities": [
            x.double().numpy().round(6).tolist() for x in attentions
        ],
    }


def record_packaged():
    """Return rows, masked positions and outputs of the packaged model."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder) / "model"
        program = (
            "import sys, bert_keras\n"
            "name = 'bert_keras_mini_en'\n"
            "model = bert_keras.BertPretrainer.from_preset(name)\n"
            "text = bert_keras.BertPreprocessor.from_preset(name)\n"
            "model.save_preset(sys.argv[1], text)\n"
        )
        subprocess.run([sys.executable, "-c", program, str(folder)], check=True)
        model = BertForPreTraining.from_pretrained(folder).eval()
        tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"))
    tokenizer.add_special_tokens(["[MASK]"])
    encoded = [tokenizer.encode(text).ids for text in PACKAGED_TEXTS]
    length = max(map(len, encoded))
    rows = {
        "token_ids": [ids + [0] * (length - len(ids)) for ids in encoded],
        "segment_ids": [[0] * length for _ in encoded],
        "padding_mask": [
            [1] * len(ids) + [0] * (length - len(ids)) for ids in encoded
        ],
    }
    outputs, pooled = run_model(model, rows)
    mask = tokenizer.token_to_id("[MASK]")
    positions = [
        [at for at, piece in enumerate(ids) if piece == mask] for ids in encoded
    ]
    return {
        "rows": rows,
        "mask_positions": positions,
        # Logits of every 500th token of the vocabulary.
        "mlm": [
            rounded(logits[where][:, ::500])
            for logits, where in zip(
                outputs.prediction_logits, positions, strict=True
            )
        ],
        "nsp": rounded(outputs.seq_relationship_logits),
        "pooled_output": rounded(pooled[:, :16]),
    }


if __name__ == "__main__":
    recorded = {
        "strings": STRINGS,
        "token_ids": tokenize_strings(),
        "toy": record_toy(),
        "packaged": record_packaged(),
        "heads": {name: record_head(name) for name in HEADS},
    }
    lines = json.dumps(recorded, ensure_ascii=True)
    (HERE / "transformers.json").write_text(lines + "\n", encoding="utf-8")
