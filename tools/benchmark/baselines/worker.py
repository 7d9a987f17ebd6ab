"""Runs a job of `jobs.py`. `turns.py` starts this script as a process.

    python worker.py JOB SETTINGS

JOB is the name of a function of `jobs.py`, and SETTINGS is a JSON dict. The
worker prints JSON: first a report (examples in a step, versions, device), then
times, result and peak memory for each line of stdin. A line is a JSON list of
arguments. For each line, the worker takes a step with these arguments (on a
GPU: as many steps as the setting "gpu_steps"). Before the report, it takes as
many steps as the setting "warm", by default 3. The setting "environment" is a
dict of environment variables.
"""

import importlib
import json
import os
import resource
import sys
import time

# Workers share a device, so no worker may allocate all memory of the device.
ENVIRONMENT = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def host_megabytes():
    """Return the peak MiB of this process or, if larger, of an ended child."""
    # `RUSAGE_SELF` would include the memory of the parent.
    with open("/proc/self/status", encoding="utf-8") as file:
        lines = dict(line.split(":", 1) for line in file)
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(int(lines["VmHWM"].split()[0]), children) / 1024


def read_gpu():
    """Return (name, peak bytes) of this process's GPU; None without a GPU."""
    torch, tf = sys.modules.get("torch"), sys.modules.get("tensorflow")
    if os.environ["KERAS_BACKEND"] == "jax" and "jax" in sys.modules:
        device = sys.modules["jax"].devices()[0]
        memory = device.memory_stats()  # None if the device is a CPU
        return memory and (device.device_kind, memory["peak_bytes_in_use"])
    if torch and torch.cuda.is_available():
        return torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()
    if tf and (gpus := tf.config.list_physical_devices("GPU")):
        details = tf.config.experimental.get_device_details(gpus[0])
        memory = tf.config.experimental.get_memory_info("GPU:0")
        return details["device_name"], memory["peak"]
    return None


def peak_megabytes():
    """Return the peak MiB of the GPU or, without a GPU, of the process."""
    gpu = read_gpu()
    return gpu[1] / 2**20 if gpu else host_megabytes()


def read_versions():
    names = {"tensorflow", "jax", "keras", "torch", "transformers"}
    loaded = sorted(names & set(sys.modules))
    return {name: str(sys.modules[name].__version__) for name in loaded}


def read_processor_seconds():
    """Return the processor time of this process and of ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def time_step(step, *arguments, repeats=1):
    """Take `repeats` steps; return the last result and a step's mean times.

    "seconds" is wall time, and "processor" is processor time. "result" is None
    if there are no `arguments`.
    """
    began = time.perf_counter(), read_processor_seconds()
    for _ in range(repeats):
        result = step(*arguments)
    return {
        "seconds": (time.perf_counter() - began[0]) / repeats,
        "processor": (read_processor_seconds() - began[1]) / repeats,
        "result": result if arguments else None,
    }


def main(job, settings):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print to stdout now print to stderr

    def answer(**values):
        print(json.dumps(values), file=answers, flush=True)

    settings = json.loads(settings)
    os.environ.update(ENVIRONMENT | settings.get("environment", {}))
    # Keras and TensorFlow read ENVIRONMENT when they are imported.
    jobs = importlib.import_module("jobs")
    step, examples = getattr(jobs, job)(settings)
    for _ in range(settings.get("warm", 3)):  # trace, compile, fill caches
        step()
    gpu = read_gpu()
    # On a GPU, a step is short and may overlap with the next step. So several
    # steps are timed together.
    repeats = settings.get("gpu_steps", 1) if gpu else 1
    answer(
        examples=examples,
        versions=read_versions(),
        device=gpu[0] if gpu else "cpu",
    )
    for line in sys.stdin:
        answer(
            **time_step(step, *json.loads(line), repeats=repeats),
            peak=peak_megabytes(),
        )


if __name__ == "__main__":  # child processes of a job import this file too
    main(*sys.argv[1:])
