"""Many conversions at once, and the one table about them."""

import os
import tempfile

from bert_keras.errors import InputError
from bert_keras.interop.assigning import listed
from bert_keras.interop.convert import Conversion, convert
from bert_keras.interop.huggingface import has_weights, places
from bert_keras.interop.torch_pickle import pickles_in, unpickle_folder


def without_pickle(source, folder):
    """The source, or `folder` with safetensors in place of its pickle.

    Args:
        source: any preset.
        folder: an empty one, for a source whose only weights are a pickle.
    """
    for inner in places(source):
        place = os.path.join(source, inner)
        if has_weights(place):
            break
        if pickles_in(place):
            unpickle_folder(source, folder, inner)
            return folder
    return source


def convert_all(
    folder,
    target,
    format="bert_keras",
    allow_torch=False,
    accept_difference=False,
    lowercase=None,
):
    """Converts every preset in a folder; returns a list of `Conversion`.

    One that cannot be converted is a row with its reason; the rest go on.

    Args:
        folder: each folder and file in it is a source.
        target: gets a folder for each, of the same name.
        format: a key of `WRITERS`.
        allow_torch: read pickles, by PyTorch's restricted loader.
        accept_difference, lowercase: as `convert` takes them.
    """
    if not os.path.isdir(folder):
        raise InputError(f"{folder} is no folder. Name one that holds presets.")
    rows = []
    for name in sorted(os.listdir(folder)):
        source = os.path.join(folder, name)
        stem = name.removesuffix(".zip")
        try:
            if stem != name and os.path.exists(os.path.join(folder, stem)):
                raise InputError(
                    f"{source} would go where {stem} goes. Rename one of them."
                )
            with tempfile.TemporaryDirectory() as beside:
                plain = (
                    without_pickle(source, beside) if allow_torch else source
                )
                row = convert(
                    plain,
                    os.path.join(target, stem),
                    format,
                    accept_difference,
                    lowercase,
                )
        except InputError as error:
            row = Conversion(source, refused=str(error))
        row.source = source
        rows.append(row)
    return rows


def table(rows):
    """The rows as one Markdown table."""
    lines = [
        "| source | format | task | labels | greatest difference | remark |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        difference = "" if row.refused else f"{row.difference:.1e}"
        cells = [
            row.source,
            row.format,
            row.task,
            ", ".join(row.labels),
            difference,
            remark(row),
        ]
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines) + "\n"


def remark(row):
    """Why it was refused, or what it lacks; empty for a whole one."""
    if row.refused:
        return row.refused
    parts = []
    lost = row.left_out + row.dropped
    if lost:
        parts.append(f"without {', '.join(lost)}")
    if row.at_random:
        parts.append(f"at random: {', '.join(row.at_random)}")
    if row.skipped:
        parts.append(f"not taken along: {listed(row.skipped)}")
    return "; ".join(parts)


def _cell(text):
    return text.replace("|", "\\|").replace("\n", " ")
