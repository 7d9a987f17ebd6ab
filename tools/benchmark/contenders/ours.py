"""This package as a contender, and the limit of its steps."""

import itertools
import json
import os
import sys

import numpy as np
from worker import SIZES, TEXT, VOCABULARY, dense_rows, peak_megabytes


def step(settings):
    """One pre-training step by `train_on_batch`."""
    import tensorflow as tf

    model = pretrainer(settings)
    x, y = tf.nest.map_structure(tf.constant, dense_rows(settings))
    return (lambda: model.train_on_batch(x, y)), settings["batch"]


def packed_step(settings):
    """One pre-training step of rows that hold several examples."""
    import tensorflow as tf

    batch, examples, per_row = packed_rows(settings)
    model = pretrainer(settings, per_row)
    batch = tf.nest.map_structure(tf.constant, batch)
    return (lambda: model.train_on_batch(*batch)), examples


def fit(settings):
    """Some pre-training steps of `fit`, on any backend and devices.

    Unlike one step of `train_on_batch`, `fit` feeds a strategy's replicas and
    leaves the device no pause between the steps.
    """
    os.environ["KERAS_BACKEND"] = settings["backend"]
    if settings.get("cpu_devices", 1) > 1:
        import tensorflow as tf

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * settings["cpu_devices"],
        )
    from bert_keras.training.strategy import make_strategy

    strategy = make_strategy(settings["distribution"])
    settings["batch"] *= strategy.num_replicas
    batch, examples, per_row = dense_rows(settings), settings["batch"], None
    if "lengths" in settings:
        batch, examples, per_row = packed_rows(settings)
    # Under a strategy Keras compiles nothing; our step then does it itself.
    jit = settings["jit"] if strategy.name == "off" else "auto"
    with strategy.scope():
        model = pretrainer(settings, per_row, jit=jit)
    steps = settings["steps"]

    def run():
        data = _repeated(batch, strategy)
        model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0)

    facts = {"device": _device(), "replicas": strategy.num_replicas}
    return run, steps * examples, facts


def finetune(settings):
    """Some fine-tuning steps on rows of their natural lengths."""
    import keras

    import bert_keras
    from bert_keras.modeling.task_models import span_losses
    from official_tasks.engine.batches import training_batches

    encoded, steps = _encoded(settings["file"]), settings["steps"]
    encoder = bert_keras.BertEncoder.from_preset(
        settings["init"], dtype=settings["dtype"]
    )
    if isinstance(encoded.targets, dict):
        model, loss = bert_keras.BertSpanPredictor(encoder), span_losses()
    else:
        model = bert_keras.BertClassifier(encoder, labels=["0", "1"])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(bert_keras.adamw(2e-5, steps=10_000), loss, jit_compile=False)
    batches = training_batches(
        encoded, settings["batch"], 0, steps, length=settings.get("padded")
    )

    def run():
        model.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=0)

    return run, steps * settings["batch"]


def load(settings):
    """An encoder from a Hugging Face folder, and one short row."""
    import tensorflow as tf

    import bert_keras
    import bert_keras.interop.presets  # noqa: F401

    tf.zeros(3) + 1  # starts the runtime
    bert_keras.BertEncoder  # noqa: B018  (imports its module)
    before = peak_megabytes()

    def run():
        encoder = bert_keras.BertEncoder.from_preset(settings["base"])
        encoder({"token_ids": tf.constant([[1, 2]])})

    return run, 1, {"megabytes_before": round(before)}


def first(settings):
    """The vectors of one text, by what was not imported before."""

    def run():
        import bert_keras

        name = settings["mini"]
        preprocess = bert_keras.BertPreprocessor.from_preset(name)
        encoder = bert_keras.BertEncoder.from_preset(name)
        encoder.predict(preprocess([TEXT]), verbose=0)

    return run, 1


def first_served(settings):
    """The same by a SavedModel."""

    def run():
        import bert_keras

        bert_keras.load_saved_model(settings["served"]).embed([TEXT])

    return run, 1


