"""Token stores of other machines: a copy here, which can be mapped."""

import contextlib
import os
import uuid

from bert_keras import files
from bert_keras.errors import InputError

_MANIFEST = "store.json"


def fetched(folder: str, manifest: dict) -> str:
    """The local folder of a store: itself, or a copy of a remote one.

    A store is fetched once a machine, to a folder of `files.cache_folder()`
    that is named by the hash of its manifest, and each file is compared with
    the manifest. A store that is built anew gets another folder.

    Raises:
        InputError: a file is missing, or is not the one that the manifest
            names.
    """
    if not files.is_remote(folder):
        return folder
    place = _place(manifest)
    if not files.is_file(os.path.join(place, _MANIFEST)):
        partial = f"{place}{files.PARTIAL}{uuid.uuid4().hex[:12]}"
        try:
            _fetch(folder, manifest, partial)
            # Of several processes that fetch it, the first one's copy stays.
            with contextlib.suppress(OSError):
                os.rename(partial, place)
        finally:
            files.remove(partial)
    return place


def _place(manifest: dict) -> str:
    name = files.json_hash(manifest)[:32]
    return os.path.join(files.cache_folder(), "stores", name)


def _fetch(folder: str, manifest: dict, partial: str):
    files.make_folder(partial)
    for name, entry in manifest["files"].items():
        path, local = os.path.join(folder, name), os.path.join(partial, name)
        try:
            files.download(path, local)
        except FileNotFoundError:
            raise InputError(
                f"{path} is missing, but its manifest names it. Build the "
                "store again."
            ) from None
        size = os.path.getsize(local)
        if size != entry["bytes"] or files.sha256(local) != entry["sha256"]:
            raise InputError(
                f"{path} is damaged: its {size} bytes are not those that its "
                "manifest names. Build the store again."
            )
    files.write_json(manifest, os.path.join(partial, _MANIFEST))
