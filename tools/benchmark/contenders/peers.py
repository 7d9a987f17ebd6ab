"""The rivals as contenders; each function needs the packages of its own only.

keras-hub, Model Garden (tf-models-official), transformers on PyTorch, and ONNX
Runtime with the `tokenizers` package.
"""

import json
import os
import random

import numpy as np
from worker import (
    SIZES,
    TEXT,
    VOCABULARY,
    dense_rows,
    peak_megabytes,
    pretraining_batch,
)

# Our name of a column of rows -> the name that transformers' models take.
NAMES = {
    "token_ids": "input_ids",
    "segment_ids": "token_type_ids",
    "labels": "labels",
    "start": "start_positions",
    "end": "end_positions",
}


def keras_hub_step(settings):
    """Its BERT backbone and masked-LM head, by `train_on_batch`.

    It has no next-sentence head: a dense layer stands in for it.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import keras_hub
    import tensorflow as tf

    keras.config.set_dtype_policy(settings["dtype"])
    layers, width, heads = SIZES[settings["size"]]
    backbone = keras_hub.models.BertBackbone(
        VOCABULARY,
        layers,
        heads,
        width,
        4 * width,
        dropout=settings["dropout"],
        max_sequence_length=512,
    )
    places = keras.Input((None,), dtype="int32", name="mask_positions")
    mlm = keras_hub.layers.MaskedLMHead(
        vocabulary_size=VOCABULARY,
        token_embedding=backbone.token_embedding,
        intermediate_activation="gelu",
    )(backbone.output["sequence_output"], mask_positions=places)
    nsp = keras.layers.Dense(2, dtype="float32")
    model = keras.Model(
        {**backbone.input, "mask_positions": places},
        {"mlm": mlm, "nsp": nsp(backbone.output["pooled_output"])},
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.AdamW(1e-4, global_clipnorm=1.0),
        {"mlm": loss, "nsp": loss},
        jit_compile=settings.get("jit", False),
    )
    x, y = tf.nest.map_structure(tf.constant, dense_rows(settings))
    return (lambda: model.train_on_batch(x, y)), settings["batch"]


def keras_hub_load(settings):
    """A backbone from a Hugging Face folder, and one short row."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras_hub
    import tensorflow as tf

    tf.zeros(3) + 1  # starts the runtime
    keras_hub.models.BertBackbone  # noqa: B018
    before = peak_megabytes()

    def run():
        backbone = keras_hub.models.BertBackbone.from_preset(settings["base"])
        ids = tf.constant([[1, 2]])
        names = ("token_ids", "segment_ids", "padding_mask")
        values = (ids, tf.zeros_like(ids), tf.ones_like(ids))
        backbone(dict(zip(names, values, strict=True)))

    return run, 1, {"megabytes_before": round(before)}


def keras_hub_first(settings):
    """A backbone's vectors of one text, by what was not imported before."""

    def run():
        os.environ["KERAS_BACKEND"] = "tensorflow"
        from keras_hub import models

        folder = settings["huggingface"]
        preprocess = models.BertTextClassifierPreprocessor.from_preset(
            folder, sequence_length=128
        )
        backbone = models.BertBackbone.from_preset(folder)
        backbone.predict(preprocess([TEXT]), verbose=0)

    return run, 1


