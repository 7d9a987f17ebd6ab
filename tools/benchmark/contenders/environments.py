"""An environment of its own for each peer, made once with pip."""

import os
import subprocess
import sys
import venv

from bert_keras import files
from bert_keras.errors import InputError

REQUIREMENTS = {
    "keras_hub": ["keras-hub", "safetensors", "tensorflow", "tensorflow-text"],
    "model_garden": ["tf-models-official"],
    "transformers": ["transformers", "torch"],
}


def interpreter(folder, peer):
    """Path of the peer's Python; its environment is made where it lacks.

    Args:
        folder: where environments lie, one a peer. One that is there, made by
            hand or linked, is taken as it is.
        peer: a key of `REQUIREMENTS`, or "ours" for this very Python.
    """
    if peer == "ours":
        return sys.executable
    home = os.path.join(folder, peer)
    python = os.path.join(home, "bin", "python")
    if not os.path.exists(python):
        try:
            _make(home, python, REQUIREMENTS[peer])
        except BaseException:  # Ctrl-C too: without it, this is done again
            files.remove(python)
            raise
    return python


def _make(home, python, requirements):
    venv.create(home, with_pip=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *requirements],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise InputError(
            f"The environment {home} could not be made:\n"
            f"{done.stderr[-1000:]}\nMake it by hand with "
            f"{', '.join(requirements)}, and run this again."
        )
