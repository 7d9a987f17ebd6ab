"""The cost of a pre-training run on a machine, as numbers and as lines."""

from typing import NamedTuple

from official_tasks import estimating
from official_tasks.estimating import told_bytes, told_time
from official_tasks.pretraining_settings import phases

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
    utilisation: float = estimating.UTILISATION
    sequences_per_second: tuple[float, ...] | None = None
    price: float | None = None


class Corpus(NamedTuple):
    """Text of `size` bytes, made into tokens on `cores` cores.

    tokens_per_second: that one core makes of text; None where unknown.
    """

    size: float
    cores: int = 1
    tokens_per_second: float | None = None
    bytes_per_token: float = estimating.BYTES_PER_TOKEN

    @property
    def tokens(self):
        return self.size / self.bytes_per_token


def model_of(settings, vocabulary_size):
    """The `Model` that the settings of a pre-training run name."""
    from official_tasks.pretraining_model import sizes

    return estimating.Model(
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
        rows = estimating.rows(sequences, settings.packed, padding)
        work = rows * estimating.sequence_flops(model, length, predictions)
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
        return estimating.memory_bytes(model, length, predictions, rows, half)

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
        "checkpoint_bytes": estimating.checkpoint_bytes(model),
    }
    if corpus is not None:
        figures["corpus"] = _corpus_costs(settings, corpus)
    return figures


def _corpus_costs(settings, corpus):
    phase = phases(settings)[0]
    examples = corpus.tokens / (phase.sequence_length - 3)  # [CLS], two [SEP]
    seen = sum((p.last - p.first) * p.tokens_per_step for p in phases(settings))
    record = estimating.record_bytes(
        phase.sequence_length, phase.max_predictions
    )
    rate = corpus.tokens_per_second
    return {
        "tokens": corpus.tokens,
        "epochs": seen / corpus.tokens,
        "store_bytes": estimating.store_bytes(corpus.tokens),
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
