"""Private Keras API that the models, layers and training need.

tests/modeling/test_keras_adapter.py checks this API in Keras 3.15. This module
is in `modeling`, because task models inherit from `TaskTrainer`.
"""

import contextlib
import functools
import types
from typing import Any

import keras
from keras import tree
from keras.src.backend import AutocastScope
from keras.src.backend.common import global_state
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import (
    ArrayDataAdapter,
)

from bert_keras.modeling.gradients import tf

# Argument of `evaluate` that `fit` sets. `fit` keeps an iterator of the
# validation data, so the data must not be read again.
CACHED_EVALUATION = "_use_cached_eval_dataset"


@contextlib.contextmanager
def delay_values():
    """Make variables without values inside the `with` block.

    The variables have names and shapes, but no memory, so a check can compare
    them with a file first. The end of the block initializes them, in the order
    in which they were made. After an error they never get values: Keras would
    initialize them later, at the end of any other `StatelessScope`.
    """
    name = "uninitialized_variables"  # Keras appends to this list
    before = len(global_state.get_global_attribute(name) or ())
    scope = keras.StatelessScope(initialize_variables=False)
    try:
        with scope:
            yield
            scope.initialize_variables = True
    except BaseException:
        del (global_state.get_global_attribute(name) or [])[before:]
        raise


def batch_arrays(
    arrays, batch_size=None, steps=None, shuffle=False, class_weight=None
):
    """Return a `tf.data.Dataset` of batches, as `fit` makes it of arrays.

    Args:
        arrays: x, y and sample_weight; the last two may be None.
        batch_size: number of rows in a batch.
        steps: number of batches, if `batch_size` is None.
        shuffle: see `fit`.
        class_weight: dict of class index -> weight, or None.
    """
    batches = ArrayDataAdapter(
        *arrays,
        batch_size=batch_size,
        steps=steps,
        shuffle=shuffle,
        class_weight=class_weight,
    )
    import tensorflow  # here, because Keras may run on JAX

    # Keras keeps the number of batches in its adapter only.
    count = tensorflow.data.experimental.assert_cardinality
    return batches.get_tf_dataset().apply(count(batches.num_batches))


def split_arrays(arrays, fraction):
    """Return the arrays for training and those that `validation_split` takes.

    Args:
        arrays: x, y and sample_weight.
        fraction: the fraction of the rows to take from the end.
    """
    return array_slicing.train_validation_split(arrays, fraction)


# Keras averages the loss over the rows of one replica. The models of this
# package average the loss over the global batch. So `training/step.py` reads
# the losses of `compile`, their reductions and their weights with the functions
# below.


def has_losses(model):
    """Return True if `compile` was given a loss."""
    return model._compile_loss is not None


def build_losses(model, labels):
    """Build the losses of `compile`, unless they are built already."""
    if not model._compile_loss.built:
        model._compile_loss.build(labels, model.output)


def forget_compilation(model):
    """Forget the losses and metrics of an earlier `compile`.

    Keras keeps the old ones if the next `compile` is given none.
    """
    model.loss = model._compile_loss = model._compile_metrics = None


def read_compile_arguments(model):
    """Return a dict of the losses and metrics that `compile` was given."""
    losses, metrics = model._compile_loss, model._compile_metrics
    return {
        "loss": losses and losses._user_loss,
        "metrics": metrics and metrics._user_metrics,
        "weighted_metrics": metrics and metrics._user_weighted_metrics,
    }


def given_losses(model):
    """Return a flat list of the losses that `compile` was given."""
    loss = model._compile_loss._user_loss if has_losses(model) else []
    return tree.flatten(loss)


def compiled_losses(model):
    """Return the losses of `compile`, a list of (path, loss, weight, name)."""
    return model._compile_loss._flat_losses if has_losses(model) else []


def compiled_metrics(model):
    """Return the `Metric` objects of `compile`, built or not."""
    compiled = model._compile_metrics
    if compiled is None or compiled.built:
        return [] if compiled is None else compiled.metrics
    given = compiled._user_metrics, compiled._user_weighted_metrics
    # A name may be a class or a function.
    metrics = [keras.metrics.get(metric) for metric in tree.flatten(given)]
    return [m for m in metrics if isinstance(m, keras.metrics.Metric)]


def loss_trackers(model):
    """Return `Mean` metrics: the total, then each loss if there are several."""
    singles = model._compile_loss.metrics if has_losses(model) else []
    return [model._loss_tracker, *singles]


