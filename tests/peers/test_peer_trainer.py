"""What benchmark/peer_trainer.py gives to transformers, and takes from it.

Runs where they are installed (pip install torch transformers).
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tools.benchmark import peer_trainer  # noqa: E402

SIZES = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
ROWS = [[2, 5, 6, 7, 3], [2, 8, 3], [2, 9, 9, 3]]


def row(ids, **targets):
    return {"input_ids": ids, "token_type_ids": [0] * len(ids), **targets}


def model(name, **arguments):
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, **arguments)
    return getattr(transformers, f"BertFor{name}")(config).eval()


def alone(net, ids):
    with torch.no_grad():
        return net(input_ids=torch.tensor([ids]))


def test_texts_and_their_labels_are_padded_to_the_longest():
    batch = peer_trainer.batch_of([row(ids, labels=1) for ids in ROWS])
    assert batch["input_ids"].tolist()[1] == [2, 8, 3, 0, 0]
    assert batch["attention_mask"].tolist()[1] == [1, 1, 1, 0, 0]
    assert batch["labels"].tolist() == [1, 1, 1]
    tags = [row(ids, labels=[-100, *ids[1:]]) for ids in ROWS]
    batch = peer_trainer.batch_of(tags)
    assert batch["labels"].tolist()[1] == [-100, 8, 3, -100, -100]
    tags = [row(ids, labels=ids, width=8) for ids in ROWS]
    batch = peer_trainer.batch_of(tags)
    assert batch["attention_mask"].shape == batch["labels"].shape == (3, 8)
    spans = [row(ids, start_positions=1, end_positions=2) for ids in ROWS]
    assert peer_trainer.batch_of(spans)["end_positions"].tolist() == [2, 2, 2]


def test_outputs_come_in_the_order_of_the_rows_and_without_padding():
    net = model("SequenceClassification", num_labels=3)
    rows = [row(ids, labels=0) for ids in ROWS]
    found = peer_trainer.outputs_of(net, rows)["logits"]
    wanted = [alone(net.eval(), ids).logits[0] for ids in ROWS]
    np.testing.assert_allclose(found, np.stack(wanted), atol=1e-6)

    net = model("TokenClassification", num_labels=3)
    rows = [row(ids, labels=[0] * len(ids)) for ids in ROWS]
    found = peer_trainer.outputs_of(net, rows)["logits"]
    wanted = [alone(net.eval(), ids).logits[0] for ids in ROWS]
    np.testing.assert_allclose(found, np.concatenate(wanted), atol=1e-6)

    net = model("QuestionAnswering")
    rows = [row(ids, start_positions=0, end_positions=0) for ids in ROWS]
    found = peer_trainer.outputs_of(net, rows)["end"]
    wanted = [alone(net.eval(), ids).end_logits[0] for ids in ROWS]
    np.testing.assert_allclose(found, np.concatenate(wanted), atol=1e-6)


def test_choices_are_folded_into_the_batch():
    net = model("MultipleChoice")
    question = {
        "input_ids": ROWS,
        "token_type_ids": [[0] * len(ids) for ids in ROWS],
        "labels": 2,
    }
    batch = peer_trainer.batch_of([question, question])
    assert batch["input_ids"].shape == (2, 3, 5)
    found = peer_trainer.outputs_of(net, [question])["logits"]
    with torch.no_grad():
        one = {k: v[:1] for k, v in batch.items() if k != "labels"}
        wanted = net.eval()(**one).logits
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_folder_is_trained_on_and_each_epoch_is_written(tmp_path):
    import json

    pytest.importorskip("accelerate")
    start = model("QuestionAnswering")
    start.save_pretrained(tmp_path / "init")
    rows = [row(ids, start_positions=1, end_positions=2) for ids in ROWS]
    settings = {
        "init": str(tmp_path / "init"),
        "seed": 1,
        "steps": 11,
        "steps_per_epoch": 6,
        "learning_rate": 1e-2,
        "batch_size": 2,
        "labels": 1,
        "model": "QuestionAnswering",
    }
    for name, content in (
        ("settings", settings),
        ("train", rows * 4),
        ("dev", rows),
        ("order", [[number, 8] for number in range(11)] * 2),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    peer_trainer.train(tmp_path)
    first, second = (
        np.load(tmp_path / f"outputs-{epoch}.npz")["start"] for epoch in (1, 2)
    )
    assert first.shape == (12,) and np.abs(first - second).max() > 1e-4