def model_garden_step(settings):
    """One step of BertPretrainerV2 in one tf.function."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf
    import tf_keras
    from official.nlp.modeling import layers, models, networks

    tf_keras.mixed_precision.set_global_policy(settings["dtype"])
    number, width, heads = SIZES[settings["size"]]
    rate = settings["dropout"]
    encoder = networks.BertEncoderV2(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_layers=number,
        num_attention_heads=heads,
        inner_dim=4 * width,
        output_dropout=rate,
        attention_dropout=rate,
    )
    head = layers.ClassificationHead(
        inner_dim=width, num_classes=2, name="next_sentence", dropout_rate=rate
    )
    model = models.BertPretrainerV2(encoder, classification_heads=[head])
    optimizer = tf_keras.optimizers.AdamW(1e-4, global_clipnorm=1.0)
    batch = tf.nest.map_structure(tf.constant, pretraining_batch(settings))
    x = {
        "input_word_ids": batch["input_ids"],
        "input_type_ids": batch["segment_ids"],
        "input_mask": batch["input_mask"],
        "masked_lm_positions": batch["masked_lm_positions"],
    }

    def loss(labels, logits):
        logits = tf.cast(logits, tf.float32)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        )

    @tf.function(jit_compile=settings.get("jit", False))
    def train():
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            total = loss(batch["masked_lm_ids"], outputs["mlm_logits"])
            total += loss(
                batch["next_sentence_labels"], outputs["next_sentence"]
            )
        gradients = tape.gradient(total, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.apply_gradients(pairs)
        return total

    model(x)
    optimizer.build(model.trainable_variables)
    return (lambda: train().numpy()), settings["batch"]


def transformers_step(settings):
    """One step of BertForPreTraining, eager or compiled.

    It has no gather: vocabulary logits are computed at every position.
    """
    import torch
    from transformers import BertConfig, BertForPreTraining

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
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    forward = torch.compile(model) if settings.get("jit") else model
    batch = pretraining_batch(settings)
    batch = {k: torch.from_numpy(v).long() for k, v in batch.items()}
    labels = torch.full_like(batch["input_ids"], -100)
    labels.scatter_(1, batch["masked_lm_positions"], batch["masked_lm_ids"])
    half = settings["dtype"] == "mixed_bfloat16"

    def train():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            outputs = forward(
                input_ids=batch["input_ids"],
                token_type_ids=batch["segment_ids"],
                attention_mask=batch["input_mask"],
                labels=labels,
                next_sentence_label=batch["next_sentence_labels"],
            )
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return train, settings["batch"]


def batch_rows(rows):
    """Return a batch of rows, padded to the longest, as transformers takes."""
    import torch

    width = max(len(row["input_ids"]) for row in rows)
    batch = {
        name: torch.tensor(
            [row[name] + [0] * (width - len(row[name])) for row in rows]
        )
        for name in ("input_ids", "token_type_ids")
    }
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    batch["attention_mask"] = (torch.arange(width) < lengths[:, None]).long()
    for name in ("labels", "start_positions", "end_positions"):
        if name in rows[0]:
            batch[name] = torch.tensor([row[name] for row in rows])
    return batch


def transformers_finetune(settings):
    """Steps on the same rows, padded to the longest of a batch.

    Batches are drawn at random, which is its default; or with "grouped", rows
    of like length, as its `Trainer` makes them by `group_by_length`: it sorts
    50 batches at a time, here all there are.
    """
    import torch
    import transformers

    with open(settings["file"], encoding="utf-8") as file:
        columns = {NAMES[k]: values for k, values in json.load(file).items()}
    rows = [
        dict(zip(columns, values, strict=True))
        for values in zip(*columns.values(), strict=True)
    ]
    kind = "SequenceClassification"
    if "start_positions" in columns:
        kind = "QuestionAnswering"
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
        settings["init"]
    )
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5, fused=True)
    size, steps = settings["batch"], settings["steps"]
    rows = random.Random(0).sample(rows, len(rows))
    if settings.get("grouped"):
        rows.sort(key=lambda row: -len(row["input_ids"]))
    batches = [
        rows[begin : begin + size] for begin in range(0, steps * size, size)
    ]

    def run():
        for chosen in batches:
            optimizer.zero_grad()
            model(**batch_rows(chosen)).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return run, steps * size


def transformers_classify(settings):
    """Texts to the first one's probabilities, by its pipeline."""
    from transformers import pipeline

    folder = settings["folder"]
    pipe = pipeline("text-classification", model=folder, device="cpu")
    numbers = pipe.model.config.label2id

    def run(texts):
        rows = pipe(texts, batch_size=len(texts), top_k=None, truncation=True)
        first = sorted(rows[0], key=lambda entry: numbers[entry["label"]])
        return [entry["score"] for entry in first]

    return run, 1


def transformers_load(settings):
    """A model from a Hugging Face folder, and one short row."""
    import torch
    from transformers import BertModel

    torch.zeros(3) + 1  # starts the runtime
    before = peak_megabytes()

    def run():
        model = BertModel.from_pretrained(settings["base"])
        with torch.no_grad():
            model(torch.tensor([[1, 2]]))

    return run, 1, {"megabytes_before": round(before)}


def transformers_first(settings):
    """A model's vectors of one text, by what was not imported before."""

    def run():
        import torch
        from transformers import AutoModel, AutoTokenizer

        folder = settings["huggingface"]
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModel.from_pretrained(folder)
        with torch.no_grad():
            model(**tokenizer([TEXT], return_tensors="pt"))

    return run, 1


def onnxruntime_classify(settings):
    """Texts to the first one's probabilities, from tools/export.py's files."""
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
