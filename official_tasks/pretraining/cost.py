"""What a pre-training run takes before it starts: time, memory, disk, money."""

import tempfile
import time
from typing import NamedTuple

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from official_tasks.pretraining.model import compiled_model
from official_tasks.pretraining.settings import phases
from official_tasks.pretraining.source import PretrainingSource

# What pre-training takes: operations, time, memory, disk, money. Plain
# arithmetic on sizes and rates. docs/cost.md says where each formula comes
# from, and how far it is from runs that were published.

# Operations of a training step in forward passes: backward takes two.
PASSES = 3
# Share of the peak that published runs of BERT reach: see docs/cost.md.
UTILISATION = 0.35
# Pieces of English text with a vocabulary of 8,000 to 30,000: 4.5 bytes each.
BYTES_PER_TOKEN = 4.5
# A token store: two bytes a token and eight a sentence, of 16 tokens each.
STORE_BYTES_PER_TOKEN = 2.5
PACKED_FILL = 0.98  # share of a packed row that holds tokens
GB = 1e9


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


def rows_of_sequences(sequences, packed=False, padding=0.0):
    """How many rows of full length the sequences take.

    Args:
        padding: share of the places that hold no token when each sequence
            has a row of its own; packing fills them.
    """
    return sequences * (1 - padding) / PACKED_FILL if packed else sequences


def activation_bytes(model, length, half=True):
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


def store_bytes(tokens):
    """Disk of the token store, from which examples are drawn anew."""
    return STORE_BYTES_PER_TOKEN * tokens


def record_bytes(length, predictions):
    """Disk of one example as a record: ids of two bytes, two flags of one,
    seven bytes a prediction, names and frame."""
    return 4 * length + 7 * predictions + 163


def checkpoint_bytes(model):
    """Disk of a run: weights and two moments, twice and one under way, and
    the model alone."""
    return (12 * 3 + 4) * model.parameters


def device_named(name):
    """The `Device` of a name in `DEVICES`."""
    if name not in DEVICES:
        raise InputError(
            f"There is no device {name!r}. Expected one of "
            f"{', '.join(DEVICES)}; any other by --flops, and --memory_gb."
        )
    return DEVICES[name]


def told_bytes(count):
    """A number of bytes in the unit that suits it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if count < 1000 else f"{count:,.0f} TB"


def told_time(seconds):
    """Seconds in the unit that suits them."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} seconds"


# The cost of a pre-training run on a machine, as numbers and as lines.

HOUR = 3600


class Machine(NamedTuple):
    """What a run is carried out on.

    devices: how many, of this peak `flops` (operations a second) and of
        this `memory` (bytes).
    utilisation: share of the peak that is reached.
    sequences_per_second: of one device in each phase, where it is known;
        in place of `flops` and `utilisation`.
    price: of one device for an hour, in any currency.
    """

    devices: int
    flops: float
    memory: float
    utilisation: float = UTILISATION
    sequences_per_second: tuple[float, ...] | None = None
    price: float | None = None


class Corpus(NamedTuple):
    """Text of `size` bytes, made into tokens on `cores` cores.

    tokens_per_second: that one core makes of text; None where unknown.
    """

    size: float
    cores: int = 1
    tokens_per_second: float | None = None
    bytes_per_token: float = BYTES_PER_TOKEN

    @property
    def tokens(self):
        return self.size / self.bytes_per_token


def model_of(settings, vocabulary_size):
    """The `Model` that the settings of a pre-training run name."""
    from official_tasks.pretraining.model import sizes

    return Model(
        **sizes(settings),
        vocabulary_size=vocabulary_size,
        max_sequence_length=max(512, settings.longest),
    )


def predictions_of(settings, phase):
    """Places of a row whose piece is predicted."""
    if settings.objectives in ("left_to_right", "right_to_left"):
        return phase.sequence_length
    return phase.max_predictions


