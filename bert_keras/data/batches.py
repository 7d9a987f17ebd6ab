"""tf.data batches for pre-training, from records or from a token store.

An element of a data set is a tuple of dicts, `(x, y, w)`. x and y are int32, w
is float32:
- x: token_ids, segment_ids, padding_mask `(B, T)`, mask_positions `(B, M)`.
- y: mlm `(B, M)`, the original ids of masked tokens; nsp `(B,)`, the labels.
- w: mlm `(B, M)` and nsp `(B,)`, the weights: 0 at padding and in the rows that
  only fill up the last batch, else 1.
A batch has B rows of T tokens, and each row has at most M masked tokens.
For packed rows of at most E examples, x also has example_ids and position_ids
`(B, T)`, and nsp has shape `(B, E)` in y and in w.
"""

import functools
import threading

import tensorflow as tf

from bert_keras.data import record_files, token_store
from bert_keras.data.examples import DrawnExamples
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.tf_data import disable_tuning, python_call
from bert_keras.errors import InputError

# Maximum number of cached windows (see `EpochWindows`). A batch rarely needs
# more than two, and the next batch may need another one.
_WINDOWS = 3


def pretraining_dataset(
    source: str,
    batch_size: int,
    seed: int,
    first_step: int = 0,
    rules: SamplingRules | None = None,
) -> tf.data.Dataset:
    """Return an endless data set of batches, shuffled again in each epoch.

    A batch depends only on `source`, `batch_size`, `seed`, `rules` and its
    step. So a resumed run gets the same batches as an uninterrupted run.

    Args:
        source: a folder with a token store or records. With a store, each
            epoch draws new pairs and masks.
        batch_size: rows in a batch, for all replicas together.
        seed: seed of the shuffling and, with a store, of pairs and masks. It
            must be at least 0.
        first_step: step of the first batch. A new run begins at 0.
        rules: how examples are drawn from a store, masked and packed; None for
            `SamplingRules()`. Ignored for records, because their examples are
            already drawn.

    Raises:
        InputError: the seed is negative, `source` has neither a store nor
            records, or a file has a wrong size or wrong shapes. To find other
            damage, call `check_source`.
    """
    examples = open_examples(source, seed, rules)
    draw = _Batches(examples, batch_size)
    steps = tf.data.Dataset.range(first_step, tf.int64.max)
    batches = steps.map(
        functools.partial(_call_in_graph, draw, examples.rules, batch_size),
        num_parallel_calls=2,
        deterministic=True,
    )
    return batches.prefetch(tf.data.AUTOTUNE)


def evaluation_dataset(
    source: str,
    batch_size: int,
    rules: SamplingRules | None = None,
) -> tf.data.Dataset:
    """Return a data set of all examples, in the same order each time.

    The last batch is filled up with rows of weight 0. So all batches have the
    same static shapes, and weighted means are exact.

    Args:
        source: a folder with a token store or records. With a store, the
            examples are those of epoch 0 and seed 0.
        batch_size: rows in a batch.
        rules: see `pretraining_dataset`.
    """
    examples = open_examples(source, 0, rules)
    draw = _Batches(examples, batch_size)
    total = examples.windows.epoch_size
    full, rest = divmod(total, batch_size)
    call = functools.partial(_call_in_graph, draw, examples.rules, batch_size)
    batches = tf.data.Dataset.range(full).map(call, 2, deterministic=True)
    if rest:
        last = tf.data.Dataset.range(full, full + 1).map(call)
        weigh = functools.partial(_weigh_first_rows, rest)
        batches = batches.concatenate(last.map(weigh))
    return disable_tuning(batches.prefetch(2))


def check_source(
    source: str, vocabulary: list[str] | None = None, side: str | None = None
) -> dict:
    """Compare every byte of a store or of records with its manifest.

    Args:
        source: a folder with a token store or records.
        vocabulary: expected vocabulary of the data; None for any.
        side: expected use of the data, "train" or "held_out"; None for any.

    Returns:
        The manifest.

    Raises:
        InputError: a file is missing or damaged, a shard of records is not in
            the manifest, or the data has another vocabulary or use than
            expected.
    """
    is_store = token_store.is_store(source)
    check = token_store.check_store if is_store else record_files.check_shards
    manifest = check(source)
    if vocabulary is not None:
        token_store.check_vocabulary_hash(manifest, vocabulary, source)
    if side is not None and manifest["side"] != side:
        raise InputError(
            f"{source} has {manifest['side']!r} data, expected {side!r} data. "
            "Probably the folder was renamed or copied. Make the data again in "
            "a new folder."
        )
    return manifest


def open_examples(source: str, seed: int, rules: SamplingRules | None):
    """Return `DrawnExamples` of a store, or `RecordedExamples` of records."""
    if token_store.is_store(source):
        return DrawnExamples(
            token_store.TokenStore(source), rules or SamplingRules(), seed
        )
    return record_files.RecordedExamples(source, seed)


class _Batches:
    """Callable that returns the rows of a step. It caches loaded windows."""

    def __init__(self, examples, batch_size: int):
        self._examples = examples
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._windows = {}

    def __call__(self, step: int) -> dict:
        size = self._batch_size
        spans = self._examples.windows.span(int(step) * size, size)
        parts = [
            self._window(epoch, window)[slice(begin, end)]
            for epoch, window, begin, end in spans
        ]
        return self._examples.join(parts, int(step))

    def _window(self, *key: int):
        with self._lock:
            if key not in self._windows:
                while len(self._windows) >= _WINDOWS:
                    del self._windows[next(iter(self._windows))]
                self._windows[key] = self._examples.load(*key)
            return self._windows[key]


def _call_in_graph(draw: _Batches, rules: SamplingRules, batch_size: int, step):
    """Call `draw(step)` in a graph; return (x, y, w) with static shapes."""
    shapes = record_files.row_shapes(rules)
    types = [
        tf.float32 if record_files.is_float(name) else tf.int32
        for name in shapes
    ]

    def columns(step) -> list:
        rows = draw(step)
        return [rows[name] for name in shapes]

    values = python_call(columns, [step], types)
    rows = dict(zip(shapes, values, strict=True))
    for name, column in rows.items():
        column.set_shape([batch_size, *shapes[name]])
    labels = rows.pop("next_sentence_labels")
    ones = tf.ones_like(labels, tf.float32)
    y = {"mlm": rows.pop("mask_ids"), "nsp": labels}
    w = {
        "mlm": rows.pop("mask_weights"),
        "nsp": rows.pop("example_weights", ones),
    }
    return rows, y, w


def _weigh_first_rows(count: int, x, y, w):

    def cut(weights):
        rows = tf.range(len(weights))
        # (B,) if the weights are (B,), else (B, 1)
        rows = tf.reshape(rows, [-1] + [1] * (weights.ndim - 1))
        return weights * tf.cast(rows < count, weights.dtype)

    return x, y, tf.nest.map_structure(cut, w)
