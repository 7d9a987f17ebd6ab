"""What Keras 3.15 gets wrong under `tf.distribute`, in one place.

`fit` fails under MultiWorkerMirroredStrategy at two spots: it builds a model
from the mean of a batch over all workers, outside of any step, and it reduces
scalar logs along an axis that they lack. Both are replaced in Keras's trainer
here; a test runs `fit` without each, so that a release that mends it shows.
"""

import functools

import tensorflow as tf
from keras import Model, tree


def mend():
    """Replaces both in Keras; a second time it changes nothing."""
    trainer = next(
        kind for kind in Model.__mro__ if "_maybe_symbolic_build" in vars(kind)
    )
    trainer._maybe_symbolic_build = _build_from_local_rows
    functions = trainer._make_function.__globals__
    reduce = functions["reduce_per_replica"]
    if not hasattr(reduce, "__wrapped__"):
        functions["reduce_per_replica"] = _reduce_scalars_too(reduce)


def _build_from_local_rows(model, iterator=None, data_batch=None):
    """Builds from this process's first rows: only their shapes are used."""
    strategy = model._distribute_strategy
    if strategy is None:
        return
    for _, _, batches in iterator or ():
        data_batch = tree.map_structure(
            lambda x: strategy.experimental_local_results(x)[0], next(batches)
        )
        break
    with strategy.scope():
        model._symbolic_build(data_batch=data_batch)


def _reduce_scalars_too(reduce):
    """Keras's reduction; logs become their mean over this process's replicas.

    Between workers nothing is reduced: `fit` reads the metrics themselves,
    summed over all replicas, at the end of an epoch.
    """

    @functools.wraps(reduce)
    def reduce_per_replica(values, strategy, reduction):
        several = isinstance(
            strategy, tf.distribute.MultiWorkerMirroredStrategy
        )
        if not several or reduction == "concat":
            return reduce(values, strategy, reduction)

        def mean(value):
            local = strategy.experimental_local_results(value)
            return tf.reduce_mean(tf.stack(local), axis=0)

        return tree.map_structure(mean, values)

    return reduce_per_replica
