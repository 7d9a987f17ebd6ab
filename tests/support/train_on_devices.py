"""Trains a tiny pre-trainer on some devices; for test_devices.py.

    python -m tests.support.train_on_devices DEVICES OUTPUT [CASE ...]

DEVICES is the number of replicas in this process. With TF_CONFIG, it is
worker/N, and each worker has N replicas. CASE is OPTIMIZER-PARTS, such as
lamb-4, with PARTS micro-batches a step. It may end with -xla (each replica
compiled) or -five (five steps an execution). KERAS_FLOATX gives the dtype.
OUTPUT.npz gets weights, losses and metrics.
"""

import os
import sys

import keras
import numpy as np

from bert_keras import adamw
from bert_keras.modeling.pretrainer import (
    pretraining_losses,
    pretraining_metrics,
)
from bert_keras.training.optimizers import lamb
from bert_keras.training.strategy import make_strategy
from tests.support.model_samples import (
    STILL,
    fill,
    make_model,
    pretraining_batch,
)

ROWS, STEPS = 8, 20
OPTIMIZERS = {"adamw": adamw, "lamb": lamb}
BOUNDS = {"float32": 1e-6, "float64": 1e-9}


def global_batches():
    """Return inputs, labels and sample weights of all steps.

    The sample weights differ by replica.
    """
    steps = []
    for step in range(STEPS):
        x, y, w = pretraining_batch(step, ROWS)
        w["mlm"][: ROWS // 2, 1:] = 0
        w["nsp"][ROWS // 2 :] = 0.25 + step % 2
        steps.append((x, y, w))
    return tuple(
        {
            name: np.concatenate([step[part][name] for step in steps])
            for name in steps[0][part]
        }
        for part in range(3)
    )


def use_cpus(number, worker):
    """Split the CPU into devices; call this before the backend uses it."""
    if keras.backend.backend() == "jax":
        return  # XLA_FLAGS splits it
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * number,
    )
    if worker:
        # The strategy would use only one CPU device of each worker.
        from tensorflow.python.distribute import collective_all_reduce_strategy

        def all_of_them(self, cluster_resolver, worker_device):
            devices = (f"{worker_device}/device:CPU:{i}" for i in range(number))
            return tuple(devices), "CPU"

        extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
        extended._initialize_local_devices = all_of_them


def batches(strategy, arrays):
    """Return the data arguments of `fit`."""
    if keras.backend.backend() == "jax":
        x, y, w = arrays
        return {"x": x, "y": y, "sample_weight": w, "batch_size": ROWS}
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(arrays).batch(ROWS)
    return {"x": strategy.batches(dataset)}


def train(strategy, optimizer, parts, options):
    if keras.backend.backend() == "tensorflow":
        from bert_keras.training import step_tensorflow

        step_tensorflow._compile_here = lambda: "xla" in options
    model = fill(make_model("pretrainer", hidden_dim=16, **STILL))
    model.compile(
        OPTIMIZERS[optimizer](
            1e-4, STEPS, clip_norm=0.1, accumulate=int(parts)
        ),
        pretraining_losses(),
        weighted_metrics=pretraining_metrics(),
        steps_per_execution=5 if "five" in options else 1,
    )
    data = batches(strategy, global_batches())
    history = model.fit(**data, shuffle=False, verbose=0).history
    figures = {name: values[0] for name, values in history.items()}
    if optimizer == "adamw":
        held_out = model.evaluate(**data, verbose=0, return_dict=True)
        figures |= {f"val_{name}": value for name, value in held_out.items()}
    figures["norm"] = model.optimizer.gradient_norm
    weights = {weight.path: weight for weight in model.trainable_weights}
    convert = keras.ops.convert_to_numpy
    return {name: convert(x) for name, x in (weights | figures).items()}


def differences(ours, reference):
    """Return the weights' relative L2 and largest absolute difference."""
    names = [name for name in reference if "/" in name]
    assert len(names) == 30
    apart = [ours[name] - reference[name] for name in names]
    norm = np.sqrt(sum((d.astype("float64") ** 2).sum() for d in apart))
    length = np.sqrt(
        sum((reference[n].astype("float64") ** 2).sum() for n in names)
    )
    return norm / length, max(abs(d).max() for d in apart)


def check(results, reference, dtype="float32"):
    """Compare each case, such as "lamb-4", with a run on one device.

    The run on one device has the same optimizer and one micro-batch ("lamb-1").

    Args:
        results: case -> name -> array, of weights (by path) and metrics.
        reference: the same for "adamw-1", "lamb-1" or both.
        dtype: training dtype; see `BOUNDS`.
    """
    for case, ours in results.items():
        expected = reference[f"{case.split('-')[0]}-1"]
        relative, largest = differences(ours, expected)
        print(f"{case}: {relative:.1e} of the norm, at most {largest:.1e}")
        assert relative <= BOUNDS[dtype], case
        assert largest <= BOUNDS[dtype], case
        assert ours["norm"] > 1.5, "clipping was not active"
        for name in ours.keys() - {"norm"}:
            if "/" not in name:
                assert abs(ours[name] - expected[name]) <= 1e-5, name


def main(devices, output, *cases):
    worker, _, number = devices.rpartition("/")
    number = int(number)
    use_cpus(number, worker)
    several = worker or number > 1
    kind = "multi_worker" if worker else "mirrored" if several else "off"
    strategy = make_strategy(kind)
    expected = 2 * number if worker else number
    assert strategy.num_replicas == expected, strategy.num_replicas
    results = {}
    with strategy.scope():
        for case in cases:
            optimizer, parts, *options = case.split("-")
            figures = train(strategy, optimizer, parts, options)
            results |= {f"{case}:{name}": x for name, x in figures.items()}
    np.savez(f"{output}.npz", **results)


if __name__ == "__main__":
    if os.environ.get("KERAS_FLOATX"):
        keras.config.set_floatx(os.environ["KERAS_FLOATX"])
    main(*sys.argv[1:])
