"""The devices and the dtype of a training run, chosen by name.

The names are values of the scripts' flags `--distribution`, `--tpu` and
`--dtype`. `step_tensorflow.py` and `step_jax.py` have the training step.
"""

import contextlib
import functools
import glob
import json
import os

import keras

from bert_keras.errors import InputError
from bert_keras.training import DISTRIBUTIONS, GPU_FILES

# An example from TensorFlow's documentation; each host has its own index.
_TF_CONFIG = (
    '{"cluster": {"worker": ["host1:12345", "host2:12345"]}, '
    '"task": {"type": "worker", "index": 0}}'
)
BFLOAT16, FLOAT32 = "mixed_bfloat16", "float32"
CAPABILITY = (8, 0)  # of the A100, NVIDIA's first GPU with bfloat16


def make_strategy(distribution: str = "off", tpu: str = "local") -> "Strategy":
    """Return the `Strategy` for the name of a distribution.

    Call this function before anything else runs on a device. A process joins a
    cluster or sets up a TPU in the first call. Later calls reuse the cluster or
    the TPU. On JAX, "mirrored", "tpu" and "auto" are
    `keras.distribution.DataParallel` over all devices, except that "auto" with
    one device is "off".

    Args:
        distribution: "off", one device; "mirrored", all GPUs of this host, or
            its CPU if it has no GPU; "multi_worker", all GPUs (or the CPUs) of
            all hosts that the environment variable TF_CONFIG names; "tpu", a
            TPU. "auto" is "multi_worker" if TF_CONFIG names several workers,
            else "tpu" if there is a TPU, else "mirrored" if there are several
            GPUs, else "off".
        tpu: "local" for the TPU of this host, or a TPU's name or address.

    Raises:
        InputError: `distribution` is unknown, the TPU cannot be used, TF_CONFIG
            is missing or invalid, or `tpu` is given without distribution="tpu".
            On JAX also: distribution is "multi_worker", or `tpu` is given.

    Examples:
        >>> import bert_keras
        >>> strategy = bert_keras.make_strategy("off")
        >>> with strategy.scope():
        ...     model = bert_keras.BertEncoder.from_preset("bert_keras_mini_en")
        >>> strategy.num_replicas
        1
    """
    if distribution not in DISTRIBUTIONS:
        raise InputError(
            f"`distribution` must be one of {', '.join(DISTRIBUTIONS)}; got "
            f"{distribution!r}."
        )
    on_jax = keras.backend.backend() == "jax"
    if tpu != "local" and (on_jax or distribution != "tpu"):
        raise InputError(
            f"`tpu={tpu!r}` needs TensorFlow and `distribution='tpu'`; got "
            f"{keras.backend.backend()} and distribution={distribution!r}. "
            "Leave `tpu` out, or set `distribution='tpu'`."
        )
    if on_jax and distribution != "off":
        return _on_jax(distribution)
    distribution = resolve_auto(distribution)
    if distribution == "off":
        return Strategy("off")
    is_chief = True
    if distribution == "multi_worker":
        strategy, is_chief = _make_multi_worker()
    elif distribution == "tpu":
        strategy = _tpu(tpu)
    else:
        import tensorflow as tf

        kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        names = [d.name for d in tf.config.list_logical_devices(kind)]
        strategy = tf.distribute.MirroredStrategy(names)
    replicas = strategy.num_replicas_in_sync
    return Strategy(distribution, strategy, replicas, is_chief)


class Strategy:
    """The devices that train a model, from `make_strategy`.

    Attributes:
        name: one of `DISTRIBUTIONS`, but not "auto".
        num_replicas: number of model copies on all hosts. Each copy trains on
            a part of the batch.
        is_chief: False in the processes of "multi_worker" that do not write
            shared files, else True.
        distributed: the `tf.distribute` strategy or `keras.distribution`
            object; None for one device.
    """

    def __init__(self, name, distributed=None, num_replicas=1, is_chief=True):
        self.name = name
        self.distributed = distributed
        self.num_replicas = num_replicas
        self.is_chief = is_chief

    def scope(self):
        """Return the context in which to build, compile and fit the model.

        On TensorFlow, `fit` may also run outside of it.
        """
        if self.distributed is None:
            return contextlib.nullcontext()
        return self.distributed.scope()

    def batches(self, dataset):
        """Return `dataset` with options that divide each batch among the hosts.

        Every host reads the same global batches in the same order. TensorFlow's
        default divides the files among the hosts, which changes the batches.
        On JAX, or if `distributed` is None, return `dataset` as it is.
        """
        if self.distributed is None or keras.backend.backend() == "jax":
            return dataset
        import tensorflow as tf

        options = tf.data.Options()
        policy = tf.data.experimental.AutoShardPolicy.DATA
        options.experimental_distribute.auto_shard_policy = policy
        return dataset.with_options(options)


