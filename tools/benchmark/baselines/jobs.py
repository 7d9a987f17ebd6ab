"""Jobs for workers. A job imports only the libraries that it needs.

A job takes its settings and returns a pair: a function that takes one step and
waits until it ends, and the number by which the step's time is divided, such as
the number of examples. Jobs run this package, transformers on PyTorch, ONNX
Runtime with `tokenizers`, or a command.
"""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np

from bert_keras.modeling.sizes import SIZES

VOCABULARY = 30_522
BATCH = 1000  # lines to tokenize at once


def command(settings):
    """Run a command; "{new}" in a word becomes a path that is new each time."""

    def run():
        with tempfile.TemporaryDirectory() as folder:
            new = os.path.join(folder, "new")
            words = [word.replace("{new}", new) for word in settings["words"]]
            done = subprocess.run(
                [sys.executable, *words], capture_output=True, text=True
            )
        if done.returncode:
            raise RuntimeError(done.stderr[-800:])

    return run, 1


def dense_rows(settings):
    """Return two dicts of arrays: random inputs without padding, and labels."""
    batch, length = settings["batch"], settings["length"]
    random = np.random.default_rng(0)
    ids = random.integers(1000, VOCABULARY, (batch, length), "int32")
    drawn = [random.permutation(length) for _ in range(batch)]
    positions = np.sort(np.stack(drawn)[:, : settings["predictions"]])
    x = {
        "token_ids": ids,
        "segment_ids": random.integers(0, 2, (batch, length), "int32"),
        "padding_mask": np.ones((batch, length), "int32"),
        "mask_positions": positions.astype("int32"),
    }
    y = {
        "mlm": np.take_along_axis(ids, positions, axis=1),
        "nsp": random.integers(0, 2, (batch,), "int32"),
    }
    return x, y


def step(settings):
    """Pre-train BERT of this package by `train_on_batch`."""
    import tensorflow as tf

    import bert_keras
    from bert_keras.modeling.pretrainer import pretraining_losses

    encoder = bert_keras.BertEncoder(
        VOCABULARY,
        **SIZES[settings["size"]],
        dropout=0.0,
        attention_dropout=0.0,
        dtype=settings["dtype"],
    )
    model = bert_keras.BertPretrainer(encoder)
    model.compile(
        bert_keras.adamw(1e-4, steps=1_000_000),
        pretraining_losses(),
    )
    batch = tf.nest.map_structure(tf.constant, dense_rows(settings))
    return (lambda: model.train_on_batch(*batch)), settings["batch"]


def products(settings):
    """Compute only the matrix products of a pre-training step of this package.

    All values are 0, because the speed of a CPU does not depend on them.
    """
    import tensorflow as tf

    size, batch = SIZES[settings["size"]], settings["batch"]
    dim, inner = size["hidden_dim"], size["intermediate_dim"]
    heads = (batch * size["num_heads"], settings["length"], -1)
    shapes = [(dim, dim)] * 4 + [(dim, inner), (inner, dim)]
    layers = [
        [tf.zeros(shape) for shape in shapes] for _ in range(size["num_layers"])
    ]
    output = [tf.zeros((dim, dim)), tf.zeros((dim, VOCABULARY))]
    tokens = tf.zeros((batch * settings["length"], dim))

    @tf.function(jit_compile=False)
    def run(tokens, layers, output):
        with tf.GradientTape() as tape:
            tape.watch((tokens, layers, output))
            x = tokens
            for *inputs, mixer, up, down in layers:
                q, k, v = (tf.reshape(x @ w, heads) for w in inputs)
                mixed = tf.matmul(q, k, transpose_b=True) @ v
                x = tf.reshape(mixed, (-1, dim)) @ mixer @ up @ down
            x = x[: batch * settings["predictions"]] @ output[0] @ output[1]
        return tape.gradient(x, (tokens, layers, output))

    return (lambda: run(tokens, layers, output)[0].numpy()), batch


