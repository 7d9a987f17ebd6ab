"""pytorch_model*.bin to safetensors, in a process of its own.

A pickle can run any code when it is read. PyTorch's restricted loader lets
tensors through and nothing else; whatever still goes wrong ends with the
child process.
"""

import os
import shutil
import subprocess
import sys

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.tensor_files import write_safetensors
from bert_keras.interop.tensors import FILES, WeightsError

PREFIX, END = "pytorch_model", ".bin"
# Settings, vocabularies, the licence: of the folder and of the modules in it.
COPIED = (".json", ".txt", ".md")


def is_pickle(name):
    """Whether a file of this name is PyTorch's weights, or a shard of them."""
    return name.startswith(PREFIX) and name.endswith(END)


def pickles_in(folder):
    """Paths of the pickles in a folder, whole or in shards, in order."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [
        os.path.join(folder, name) for name in sorted(filter(is_pickle, names))
    ]


def unpickle_folder(folder, target, inner=""):
    """Writes `target`: the folder with safetensors in the pickle's place.

    Needs PyTorch, in the child process only.

    Args:
        folder: with the pickle, or its shards, in it or in `inner`.
        target: where to.
        inner: the folder's module that has the weights, if it has modules.
    """
    files.check_inside(os.path.join(folder, inner), folder)
    pickles = pickles_in(os.path.join(folder, inner))
    if not pickles:
        raise InputError(f"{folder} holds no {PREFIX}{END}.")
    for path in pickles:
        files.check_file(path, inside=os.path.dirname(path))
    _copy_small(folder, target)
    for name in os.listdir(folder):
        if os.path.isdir(os.path.join(folder, name)):
            files.check_inside(os.path.join(folder, name), folder)
            _copy_small(os.path.join(folder, name), os.path.join(target, name))
    _run_child(pickles, os.path.join(target, inner, "model.safetensors"))


def _copy_small(folder, target):
    os.makedirs(target, exist_ok=True)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        is_copied = name.endswith(COPIED) or name in FILES
        if (
            is_copied
            and os.path.isfile(path)
            and files.check_file(path, inside=folder) <= files.MOST_JSON
        ):
            shutil.copyfile(path, os.path.join(target, name))


def _run_child(pickles, target):
    done = subprocess.run(
        [sys.executable, "-m", __name__, target, *pickles],
        capture_output=True,
        text=True,
    )
    if "No module named 'torch'" in done.stderr:
        raise InputError(
            f"Reading {pickles[0]} needs PyTorch, which is not installed: "
            "pip install torch."
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it ended"]
        raise WeightsError(
            pickles[0],
            f"the restricted loader refuses it ({lines[-1][:300]})",
            "Take a folder with safetensors",
        )


def main(target, *pickles):
    """In the child: load with the restricted loader, write safetensors."""
    import torch

    tensors = {}
    for path in pickles:
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name, value in state.items():
            if value.is_floating_point():
                array = value.to(torch.float32).contiguous().numpy()
                tensors[name] = array.shape, lambda array=array: array
    # One at a time, where the library holds the bytes of all once more.
    write_safetensors(target, tensors)


if __name__ == "__main__":
    main(*sys.argv[1:])