def describe_devices(strategy, dtype):
    """Return one line for a run's log, and a warning or None.

    Args:
        strategy: `Strategy` from `make_strategy`.
        dtype: name of the dtype policy of the training.

    Returns:
        `(line, warning)`. The line names devices, strategy and dtype, such as
        "2 x CPU, mirrored (2 replicas), float32". The warning is a str if
        training runs on the CPU although a GPU was expected, else None.
    """
    types = _list_device_types(strategy)
    counts = [f"{types.count(name)} x {name}" for name in sorted(set(types))]
    name = "no distribution"
    if strategy.distributed is not None:
        plural = "" if strategy.num_replicas == 1 else "s"
        name = f"{strategy.name} ({strategy.num_replicas} replica{plural})"
    line = f"{', '.join(counts)}, {name}, {dtype}"
    warning = None
    if set(types) == {"CPU"} and any(map(glob.glob, GPU_FILES)):
        backend = keras.backend.backend()
        extra = "jax[cuda12]" if backend == "jax" else f"{backend}[and-cuda]"
        warning = (
            f"This machine has a GPU that {backend} cannot use; training runs "
            f"on the CPU. If it is an NVIDIA GPU, install {extra} in the "
            f"version of your {backend}."
        )
    elif set(types) == {"CPU"} and strategy.name == "mirrored":
        warning = "No GPU was found: mirrored trains on the CPU."
    return line, warning


def _list_device_types(strategy):
    """Return the type of each device that trains: "CPU", "GPU" or "TPU"."""
    if keras.backend.backend() == "jax":
        devices = keras.distribution.list_devices()
        used = devices if strategy.distributed is not None else devices[:1]
        return [device.partition(":")[0].upper() for device in used]
    import tensorflow as tf

    if strategy.distributed is not None:
        here = strategy.distributed.extended.worker_devices
        types = [
            tf.DeviceSpec.from_string(device).device_type for device in here
        ]
        # Assume that every host has as many devices as this host.
        return types * max(strategy.num_replicas // len(types), 1)
    return ["GPU" if tf.config.list_physical_devices("GPU") else "CPU"]


def resolve_auto(distribution):
    """Replace "auto" by the distribution that it selects, except on JAX."""
    if distribution != "auto" or keras.backend.backend() == "jax":
        return distribution
    import tensorflow as tf

    if (
        len(_read_cluster().get("worker", []))
        + len(_read_cluster().get("chief", []))
        > 1
    ):
        return "multi_worker"
    if tf.config.list_physical_devices("TPU"):
        return "tpu"
    several = len(tf.config.list_physical_devices("GPU")) > 1
    return "mirrored" if several else "off"


def any_worker(strategy):
    """Return a function that returns True if any worker calls it with True.

    All workers must call the function after the same step.

    Args:
        strategy: `Strategy` from `make_strategy`.
    """
    if strategy.name != "multi_worker":
        return bool
    import tensorflow as tf

    from bert_keras.training.optimizers_tensorflow import sum_over_replicas

    def total(value):
        # The sum needs a tensor on a device. `identity` places it there.
        return sum_over_replicas([tf.identity(value)])[0]

    @tf.function
    def count(value):
        sums = strategy.distributed.run(total, args=(value,))
        return strategy.distributed.experimental_local_results(sums)[0]

    return lambda flag: bool(count(tf.constant(float(flag))) > 0)


def _make_multi_worker():
    """Return the strategy, and True if this process is the chief."""
    cluster = _read_cluster()
    if not cluster:
        raise InputError(
            "Training on several hosts needs the environment variable "
            f"TF_CONFIG on each host, such as TF_CONFIG='{_TF_CONFIG}'; it is "
            "not set. Set TF_CONFIG, or use `distribution='mirrored'` for the "
            "devices of this host."
        )
    task = _tf_config()["task"]
    # Without a task of type chief, the first worker is the chief.
    chief = "chief" if cluster.get("chief") else "worker"
    strategy = _join_cluster(os.environ["TF_CONFIG"])
    return strategy, (task["type"], int(task["index"])) == (chief, 0)


@functools.cache  # A second strategy would close the first one's connections.
def _join_cluster(tf_config):
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()


@functools.cache  # a second setup would clear the TPU's memory
def _tpu(name):
    import tensorflow as tf

    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(name)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        # One process drives all hosts of a TPU slice, so it is the chief.
        return tf.distribute.TPUStrategy(resolver)
    # A missing TPU raises ValueError, NotFoundError, RuntimeError or others.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise InputError(
            f"The TPU {name!r} cannot be used ({reason}). Expected a TPU of "
            "this host with the package tensorflow-tpu (`tpu='local'`), or the "
            "name or address of a TPU (`tpu=NAME`). docs/tpu.md shows both."
        ) from error


