"""The zip files in which the original's weights were released."""

import io
import math
import os
import tempfile
import zipfile
import zlib

from bert_keras.interop import names
from bert_keras.interop.checkpoint import WeightsError
from bert_keras.interop.google import (
    CONFIG,
    VOCABULARY,
    open_google,
    read_config,
)

# What zipfile raises on a file that is not as it should be.
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
)
FETCH = "Fetch the zip again"
# The largest published ones have 500 bytes and 2 MB.
MOST_BYTES = {CONFIG: 1024 * 1024, VOCABULARY: 16 * 1024 * 1024}
# Weights, the optimizer's two copies of them, heads; and then some.
MOST_COPIES, SLACK = 4, 64 * 1024 * 1024
# The methods that every release has; others hold all they unpack in memory.
METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
# Bytes that are read at a time: the list of members, which has 1 KB, too.
PIECE = 1024 * 1024


def open_google_zip(path):
    """The `Checkpoint` of a released zip.

    Its four files are unpacked to a temporary folder, which goes when the
    checkpoint does. Their folders inside the zip count for nothing.
    """
    keep = tempfile.TemporaryDirectory(prefix="bert_keras_zip_")
    try:
        with _Pieces(path) as file, zipfile.ZipFile(file) as archive:
            members = _members(path, archive)
            for name, most in MOST_BYTES.items():
                if name in members:
                    _check_size(path, name, members[name].file_size, most)
                    _unpack(archive, members[name], keep.name, name)
            prefix = _unpack_weights(path, archive, members, keep.name)
    except WeightsError:
        raise
    except DAMAGED as error:
        raise WeightsError(
            path, f"the zip is damaged ({error})", FETCH
        ) from None
    checkpoint = open_google(os.path.join(keep.name, prefix), path)
    checkpoint.keep = keep
    return checkpoint


class _Pieces(io.FileIO):
    """A file of which nobody reads more than a piece at a time."""

    def read(self, size=-1):
        if size > PIECE:
            raise zipfile.BadZipFile(f"a list of members of {size} bytes")
        return super().read(PIECE if size < 0 else size)


def _members(path, archive):
    """Dict of plain file name -> member, of the files that matter."""
    found = {}
    for member in archive.infolist():
        name = member.filename.rpartition("/")[2]
        if name in (CONFIG, VOCABULARY) or ".ckpt" in name:
            if name in found:
                raise WeightsError(
                    path,
                    f"the zip holds {name} twice",
                    "Unpack it and name the folder that is meant",
                )
            if member.compress_type not in METHODS:
                raise WeightsError(
                    path,
                    f"{name} is compressed in another way than a release is",
                    "Unpack it and name the folder",
                    expected="the methods 0 (stored) or 8 (deflated)",
                    found=f"{member.compress_type}",
                )
            found[name] = member
    if CONFIG not in found:
        raise WeightsError(
            path,
            "this is no release of BERT",
            "Name a zip as the original released them",
            expected=CONFIG,
            found="none",
        )
    return found


def _unpack_weights(path, archive, members, folder):
    """Unpacks index and data; returns the checkpoint's name."""
    config = read_config(os.path.join(folder, CONFIG))
    count = sum(map(math.prod, names.encoder_shapes(config).values()))
    most = MOST_COPIES * 4 * count + SLACK
    stems = {n.removesuffix(".index") for n in members if n.endswith(".index")}
    if len(stems) != 1:
        raise WeightsError(
            path,
            "the zip does not hold one checkpoint",
            "Unpack it and name the checkpoint that is meant",
            expected="one file .ckpt.index",
            found=", ".join(sorted(stems)) or "none",
        )
    (stem,) = stems
    wanted = {
        name: member
        for name, member in members.items()
        if name.startswith(f"{stem}.") and not name.endswith(".meta")
    }
    total = sum(member.file_size for member in wanted.values())
    _check_size(path, stem, total, most)
    for name, member in wanted.items():
        _unpack(archive, member, folder, name)
    return stem


def _check_size(path, name, size, most):
    if size > most:
        raise WeightsError(
            path,
            f"{name} is absurdly large",
            FETCH,
            expected=f"at most {most} bytes",
            found=f"{size}",
        )


def _unpack(archive, member, folder, name):
    with (
        archive.open(member) as source,
        open(os.path.join(folder, name), "wb") as target,
    ):
        # zipfile gives what the list of members says, and no byte more.
        while piece := source.read(PIECE):
            target.write(piece)
