"""Settings and phases of a pre-training run; the defaults are the paper's."""

import dataclasses
import functools
from typing import NamedTuple

from bert_keras.data.sampling import SamplingRules
from bert_keras.errors import InputError
from bert_keras.modeling.sizes import SIZES
from bert_keras.text.masking import count_predictions
from bert_keras.training import SCHEDULES
from official_tasks import options
from official_tasks.optimizers import OPTIMIZERS
from official_tasks.options import option

OBJECTIVES = ("mlm+nsp", "mlm", "left_to_right", "right_to_left")
SIZE_FIELDS = ("num_layers", "hidden_dim", "num_heads")


_model = functools.partial(option, group="model")
_data = functools.partial(option, group="data")
_phase_2 = functools.partial(option, group="phase 2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleOptions:
    """Options of sampling that pre-training and its data share.

    These are the arguments of `SamplingRules`.
    """

    sequence_length: int = _data(
        128, "Length of an example in tokens.", at_least=1
    )
    max_predictions: int | None = _data(
        None,
        "Maximum number of masked tokens of an example. The default is the "
        "length times --mask_rate, rounded up.",
        at_least=1,
    )
    short_probability: float = _data(
        0.1, "Fraction of documents whose examples have a shorter length."
    )
    mask_rate: float = _data(0.15, "Fraction of the tokens to predict.")
    mask_mix: tuple[float, ...] = _data(
        (80, 10, 10),
        "Percentages of the tokens to predict: masked, replaced by random "
        "tokens, kept.",
    )
    whole_word: bool = _data(False, "Mask all tokens of a word or none.")
    packed: bool = _data(False, "Pack several examples into a row.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(ExampleOptions):
    """Settings that decide what a run computes; the defaults are the paper's.

    With `records`, all sampling rules must equal the rules of the records. If
    the objective has no masks, rules of masks may differ.
    """

    objectives: str = _model(
        "mlm+nsp", "Objectives to learn.", choices=OBJECTIVES
    )
    init: str | None = _model(
        None, "Weights to start from, in any supported format."
    )
    size: str = _model(
        "base",
        "Size of the model: tiny, mini, small, medium, base, large, or the "
        "name of a released model.",
    )
    num_layers: int | None = _model(
        None, "Number of layers; overrides --size.", at_least=1
    )
    hidden_dim: int | None = _model(
        None, "Width of the model; overrides --size.", at_least=1
    )
    num_heads: int | None = _model(
        None,
        "Number of attention heads; overrides --size. The default is "
        "--hidden_dim / 64 if --hidden_dim is set.",
        at_least=1,
    )
    dropout: float = _model(
        0.1, "Dropout rate of layers and attention.", at_least=0, below=1
    )
    rematerialize: bool = _model(
        False,
        "Compute layers again in the backward pass. This takes less memory and "
        "more time.",
    )
    dtype: str = options.define_dtype(group="model")
    records: bool = _data(
        False,
        "Train on the TFRecords in --data. Every epoch has the same examples.",
    )
    vocabulary: str | None = _data(
        None, "File of the vocabulary that the data must have."
    )
    batch_size: int = _data(256, "Phase 1: sequences per step.", at_least=1)
    steps: int = option(
        1_000_000, "Training steps of both phases together.", at_least=1
    )
    phase_2_steps: float | None = _phase_2(
        None,
        "Steps of phase 2: a number, or a fraction of --steps. The default is "
        "0.1, or 0 with --records and no --phase_2_data.",
    )
    phase_2_data: str | None = _phase_2(
        None,
        "With --records: folder of the records of phase 2, which "
        "create_pretraining_data made of the same text with the same "
        "--held_out_share.",
    )
    phase_2_sequence_length: int = _phase_2(
        512, "Length of an example in tokens.", at_least=1
    )
    phase_2_max_predictions: int | None = _phase_2(
        None,
        "Maximum number of masked tokens of an example. The default is the "
        "length times --mask_rate, rounded up.",
        at_least=1,
    )
    phase_2_batch_size: int | None = _phase_2(
        None, "Sequences per step; by default --batch_size.", at_least=1
    )
    evaluations: int = option(
        10,
        "Number of evaluations on held-out documents, evenly spaced, at most "
        "one a step; one more at the end of phase 1.",
        at_least=1,
    )
    evaluation_steps: int = option(
        100, "Maximum number of batches of an evaluation.", at_least=1
    )
    optimizer: str = option(
        "adamw", "AdamW, or LAMB for large batches.", choices=OPTIMIZERS
    )
    learning_rate: float = option(1e-4, "Peak learning rate.")
    warmup: float = option(
        0.01,
        "Steps in which the learning rate rises: a number, or a fraction of "
        "--steps.",
    )
    schedule: str = option(
        "linear",
        "Shape of the learning rate after the warm-up.",
        choices=SCHEDULES,
    )
    bias_correction: bool = option(
        False, "Adam's bias correction; better for runs of few steps."
    )
    seed: int = options.define_seed(
        "Seed of new weights, examples, order and dropout."
    )

    @property
    def longest(self):
        """Number of tokens of the longest sequence in any phase."""
        return max(phase.sequence_length for phase in phases(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution(options.DeviceOptions, options.StepOptions):
    """Settings that may change when a run resumes; see `TrainingState`."""

    keep_last: int = option(
        2, "Number of newest checkpoints to keep.", at_least=1
    )
    keep_every: int | None = option(
        None,
        "Also keep a checkpoint for each multiple of this number of steps.",
        at_least=1,
    )


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
    names = options.list_options(Settings)
    settings = {k: v for k, v in arguments.items() if k in names}
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
    return dataclasses.replace(settings, dtype=dtype), execution, strategy


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
    """Raise `InputError` for a wrong setting, size, rule or batch size.

    Rules and batch sizes are checked for each phase.
    """
    options.check(settings)
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
