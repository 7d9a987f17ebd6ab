"""Estimates what pre-training takes: time, money, memory, disk.

    python tools/estimate.py --size=large --device=a100 --devices=64 \\
        --dtype=mixed_bfloat16 --price=2 --corpus_gb=16

In: a size, the settings of pre-training, and a machine: a device by name
(--device) or by its peak (--flops, operations a second, and --memory_gb),
times --utilisation; or the sequences a second that one device trains on
(--sequences_per_second, given again for the second phase). --measure takes
them from a few steps on the machine at hand; with --corpus and --vocabulary
it also measures how fast a core makes tokens of text. Out: lines of text.
docs/cost.md has the formulas, and how far they are from published runs.

    python tools/estimate.py --size=mini --measure --batch_size=64 \\
        --steps=10000 --corpus="books/*.txt" --vocabulary=vocab.txt

Takes a second; with --measure about a minute.
"""

from absl import flags

from bert_keras.errors import InputError
from official_tasks import script
from official_tasks.pretraining import cost
from official_tasks.pretraining.settings import (
    OBJECTIVES,
    SIZE_FIELDS,
    Settings,
    phases,
)
from official_tasks.progress import console

# Field of `Settings` -> what --help says, and the choices.
SETTINGS = {
    "size": "tiny to large, or as released.",
    **dict.fromkeys(SIZE_FIELDS, "In place of that of --size."),
    "objectives": ("What is learned.", OBJECTIVES),
    "packed": "Several examples in a row.",
    "dtype": ("As of pretrain.", script.DTYPES),
    **dict.fromkeys(
        (
            *("steps", "sequence_length", "max_predictions", "batch_size"),
            *("phase_2_steps", "phase_2_sequence_length"),
            *("phase_2_max_predictions", "phase_2_batch_size"),
        ),
        "As of pretrain.",
    ),
}


def define_flags():
    script.define_fields(Settings(), SETTINGS, least=1)
    flags.DEFINE_integer("vocabulary_size", 30522, "Word pieces.", 6)
    flags.DEFINE_float(
        "padding",
        0.0,
        "With --packed: share of padding in rows that are not packed.",
    )
    flags.DEFINE_string("device", "a100", f"One of {', '.join(cost.DEVICES)}.")
    flags.DEFINE_integer("devices", 1, "Number of devices.", 1)
    flags.DEFINE_float(
        "flops",
        None,
        "Peak of a device, operations a second, in place of --device.",
    )
    flags.DEFINE_float(
        "memory_gb", None, "Memory of a device, in place of --device."
    )
    flags.DEFINE_float(
        "utilisation", cost.UTILISATION, "Share of the peak that is reached."
    )
    flags.DEFINE_multi_float(
        "sequences_per_second",
        None,
        "Rate of a device; give it again for phase 2.",
    )
    flags.DEFINE_float("price", None, "Price of a device hour.")
    flags.DEFINE_float("corpus_gb", None, "Size of the text, in 1e9 bytes.")
    flags.DEFINE_float(
        "bytes_per_token", cost.BYTES_PER_TOKEN, "Bytes of text a token."
    )
    flags.DEFINE_integer(
        "data_cores", 1, "Cores that make tokens of the text.", 1
    )
    flags.DEFINE_float(
        "data_tokens_per_second", None, "Tokens a second that one core makes."
    )
    flags.DEFINE_bool("measure", False, "Measure this machine's rates.")
    flags.DEFINE_integer("measure_batch", 8, "Sequences in a timed step.", 1)
    flags.DEFINE_float("measure_seconds", 10.0, "Seconds to time each phase.")
    flags.DEFINE_string("corpus", None, "Text to measure with.")
    flags.DEFINE_string("vocabulary", None, "Vocabulary to measure with.")
    script.require_positive(
        "corpus_gb",
        "bytes_per_token",
        "data_tokens_per_second",
        "measure_seconds",
        "flops",
        "memory_gb",
        "sequences_per_second",
        "price",
    )
    script.require("a share below 1", lambda v: 0 <= v < 1, "padding")
    script.require("a share above 0", lambda v: 0 < v <= 1, "utilisation")
    _limit_flags()


def _limit_flags():
    script.applies_only("with --packed", lambda v: v.packed, "padding")
    script.applies_only(
        "with --measure",
        lambda v: v.measure,
        *("measure_batch", "measure_seconds", "corpus", "vocabulary"),
    )
    script.applies_only(
        "without --measure, which finds it out",
        lambda v: not v.measure,
        "sequences_per_second",
    )
    script.applies_only(
        "without --measure --corpus, which finds it out",
        lambda v: not (v.measure and v.corpus),
        *("bytes_per_token", "data_tokens_per_second"),
    )
    script.applies_only(
        "without --sequences_per_second and --measure",
        lambda v: not (v.sequences_per_second or v.measure),
        *("flops", "utilisation"),
    )
    script.applies_only(
        "with --corpus_gb",
        lambda v: v.corpus_gb,
        *("bytes_per_token", "data_cores", "data_tokens_per_second"),
    )
    script.applies_only(
        "without --flops and --memory_gb together",
        lambda v: not (v.flops and v.memory_gb),
        "device",
    )
    script.applies_only(
        "where phase 2 has steps (see --phase_2_steps)",
        lambda v: any(p.number == 2 for p in phases(_settings(v))),
        "phase_2_sequence_length",
        "phase_2_max_predictions",
        "phase_2_batch_size",
    )


