"""The report on loaded weights, and the warning about other weights."""

import dataclasses
import re
import warnings

from bert_keras.errors import UntrainedWarning
from bert_keras.interop.head_table import LABELED_WEIGHTS
from bert_keras.modeling import weights
from bert_keras.modeling.weights import in_encoder

POSITIONS = "encoder/embeddings/position/embeddings"
SHOWN = 8  # maximum number of names that a report lists
# Patterns of names of tensors that no model needs: optimizer slots, counters,
# position ids, and copies of tied weights.
SPARE = (
    r"(adam|lamb|momentum|slot|optimizer|ExponentialMovingAverage)",
    r"(beta\d_power$|(^|/)_variables/)",
    r"(global_step|save_counter|iterations?|good_steps|loss_scale)",
    r"(position|token_type)_ids$",
    r"cls\.predictions\.decoder\.(weight|bias)$",
)
# Part of the names of an encoder's weights, in any format.
_ENCODER_PART = re.compile(
    r"(^|[./])(encoder|embeddings|_transformer_layers|transformer_encoder\w*)[./]"
)


@dataclasses.dataclass
class LoadReport:
    """The report on loaded weights: the `load_report` of a loaded model.

    Attributes:
        source: path or name of the checkpoint.
        loaded: names in bert_keras of the weights that were set.
        skipped: names of tensors in the source that were not loaded.
        initialised: names of the model's weights that were not loaded.
        new_labels: labels that the source's head lacks. Their outputs are new.
        old_positions: number of the source's positions if the model has more,
            which are new; else None.
    """

    source: str
    loaded: list
    skipped: list
    initialised: list
    new_labels: list = dataclasses.field(default_factory=list)
    old_positions: int | None = None

    def __str__(self):
        skipped, initialised = (
            f"{len(names)}: {list_names(names)}" if names else "none"
            for names in (self.skipped, self.initialised)
        )
        return (
            f"Loaded {len(self.loaded)} weights of {self.source}\n"
            f"Skipped {skipped}\n"
            f"Freshly initialised {initialised}"
        )


def list_names(names):
    """Return a text with the first `SHOWN` names and the number of others."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(sorted(names)[:SHOWN]) + more


def is_spare(name):
    """Return True if no model needs the tensor with this name."""
    return any(re.search(pattern, name, re.IGNORECASE) for pattern in SPARE)


def mark_random_weights(model, checkpoint, report):
    """Mark weights that are new or were saved untrained; return their names."""
    names = {*report.initialised, *checkpoint.untrained}
    if report.new_labels:
        names |= set(LABELED_WEIGHTS)
    if report.old_positions:
        names.add(POSITIONS)
    random = sorted(names & {*report.initialised, *report.loaded})
    weights.mark_new_weights(model, random)
    return random


def warn_about_weights(model, checkpoint, report, why):
    """Mark weights that are new or were saved untrained; warn about them.

    Also warn about tensors with unknown names, which may belong to the model.
    """
    if report.new_labels:
        labels = list_names(report.new_labels)
        why = f"only the outputs of the new labels {labels}"
    if report.old_positions:
        reason = f"only positions from {report.old_positions} of the table"
        why = f"{why}; {reason}" if why else reason
    random = mark_random_weights(model, checkpoint, report)
    new = weights.drop_unused_pooler(model, random)
    unknown = [name for name in checkpoint.skipped if not is_spare(name)]
    if all(map(in_encoder, [*report.loaded, *report.initialised])):
        # Without a head, only an encoder's tensors can belong to the model.
        unknown = list(filter(_ENCODER_PART.search, unknown))
    # A subclass of `BertEncoder` has more weights.
    unknown += [
        tensor.name
        for name, tensor in checkpoint.tensors.items()
        if in_encoder(name) and name not in report.loaded
    ]
    messages = []
    if new:
        why = f" ({why})" if why else ""
        messages.append(
            f"these weights are new and not trained yet{why}: {list_names(new)}"
        )
    if unknown:
        messages.append(
            "these weights of the source are not loaded, because their names "
            f"are unknown: {list_names(unknown)}"
        )
    if messages:
        warnings.warn(
            f"{type(model).__name__} from {checkpoint.source}: "
            f"{'; '.join(messages)}",
            UntrainedWarning if new else UserWarning,
            stacklevel=4,  # points at the call of `from_preset`
        )