def build_metrics(model, data):
    """Create the variables of metrics, losses and optimizer, from shapes.

    Args:
        model: a compiled model.
        data: a batch, or tensor specs of the same structure.
    """
    model._symbolic_build(data_batch=data)


def read_weights(layer):
    """Return the weights as tensors in their own dtype, on TensorFlow.

    Inside of a layer's `call`, Keras would cast them to its compute dtype.
    """
    with AutocastScope(None):
        return [tf.convert_to_tensor(weight) for weight in layer.weights]


def find_producer(tensor):
    """Return the layer that made a symbolic tensor, or None."""
    history = getattr(tensor, "_keras_history", None)
    return history and history.operation


class DropsWeights:
    """Layer mixin that deletes weights quickly, for conversion to int8.

    `keras.Layer` runs the garbage collector after each deletion, which takes
    0.1 s or more. The conversion of BERT-base deletes 74 matrices.
    """

    def __delattr__(self, name):
        value = getattr(self, name)
        if isinstance(value, keras.Variable):
            self._untrack_variable(value)
            super(keras.Layer, self).__delattr__(name)
        else:
            super().__delattr__(name)


# Keras's optimizers clip the gradients of each replica and then sum them. The
# models of this package sum first, so their optimizers must not sum again.


@contextlib.contextmanager
def summed_gradients(optimizer):
    """Make an optimizer expect gradients already summed over replicas.

    After the `with` block, the optimizer sums again, as other models need it.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    optimizer._all_reduce_sum_gradients = _return_pairs
    try:
        yield
    finally:
        # Threads of several replicas leave the block.
        vars(optimizer).pop("_all_reduce_sum_gradients", None)


def takes_summed_gradients(optimizer):
    """Return True inside of `summed_gradients` of this optimizer."""
    return "_all_reduce_sum_gradients" in vars(optimizer)


def _return_pairs(pairs):
    """Replace Keras's sum over replicas: return the pairs unchanged."""
    return list(pairs)


class SumsGradients:
    """Optimizer mixin that turns off Keras's sum of gradients over replicas.

    The optimizer's `apply` sums the gradients, if the model has not.
    """

    def _all_reduce_sum_gradients(self, pairs):
        return _return_pairs(pairs)

    def finalize_variable_values(self, var_list):
        # On JAX, `fit` calls this method also if its first step failed. The
        # moving averages of the weights are then still 0.
        if self.iterations.numpy() > 0:
            super().finalize_variable_values(var_list)


def reset_averages(optimizer, weights):
    """Set the moving averages of these weights to the weights themselves.

    At the end of `fit`, Keras replaces all trainable weights by their averages,
    also weights that no step of this optimizer has updated.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    for weight in weights if optimizer.use_ema else ():
        index = optimizer._get_variable_index(weight)
        optimizer._model_variables_moving_average[index].assign(weight)


def separate_averages(optimizer):
    """Copy the moving averages, which share memory with the weights on JAX.

    Keras shares it at the end of `fit`. A second `fit` would give the same
    memory to its step twice, and JAX refuses this.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if keras.backend.backend() == "jax" and optimizer.use_ema:
        for average in optimizer._model_variables_moving_average:
            average.assign(keras.ops.copy(average))


