"""Every task model, trained for a few dozen steps on real data.

From all-MiniLM-L6-v2 and the folders of BERT_KERAS_DATA; what a model learns
in so few steps is far from its best, and as good for serving it.
"""

import csv
import json
import os

import keras
import numpy as np

import bert_keras
from bert_keras.modeling.pretrainer import pretraining_losses
from bert_keras.modeling.span import span_losses

LENGTH, BATCH = 128, 16
HOME = os.environ.get("BERT_KERAS_DATA", "")
PRESET = os.path.join(HOME, "weights", "all-MiniLM-L6-v2")


def data(*path):
    return os.path.join(HOME, "data", *path)


def preprocessor(length=LENGTH):
    return bert_keras.BertPreprocessor.from_preset(
        PRESET, sequence_length=length
    )


def fitted(model, loss, inputs, targets, steps, weights=None, rate=1e-4):
    model.compile(bert_keras.adamw(rate, steps=steps), loss)
    rows = steps * BATCH

    def cut(values):
        if isinstance(values, dict):
            return {name: np.asarray(v)[:rows] for name, v in values.items()}
        return None if values is None else np.asarray(values)[:rows]

    model.fit(
        cut(inputs), cut(targets), BATCH, sample_weight=cut(weights), verbose=0
    )
    return model


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sentiments(split="train", rows=1000):
    with open(data("glue", "SST-2", f"{split}.tsv"), encoding="utf-8") as file:
        lines = file.read().splitlines()[1 : rows + 1]
    texts, labels = zip(*(line.rsplit("\t", 1) for line in lines), strict=True)
    return list(texts), [int(label) for label in labels]


def classifier(steps=100):
    texts, labels = sentiments(rows=steps * BATCH)
    model = bert_keras.BertClassifier.from_preset(
        PRESET, labels=["negative", "positive"]
    )
    inputs = preprocessor(64)(texts)
    return fitted(model, cross_entropy(), inputs, labels, steps)


