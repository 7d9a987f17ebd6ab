"""What pre-training takes before it starts: time, memory, disk.

First plain arithmetic on sizes and rates, then rates measured on this machine,
then the plan of a run on its data (`--dry_run`). docs/cost.md says where each
formula comes from, and how far it is from runs that were published.
"""

import tempfile
import time
from typing import NamedTuple

import numpy as np

import bert_keras
from bert_keras.data.building import build_stores
from bert_keras.data.corpus import read_documents
from bert_keras.errors import InputError
from bert_keras.text.vocabulary import read_vocabulary
from official_tasks.pretraining.settings import model_sizes, phases

# Operations of a training step in forward passes: backward takes two.
PASSES = 3
# Share of the peak that published runs of BERT reach: see docs/cost.md.
UTILISATION = 0.35
PACKED_FILL = 0.98  # share of a packed row that holds tokens
# Pieces of English text with a vocabulary of 8,000 to 30,000: 4.5 bytes each.
BYTES_PER_TOKEN = 4.5
# A token store: two bytes a token and eight a sentence, of 16 tokens each.
STORE_BYTES_PER_TOKEN = 2.5
GB = 1e9
HOUR = 3600
STEPS = 3  # timed at a time
CORPUS_SAMPLE = 2_000_000  # characters of the corpus from which tokens are made


class Model(NamedTuple):
    """The sizes that decide the cost of a model, as `BertEncoder` takes."""

    num_layers: int
    hidden_dim: int
    num_heads: int
    intermediate_dim: int
    vocabulary_size: int = 30522
    max_sequence_length: int = 512
    num_segments: int = 2

    @property
    def layer_weights(self):
        """Numbers in the matrices of one layer."""
        return self.hidden_dim * (
            4 * self.hidden_dim + 2 * self.intermediate_dim
        )

    @property
    def parameters(self):
        """All weights of `BertPretrainer`."""
        width, inner = self.hidden_dim, self.intermediate_dim
        tables = (
            self.vocabulary_size + self.max_sequence_length + self.num_segments
        )
        # Biases of four projections and two more, two normalisations.
        layer = self.layer_weights + 4 * width + inner + width + 4 * width
        pooler = width * width + width
        heads = width * width + 3 * width + self.vocabulary_size + 2 * width + 2
        return (tables + 2) * width + self.num_layers * layer + pooler + heads


class Device(NamedTuple):
    """One device: its peak in operations a second (dense, half precision,
    as its maker states it) and its memory in bytes."""

    flops: float
    memory: float


# A TPU counts by the chip; a Cloud TPU v2 or v3 board has four.
DEVICES = {
    "v100": Device(125e12, 32 * GB),
    "a100": Device(312e12, 80 * GB),
    "h100": Device(989e12, 80 * GB),
    "h200": Device(989e12, 141 * GB),
    "tpu-v2": Device(45e12, 16 * GB),
    "tpu-v3": Device(123e12, 32 * GB),
    "tpu-v4": Device(275e12, 32 * GB),
}


def sequence_flops(model, length, predictions):
    """Operations of training on one sequence, forwards and backwards.

    Args:
        model: `Model`.
        length: its tokens, padding included.
        predictions: places whose piece is predicted; `length` for a
            directional model.
    """
    width = model.hidden_dim
    layer = 2 * length * model.layer_weights + 4 * length**2 * width
    head = 2 * predictions * width * (width + model.vocabulary_size)
    return PASSES * (model.num_layers * layer + head + 2 * width**2)


def activation_bytes(model, length, half):
    """What back-propagation keeps of one sequence.

    34 bytes for each number of a layer's width and 5 for each score of its
    attention, in half precision (Korthikanti et al. 2022, equation 2); twice
    that in float32.
    """
    layer = 34 * length * model.hidden_dim + 5 * model.num_heads * length**2
    return (1 if half else 2) * model.num_layers * layer


def memory_bytes(model, length, predictions, batch, half=True):
    """Memory of a device: weights, gradients, moments, activations, logits.

    Args:
        batch: sequences on the device at a time.
        half: computes in half precision; weights are float32 either way.
    """
    logits = 2 * 4 * predictions * model.vocabulary_size
    return 16 * model.parameters + batch * (
        activation_bytes(model, length, half) + logits
    )


def record_bytes(length, predictions):
    """Disk of one example as a record: ids of two bytes, two flags of one,
    seven bytes a prediction, names and frame."""
    return 4 * length + 7 * predictions + 203


def run_bytes(parameters):
    """Disk of a run: weights and two moments in two checkpoints and one being
    written; and the model."""
    return (12 * 3 + 4) * parameters


def device_named(name):
    """The `Device` of a name in `DEVICES`."""
    if name not in DEVICES:
        raise InputError(
            f"There is no device {name!r}. Expected one of "
            f"{', '.join(DEVICES)}; any other by --flops, and --memory_gb."
        )
    return DEVICES[name]


class Machine(NamedTuple):
    """The devices of a run.

    devices: how many, of this peak `flops` (operations a second) and of
        this `memory` (bytes).
    utilisation: share of the peak that is reached.
    sequences_per_second: of one device in each phase, where it is known;
        in place of `flops` and `utilisation`.
    """

    devices: int
    flops: float
    memory: float
    utilisation: float = UTILISATION
    sequences_per_second: tuple[float, ...] | None = None


