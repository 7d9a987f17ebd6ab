"""Processes that train on several devices of this host."""

import json
import os
import socket
import subprocess
import sys

from tests.support import forks


def start(script, *arguments, **environment):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment}
    words = [*script, *arguments]
    if environment.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
        return forks.start(words, env=environment)
    return subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(*processes):
    try:
        for process in processes:
            out, errors = process.communicate(timeout=7200)
            assert process.returncode == 0, (out + errors)[-4000:]
    finally:
        for process in processes:
            process.kill()


def tf_configs():
    """Return the TF_CONFIG of each of two workers on this host."""
    cluster = {"worker": [f"127.0.0.1:{free_port()}" for _ in range(2)]}
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    return [json.dumps({"cluster": cluster, "task": task}) for task in tasks]


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]