def _on_jax(distribution):
    if distribution == "multi_worker":
        raise InputError(
            "multi_worker needs the TensorFlow backend; got jax. On JAX, call "
            "keras.distribution.initialize(...) on each host, and use "
            "`distribution='mirrored'` to train on the devices of all hosts."
        )
    devices = keras.distribution.list_devices()
    if distribution == "tpu" and not devices[0].startswith("tpu"):
        raise InputError(
            f"JAX sees no TPU here, only {', '.join(devices)}. Install jax[tpu]"
            " on a host with a TPU, or use `distribution='mirrored'`."
        )
    if distribution == "auto" and len(devices) == 1:
        return Strategy("off")
    name = "tpu" if devices[0].startswith("tpu") else "mirrored"
    parallel = keras.distribution.DataParallel(devices=devices)
    return Strategy(name, parallel, len(devices))


def _read_cluster():
    """Return dict of task type -> addresses from TF_CONFIG; {} if not set."""
    return _tf_config()["cluster"] if os.environ.get("TF_CONFIG") else {}


def _tf_config():
    text = os.environ["TF_CONFIG"]
    try:
        config = json.loads(text)
        addresses = config["cluster"][config["task"]["type"]]
        if int(config["task"]["index"]) not in range(len(addresses)):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"TF_CONFIG must be JSON such as {_TF_CONFIG}, with a task that is "
            f"in the cluster; got {text}."
        ) from None
    return config


def choose_dtype(dtype="auto", distribution="off"):
    """Return the name of a Keras dtype policy; choose one for "auto".

    "auto" means "mixed_bfloat16" on a TPU, on GPUs of compute capability 8.0
    and above, and on a CPU if `fast_bfloat16` is True. Elsewhere "auto" means
    "float32". It never means "mixed_float16", which needs loss scaling.

    Args:
        dtype: "auto", or a policy's name, which is returned as it is.
        distribution: the name of the `Strategy`.
    """
    if dtype != "auto":
        return dtype
    if distribution == "tpu":
        return BFLOAT16
    if keras.backend.backend() == "jax":
        return _choose_dtype_on_jax()
    import tensorflow as tf

    if gpus := tf.config.get_visible_devices("GPU"):
        details = map(tf.config.experimental.get_device_details, gpus)
        versions = [one.get("compute_capability", (0, 0)) for one in details]
        # All GPUs compute with one policy, so the oldest GPU decides.
        return BFLOAT16 if min(versions) >= CAPABILITY else FLOAT32
    return BFLOAT16 if fast_bfloat16() else FLOAT32


def _choose_dtype_on_jax():
    import jax

    devices = jax.devices()
    if devices[0].platform == "tpu":
        return BFLOAT16
    if devices[0].platform == "gpu":
        versions = [str(device.compute_capability) for device in devices]
        # The compute capability of an AMD GPU is a name, such as gfx90a.
        if not all(v.replace(".", "").isdigit() for v in versions):
            return FLOAT32
        # All GPUs compute with one policy, so the oldest GPU decides.
        oldest = min(tuple(map(int, v.split("."))) for v in versions)
        return BFLOAT16 if oldest >= CAPABILITY else FLOAT32
    return BFLOAT16 if fast_bfloat16() else FLOAT32


def fast_bfloat16():
    """Return True if this processor multiplies bfloat16 faster than float32.

    This is true with AMX, and with avx512_bf16 on processors of other makers
    than Intel. On a processor without bfloat16 instructions, bfloat16 is
    several times slower than float32. Intel's avx512_bf16 is slower too. On a
    Xeon (family 6, model 207) without AMX, the matrix products of a training
    step took 1.66 times as long as in float32.
    """
    names = instructions()
    by_avx512 = "avx512_bf16" in names and "GenuineIntel" not in names
    return by_avx512 or "amx_bf16" in names


@functools.cache
def instructions(path="/proc/cpuinfo"):
    """Return the vendor and the feature flags of the first CPU core, as a set.

    The set is empty if the file `path` cannot be read.
    """
    fields = {}
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, _, values = line.partition(":")
                fields.setdefault(name.strip(), values.split())
    except OSError:
        return frozenset()
    return frozenset(fields.get("vendor_id", []) + fields.get("flags", []))
