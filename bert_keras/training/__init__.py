"""Training: optimizers, steps, devices, checkpoints."""

# The devices of a run by name; see `strategy.make_strategy`. Defined here,
# because flags need the names before Keras is imported.
DISTRIBUTIONS = ("off", "mirrored", "multi_worker", "tpu", "auto")
# The learning rates after the warm-up by name; see `schedules.schedule`.
SCHEDULES = ("linear", "cosine", "constant")
# A GPU of NVIDIA on Linux; of any make on Linux on Windows.
GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg")