def main(values):
    device = cost.device_named(values.device)
    rates = values.sequences_per_second
    settings = _settings(values)
    model = cost.model_of(settings, values.vocabulary_size)
    machine = cost.Machine(
        values.devices,
        values.flops or device.flops,
        values.memory_gb * cost.GB if values.memory_gb else device.memory,
        values.utilisation,
        tuple(rates) if rates else None,
    )
    text_rate = values.data_tokens_per_second
    token_size = values.bytes_per_token
    if values.measure:
        rates = _measure_training(values, settings, model)
        machine = machine._replace(sequences_per_second=rates)
        if values.corpus is not None:
            text_rate, token_size = _measure_text(values)
    lines = _run_lines(settings, model, machine, values.padding, values.price)
    if values.corpus_gb is not None:
        tokens = values.corpus_gb * cost.GB / token_size
        rate = text_rate and text_rate * values.data_cores
        lines += _corpus_lines(settings, tokens, rate)
    for line in lines:
        console.print(line, soft_wrap=True)


def _settings(values):
    return Settings(**{name: getattr(values, name) for name in SETTINGS})


def _measure_training(values, settings, model):
    """Sequences of each phase that this machine trains on in a second."""
    rates = []
    for phase in phases(settings):
        rate = cost.training_rate(
            settings,
            phase,
            values.vocabulary_size,
            values.measure_batch,
            values.measure_seconds,
        )
        work = rate * cost.sequence_flops(
            model, phase.sequence_length, cost.predictions_of(settings, phase)
        )
        console.print(
            f"Measured: {rate:.1f} sequences of {phase.sequence_length} a "
            f"second, {work:.2e} operations a second"
        )
        rates.append(rate)
    return tuple(rates)


def _measure_text(values):
    """Tokens that a core makes in a second, and bytes of each."""
    if values.vocabulary is None:
        raise InputError(
            "--corpus is given without --vocabulary: name the vocabulary "
            "that makes tokens of it."
        )
    rate, size = cost.text_rate(values.corpus, values.vocabulary)
    console.print(
        f"Measured: {rate:,.0f} tokens a second on a core, {size:.2f} bytes "
        "a token"
    )
    return rate, size


def _run_lines(settings, model, machine, padding, price):
    costs = cost.phase_costs(settings, model, machine, padding)
    lines = [f"Model: {model.parameters:,} parameters"]
    for number, phase in enumerate(costs, 1):
        need, parts = cost.format_bytes(phase["memory"]), phase["accumulation"]
        memory = f"about {need} for {phase['batch']:,} rows"
        if parts is None:
            memory = f"{need} for a single row: it is too small"
        elif parts > 1:
            memory += f" with --accumulation={parts}"
        lines += [
            f"Phase {number}: {phase['rows']:,.0f} rows of {phase['length']} "
            f"tokens, {phase['flops']:.2e} operations, "
            f"{cost.format_time(phase['seconds'])}",
            f"  memory of a device: {memory}",
        ]
    seconds = sum(phase["seconds"] for phase in costs)
    hours = seconds * machine.devices / cost.HOUR
    lines.append(
        f"Time: {cost.format_time(seconds)} on {machine.devices} device(s); "
        f"{hours:,.1f} device hours"
    )
    if price is not None:
        lines.append(
            f"Money: {price * hours:,.2f} at {price:g} for a device hour"
        )
    disk = cost.format_bytes(cost.run_bytes(model.parameters))
    return [
        *lines,
        f"Disk of the run: {disk} for two checkpoints, one being written, and "
        "the model",
    ]


def _corpus_lines(settings, tokens, rate):
    used = phases(settings)
    length, predictions = used[0].sequence_length, used[0].max_predictions
    seen = sum((p.last - p.first) * p.tokens_per_step for p in used)
    # [CLS] and two [SEP] of each example
    records = tokens / (length - 3) * cost.record_bytes(length, predictions)
    lines = [
        f"Corpus: {tokens:,.0f} tokens, seen {seen / tokens:.1f} times",
        "  disk: "
        f"{cost.format_bytes(cost.STORE_BYTES_PER_TOKEN * tokens)} sampled on "
        f"the fly, or {cost.format_bytes(records)} for each copy as records",
    ]
    if rate is not None:
        lines.append(f"  made in {cost.format_time(tokens / rate)}")
    return lines


if __name__ == "__main__":
    script.start(main, define_flags)
