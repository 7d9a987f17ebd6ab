"""Training: optimizers, steps, devices, checkpoints."""

# Values of the argument `distribution` of `strategy.make_strategy`. These
# constants are here, because flags need them before Keras is imported.
DISTRIBUTIONS = ("off", "mirrored", "multi_worker", "tpu", "auto")
# Values of the argument `shape` of `schedules.schedule`.
SCHEDULES = ("linear", "cosine", "constant")
# Device files of NVIDIA's GPUs on Linux, and of any GPU under WSL on Windows.
GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg")