def learning_rate_schedule(optimizer):
    """Return the schedule of an optimizer, or None for a constant rate."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(optimizer, "_learning_rate", None)
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return rate if isinstance(rate, schedule) else None


class RestoresVariables:
    """Model mixin that keeps the variables' values if a step fails on JAX.

    Before a step, Keras moves the values into the step's arguments and clears
    the variables. It assigns them again after the last step, but not if the
    first step fails, and in `evaluate` and `predict` not if any step fails.
    """

    def _get_jax_state(self, purge_model_variables=False, **is_included):
        values = super()._get_jax_state(
            purge_model_variables=purge_model_variables, **is_included
        )
        kinds = [kind for kind, included in is_included.items() if included]
        # `jax_state_sync` assigns these until a step has returned new values.
        self._jax_state = dict(zip(kinds, values, strict=True))
        return values

    def restore_variables(self: Any) -> bool:
        """Assign the last step's values; return False if they are lost.

        Without a step, the variables get the values that they had before. The
        values are lost if a compiled step failed while it ran, because Keras
        lets the step reuse the memory of its arguments.
        """
        if keras.backend.backend() != "jax":
            return True
        self.jax_state_sync()
        self._jax_state = None
        try:
            for variable in self.variables:
                variable.value.block_until_ready()
        except RuntimeError:
            return False
        return True


class TaskTrainer:
    """Model mixin that works around five defects of Keras 3.15.

    Four are in the trainer for TensorFlow. Two of them make `fit` fail under
    MultiWorkerMirroredStrategy: Keras averages the first batch over the
    workers, and it reduces scalar logs along an axis. Under both mirrored
    strategies, the loop of `steps_per_execution` reads a placeholder without a
    value and fails. Without a strategy, Keras traces the first step twice. The
    fifth defect: `compute_output_spec` fails if an optional input is None.
    """

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        strategy = self._distribute_strategy
        if strategy is None:
            specs = _batch_specs(iterator)
            # With `run_eagerly` a loss may need values, not only shapes.
            if specs is not None and not self.run_eagerly:
                self._symbolic_build(data_batch=specs)
            return
        # Build from the first local replica's part of the first batch.
        for _, _, batches in iterator or ():
            data_batch = tree.map_structure(
                lambda x: strategy.experimental_local_results(x)[0],
                next(batches),
            )
            break
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    def _symbolic_build(self, iterator=None, data_batch=None):
        # Keras's own errors about labels or metrics would be harder to read, so
        # check first. If all is built, leave the iterator's batches alone.
        parts = self._compile_loss, self._compile_metrics
        if iterator is not None and not all(
            p is None or p.built for p in parts
        ):
            _, _, batches = next(iter(iterator))
            data_batch = next(batches)
        if data_batch is not None:
            self.check_batch(data_batch)
        super()._symbolic_build(iterator, data_batch)

    def compute_output_spec(
        self, inputs: Any, training: Any = None, mask: Any = None
    ) -> Any:
        # Keras's method fails if an optional input is None.
        if any(x is None for x in tree.flatten(inputs)):
            return keras.Operation.compute_output_spec(self, inputs, training)
        return super().compute_output_spec(  # type: ignore[misc]
            inputs, training, mask
        )

    def check_batch(self, batch: Any) -> None:
        """Raise if losses, metrics or labels do not fit the model.

        `TaskModel` overrides this method. This class checks nothing.
        """

    def _make_function(self, step_function, *arguments, **keywords):
        make = super()._make_function
        if keras.backend.backend() != "tensorflow":
            return make(step_function, *arguments, **keywords)
        several = tf.distribute.MultiWorkerMirroredStrategy
        if isinstance(self._distribute_strategy, several):
            make = functools.partial(_with_local_logs(make.__func__), self)
        function = make(step_function, *arguments)
        kinds = (tf.distribute.MirroredStrategy, several)
        steps = self.steps_per_execution
        # Only mirrored strategies need our own loop over the steps.
        if steps == 1 or not isinstance(self._distribute_strategy, kinds):
            return function
        return _take_steps_from_the_host(self, function, steps)


def _batch_specs(iterator):
    """Return tensor specs of a data set's batches, or None if unknown."""
    data = getattr(iterator, "_distributed_dataset", None)
    if data is None:
        return None
    # The spec of a missing optional input has no dtype and becomes None.
    specs = tree.map_structure(
        lambda spec: spec if hasattr(spec, "dtype") else None,
        data.element_spec,
    )
    shapes = [x.shape for x in tree.flatten(specs) if x is not None]
    return specs if all(shape.rank is not None for shape in shapes) else None


def _with_local_logs(make_function):
    """Return a copy of Keras's `_make_function` that averages logs locally.

    The copy calls the `reduce_per_replica` below, which averages the logs of
    one worker. Logs need no reduction between workers, because at the end of an
    epoch `fit` reads the metrics, which are summed over all replicas.
    """

    def reduce_per_replica(values, strategy, reduction):
        def mean(value):
            local = strategy.experimental_local_results(value)
            return tf.reduce_mean(tf.stack(local), axis=0)

        return tree.map_structure(mean, values)

    names = {
        **make_function.__globals__,
        "reduce_per_replica": reduce_per_replica,
    }
    return types.FunctionType(
        make_function.__code__,
        names,
        make_function.__name__,
        make_function.__defaults__,
        make_function.__closure__,
    )


def _take_steps_from_the_host(model, function, steps):
    def execute(iterator):
        outputs = None
        # With the value 1, Keras's `function` takes one step per call.
        model.steps_per_execution = 1
        try:
            for _ in range(steps):
                outputs = function(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            # The data ended before the last step. Return the last outputs.
            if outputs is None:
                raise
        finally:
            model.steps_per_execution = steps
        return outputs

    return execute
