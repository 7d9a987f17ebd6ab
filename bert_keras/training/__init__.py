"""Training: optimizers, steps, devices, checkpoints."""

# Names of the choices of devices; see `strategy.make_strategy`. They are
# defined here, because flags need them before Keras is imported.
DISTRIBUTIONS = ("off", "mirrored", "multi_worker", "tpu", "auto")
# Shapes of the learning rate after the warm-up; see `schedules.schedule`.
SCHEDULES = ("linear", "cosine", "constant")
# Device files of NVIDIA's GPUs on Linux, and of any GPU under WSL on Windows.
GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg")
