"""The jobs of other libraries; each imports only what it needs.

keras-hub, transformers on PyTorch, ONNX Runtime with the `tokenizers` package;
and any command.
"""

import json
import os
import subprocess
import sys

import numpy as np
from worker import SIZES, VOCABULARY, dense_rows


def command(settings):
    """Run `python` with the arguments "words" in this environment."""
    words = [sys.executable, *settings["words"]]

    def run():
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-800:])

    return run, 1


def keras_hub_step(settings):
    """Train its BERT backbone and masked-LM head by `train_on_batch`.

    It has no next-sentence head: a dense layer stands in for it.
    """
    import keras
    import keras_hub
    import tensorflow as tf

    keras.config.set_dtype_policy(settings["dtype"])
    layers, width, heads = SIZES[settings["size"]]
    backbone = keras_hub.models.BertBackbone(
        *(VOCABULARY, layers, heads, width, 4 * width),
        dropout=settings["dropout"],
    )
    positions = keras.Input((None,), dtype="int32", name="mask_positions")
    mlm = keras_hub.layers.MaskedLMHead(
        vocabulary_size=VOCABULARY,
        token_embedding=backbone.token_embedding,
        intermediate_activation="gelu",
    )(backbone.output["sequence_output"], mask_positions=positions)
    nsp = keras.layers.Dense(2, dtype="float32")
    model = keras.Model(
        {**backbone.input, "mask_positions": positions},
        {"mlm": mlm, "nsp": nsp(backbone.output["pooled_output"])},
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.AdamW(1e-4, global_clipnorm=1.0),
        {"mlm": loss, "nsp": loss},
    )
    x, y = tf.nest.map_structure(tf.constant, dense_rows(settings))
    return (lambda: model.train_on_batch(x, y)), settings["batch"]


def transformers_step(settings):
    """Train BertForPreTraining, eager or compiled.

    It has no gather: vocabulary logits are computed at every position.
    """
    import torch
    from transformers import BertConfig, BertForPreTraining

    device = choose_device()
    layers, width, heads = SIZES[settings["size"]]
    rate = settings["dropout"]
    model = BertForPreTraining(
        BertConfig(
            vocab_size=VOCABULARY,
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            hidden_dropout_prob=rate,
            attention_probs_dropout_prob=rate,
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
        synchronize()

    return train, settings["batch"]


def choose_device():
    """Return "cuda" where PyTorch has it, else "cpu"."""
    import torch

    # The other backends multiply float32 in TF32 on a GPU.
    torch.set_float32_matmul_precision("high")
    return "cuda" if torch.cuda.is_available() else "cpu"


def synchronize():
    """Wait for the GPU, where there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def transformers_classify(settings):
    """Classify by the pipeline of transformers."""
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
    """Classify by ONNX Runtime, from files of tools/export.py."""
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
