"""What a pre-training run would take, told before it starts."""

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from official_tasks.estimated_plan import predictions_of
from official_tasks.estimating import Model, memory_bytes, told_bytes
from official_tasks.pretraining_model import compiled_model
from official_tasks.pretraining_objectives import OBJECTIVES
from official_tasks.pretraining_settings import phases
from official_tasks.pretraining_source import PretrainingSource

WINDOWS = 3  # of examples, that the input holds at a time
SAMPLE = 256  # examples whose records are measured


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
    from bert_keras.data.drawing import DrawnExamples, count_rows
    from bert_keras.data.records import serialize
    from bert_keras.data.windows import CAPACITY

    drawn = DrawnExamples(source.store, source.laws(phase), 0)
    epoch = drawn.windows.epoch_size
    window = min(CAPACITY, epoch)
    pairs = drawn.load(0, 0)
    records = serialize(drawn.rows(pairs[slice(SAMPLE)], 0))
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
