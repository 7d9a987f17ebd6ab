"""A folder of record shards and the manifest that vouches for them.

The manifest is written last: a folder without one is unfinished. It names
each shard with its number of examples, its size and its SHA-256.
"""

import os
import re

from bert_keras import files
from bert_keras.data.journal import check_same
from bert_keras.data.laws import Laws
from bert_keras.data.manifests import (
    check_entries,
    check_fields,
    read_sealed,
    write_sealed,
)
from bert_keras.data.store import check_vocabulary_hash
from bert_keras.errors import InputError

MANIFEST = "manifest.json"
_SHARD = re.compile(r"examples-\d{5,}-of-\d{5,}\.tfrecord")


def write_manifest(folder: str, manifest: dict) -> dict:
    """Writes the manifest of shards that are all in place; returns it."""
    manifest = {
        "format": "bert_keras pre-training records",
        "version": 1,
        "examples": sum(shard["examples"] for shard in manifest["shards"]),
        **manifest,
    }
    write_sealed(os.path.join(folder, MANIFEST), manifest)
    return read_manifest(folder)


def refuse_other(folder: str, facts: dict):
    """Refuses a folder of finished records that were made otherwise."""
    try:
        manifest = read_manifest(folder)
    except InputError:
        return  # there is none, or it is damaged and vouches for nothing
    check_same(folder, {name: manifest.get(name) for name in facts}, facts)


def remove_others(folder: str, names: list[str]):
    """Removes shards of another build, which was broken off."""
    for name in files.list_folder(folder):
        if _SHARD.fullmatch(name) and name not in names:
            files.remove(os.path.join(folder, name))


def describe(path: str, name: str, examples: int) -> dict:
    """The entry in the manifest of a shard that lies at `path`."""
    return {
        "name": name,
        "examples": examples,
        "bytes": files.size(path),
        "sha256": files.sha256(path),
    }


def is_intact(folder: str, shard: dict) -> bool:
    """Whether a shard has the bytes that its entry says."""
    path = os.path.join(folder, shard["name"])
    return (
        files.is_file(path)
        and files.size(path) == shard["bytes"]
        and files.sha256(path) == shard["sha256"]
    )


def has_manifest(folder: str) -> bool:
    """Whether finished records lie in the folder."""
    return files.is_file(os.path.join(folder, MANIFEST))


def read_manifest(folder: str) -> dict:
    """The manifest of a folder of records.

    Raises:
        InputError: no manifest, or not one of records.
    """
    return read_sealed(
        os.path.join(folder, MANIFEST),
        "records",
        _check_manifest,
    )


def _check_manifest(manifest: dict):
    """Raises where the manifest says of records what none can be."""
    kinds = {"vocabulary_size": int, "vocabulary_hash": str}
    check_fields(manifest, kinds | {"laws": dict, "shards": list})
    Laws(**manifest["laws"])
    for shard in manifest["shards"]:
        check_fields(shard, {"examples": int, "name": str})
        check_entries({shard["name"]: shard})
    if not any(shard["examples"] for shard in manifest["shards"]):
        raise ValueError("'shards' must have examples")


def check_shards(folder: str, vocabulary: list[str] | None = None) -> dict:
    """Compares every byte of the shards with the manifest; returns that.

    Raises:
        InputError: names the shard that is missing, empty, cut, changed, a
            copy of another, or not in the manifest; or says that the
            records were made with another vocabulary.
    """
    manifest = read_manifest(folder)
    owners = {shard["sha256"]: shard["name"] for shard in manifest["shards"]}
    for shard in manifest["shards"]:
        _check_shard(os.path.join(folder, shard["name"]), shard, owners)
    known = {shard["name"] for shard in manifest["shards"]}
    if len(known) < len(manifest["shards"]):
        raise InputError(f"The manifest in {folder} names a shard twice.")
    for name in files.list_folder(folder):
        if ".tfrecord" in name and name not in known:
            raise InputError(
                f"{os.path.join(folder, name)} is not in the manifest beside "
                "it. Remove it, or make the records again."
            )
    if vocabulary is not None:
        check_vocabulary_hash(manifest, vocabulary, folder)
    return manifest


def _check_shard(path: str, shard: dict, owners: dict[str, str]):
    fault = None
    if not files.is_remote(path):
        files.check_inside(path, os.path.dirname(path))
    if not files.is_file(path):
        fault = "is missing"
    elif files.size(path) == 0:
        fault = "is empty"
    else:
        size, found = files.size(path), files.sha256(path)
        if found in owners and owners[found] != shard["name"]:
            fault = f"holds the bytes of {owners[found]}"
        elif size != shard["bytes"]:
            fault = f"has {size} bytes instead of {shard['bytes']}"
        elif found != shard["sha256"]:
            fault = "is damaged: its bytes have changed since it was written"
    if fault:
        raise InputError(
            f"Shard {path} {fault}. Delete it and run the command that made "
            "it again: only what is missing is made anew."
        )
