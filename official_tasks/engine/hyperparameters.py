"""Hyperparameters of fine-tuning that a task's `Defaults` do not hold."""

import math
from typing import NamedTuple

import numpy as np

import bert_keras
from bert_keras.errors import InputError
from bert_keras.training import SCHEDULES
from official_tasks import optimizers
from official_tasks.optimizers import OPTIMIZERS

_ONE_OR_MORE = ("a whole number, 1 or more", lambda v: v >= 1 and v % 1 == 0)
_ZERO_OR_MORE = ("a number, 0 or more", lambda v: 0 <= v < math.inf)
# Field -> (expected values in words, check). The value None is not checked.
RANGES = {
    "warmup": _ZERO_OR_MORE,
    "weight_decay": _ZERO_OR_MORE,
    "clip_norm": _ZERO_OR_MORE,
    "layer_decay": ("a number above 0 and at most 1", lambda v: 0 < v <= 1),
    "dropout": ("a number from 0 to below 1", lambda v: 0 <= v < 1),
    "lora_dropout": ("a number from 0 to below 1", lambda v: 0 <= v < 1),
    "freeze_layers": (
        "a whole number, 0 or more",
        lambda v: v >= 0 and v % 1 == 0,
    ),
    "bilstm_dim": _ONE_OR_MORE,
    "lora_rank": _ONE_OR_MORE,
    "lora_alpha": ("a number above 0", lambda v: 0 < v < math.inf),
    "min_precision": ("a number above 0 and at most 1", lambda v: 0 < v <= 1),
    "label_smoothing": ("a number from 0 to below 1", lambda v: 0 <= v < 1),
    "ema": ("a number from 0 to below 1", lambda v: 0 <= v < 1),
    "accumulation": _ONE_OR_MORE,
    "steps_per_execution": _ONE_OR_MORE,
    "early_stopping": _ONE_OR_MORE,
    "evaluations": _ONE_OR_MORE,
    "max_rows": _ONE_OR_MORE,
    "save_every": _ONE_OR_MORE,
}
# Fields that may change when a run resumes: they affect at most rounding and
# dropout masks, but not the examples of a step.
EXECUTION = ("accumulation", "steps_per_execution", "save_every")
CHOICES = {
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "class_weights": ("balanced",),
}


