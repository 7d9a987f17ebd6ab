"""The file that vouches for a folder of data: written last, hashed itself."""

import os

from bert_keras import files
from bert_keras.errors import InputError


def write_sealed(path: str, manifest: dict):
    """Writes a manifest with the hash of what it says."""
    manifest = {**manifest, "sha256": files.json_hash(manifest)}
    with files.written_beside(path) as partial:
        files.write_json(manifest, partial)


def read_sealed(path: str, what: str, files_of) -> dict:
    """The manifest at `path`.

    Args:
        what: it vouches for, in words.
        files_of: function of the manifest; the names of the files that it
            vouches for. What it raises says that this is no such manifest.

    Raises:
        InputError: there is none, it is damaged, or it is of something else.
    """
    if not files.is_file(path):
        folder, name = os.path.split(path)
        raise InputError(
            f"No finished {what} in {folder}: {name} is not there. Run the "
            "command that makes it again; it goes on where it stopped."
        )
    try:
        manifest = files.read_json(path)
    except ValueError as error:
        raise InputError(
            f"{path} is damaged: {error}. Make it again."
        ) from None
    if not isinstance(manifest, dict) or not _names_files(manifest, files_of):
        raise InputError(
            f"{path} is no manifest of pre-training data ({what})."
        )
    rest = {k: v for k, v in manifest.items() if k != "sha256"}
    if manifest.get("sha256") != files.json_hash(rest):
        raise InputError(
            f"{path} is damaged: it does not match its own hash. Make the "
            f"{what} again."
        )
    return manifest


def check_side(manifest: dict, side: str | None, folder: str):
    """Refuses the held-out side where training data is expected, and so on.

    Older manifests do not say their side.
    """
    stated = manifest.get("side") or side
    if side is not None and stated != side:
        raise InputError(
            f"{folder} holds data that was made as {stated!r}, expected "
            f"{side!r}: the two were swapped or copied. Make the data again "
            "in a new folder."
        )


def _names_files(manifest: dict, files_of) -> bool:
    try:
        names = list(files_of(manifest))
    except (KeyError, TypeError, AttributeError):
        return False
    return bool(names) and all(os.path.basename(name) == name for name in names)
