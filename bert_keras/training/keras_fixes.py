"""What Keras 3.15 gets wrong under `tf.distribute`, in one place.

`fit` fails under MultiWorkerMirroredStrategy at two spots: it builds a model
from the mean of a batch over all workers, outside of any step, and it reduces
scalar logs along an axis that they lack. And `steps_per_execution` fails under
MirroredStrategy: its loop of a condition of a step reads a placeholder that
nothing feeds. All three are replaced in Keras's trainer here.
"""

import functools

import tensorflow as tf
from keras import Model, tree


@functools.cache  # a second call would wrap the replacements
def fix_keras():
    """Replaces all three in Keras."""
    # The class of TensorFlow's trainer, wherever this Keras keeps it.
    trainer = next(
        kind for kind in Model.__mro__ if "_maybe_symbolic_build" in vars(kind)
    )
    trainer._maybe_symbolic_build = _build_from_local_rows
    # Keras's trainer looks the function up in its module at each call.
    functions = trainer._make_function.__globals__
    reduce = functions["reduce_per_replica"]
    functions["reduce_per_replica"] = _reduce_scalars_too(reduce)
    trainer._make_function = _one_by_one(trainer._make_function)


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
        # Rows of `predict` are joined, not reduced: Keras does that right.
        if not several or reduction == "concat":
            return reduce(values, strategy, reduction)

        def mean(value):
            local = strategy.experimental_local_results(value)
            return tf.reduce_mean(tf.stack(local), axis=0)

        return tree.map_structure(mean, values)

    return reduce_per_replica


def _one_by_one(make_function):
    """Keras's, where several steps an execution are taken from the host.

    Callbacks come after each group of them, as Keras has it. A TPU keeps
    Keras's own loop.
    """

    @functools.wraps(make_function)
    def make(model, step_function):
        one = make_function(model, step_function)
        steps = model.steps_per_execution
        strategies = (
            tf.distribute.MirroredStrategy,
            tf.distribute.MultiWorkerMirroredStrategy,
        )
        if steps == 1 or not isinstance(model._distribute_strategy, strategies):
            return one

        def several(iterator):
            outputs = None
            model.steps_per_execution = 1  # `one` reads it when it is traced
            try:
                for _ in range(steps):
                    outputs = one(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                # The data ended within the group: what was computed counts.
                if outputs is None:
                    raise
            finally:
                model.steps_per_execution = steps
            return outputs

        return several

    return make
