"""Rates of the machine at hand: training steps, and text to tokens."""

import tempfile
import time

import numpy as np

STEPS = 3  # timed at a time
SAMPLE = 2_000_000  # characters of the corpus from which tokens are made


def training_rate(settings, phase, vocabulary_size, batch=8, seconds=10.0):
    """Sequences a second of a phase, from steps on random tokens.

    Args:
        settings, phase: of pre-training.
        batch: sequences of a step.
        seconds: how long to measure at least.
    """
    import keras
    import tensorflow as tf

    import bert_keras
    from official_tasks.pretraining_model import new_model
    from official_tasks.pretraining_objectives import OBJECTIVES

    objective = OBJECTIVES[settings.objectives]
    keras.utils.set_random_seed(0)
    model = new_model(settings, objective, range(vocabulary_size))
    objective.prepare(model)
    model.compile(
        bert_keras.adamw(1e-4, steps=1000),
        objective.losses(),
        weighted_metrics=objective.metrics(),
    )
    element = objective.element(*_batch(phase, vocabulary_size, batch))
    data = tf.data.Dataset.from_tensors(element).repeat()
    model.fit(data, steps_per_epoch=1, verbose=0)  # traces the graph
    done, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        model.fit(data, steps_per_epoch=STEPS, verbose=0)
        done += STEPS
    return done * batch / (time.monotonic() - began)


def _batch(phase, vocabulary_size, batch):
    """Random tokens in the form of the pre-training pipeline."""
    import tensorflow as tf

    random = np.random.default_rng(0)
    shape = (batch, phase.sequence_length)
    masks = (batch, phase.max_predictions)
    ids = random.integers(5, vocabulary_size, shape)
    x = {
        "token_ids": ids,
        "segment_ids": np.zeros(shape),
        "padding_mask": np.ones(shape),
        "mask_positions": random.integers(1, shape[1], masks),
    }
    y = {
        "mlm": random.integers(5, vocabulary_size, masks),
        "nsp": random.integers(0, 2, batch),
    }
    w = {"mlm": np.ones(masks), "nsp": np.ones(batch)}
    return (
        {k: tf.constant(v, tf.int32) for k, v in x.items()},
        {k: tf.constant(v, tf.int32) for k, v in y.items()},
        {k: tf.constant(v, tf.float32) for k, v in w.items()},
    )


def text_rate(corpus, vocabulary) -> tuple[float, float]:
    """Tokens a second that one core makes of a corpus, and bytes a token.

    Builds the token store of the first two million characters.

    Args:
        corpus: for `read_documents`.
        vocabulary: path of a vocabulary.
    """
    from bert_keras import WordPieceTokenizer
    from bert_keras.data.building import build_stores
    from bert_keras.text.vocabulary import read_vocabulary

    documents, size = _sample(corpus)
    tokenizer = WordPieceTokenizer(read_vocabulary(vocabulary))
    with tempfile.TemporaryDirectory() as folder:
        # A process's clock leaves out what others take of a shared core.
        began = time.process_time()
        stores = build_stores(documents, tokenizer, f"{folder}/tokens")
        seconds = time.process_time() - began
        tokens = stores["train"].manifest["tokens"]
    return tokens / seconds, size / tokens


def _sample(corpus):
    from bert_keras.data.corpus import read_documents

    documents, characters, size = [], 0, 0
    for document in read_documents(corpus):
        documents.append(document)
        characters += sum(map(len, document.paragraphs))
        size += sum(len(text.encode()) for text in document.paragraphs)
        if characters > SAMPLE and len(documents) > 1:
            break
    return documents, size
