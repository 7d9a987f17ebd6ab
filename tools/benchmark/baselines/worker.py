"""Runs a job of `jobs.py`. `turns.py` starts this script as a process.

    python worker.py JOB SETTINGS

JOB is the name of a function of `jobs.py`, and SETTINGS is a JSON dict. The
worker prints JSON: first a report (units of a step, versions, device), then
times, peak memory and result for each line of stdin. A line is a JSON list of
arguments. For each line, the worker takes a step with these arguments (on a
GPU: as many steps as the setting "gpu_steps"). Before the report, it takes as
many steps as the setting "warm", by default none.
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
}


def read_gpu():
    """Return (name, peak bytes) of this process's GPU; None without a GPU."""
    torch, tf = sys.modules.get("torch"), sys.modules.get("tensorflow")
    if torch and torch.cuda.is_available():
        return torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()
    if tf and (gpus := tf.config.list_physical_devices("GPU")):
        details = tf.config.experimental.get_device_details(gpus[0])
        memory = tf.config.experimental.get_memory_info("GPU:0")
        return details["device_name"], memory["peak"]
    return None


def read_peak_megabytes():
    """Return the peak MiB of the GPU or, without a GPU, of the process.

    If a child that has ended had a higher peak, return the child's.
    """
    if gpu := read_gpu():
        return gpu[1] / 2**20
    # `RUSAGE_SELF` would include the memory of the parent.
    with open("/proc/self/status", encoding="utf-8") as file:
        lines = dict(line.split(":", 1) for line in file)
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(int(lines["VmHWM"].split()[0]), children) / 1024


def read_processor_seconds():
    """Return the processor time of this process and of ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def read_versions():
    names = {"tensorflow", "keras", "torch", "transformers"}
    loaded = sorted(names & set(sys.modules))
    return {name: str(sys.modules[name].__version__) for name in loaded}


def main(job, settings):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print to stdout now print to stderr

    def answer(**values):
        print(json.dumps(values), file=answers, flush=True)

    settings = json.loads(settings)
    os.environ.update(ENVIRONMENT)
    # Keras and TensorFlow read ENVIRONMENT when they are imported.
    step, units = getattr(importlib.import_module("jobs"), job)(settings)
    for _ in range(settings.get("warm", 0)):  # trace, compile, fill caches
        step()
    gpu = read_gpu()
    # On a GPU, a step is short and may overlap with the next step. So several
    # steps are timed together.
    repeats = settings.get("gpu_steps", 1) if gpu else 1
    device = gpu[0] if gpu else "cpu"
    answer(units=units, versions=read_versions(), device=device)
    for line in sys.stdin:
        arguments = json.loads(line)
        began = time.perf_counter(), read_processor_seconds()
        for _ in range(repeats):
            result = step(*arguments)
        answer(
            seconds=(time.perf_counter() - began[0]) / repeats,
            processor=(read_processor_seconds() - began[1]) / repeats,
            peak=read_peak_megabytes(),
            result=result if arguments else None,
        )


if __name__ == "__main__":  # child processes of a job import this file too
    main(*sys.argv[1:])