class Hyperparameters(NamedTuple):
    """Hyperparameters of a run that the task's `Defaults` do not hold.

    optimizer: key of `OPTIMIZERS`.
    warmup: warm-up steps; a value below 1 is a fraction of the run's steps.
    schedule: learning-rate schedule after the warm-up, see `bert_keras.adamw`.
    ema: momentum of the weights' moving averages, which are scored and saved
        instead of the weights; None keeps no averages.
    label_smoothing: fraction of each training label to spread over all classes.
    weight_decay: see `bert_keras.adamw`.
    clip_norm: see `bert_keras.adamw`; None or 0 for no clipping.
    layer_decay: a layer's learning rate is this factor times the rate of the
        layer above.
    dropout: dropout rate of encoder and head; None keeps the stored rates.
    class_weights: "balanced" gives all classes the same total weight. If a
        text may have several labels: for each label, the texts with it and the
        texts without it get the same total weight.
    bilstm_dim: units in each direction of a new bidirectional LSTM between
        encoder and head (the paper, section 5.1); None adds no LSTM.
    lora_rank: rank of LoRA, see `enable_lora`; LoRA is also saved in adapter/.
    lora_alpha: LoRA's change to a kernel is scaled by lora_alpha / lora_rank;
        None scales by 1.
    lora_dropout: dropout rate for the input of LoRA's matrices. If it is above
        0, the encoder must have dropout too.
    lora_targets: the projections that LoRA changes, see `enable_lora`.
    freeze_layers: number of the lowest layers to freeze together with the
        embeddings; 0 freezes only the embeddings, None nothing.
    accumulation: micro-batches per replica and step; see `bert_keras.adamw`.
        This field and the next two may change when a run resumes.
    steps_per_execution: see `keras.Model.compile`.
    save_every: steps between two checkpoints.
    rematerialize: see `BertEncoder`.
    evaluations: how often dev is scored, see `plan_evaluations`.
    max_rows: maximum number of examples of train and of dev; see `draw_rows`.
    early_stopping: the run ends after this many evaluations without a better
        score. The learning-rate schedule is still the one for all epochs.
    metric: the metric on dev that decides the best weights and early
        stopping. None means the task's metric; "loss" means the loss on dev.
    calibrate: True to divide the logits of classes by the temperature that
        fits dev best. The saved head's weights are divided by it.
    tune_thresholds: True to choose the thresholds with the best F1 on dev, one
        for each label or one for "no answer", and save them with the model.
    min_precision: choose the threshold above which answers with one class a
        text have this precision on dev, and save it with the model. Answers
        below it are unsure.
    """

    optimizer: str = "adamw"
    warmup: float = 0.1
    schedule: str = "linear"
    ema: float | None = None
    label_smoothing: float = 0.0
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    layer_decay: float = 1.0
    dropout: float | None = None
    class_weights: str | None = None
    bilstm_dim: int | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_dropout: float = 0.0
    lora_targets: tuple[str, ...] = ("query", "value")
    freeze_layers: int | None = None
    accumulation: int = 1
    steps_per_execution: int = 1
    save_every: int = 1000
    rematerialize: bool = False
    evaluations: int | None = None
    max_rows: int | None = None
    early_stopping: int | None = None
    metric: str | None = None
    tune_thresholds: bool = False
    calibrate: bool = False
    min_precision: float | None = None

    @property
    def tunes(self) -> bool:
        """True if a threshold is chosen on dev."""
        return self.tune_thresholds or self.min_precision is not None

    def check(self):
        """Raise InputError if a value or a combination of values is invalid."""
        for name, (expected, fits) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not fits(value):
                raise InputError(f"`{name}` is {value}; expected {expected}.")
        for name, choices in CHOICES.items():
            value, default = getattr(self, name), self._field_defaults[name]
            if value not in (*choices, default):
                raise InputError(
                    f"`{name}` is {value!r}; expected one of "
                    f"{', '.join(choices)}."
                )
        lora = {n for n in self.changed() if n.startswith("lora_")}
        lora -= {"lora_rank"}
        if lora and self.lora_rank is None:
            raise InputError(
                "Without `lora_rank`, these have no effect: "
                f"{', '.join(f'`{name}`' for name in sorted(lora))}. "
                "Give `lora_rank` too, or leave all LoRA settings out."
            )
        if None not in (self.lora_rank, self.freeze_layers):
            raise InputError(
                "`freeze_layers` has no effect with `lora_rank`, because LoRA "
                "freezes the entire encoder. Leave one of the two out."
            )

    def changed(self) -> dict:
        """Return a dict of the fields whose values are not the defaults."""
        defaults = self._field_defaults
        return {k: v for k, v in self._asdict().items() if v != defaults[k]}

    def encoder_arguments(self) -> dict:
        """Return encoder arguments that replace those of the preset."""
        arguments = {"rematerialize": self.rematerialize}
        if self.dropout is not None:
            arguments["dropout"] = arguments["attention_dropout"] = self.dropout
        return arguments

    def adapt(self, model):
        """Add LoRA, or freeze the embeddings and the lowest layers.

        Do nothing if neither `lora_rank` nor `freeze_layers` is set.
        """
        encoder = model.encoder
        if self.lora_rank:
            bert_keras.enable_lora(
                model,
                self.lora_rank,
                self.lora_targets,
                self.lora_alpha,
                self.lora_dropout,
            )
        if self.freeze_layers is None:
            return
        if self.freeze_layers > encoder.num_layers:
            raise InputError(
                f"`freeze_layers` is {self.freeze_layers}; expected at most "
                f"{encoder.num_layers}, the number of encoder layers."
            )
        layers = encoder.transformer_layers[: self.freeze_layers]
        for layer in (encoder.embeddings, *layers):
            layer.trainable = False

    def make_optimizer(self, learning_rate, steps):
        options = {**self._asdict(), "clip_norm": self.clip_norm or None}
        return optimizers.make_optimizer(
            self.optimizer, learning_rate, steps, options, self.changed()
        )

    def has_stopped(self, metric, curve) -> bool:
        """Return True if the last `early_stopping` scores have no new best.

        Args:
            metric: `Metric`.
            curve: logs of the evaluations so far.
        """
        if self.early_stopping is None or not curve:
            return False
        name = f"val_{metric.name}"
        scores = [
            metric.rank({metric.name: line.get(name, math.nan)})
            for line in curve
        ]
        best = int(np.argmax(scores))
        return len(scores) - 1 - best >= self.early_stopping
