"""A model handler with which Apache Beam calls an exported model."""

from collections.abc import Sequence
from typing import Any

from apache_beam.ml.inference.base import ModelHandler, PredictionResult

from bert_keras.errors import InputError
from bert_keras.files import PathLike
from bert_keras.serving.many_rows import BATCHES_AT_ONCE, answer_in_batches


class SavedModelHandler(ModelHandler):
    """Model handler of `apache_beam.ml.inference.base.RunInference`.

    Each worker process loads the model once. The rows that Beam gives to a
    worker together are sorted by length, and computed in batches. On Dask, Beam
    2.77 loses rows that it gathers; make lists of rows yourself there, and use
    the handler's `with_no_batching()`.

    Args:
        folder: folder of `export_saved_model`, the same on all workers. It may
            be remote, such as `gs://bucket/served`.
        signature: name of the signature; None means the model's default one.
        batch_size: rows of a batch.

    Examples:
        >>> import apache_beam as beam
        >>> from apache_beam.ml.inference.base import RunInference
        >>> from bert_keras import SavedModelHandler
        >>> handler = SavedModelHandler("gs://bucket/served")
        >>> answers = beam.Create(["A goat."]) | RunInference(handler)
    """

    def __init__(
        self,
        folder: PathLike,
        signature: str | None = None,
        batch_size: int = 32,
    ) -> None:
        rows = batch_size * BATCHES_AT_ONCE
        super().__init__(min_batch_size=rows, max_batch_size=rows)
        self._folder, self._signature = folder, signature
        self._batch_size = batch_size

    def load_model(self) -> Any:
        from bert_keras.serving.load import load_saved_model

        return load_saved_model(self._folder)

    def run_inference(
        self,
        batch: Sequence[Any],
        model: Any,
        inference_args: dict[str, Any] | None = None,
    ) -> list[PredictionResult]:
        """Return a `PredictionResult` for each row of a batch.

        Args:
            batch: list of rows. A row is a dict of input name -> value. For a
                signature of one input, it may be the value, such as a text.
            model: the result of `load_model`, a `ServedModel`.
            inference_args: unused.

        Returns:
            list of `PredictionResult(example, inference)`: the row, and a dict
            of output name -> value.

        Raises:
            InputError: a row lacks an input or has another one.
        """
        name = self._signature or model.card["default"]
        inputs = model.card["signatures"][name]["input_order"]
        answers = answer_in_batches(
            getattr(model, name),
            [_list_inputs(row, inputs) for row in batch],
            self._batch_size,
        )
        return [
            PredictionResult(row, answer)
            for row, answer in zip(batch, answers, strict=True)
        ]


def _list_inputs(row, inputs):
    """Return the values of a row in the order of a signature's inputs."""
    if isinstance(row, dict) and row.keys() == {*inputs}:
        return [row[name] for name in inputs]
    if isinstance(row, dict) or len(inputs) > 1:
        found = sorted(row) if isinstance(row, dict) else type(row).__name__
        raise InputError(
            f"A row must be a dict with the inputs {', '.join(inputs)}, got "
            f"{found}."
        )
    return [row]
