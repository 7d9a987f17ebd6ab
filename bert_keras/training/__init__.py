"""Training: optimizers, steps, devices, checkpoints."""

# Values of `strategy.make_strategy`'s `distribution`. These constants are here,
# because the scripts' flags need them before Keras is imported.
DISTRIBUTIONS = ("off", "mirrored", "multi_worker", "tpu", "auto")
# Values of `schedules.schedule`'s `shape`.
SCHEDULES = ("linear", "cosine", "constant")
# Device files of NVIDIA's GPUs on Linux, and of any GPU under WSL on Windows.
GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg")