def questions():
    """(question, context, first character, one after the last)."""
    stem = data("squad", "train-v1.1.subset4000")
    with open(f"{stem}.ambiguous_start_ids.txt", encoding="utf-8") as file:
        guessed = set(file.read().split())
    with open(f"{stem}.json", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    for article in articles:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                if asked["id"] in guessed:
                    continue
                answer = asked["answers"][0]
                begin = answer["answer_start"]
                end = begin + len(answer["text"])
                yield asked["question"], paragraph["context"], begin, end


def span_predictor(steps=12):
    preprocess = preprocessor()
    tokenizer = preprocess.tokenizer
    kept, starts, ends = [], [], []
    for question, context, begin, end in questions():
        before = len(tokenizer(question)) + 2
        _, first, after = (
            np.array(x) for x in tokenizer.tokenize_with_offsets(context)
        )
        start = before + int(np.searchsorted(after, begin, "right"))
        stop = before + int(np.searchsorted(after, end, "left"))
        if stop < LENGTH - 1:
            kept.append((question, context))
            starts.append(start)
            ends.append(stop)
        if len(kept) == steps * BATCH:
            break
    inputs = preprocess(tuple(map(list, zip(*kept, strict=True))))
    model = bert_keras.BertSpanPredictor.from_preset(PRESET)
    targets = {"start": starts, "end": ends}
    return fitted(model, span_losses(), inputs, targets, steps)


def tagged_sentences(rows):
    words, tags = [], []
    with open(data("wikiann_en", "train"), encoding="utf-8") as file:
        for line in file:
            if not line.strip():
                if words:
                    yield words, tags
                    rows -= 1
                words, tags = [], []
                if not rows:
                    return
                continue
            word, tag = line.rstrip("\n").split("\t")[:2]
            words.append(word.removeprefix("en:"))
            tags.append(tag)


def tagger(steps=60):
    kinds = ["LOC", "ORG", "PER"]
    labels = ["O", *[f"{p}-{k}" for k in kinds for p in "BI"]]
    preprocess = preprocessor(64)
    tokenizer = preprocess.tokenizer
    sentences = list(tagged_sentences(steps * BATCH))
    inputs = preprocess([" ".join(words) for words, _ in sentences])
    targets = np.zeros((len(sentences), 64), "int32")
    weights = np.zeros((len(sentences), 64), "float32")
    for row, (words, tags) in enumerate(sentences):
        place = 1
        for word, tag in zip(words, tags, strict=True):
            length = len(tokenizer(word))
            if length and place < 63:
                targets[row, place] = labels.index(tag)
                weights[row, place] = 1.0
            place += length
    model = bert_keras.BertTagger.from_preset(PRESET, labels=labels)
    return fitted(model, cross_entropy(), inputs, targets, steps, weights, 5e-4)


def chooser(steps=5):
    path = data("multiple_choice", "cosmosqa")
    name = next(n for n in sorted(os.listdir(path)) if n.endswith(".csv"))
    prompts, choices, labels = [], [], []
    with open(os.path.join(path, name), encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            prompts += [f"{row['context']} {row['question']}"] * 4
            choices += [row[f"answer{i}"] for i in range(4)]
            labels.append(int(row["label"]))
            if len(labels) == steps * BATCH:
                break
    rows = preprocessor(64)((prompts, choices))
    inputs = {k: np.reshape(v, (-1, 4, 64)) for k, v in rows.items()}
    model = bert_keras.BertChooser.from_preset(PRESET)
    return fitted(model, cross_entropy(), inputs, labels, steps)


def pretrainer(steps=12):
    """Sentences of SST-2 with a tenth of the words masked; every other pair
    is of the same line."""
    texts, _ = sentiments(rows=steps * BATCH)
    draw = np.random.default_rng(0)
    halves = [text.split() for text in texts]
    first = [" ".join(words[: len(words) // 2]) for words in halves]
    second = [" ".join(words[len(words) // 2 :]) for words in halves]
    is_random = np.arange(len(texts)) % 2
    other = np.where(
        is_random, np.arange(len(texts)) // 2, np.arange(len(texts))
    )
    preprocess = preprocessor(64)
    rows = preprocess((first, [second[i] for i in other]))
    inputs = {name: np.array(value) for name, value in rows.items()}
    lengths = inputs["padding_mask"].sum(axis=1)
    places = draw.integers(
        1, np.maximum(lengths - 1, 2)[:, None], (len(texts), 3)
    )
    ids = np.take_along_axis(inputs["token_ids"], places, axis=1)
    mask = preprocess.tokenizer.mask_id
    np.put_along_axis(inputs["token_ids"], places, mask, axis=1)
    inputs["mask_positions"] = places.astype("int32")
    model = bert_keras.BertPretrainer.from_preset(PRESET)
    targets = {"mlm": ids, "nsp": is_random}
    return fitted(model, pretraining_losses(), inputs, targets, steps)


def all_models():
    """What together answers every signature."""
    return [classifier(), span_predictor(), tagger(), chooser(), pretrainer()]


def pairs(task, columns, rows):
    """The columns of so many rows of a GLUE task of pairs, by their places."""
    path = data("glue", task, "train.tsv")
    with open(path, encoding="utf-8-sig") as file:
        lines = file.read().splitlines()[1 : rows + 1]
    fields = [line.split("\t") for line in lines]
    return [[row[i] for row in fields] for i in columns]


def pair_classifier(steps=10):
    """Whether two sentences say the same (MRPC)."""
    label, *texts = pairs("MRPC", (0, 3, 4), steps * BATCH)
    model = bert_keras.BertClassifier.from_preset(
        PRESET, labels=["different", "same"]
    )
    inputs = preprocessor()(tuple(texts))
    return fitted(model, cross_entropy(), inputs, list(map(int, label)), steps)


def scorer(steps=80):
    """How alike two sentences are, from 0 to 5 (STS-B)."""
    *texts, score = pairs("STS-B", (7, 8, 9), steps * BATCH)
    model = bert_keras.BertClassifier.from_preset(PRESET, problem="regression")
    inputs, targets = preprocessor(64)(tuple(texts)), list(map(float, score))
    return fitted(
        model, keras.losses.MeanSquaredError(), inputs, targets, steps
    )


def several_labels(steps=60):
    """Which kinds of entity a sentence names (WikiANN)."""
    kinds = ["LOC", "ORG", "PER"]
    words, tags = zip(*tagged_sentences(steps * BATCH), strict=True)
    texts = [" ".join(row) for row in words]
    targets = [[float(f"B-{k}" in row) for k in kinds] for row in tags]
    model = bert_keras.BertClassifier.from_preset(
        PRESET, labels=kinds, problem="multi"
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return fitted(
        model, loss, preprocessor(64)(texts), targets, steps, rate=5e-4
    )