def transformers_step(settings):
    """Pre-train BERT of transformers, eager or compiled.

    The model computes vocabulary logits at all positions, not only at masked
    positions.
    """
    import torch
    from transformers import BertConfig, BertForPreTraining

    # Multiply float32 in TF32 on a GPU, as the other backends do.
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = SIZES[settings["size"]]
    model = BertForPreTraining(
        BertConfig(
            vocab_size=VOCABULARY,
            num_hidden_layers=size["num_layers"],
            hidden_size=size["hidden_dim"],
            num_attention_heads=size["num_heads"],
            intermediate_size=size["intermediate_dim"],
            hidden_act="gelu_pytorch_tanh",  # the default of bert_keras
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    forward = torch.compile(model) if settings.get("compiled") else model
    x, y = (
        {k: torch.from_numpy(v).long().to(device) for k, v in part.items()}
        for part in dense_rows(settings)
    )
    labels = torch.full_like(x["token_ids"], -100)
    labels.scatter_(1, x["mask_positions"], y["mlm"])
    half = settings["dtype"] == "mixed_bfloat16"

    def train():
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            outputs = forward(
                input_ids=x["token_ids"],
                token_type_ids=x["segment_ids"],
                attention_mask=x["padding_mask"],
                labels=labels,
                next_sentence_label=y["nsp"],
            )
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return train, settings["batch"]


def read_lines(path):
    """Return the lines of a file, and their size in megabytes."""
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines(), os.path.getsize(path) / 1e6


def tokenize(settings):
    """Tokenize lines by this package, on all cores."""
    import tensorflow as tf

    import bert_keras

    lines, megabytes = read_lines(settings["lines"])
    tokenizer = bert_keras.WordPieceTokenizer(
        settings["vocabulary"], max_word_length=100
    )
    rows = (
        tf.data.Dataset.from_tensor_slices(lines)
        .batch(BATCH)
        .cache()
        .map(tokenizer, num_parallel_calls=len(os.sched_getaffinity(0)))
    )
    return (lambda: list(rows)), megabytes


def tokenizers_tokenize(settings):
    from tokenizers import BertWordPieceTokenizer

    lines, megabytes = read_lines(settings["lines"])
    tokenizer = BertWordPieceTokenizer(settings["vocabulary"])

    def run():
        for start in range(0, len(lines), BATCH):
            batch = lines[start : start + BATCH]
            rows = tokenizer.encode_batch(batch, add_special_tokens=False)
            [row.ids for row in rows]

    return run, megabytes


def records(settings):
    """Make a token store of text, then its records of 128 tokens."""
    import bert_keras
    from bert_keras.data.building import build_stores
    from bert_keras.data.corpus import read_documents
    from bert_keras.data.sampling import SamplingRules
    from bert_keras.data.shards import write_records

    tokenizer = bert_keras.WordPieceTokenizer(settings["vocabulary"])
    documents, characters = [], 0
    for document in read_documents(settings["text"]):
        if characters >= settings["characters"]:
            break
        documents.append(document)
        characters += sum(map(len, document.paragraphs))

    def run():
        with tempfile.TemporaryDirectory() as folder:
            tokens = os.path.join(folder, "tokens")
            stores = build_stores(documents, tokenizer, tokens)
            path = os.path.join(folder, "records")
            write_records(stores["train"], path, SamplingRules(), 0)

    return run, characters / 1e6


def classify(settings):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers operations)

    served = tf.saved_model.load(settings["folder"])
    signature = served.signatures["classify"]

    def run(texts, served=served):  # keep `served` alive for `signature`
        answer = signature(text=tf.constant(texts))
        return answer["probabilities"].numpy()[0].tolist()

    return run, 1


def transformers_classify(settings):
    from transformers import pipeline

    folder = settings["folder"]
    pipe = pipeline("text-classification", model=folder, device="cpu")
    numbers = pipe.model.config.label2id

    def run(texts):
        rows = pipe(texts, batch_size=len(texts), top_k=None, truncation=True)
        first = sorted(rows[0], key=lambda entry: numbers[entry["label"]])
        return [entry["score"] for entry in first]

    return run, 1


def onnxruntime_classify(settings):
    """Classify by ONNX Runtime, with an export of `export_on_ids`."""
    import onnxruntime
    from tokenizers import BertWordPieceTokenizer

    folder = settings["folder"]
    with open(os.path.join(folder, "tokenizer_settings.json")) as file:
        text = json.load(file)
    tokenizer = BertWordPieceTokenizer(
        os.path.join(folder, "vocab.txt"), lowercase=text["lowercase"]
    )
    tokenizer.enable_padding(pad_id=text["ids"]["pad"])
    tokenizer.enable_truncation(text["sequence_length"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    session = onnxruntime.InferenceSession(
        os.path.join(folder, "model.onnx"),
        options,
        providers=["CPUExecutionProvider"],
    )

    def run(texts):
        rows = tokenizer.encode_batch(texts)
        inputs = {
            "token_ids": [row.ids for row in rows],
            "segment_ids": [row.type_ids for row in rows],
            "padding_mask": [row.attention_mask for row in rows],
        }
        inputs = {name: np.array(v, "int32") for name, v in inputs.items()}
        (logits,) = session.run(None, inputs)
        shifted = np.exp(logits - logits.max(-1, keepdims=True))
        return (shifted / shifted.sum(-1, keepdims=True))[0].tolist()

    return run, 1
