"""This package: some pre-training steps of `fit`, on any backend and devices.

Unlike one step of `train_on_batch`, `fit` feeds a strategy's replicas and
leaves the device no pause between the steps.
"""

import itertools
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from worker import peak_megabytes, serve


def prepare(settings):
    os.environ["KERAS_BACKEND"] = settings["backend"]
    _cpu_devices(settings.get("cpu_devices", 1))
    from examples import dense_rows
    from ours_model import packed_rows, pretrainer

    from bert_keras.training.strategy import make_strategy

    strategy = make_strategy(settings["distribution"])
    settings["batch"] *= strategy.num_replicas
    batch, examples, per_row = dense_rows(settings), settings["batch"], None
    if "lengths" in settings:
        batch, examples, per_row = packed_rows(settings)
    # Under a strategy Keras compiles nothing; our step then does it itself.
    jit = settings["jit"] if strategy.name == "off" else "auto"
    with strategy.scope():
        model = pretrainer(settings, per_row, jit=jit)
    steps = settings["steps"]

    def fit():
        data = _repeated(batch, strategy)
        model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0)

    return fit, steps * examples, _devices(strategy.num_replicas)


def _cpu_devices(number):
    if number > 1:
        import tensorflow as tf

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * number,
        )


def _repeated(batch, strategy):
    """One batch without end, as `fit` takes it; no TensorFlow for JAX."""
    if os.environ["KERAS_BACKEND"] == "jax":
        return (batch for _ in itertools.count())
    import tensorflow as tf

    from bert_keras.data.tf_data import untuned

    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    return strategy.batches(untuned(dataset))


def _devices(replicas):
    """What it runs on, and how many of them."""
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        return {"device": jax.devices()[0].device_kind, "replicas": replicas}
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    details = gpus and tf.config.experimental.get_device_details(gpus[0])
    name = details["device_name"] if gpus else "cpu"
    return {"device": name, "replicas": replicas}


def peak():
    """Of one device, where it counts; else of this process."""
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        found = jax.devices()[0].memory_stats()
        return found["peak_bytes_in_use"] / 2**20 if found else peak_megabytes()
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return peak_megabytes()
    return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20


serve(prepare, peak)