def classify(settings):
    """Texts to the first one's probabilities, by an exported SavedModel."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers its operations)

    served = tf.saved_model.load(settings["folder"])
    signature = served.signatures["classify"]

    def run(texts, served=served):  # it must live as long as its signature
        answer = signature(text=tf.constant(texts))
        return answer["probabilities"].numpy()[0].tolist()

    return run, 1


def limit(settings):
    """The products of a step and nothing else, at their shapes.

    Forward and both backward products of every dense layer of the model, and
    those of attention, by TensorFlow's matrix product.
    """
    import tensorflow as tf

    half = settings["dtype"] == "mixed_bfloat16"
    dtype = tf.bfloat16 if half else tf.float32
    pairs = [
        (tf.random.normal((n, a, b)), tf.random.normal((n, b, c)), times)
        for n, a, b, c, times in products(settings)
    ]
    pairs = [(tf.cast(x, dtype), tf.cast(y, dtype), t) for x, y, t in pairs]

    @tf.function
    def multiply(x, y):
        if x.shape[0] == 1:
            return tf.matmul(x[0], y[0])
        return tf.matmul(x, y)

    def run():
        for x, y, times in pairs:
            for _ in range(times):
                result = multiply(x, y)
        return result.numpy()

    return run, settings["batch"]


def products(settings):
    """Lists of (batch, rows, inner, columns) and how often in a step."""
    layers, width, heads = SIZES[settings["size"]]
    batch, length = settings["batch"], settings["length"]
    tokens, masked = batch * length, batch * settings["predictions"]
    pieces, head = batch * heads, width // heads
    dense = [
        (1, tokens, width, 3 * width, layers),
        (1, tokens, width, width, layers),
        (1, tokens, width, 4 * width, layers),
        (1, tokens, 4 * width, width, layers),
        (1, masked, width, width, 1),
        (1, masked, width, VOCABULARY, 1),
        (pieces, length, head, length, layers),
        (pieces, length, length, head, layers),
    ]
    return [
        (*shape, times)
        for n, rows, inner, columns, times in dense
        for *shape, times in (
            (n, rows, inner, columns, times),
            (n, rows, columns, inner, times),
            (n, inner, rows, columns, times),
        )
    ]


def pretrainer(settings, examples_per_row=None, jit=None):
    """A `BertPretrainer` compiled with AdamW, by the settings of a row.

    Args:
        settings: "size", "dtype", "dropout" and, where it differs from it,
            "attention_dropout".
        examples_per_row: of packed rows; None for others.
        jit: Keras's `jit_compile`; that of the settings where None.
    """
    import bert_keras
    from bert_keras.modeling.pretrainer import pretraining_losses

    layers, width, heads = SIZES[settings["size"]]
    rate = settings["dropout"]
    encoder = bert_keras.BertEncoder(
        VOCABULARY,
        layers,
        heads,
        width,
        4 * width,
        dropout=rate,
        attention_dropout=settings.get("attention_dropout", rate),
        dtype=settings["dtype"],
    )
    model = bert_keras.BertPretrainer(encoder, examples_per_row)
    model.compile(
        bert_keras.adamw(1e-4, steps=1_000_000, bias_correction=True),
        pretraining_losses(),
        jit_compile=settings.get("jit", False) if jit is None else jit,
    )
    return model


def packed_rows(settings):
    """Examples of the lengths given, several to a row.

    Filled and masked as the pre-training pipeline does it.

    Returns:
        `((inputs, labels, weights), examples, examples_per_row)`: `examples`
        is the share of all examples that the rows stand for.
    """
    from bert_keras.data.examples import fill_rows, masked_rows
    from bert_keras.data.sampling import SamplingRules
    from bert_keras.text.masking import Pieces

    length, rows = settings["length"], settings["batch"]
    rules = SamplingRules(length, max(1, length * 15 // 100), packed=True)
    random = np.random.default_rng(0)
    lengths = np.asarray(settings["lengths"])
    order, row, filled = fill_rows(
        lengths, length, rules.examples_per_row, random
    )
    lengths = lengths[order]

    def examples(numbers, width):
        inside = np.arange(width) < lengths[numbers, None]  # (n, width)
        ids = random.integers(1000, VOCABULARY, inside.shape) * inside
        return {
            "token_ids": ids.astype("int32"),
            "segment_ids": np.zeros_like(ids, "int32"),
            "padding_mask": inside.astype("int32"),
            "next_sentence_labels": random.integers(0, 2, len(ids)),
        }

    special = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = Pieces([*special, *map(str, range(4, VOCABULARY))])
    packed = masked_rows(lengths, row, filled, examples, rules, pieces, random)
    # Evenly from all rows, and repeated where there are too few.
    chosen = np.linspace(0, filled, rows, endpoint=False).astype(int)
    packed = {name: values[chosen] for name, values in packed.items()}
    names = ("token_ids", "segment_ids", "padding_mask", "position_ids")
    x = {n: packed[n] for n in (*names, "example_ids", "mask_positions")}
    y = {"mlm": packed["mask_ids"], "nsp": packed["next_sentence_labels"]}
    w = {"mlm": packed["mask_weights"], "nsp": packed["example_weights"]}
    return (x, y, w), len(lengths) * rows / filled, rules.examples_per_row


def _encoded(path):
    """The rows of ids of a file that `inputs.py` wrote."""
    import tensorflow as tf

    from official_tasks.tasks.base import Encoded

    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    ids = tf.ragged.constant(rows.pop("token_ids"), dtype="int32")
    segments = tf.ragged.constant(rows.pop("segment_ids"), dtype="int32")
    inputs = {
        "token_ids": ids,
        "segment_ids": segments,
        "padding_mask": tf.ones_like(ids),
    }
    targets = {name: np.array(values) for name, values in rows.items()}
    return Encoded(inputs, targets.get("labels", targets))


def _repeated(batch, strategy):
    """One batch without end, as `fit` takes it; no TensorFlow for JAX."""
    if os.environ["KERAS_BACKEND"] == "jax":
        return (batch for _ in itertools.count())
    import tensorflow as tf

    from bert_keras.data.tf_data import untuned

    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    return strategy.batches(untuned(dataset))


def _device():
    """The name of what the steps run on."""
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        return jax.devices()[0].device_kind
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "cpu"
    return tf.config.experimental.get_device_details(gpus[0])["device_name"]


def fit_peak_megabytes():
    """Of one GPU, where there is one; else of this process."""
    if os.environ.get("KERAS_BACKEND") == "jax":
        import jax

        statistics = jax.devices()[0].memory_stats()
        if statistics:
            return statistics["peak_bytes_in_use"] / 2**20
    elif "tensorflow" in sys.modules:
        import tensorflow as tf

        if tf.config.list_physical_devices("GPU"):
            memory = tf.config.experimental.get_memory_info("GPU:0")
            return memory["peak"] / 2**20
    return peak_megabytes()
