"""What `from_preset` of each model takes by name, for editors and checkers.

The sizes are not among them: the preset's weights decide those.
"""

from collections.abc import Sequence
from typing import Any, TypedDict


class EncoderArguments(TypedDict, total=False):
    """Of `BertEncoder`, and of every model below."""

    revision: str | None
    dropout: float
    attention_dropout: float
    activation: str
    attention: str
    norm_epsilon: float
    rematerialize: bool
    dtype: Any  # a name or a policy of Keras
    name: str


class ClassifierArguments(EncoderArguments, total=False):
    labels: Sequence[str] | None
    problem: str
    bilstm_dim: int | None
    examples_per_row: int | None
    pair: bool


class PretrainerArguments(EncoderArguments, total=False):
    examples_per_row: int | None
    mlm_activation: str | None
    mlm_norm_epsilon: float | None


class SpanArguments(EncoderArguments, total=False):
    bilstm_dim: int | None
    may_be_none: bool


class TaggerArguments(EncoderArguments, total=False):
    labels: Sequence[str]
    bilstm_dim: int | None
