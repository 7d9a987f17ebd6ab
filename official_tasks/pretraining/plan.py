"""Computes the plan of a pre-training run without building a model."""

from official_tasks.pretraining.settings import (
    check_settings,
    model_sizes,
    note_masks,
    phases,
    prepare,
)


def plan(data, **arguments) -> list[str]:
    """Check the inputs; return lines about data, devices, steps and memory.

    Args:
        data: folder of pre-training data.
        **arguments: see `runner.run`.

    Raises:
        InputError: an input is invalid, so the run would fail.
    """
    from bert_keras.training.strategy import describe_devices
    from official_tasks.pretraining.model import check_weights, make_optimizer
    from official_tasks.pretraining.objectives import OBJECTIVES
    from official_tasks.pretraining.source import PretrainingSource

    settings, execution, strategy = prepare(arguments)
    check_settings(settings, strategy.num_replicas)
    objective = OBJECTIVES[settings.objectives]
    source = PretrainingSource(data, settings, objective)
    source.check()
    make_optimizer(settings, execution)
    if settings.init:
        checkpoint, _ = check_weights(
            settings, objective, source.vocabulary, source.tokenizer
        )
        sizes = dict(checkpoint.encoder)
    else:
        sizes = model_sizes(settings)
        sizes["max_sequence_length"] = max(512, settings.longest)
    sizes["vocabulary_size"] = len(source.vocabulary)
    parameters = count_parameters(sizes, objective.headline == "mlm")
    manifest = source.store.manifest
    devices, _ = describe_devices(strategy, settings.dtype)
    lines = [
        f"Data: {manifest['documents']:,} documents, "
        f"{manifest['sentences']:,} sentences, {manifest['tokens']:,} tokens, "
        "every byte checked; a vocabulary of "
        f"{sizes['vocabulary_size']:,} tokens",
        f"Devices: {devices}",
        f"Model: {parameters:,} parameters; objectives {settings.objectives}",
    ]
    micro_batches = strategy.num_replicas * execution.accumulation
    for phase in phases(settings):
        steps = phase.last - phase.first
        epochs = steps * phase.batch_size / source.epoch_size(phase)
        rows = -(-phase.batch_size // micro_batches)  # rounded up
        memory = estimate_memory(sizes, parameters, phase, settings, rows)
        lines += [
            f"Phase {phase.number}: {steps:,} steps of {phase.batch_size:,} "
            f"sequences of {phase.sequence_length}, "
            f"{steps * phase.tokens_per_step:,} tokens, {epochs:,.2f} epochs",
            f"  memory of a device: about {memory / 1e9:,.3g} GB",
        ]
    return lines + note_masks(settings)


def count_parameters(sizes, is_masked=True) -> int:
    """Return the number of parameters of the pre-training model.

    Args:
        sizes: size arguments of `BertEncoder`.
        is_masked: True for `BertPretrainer`, which has a next-sentence head,
            False for `BertCausalModel`.
    """
    width, inner = sizes["hidden_dim"], sizes["intermediate_dim"]
    tokens, positions = sizes["vocabulary_size"], sizes["max_sequence_length"]
    segments = sizes.get("num_segments", 2)
    # `+ 2` is for the normalization's two vectors, gamma and beta.
    embeddings = (tokens + positions + segments + 2) * width
    attention = 4 * (width + 1) * width
    feed_forward = (width + 1) * inner + (inner + 1) * width
    layer = attention + feed_forward + 4 * width
    pooler = (width + 1) * width
    # A dense layer, a normalization and output biases. The output matrix is the
    # matrix of the token embeddings, so it is not counted again.
    head = (width + 1) * width + 2 * width + tokens
    next_sentence = 2 * width + 2 if is_masked else 0
    layers = sizes["num_layers"] * layer
    return embeddings + layers + pooler + head + next_sentence


def estimate_memory(sizes, parameters, phase, settings, rows) -> int:
    """Return an estimate of a device's memory for a training step, in bytes.

    A parameter needs 16 bytes (weight, gradient, two moments). A logit needs 8.
    In half precision, the activations of a layer need 34 bytes for each value
    of its input (length x width), and 5 for each attention score (Korthikanti
    et al. 2022, equation 1). With `rematerialize`, only one layer at a time has
    all its activations, but each layer keeps its input, 2 bytes a value. In
    float32, the bytes of activations are doubled.

    Args:
        sizes: size arguments of `BertEncoder`.
        parameters: number of the model's parameters.
        phase: `Phase`.
        settings: `Settings`.
        rows: number of sequences that a device processes at a time.
    """
    length, width = phase.sequence_length, sizes["hidden_dim"]
    half = 1 if settings.dtype != "float32" else 2
    units = 34 * length * width + 5 * sizes["num_heads"] * length**2
    layers = sizes["num_layers"]
    kept = units + 2 * layers * length * width
    activations = half * (kept if settings.rematerialize else layers * units)
    is_masked = settings.objectives.startswith("mlm")
    predicted = phase.max_predictions if is_masked else length
    return 16 * parameters + rows * (
        activations + 8 * predicted * sizes["vocabulary_size"]
    )
