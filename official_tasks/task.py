"""The few verbs that every task answers; fine-tuning asks for nothing else."""

from typing import NamedTuple


class Example(NamedTuple):
    """One row of a task: a text or a pair of texts, and its label.

    `label` is an index into the task's `labels`, or None where unknown.
    """

    text: str
    text_pair: str | None
    label: int | None


class Task:
    """A task that fine-tuning can run; subclass it and answer each verb.

    Attributes:
        name: how the task is called in messages and files.
        labels: list of str, the names of the classes.
        metric: the key of `score` by which runs are compared.
    """

    name: str
    labels: list[str]
    metric: str

    def read(self, split: str) -> list[Example]:
        """The examples of a split: "train" or "dev"."""
        raise NotImplementedError

    def build(self, encoder):
        """A compiled-ready Keras model over `encoder`."""
        raise NotImplementedError

    def loss(self):
        """The Keras loss that `build`'s model is trained with."""
        raise NotImplementedError

    def score(self, examples: list[Example], outputs) -> dict:
        """Metrics of the model's outputs `(B, C)`, one row an example."""
        raise NotImplementedError

    def write(self, examples: list[Example], outputs, folder) -> None:
        """Writes the predictions as the task's users want them."""
        raise NotImplementedError
