"""Checkpoints: folders of tensors with a manifest of their hashes.

The folder `step-00001234/` holds a safetensors file for each group of tensors
(model, optimizer, metrics), and `manifest.json`, which is written last.
"""

import itertools
import logging
import os
import re
import shutil

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from bert_keras import files, json_files
from bert_keras.errors import InputError
from bert_keras.json_files import LIST, NATURAL, OBJECT
from bert_keras.manifest import (
    add_hash,
    check_entries,
    check_fields,
    find_fault,
    read_manifest,
)
from bert_keras.safetensors_files import write_safetensors

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
_FIELDS = {"step": NATURAL, "lines": LIST, "settings": OBJECT, "files": OBJECT}
logger = logging.getLogger(__name__)


class DamagedError(ValueError):
    """Raised when a checkpoint is damaged; the message says how."""


def steps(folder):
    """Return the steps of the checkpoints in `folder`, oldest first."""
    names = files.list_folder(folder)
    matches = [re.fullmatch(r"step-(\d{8,})", name) for name in names]
    numbers = sorted(int(match[1]) for match in matches if match)
    # All local checkpoints are complete: `write` renames their folders last.
    if not files.is_remote(folder):
        return numbers
    # A remote folder is complete if it has a manifest, which is written last.
    return [
        step
        for step in numbers
        if files.is_file(os.path.join(step_path(folder, step), MANIFEST))
    ]


def step_path(folder, step):
    return os.path.join(folder, f"step-{step:08d}")


def write(folder, step, groups, metadata):
    """Write a checkpoint as a new folder in `folder`.

    Args:
        folder: path of the folder of all checkpoints.
        step: number of steps that the run has taken.
        groups: dict of group name -> dict of tensor name -> NumPy array or
            Keras variable; each group is written to a file.
        metadata: dict of further fields of the manifest: "lines" (list of dict
            with "step"), "settings" (dict) and any others.
    """
    with files.atomic_output(step_path(folder, step)) as partial:
        os.mkdir(partial)
        written = {}
        for group, tensors in groups.items():
            name = f"{group}.safetensors"
            path = os.path.join(partial, name)
            written[name] = write_safetensors(
                path,
                {
                    name: (array.dtype, array.shape, lambda array=array: array)
                    for name, array in tensors.items()
                },
            )
        manifest = {
            "format_version": FORMAT_VERSION,
            "step": step,
            "files": written,
            **metadata,
        }
        json_files.write_json(
            add_hash(manifest), os.path.join(partial, MANIFEST)
        )


def read(folder, step):
    """Return the checkpoint's groups (see `write`) and its manifest, a dict.

    Raises:
        DamagedError: a file or the manifest is missing, unreadable or changed.
        InputError: another version of this package wrote the checkpoint.
        OSError: a file cannot be read now, so it may be intact.
    """
    path = step_path(folder, step)
    manifest = _read_manifest(path)
    if manifest["format_version"] != FORMAT_VERSION:
        raise InputError(
            f"The checkpoint {path} has format version "
            f"{manifest['format_version']}. Expected {FORMAT_VERSION}. Finish "
            "the run with the version of bert_keras that began it, or name "
            "another folder."
        )
    groups = {}
    for name, expected in manifest["files"].items():
        file = os.path.join(path, name)
        try:
            fault = find_fault(file, expected)
            tensors = None if fault else read_tensors(file)
        except (OSError, ValueError, SafetensorError) as error:
            # An errno means an error of the disk; the file may be intact.
            if getattr(error, "errno", None):
                raise
            raise DamagedError(f"{name} cannot be read ({error})") from None
        if fault:
            raise DamagedError(f"{name} {fault}")
        groups[name.removesuffix(".safetensors")] = tensors
    return groups, manifest


def _read_manifest(path):
    path = os.path.join(path, MANIFEST)
    try:
        # Of any size, because a long run has many lines.
        return read_manifest(path, "checkpoint", _check_manifest, most=None)
    except InputError as error:
        raise DamagedError(str(error)) from None


def _check_manifest(manifest):
    check_fields(manifest, {"format_version": NATURAL})
    if manifest["format_version"] == FORMAT_VERSION:
        check_fields(manifest, _FIELDS)
        check_entries(manifest["files"])
        for line in manifest["lines"]:
            check_fields(line, {"step": NATURAL})


def read_tensors(path):
    """Return dict of tensor name -> NumPy array in a safetensors file."""
    if files.is_remote(path):
        with files.open_file(path) as file:
            return load(file.read())
    with safe_open(path, framework="np") as file:
        names = file.keys()
        # Copy the tensors, because the file's memory map is closed on return.
        return {name: np.array(file.get_tensor(name)) for name in names}


def read_newest(folder):
    """Return the newest undamaged checkpoint: `(groups, manifest)`, or None.

    Log a warning for each damaged checkpoint that is skipped.
    """
    for step in reversed(steps(folder)):
        try:
            return read(folder, step)
        except DamagedError as error:
            logger.warning(
                "The checkpoint %s is damaged and is not used: %s. "
                "Trying the checkpoint before it.",
                step_path(folder, step),
                str(error).removesuffix("."),
            )
    return None


def prune(folder, newest, keep, keep_every=None):
    """Remove the checkpoints up to step `newest`, except the last `keep`.

    The first checkpoint at or after each multiple of `keep_every` stays.
    Checkpoints after `newest` also stay. They exist only if they were damaged
    and the run resumed from an earlier checkpoint.
    """
    upto = [step for step in steps(folder) if step <= newest]
    for previous, step in itertools.pairwise([0, *upto[:-keep]]):
        if keep_every and step // keep_every > previous // keep_every:
            continue
        path = step_path(folder, step)
        if files.is_remote(folder):
            files.remove(path)
            continue
        # Rename first, so that a kill cannot leave an incomplete checkpoint.
        renamed = os.path.join(folder, f".step{files.PARTIAL}{step}")
        files.remove(renamed)
        os.rename(path, renamed)
        shutil.rmtree(renamed, ignore_errors=True)