def model_of(settings, vocabulary_size):
    """The `Model` that the settings of a pre-training run name."""
    return Model(
        **model_sizes(settings),
        vocabulary_size=vocabulary_size,
        max_sequence_length=max(512, settings.longest),
    )


def predictions_of(settings, phase):
    """Places of a row whose piece is predicted."""
    if settings.objectives in ("left_to_right", "right_to_left"):
        return phase.sequence_length
    return phase.max_predictions


def phase_costs(settings, model, machine, padding=0.0) -> list[dict]:
    """What each phase takes.

    Args:
        padding: share of the places that hold no token when each sequence
            has a row of its own; packing fills them.

    Returns:
        list of dict: "length", "rows", "flops", "seconds"; of a device:
        "batch" (rows), "memory" (bytes) and "accumulation", the fewest equal
        micro-batches that fit into it, None where no row does.
    """
    costs = []
    rates = machine.sequences_per_second
    for place, phase in enumerate(phases(settings)):
        length, predictions = (
            phase.sequence_length,
            predictions_of(settings, phase),
        )
        rows = (phase.last - phase.first) * phase.batch_size
        if settings.packed:
            rows *= (1 - padding) / PACKED_FILL
        work = rows * sequence_flops(model, length, predictions)
        if rates is None:
            seconds = work / (machine.flops * machine.utilisation)
        else:
            seconds = rows / rates[min(place, len(rates) - 1)]
        batch = -(-phase.batch_size // machine.devices)
        half = settings.dtype != "float32"

        def need(count, work=(model, length, predictions), half=half):
            return memory_bytes(*work, count, half)

        divisors = (n for n in range(1, batch + 1) if batch % n == 0)
        fitting = (n for n in divisors if need(batch // n) <= machine.memory)
        accumulation = next(fitting, None)
        costs.append(
            {
                "length": length,
                "rows": rows,
                "flops": work,
                "seconds": seconds / machine.devices,
                "batch": batch,
                "memory": need(batch // accumulation if accumulation else 1),
                "accumulation": accumulation,
            }
        )
    return costs


def format_bytes(count):
    """A number of bytes in the unit that suits it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if count < 1000 else f"{count:,.0f} TB"


def format_time(seconds):
    """Seconds in the unit that suits them."""
    for unit, size in (("days", 86400), ("hours", HOUR), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} seconds"


# Rates of this machine: training steps, and text to tokens.


def training_rate(settings, phase, vocabulary_size, batch=8, seconds=10.0):
    """Sequences a second of a phase, from steps on random tokens.

    Args:
        settings, phase: of pre-training.
        batch: sequences of a step.
        seconds: how long to measure at least.
    """
    import keras
    import tensorflow as tf

    from official_tasks.pretraining.model import OBJECTIVES, new_model

    objective = OBJECTIVES[settings.objectives]
    keras.utils.set_random_seed(0)
    model = new_model(settings, objective, vocabulary_size)
    objective.prepare(model)
    model.compile(
        bert_keras.adamw(1e-4, steps=1000),
        objective.losses(),
        weighted_metrics=objective.metrics(),
    )
    element = _random_batch(phase, vocabulary_size, batch)
    element = tf.nest.map_structure(tf.constant, element)
    data = tf.data.Dataset.from_tensors(objective.element(*element)).repeat()
    model.fit(data, steps_per_epoch=1, verbose=0)  # traces the graph
    done, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        model.fit(data, steps_per_epoch=STEPS, verbose=0)
        done += STEPS
    return done * batch / (time.monotonic() - began)


def _random_batch(phase, vocabulary_size, batch):
    """Random tokens in the form of the pre-training pipeline."""
    random = np.random.default_rng(0)
    shape = (batch, phase.sequence_length)  # (B, T)
    masks = (batch, phase.max_predictions)  # (B, M)

    def integers(low, high, shape):
        return random.integers(low, high, shape, "int32")

    x = {
        "token_ids": integers(5, vocabulary_size, shape),
        "segment_ids": np.zeros(shape, "int32"),
        "padding_mask": np.ones(shape, "int32"),
        "mask_positions": integers(1, shape[1], masks),
    }
    y = {
        "mlm": integers(5, vocabulary_size, masks),
        "nsp": integers(0, 2, batch),
    }
    return x, y, {k: np.ones(v.shape, "float32") for k, v in y.items()}


def text_rate(corpus, vocabulary) -> tuple[float, float]:
    """Tokens a second that one core makes of a corpus, and bytes a token.

    Builds the token store of the first two million characters.

    Args:
        corpus: for `read_documents`.
        vocabulary: path of a vocabulary.
    """
    from bert_keras import WordPieceTokenizer

    documents, characters, size = [], 0, 0
    for document in read_documents(corpus):
        documents.append(document)
        characters += sum(map(len, document.paragraphs))
        size += sum(len(text.encode()) for text in document.paragraphs)
        if characters > CORPUS_SAMPLE and len(documents) > 1:
            break
    tokenizer = WordPieceTokenizer(read_vocabulary(vocabulary))
    with tempfile.TemporaryDirectory() as folder:
        # A process's clock leaves out what others take of a shared core.
        began = time.process_time()
        stores = build_stores(documents, tokenizer, f"{folder}/tokens")
        seconds = time.process_time() - began
        tokens = stores["train"].manifest["tokens"]
    return tokens / seconds, size / tokens