def phase_costs(settings, model, machine, padding=0.0) -> list[dict]:
    """Of each phase: "rows", "seconds" and, of a device, "memory"."""
    costs = []
    rates = machine.sequences_per_second
    for place, phase in enumerate(phases(settings)):
        length, predictions = (
            phase.sequence_length,
            predictions_of(settings, phase),
        )
        sequences = (phase.last - phase.first) * phase.batch_size
        rows = rows_of_sequences(sequences, settings.packed, padding)
        work = rows * sequence_flops(model, length, predictions)
        if rates is None:
            speed = machine.flops * machine.utilisation * machine.devices
            seconds = work / speed
        else:
            rate = rates[min(place, len(rates) - 1)]
            seconds = rows / (rate * machine.devices)
        batch = -(-phase.batch_size // machine.devices)
        half = settings.dtype != "float32"
        memory, parts = _fitting(
            machine.memory, model, length, predictions, batch, half
        )
        costs.append(
            {
                "length": length,
                "rows": rows,
                "flops": work,
                "seconds": seconds,
                "batch": batch,
                "memory": memory,
                "accumulation": parts,
            }
        )
    return costs


def _fitting(memory, model, length, predictions, batch, half):
    """Memory of a batch in as few equal parts as fit; None if none does."""

    def need(rows):
        return memory_bytes(model, length, predictions, rows, half)

    room = int(min(batch, (memory - need(0)) / (need(1) - need(0))))
    if room < 1:
        return need(1), None
    parts = -(-batch // room)
    while batch % parts:
        parts += 1
    return need(batch // parts), parts


def estimate(settings, model, machine, corpus=None, padding=0.0) -> dict:
    """All figures of a run: see `lines` for what they are called."""
    costs = phase_costs(settings, model, machine, padding)
    seconds = sum(cost["seconds"] for cost in costs)
    device_hours = seconds * machine.devices / HOUR
    figures = {
        "parameters": model.parameters,
        "phases": costs,
        "flops": sum(cost["flops"] for cost in costs),
        "seconds": seconds,
        "device_hours": device_hours,
        "money": machine.price and machine.price * device_hours,
        "checkpoint_bytes": checkpoint_bytes(model),
    }
    if corpus is not None:
        figures["corpus"] = _corpus_costs(settings, corpus)
    return figures


def _corpus_costs(settings, corpus):
    phase = phases(settings)[0]
    examples = corpus.tokens / (phase.sequence_length - 3)  # [CLS], two [SEP]
    seen = sum((p.last - p.first) * p.tokens_per_step for p in phases(settings))
    record = record_bytes(phase.sequence_length, phase.max_predictions)
    rate = corpus.tokens_per_second
    return {
        "tokens": corpus.tokens,
        "epochs": seen / corpus.tokens,
        "store_bytes": store_bytes(corpus.tokens),
        "records_bytes": examples * record,
        "seconds": rate and corpus.tokens / (rate * corpus.cores),
    }


def lines(figures, machine) -> list[str]:
    """The figures of `estimate` as text."""
    told = [f"Model: {figures['parameters']:,} parameters"]
    for number, cost in enumerate(figures["phases"], 1):
        told.append(
            f"Phase {number}: {cost['rows']:,.0f} rows of {cost['length']} "
            f"tokens, {cost['flops']:.2e} operations, "
            f"{told_time(cost['seconds'])}"
        )
        told.append(f"  {_memory(cost)}")
    told.append(
        f"Time: {told_time(figures['seconds'])} on {machine.devices} "
        f"device(s); {figures['device_hours']:,.1f} device hours"
    )
    if figures["money"] is not None:
        told.append(
            f"Money: {figures['money']:,.2f} at {machine.price:g} for a "
            "device hour"
        )
    told.append(
        "Disk of the run: "
        f"{told_bytes(figures['checkpoint_bytes'])} for two checkpoints, one "
        "under way, and the model"
    )
    return told + _corpus_lines(figures.get("corpus"))


def _memory(cost):
    need = told_bytes(cost["memory"])
    if cost["accumulation"] is None:
        return f"memory of a device: {need} for a single row: it is too small"
    parts = cost["accumulation"]
    told = f"memory of a device: about {need} for {cost['batch']:,} rows"
    return told if parts == 1 else f"{told} in --accumulation={parts} parts"


def _corpus_lines(corpus):
    if corpus is None:
        return []
    told = [
        f"Corpus: {corpus['tokens']:,.0f} tokens, seen "
        f"{corpus['epochs']:.1f} times",
        f"  disk: {told_bytes(corpus['store_bytes'])} drawn anew, or "
        f"{told_bytes(corpus['records_bytes'])} for each copy as records",
    ]
    if corpus["seconds"] is not None:
        told.append(f"  made in {told_time(corpus['seconds'])}")
    return told


# Rates of the machine at hand: training steps, and text to tokens.

STEPS = 3  # timed at a time
CORPUS_SAMPLE = 2_000_000  # characters of the corpus from which tokens are made


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
    from official_tasks.pretraining.model import new_model
    from official_tasks.pretraining.objectives import OBJECTIVES

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
        if characters > CORPUS_SAMPLE and len(documents) > 1:
            break
    return documents, size


# What a pre-training run would take, told before it starts.

WINDOWS = 3  # of examples, that the input holds at a time
RECORDS_SAMPLE = 256  # examples whose records are measured


def plan(data, settings, execution, strategy) -> list[str]:
    """Checks the inputs; says what the run would take, a line a thing.

    Args:
        data: folder of pre-training data.
        settings: `Settings`.
        execution: `Execution`.
        strategy: of `make_strategy`.

    Raises:
        InputError: an input that the run could not use.
    """
    from official_tasks.pretraining.objectives import OBJECTIVES

    objective = OBJECTIVES[settings.objectives]
    source = PretrainingSource(data, settings, objective)
    source.check()
    with strategy.scope():
        model = compiled_model(settings, objective, source, execution)
    parameters = model.count_params()
    trained = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    lines = [
        _inputs(source),
        _devices(strategy),
        f"Model: {parameters:,} parameters, of which {trained:,} learn; "
        f"objectives {settings.objectives}",
    ]
    encoder, parts = model.encoder, execution.accumulation
    for phase in phases(settings):
        lines += _phase(phase, source, strategy)
        memory = _training_memory(
            phase, settings, encoder, strategy.num_replicas * parts
        )
        lines.append(f"  memory of a device: about {told_bytes(memory)}")
        lines += _input_cost(phase, source)
    # Weights and two moments each; one more lies beside while it is written.
    state = 4 * (parameters + 2 * trained)
    lines.append(
        f"Disk of the run: {told_bytes(state * (execution.keep + 1))} for "
        f"{execution.keep} checkpoints and one under way"
        + _kept(settings, execution, state)
        + f", {told_bytes(4 * parameters)} for the model"
    )
    return lines


def _inputs(source):
    manifest = source.store.manifest
    return (
        f"Data: {manifest['documents']:,} documents, "
        f"{manifest['sentences']:,} sentences, {manifest['tokens']:,} tokens; "
        f"every byte is as the manifests say; {len(source.vocabulary):,} pieces"
    )


def _devices(strategy):
    import tensorflow as tf

    names = [device.name for device in tf.config.list_logical_devices()]
    return (
        f"Devices: {', '.join(names)}; {strategy.name}, "
        f"{strategy.num_replicas} replica(s)"
    )


def _phase(phase, source, strategy):
    each, rest = divmod(phase.batch_size, strategy.num_replicas)
    if rest:
        raise InputError(
            f"The batch of {phase.batch_size} sequences cannot be shared "
            f"equally by {strategy.num_replicas} replicas. Choose a multiple."
        )
    steps = phase.last - phase.first
    examples = steps * phase.batch_size
    return [
        f"Phase {phase.number}: {steps:,} steps of {phase.batch_size:,} "
        f"sequences of {phase.sequence_length}, {each:,} a replica",
        f"  {examples:,} examples, {steps * phase.tokens_per_step:,} tokens, "
        f"{examples / source.epoch_size(phase):.2f} epochs over the data",
    ]


def _training_memory(phase, settings, encoder, parts):
    """Bytes on a device that computes a batch's share in so many parts."""
    model = Model(*(getattr(encoder, name) for name in Model._fields))
    return memory_bytes(
        model,
        phase.sequence_length,
        predictions_of(settings, phase),
        phase.batch_size // parts,
        half=encoder.compute_dtype != "float32",
    )


def _input_cost(phase, source):
    """Memory and disk of both kinds of data."""
    from bert_keras.data.examples import CAPACITY, DrawnExamples, count_rows
    from bert_keras.data.record_files import serialize

    drawn = DrawnExamples(source.store, source.rules(phase), 0)
    epoch = drawn.windows.epoch_size
    window = min(CAPACITY, epoch)
    pairs = drawn.load(0, 0)
    records = serialize(drawn.rows(pairs[slice(RECORDS_SAMPLE)], 0))
    record = sum(map(len, records)) / len(records) + 16  # its frame
    pair = pairs.nbytes / count_rows(pairs)
    store = sum(
        files.size(path)
        for side in ("train", "held_out")
        for path in files.walk(f"{source.tokens}/{side}")
    )
    return [
        f"  drawn anew: {told_bytes(store)} of disk for any number of epochs, "
        f"{told_bytes(WINDOWS * window * pair)} of memory",
        f"  as records: {told_bytes(epoch * record)} of disk for each copy of "
        f"the data, {told_bytes(WINDOWS * window * record)} of memory",
    ]


def _kept(settings, execution, state):
    if not execution.keep_every:
        return ""
    count = settings.steps // execution.keep_every
    return f", {told_bytes(state * count)} for {count:,} that stay for good"
