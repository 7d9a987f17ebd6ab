"""Settings and phases of a pre-training run; the defaults are the paper's."""

from typing import NamedTuple

from bert_keras.data.sampling import SamplingRules
from bert_keras.errors import InputError
from bert_keras.modeling.sizes import SIZES
from bert_keras.text.masking import count_predictions

OBJECTIVES = ("mlm+nsp", "mlm", "left_to_right", "right_to_left")
SIZE_FIELDS = ("num_layers", "hidden_dim", "num_heads")


class Settings(NamedTuple):
    """Settings that decide what a run computes; the defaults are the paper's.

    objectives: one of `OBJECTIVES`.
    records: True to train on records, which hold examples sampled in advance.
    phase_2_data: folder of the records of phase 2.
    packed, short_probability, mask_rate, mask_mix, whole_word: see
        `SamplingRules`. With `records`, all rules, also the lengths, must equal
        the records' rules. If the objective has no masks, rules of masks may
        differ.
    init: weights to start from, in any form that `from_preset` accepts.
        None means random weights.
    vocabulary: file of the vocabulary that the data must have, if not None.
    size: a name of `SIZES`; the fields in `SIZE_FIELDS` override its values.
        With `hidden_dim`, the default of `num_heads` is `hidden_dim // 64`, at
        least 1.
    dropout: dropout rate of layers and of attention.
    max_predictions, phase_2_max_predictions: maximum number of masked tokens in
        an example. None means `mask_rate` times the length, rounded up.
    steps: optimizer steps of both phases together, in one schedule.
    phase_2_steps: number of steps of phase 2, the last part of the run, which
        has longer sequences. A value below 1 is a fraction of `steps`. None
        means a tenth of `steps`, or 0 for `records` without `phase_2_data`.
    phase_2_batch_size: None means the batch size of phase 1.
    evaluations: how often held-out documents are scored: after every
        `steps // evaluations` steps (at least 1), and at the end of each phase.
    evaluation_steps: maximum number of batches in an evaluation.
    optimizer: key of `OPTIMIZERS`.
    warmup: number of warm-up steps; a value below 1 is a fraction of `steps`.
    schedule: learning-rate schedule after the warm-up, see `bert_keras.adamw`.
    bias_correction: True for Adam's bias correction in "adamw". "lamb" always
        corrects the bias.
    rematerialize: see `BertEncoder`.
    dtype: Keras policy, or "auto"; see `choose_dtype`.
    """

    objectives: str = "mlm+nsp"
    records: bool = False
    phase_2_data: str | None = None
    packed: bool = False
    short_probability: float = 0.1
    mask_rate: float = 0.15
    mask_mix: tuple[float, float, float] = (80, 10, 10)
    whole_word: bool = False
    init: str | None = None
    vocabulary: str | None = None
    size: str = "base"
    num_layers: int | None = None
    hidden_dim: int | None = None
    num_heads: int | None = None
    dropout: float = 0.1
    sequence_length: int = 128
    max_predictions: int | None = None
    batch_size: int = 256
    steps: int = 1_000_000
    phase_2_steps: float | None = None
    phase_2_sequence_length: int = 512
    phase_2_max_predictions: int | None = None
    phase_2_batch_size: int | None = None
    evaluations: int = 10
    evaluation_steps: int = 100
    optimizer: str = "adamw"
    learning_rate: float = 1e-4
    warmup: float = 0.01
    schedule: str = "linear"
    bias_correction: bool = False
    rematerialize: bool = False
    seed: int = 0
    dtype: str = "float32"

    @property
    def steps_per_evaluation(self):
        return max(1, self.steps // self.evaluations)

    @property
    def longest(self):
        """Number of tokens of the longest sequence in any phase."""
        return max(phase.sequence_length for phase in phases(self))


class Execution(NamedTuple):
    """Settings that may change when a run resumes.

    They may affect rounding and dropout masks, but not a step's examples.

    distribution, tpu: see `make_strategy`.
    accumulation: number of micro-batches into which each replica splits its
        rows of a batch.
    steps_per_execution: see `keras.Model.compile`.
    save_every, keep_last, keep_every: see `TrainingState`.
    """

    distribution: str = "off"
    tpu: str = "local"
    accumulation: int = 1
    steps_per_execution: int = 1
    save_every: int = 1000
    keep_last: int = 2
    keep_every: int | None = None


class Phase(NamedTuple):
    """Steps `first` to `last - 1`, counted from 0, of one sequence length."""

    number: int
    first: int
    last: int
    sequence_length: int
    max_predictions: int
    batch_size: int

    @property
    def tokens_per_step(self):
        return self.batch_size * self.sequence_length


def split(arguments):
    settings = {k: v for k, v in arguments.items() if k in Settings._fields}
    rest = {k: v for k, v in arguments.items() if k not in settings}
    return Settings(**settings), Execution(**rest)


def prepare(arguments, output=None):
    """Choose the dtype; return `Settings`, `Execution` and `Strategy`.

    If the dtype is "auto" and `output` holds an earlier run, use its dtype.
    """
    from bert_keras.run_folder import resume_dtype
    from bert_keras.training.strategy import choose_dtype, make_strategy

    settings, execution = split(arguments)
    strategy = make_strategy(execution.distribution, execution.tpu)
    dtype = choose_dtype(resume_dtype(settings.dtype, output), strategy.name)
    return settings._replace(dtype=dtype), execution, strategy


def model_sizes(settings) -> dict:
    """Return the sizes of `settings.size` with the overrides in `settings`."""
    if settings.size not in SIZES:
        raise InputError(
            f"`size` is {settings.size!r}. Expected one of {', '.join(SIZES)}. "
            "Set other sizes by --num_layers, --hidden_dim and --num_heads."
        )
    sizes = {k: SIZES[settings.size][k] for k in SIZE_FIELDS}
    if settings.hidden_dim is not None:
        # An attention head has 64 dimensions, as in Google's models.
        sizes["num_heads"] = max(1, settings.hidden_dim // 64)
    overrides = {k: getattr(settings, k) for k in SIZE_FIELDS}
    sizes |= {k: v for k, v in overrides.items() if v is not None}
    if sizes["hidden_dim"] % sizes["num_heads"]:
        raise InputError(
            f"`hidden_dim` is {sizes['hidden_dim']}; expected a multiple of "
            f"`num_heads`, which is {sizes['num_heads']}."
        )
    return {**sizes, "intermediate_dim": 4 * sizes["hidden_dim"]}


def phases(settings) -> list[Phase]:
    """Return the phases that have steps: short sequences, then long ones.

    The cost of attention grows with the square of the length. So the paper
    trains on 128 tokens for 90 % of the steps, and then on 512 tokens to learn
    the later positions (appendix A.2).
    """
    bound = settings.steps - _count_phase_2_steps(settings)
    both = []
    for number, first, last, prefix in (
        (1, 0, bound, ""),
        (2, bound, settings.steps, "phase_2_"),
    ):
        length = getattr(settings, f"{prefix}sequence_length")
        most = getattr(settings, f"{prefix}max_predictions")
        if most is None:
            most = count_predictions(length, settings.mask_rate)
        rows = getattr(settings, f"{prefix}batch_size") or settings.batch_size
        both.append(Phase(number, first, last, length, most, rows))
    return [phase for phase in both if phase.first < phase.last]


def _count_phase_2_steps(settings):
    second = settings.phase_2_steps
    one_length = settings.records and not settings.phase_2_data
    if second is None:
        second = 0 if one_length else settings.steps // 10
    if 0 < second < 1:
        second *= settings.steps
    if not 0 <= second <= settings.steps:
        raise InputError(
            f"`phase_2_steps` is {second}; expected 0 to {settings.steps}, the "
            "steps of both phases together."
        )
    second = round(second)
    if one_length and second:
        raise InputError(
            "Records hold examples of one length, so they cannot be used for "
            f"phase_2_steps={second}. Name the folder of longer records by "
            "--phase_2_data, set `phase_2_steps=0`, or leave --records out to "
            "sample pairs at both lengths."
        )
    if settings.phase_2_data and not settings.records:
        raise InputError(
            "`phase_2_data` names records, but without --records both phases "
            "sample pairs from the same data. Give --records too, or leave "
            "--phase_2_data out."
        )
    return second


def sampling_rules(settings, phase) -> SamplingRules:
    """Return the rules for sampling a phase's examples.

    Raises:
        InputError: a rule is invalid; the message names the phase.
    """
    most = phase.max_predictions
    # Without masks, a `max_predictions` above the length is no error.
    if settings.objectives not in ("mlm+nsp", "mlm"):
        most = min(most, phase.sequence_length)
    try:
        return SamplingRules(
            phase.sequence_length,
            most,
            settings.short_probability,
            settings.mask_rate,
            settings.mask_mix,
            settings.whole_word,
            settings.packed,
        )
    except InputError as error:
        raise InputError(f"Phase {phase.number}: {error}") from None


def check_settings(settings, num_replicas=1):
    """Raise `InputError` for a wrong dropout, size, rule or batch size.

    Rules and batch sizes are checked for each phase.
    """
    if not 0 <= settings.dropout < 1:
        raise InputError(
            f"`dropout` is {settings.dropout}; expected at least 0 and below 1."
        )
    if not settings.init:
        model_sizes(settings)
    for phase in phases(settings):
        sampling_rules(settings, phase)
        if phase.batch_size % num_replicas:
            raise InputError(
                f"Phase {phase.number}: a batch of {phase.batch_size} "
                f"sequences cannot be divided by {num_replicas} replicas. "
                "Choose a multiple of the number of replicas."
            )


def note_masks(settings) -> list[str]:
    """Return a note for each phase that masks less than `mask_rate`."""
    if not settings.objectives.startswith("mlm"):
        return []
    notes = []
    for phase in phases(settings):
        length = phase.sequence_length
        full = count_predictions(length, settings.mask_rate)
        if phase.max_predictions < full:
            prefix = "phase_2_" if phase.number == 2 else ""
            notes.append(
                f"Phase {phase.number} masks at most {phase.max_predictions} "
                f"of the {full} tokens that `mask_rate` {settings.mask_rate:g} "
                f"allows in a row of {length} tokens. To mask up to {full}, "
                f"leave `{prefix}max_predictions` out."
            )
    return notes


def tokens_until(step, settings) -> int:
    """Return the number of tokens, with padding, in the first `step` steps."""
    return sum(
        max(0, min(step, phase.last) - phase.first) * phase.tokens_per_step
        for phase in phases(settings)
    )


def phase_at(step, settings) -> Phase:
    """Return the phase of step number `step`, counted from 1."""
    return next(phase for phase in phases(settings) if step <= phase.last)
