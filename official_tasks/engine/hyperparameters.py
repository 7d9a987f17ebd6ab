"""Hyperparameters of fine-tuning that a task's `Defaults` do not hold."""

import dataclasses
import functools
import math

import numpy as np

import bert_keras
from bert_keras.errors import InputError
from bert_keras.training import SCHEDULES
from official_tasks import optimizers, options
from official_tasks.optimizers import OPTIMIZERS
from official_tasks.options import option

_option = functools.partial(option, group="training")
# Fields that may change when a run resumes.
EXECUTION = tuple(options.list_options(options.StepOptions))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hyperparameters(options.StepOptions):
    """Hyperparameters of a run that the task's `Defaults` do not hold.

    For optimizer, weight decay, clipping and schedule see `bert_keras.adamw`,
    for LoRA `enable_lora`, for `evaluations` `plan_evaluations`, for `max_rows`
    `draw_rows`.
    """

    optimizer: str = _option(
        "adamw", "AdamW, or LAMB for large batches.", choices=OPTIMIZERS
    )
    warmup: float = _option(
        0.1,
        "Steps in which the learning rate rises: a number, or a fraction of "
        "the steps.",
        at_least=0,
    )
    schedule: str = _option(
        "linear",
        "Shape of the learning rate after the warm-up.",
        choices=SCHEDULES,
    )
    ema: float | None = _option(
        None,
        "Momentum of the moving averages of the weights. The run scores and "
        "saves these averages.",
        at_least=0,
        below=1,
    )
    label_smoothing: float = _option(
        0.0,
        "Fraction of each label to spread over all classes.",
        at_least=0,
        below=1,
    )
    weight_decay: float = _option(
        0.01,
        "Decoupled weight decay, except for biases and LayerNorm.",
        at_least=0,
    )
    clip_norm: float | None = _option(
        1.0,
        "Maximum global norm of the gradients; 0 does not clip them.",
        at_least=0,
    )
    layer_decay: float = _option(
        1.0,
        "A layer's learning rate is this factor times the rate of the layer "
        "above.",
        more_than=0,
        at_most=1,
    )
    dropout: float | None = _option(
        None,
        "Dropout rate of layers, attention and head; by default the rates "
        "stored with the weights.",
        at_least=0,
        below=1,
    )
    class_weights: str | None = _option(
        None,
        "balanced: all classes have the same total weight in the loss. If a "
        "text may have several labels: for each label, the texts with it and "
        "the texts without it have the same total weight.",
        choices=("balanced",),
    )
    bilstm_dim: int | None = _option(
        None,
        "Units in each direction of a new BiLSTM between encoder and head.",
        at_least=1,
    )
    lora_rank: int | None = _option(
        None,
        "Rank of LoRA's matrices. Only they, the head and other new weights "
        "are trained. LoRA is also saved in adapter/.",
        at_least=1,
    )
    lora_alpha: float | None = _option(
        None,
        "LoRA's change of a kernel is multiplied by --lora_alpha / "
        "--lora_rank. By default, this factor is 1.",
        more_than=0,
    )
    lora_dropout: float = _option(
        0.0,
        "Dropout rate of the input of LoRA's matrices. If it is above 0, the "
        "encoder must have dropout too.",
        at_least=0,
        below=1,
    )
    lora_targets: tuple[str, ...] = _option(
        ("query", "value"),
        "Projections that LoRA changes: any of query, key, value, output, "
        "feed_forward.",
    )
    freeze_layers: int | None = _option(
        None, "Freeze the embeddings and this many lowest layers.", at_least=0
    )
    rematerialize: bool = _option(
        False,
        "Compute layers again in the backward pass. This takes less memory and "
        "more time.",
    )
    evaluations: int | None = _option(
        None,
        "Number of evaluations on dev, evenly spaced, at most one a step. The "
        "default is one after each epoch.",
        at_least=1,
    )
    max_rows: int | None = _option(
        None,
        "Use at most this many rows of train and of dev: a random sample, the "
        "same for every --seed. With --folds, of --train in all.",
        at_least=1,
    )
    # The learning-rate schedule is still the one for all epochs.
    early_stopping: int | None = _option(
        None,
        "End after this many evaluations without a better score.",
        at_least=1,
    )
    metric: str | None = _option(
        None,
        "Metric on dev that decides the best weights and early stopping: "
        "loss, or a metric of the task. The default is the task's main metric.",
    )
    tune_thresholds: bool = _option(
        False,
        "Choose the thresholds with the best F1 on dev: one for each label, or "
        'one for "no answer".',
    )
    # The saved head's weights are divided by the temperature.
    calibrate: bool = _option(
        False,
        "Divide the logits by the temperature with the lowest loss on dev.",
    )
    min_precision: float | None = _option(
        None,
        "With one class a text: choose the threshold above which answers have "
        "this precision on dev. The others are unsure.",
        more_than=0,
        at_most=1,
    )

    @property
    def tunes(self) -> bool:
        """True if a threshold is chosen on dev."""
        return self.tune_thresholds or self.min_precision is not None

    def check(self):
        """Raise InputError if a value or a combination of values is invalid."""
        options.check(self)
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
        return options.list_changes(self)

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
        values = dataclasses.asdict(self)
        values["clip_norm"] = self.clip_norm or None
        return optimizers.make_optimizer(
            self.optimizer, learning_rate, steps, values, self.changed()
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
