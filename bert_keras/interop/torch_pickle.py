"""pytorch_model.bin to safetensors, in a process of its own.

A pickle can run any code when it is read. PyTorch's restricted loader lets
tensors through and nothing else; whatever still goes wrong ends with the
child process.
"""

import os
import shutil
import subprocess
import sys

from bert_keras.errors import InputError
from bert_keras.interop.checkpoint import WeightsError
from bert_keras.interop.safetensors_file import write_safetensors

PREFIX, END = "pytorch_model", ".bin"
COPIED = (
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "modules.json",
    "sentence_bert_config.json",
)


def unpickle_folder(folder, target):
    """Writes `target`: the folder with safetensors in the pickle's place.

    Needs PyTorch, in the child process only.
    """
    pickles = sorted(
        name
        for name in os.listdir(folder)
        if name.startswith(PREFIX) and name.endswith(END)
    )
    if not pickles:
        raise InputError(f"{folder} holds no {PREFIX}{END}.")
    os.makedirs(target, exist_ok=True)
    for name in COPIED:
        if os.path.isfile(os.path.join(folder, name)):
            shutil.copyfile(
                os.path.join(folder, name), os.path.join(target, name)
            )
    paths = [os.path.join(folder, name) for name in pickles]
    _run_child(paths, os.path.join(target, "model.safetensors"))


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
    write_safetensors(target, tensors)


if __name__ == "__main__":
    main(*sys.argv[1:])
