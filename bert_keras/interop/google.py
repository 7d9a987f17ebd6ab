"""Checkpoints of the original: a folder, one checkpoint in it, or a zip.

Their files are bert_config.json, vocab.txt and bert_model.ckpt.
"""

import io
import math
import os
import re
import shutil
import tempfile
import zipfile
import zlib

from bert_keras.interop import tensors, text_settings
from bert_keras.interop.head_table import HEADS, layers_in
from bert_keras.interop.tensor_bundle import read_tf_checkpoint
from bert_keras.interop.tensor_files import read_json
from bert_keras.interop.tensors import WeightsError

CONFIG, VOCABULARY = "bert_config.json", "vocab.txt"

# The library's names <-> variable names of the original's checkpoints.
_LAYER = "bert/encoder/layer_{}"
_DENSE = {
    "encoder/layer_{}/attention/query": f"{_LAYER}/attention/self/query",
    "encoder/layer_{}/attention/key": f"{_LAYER}/attention/self/key",
    "encoder/layer_{}/attention/value": f"{_LAYER}/attention/self/value",
    "encoder/layer_{}/attention/output": f"{_LAYER}/attention/output/dense",
    "encoder/layer_{}/intermediate": f"{_LAYER}/intermediate/dense",
    "encoder/layer_{}/output": f"{_LAYER}/output/dense",
    "encoder/pooler": "bert/pooler/dense",
    "mlm/dense": "cls/predictions/transform/dense",
}
_NORM = {
    "encoder/embeddings/norm": "bert/embeddings/LayerNorm",
    "encoder/layer_{}/attention_norm": f"{_LAYER}/attention/output/LayerNorm",
    "encoder/layer_{}/output_norm": f"{_LAYER}/output/LayerNorm",
    "mlm/norm": "cls/predictions/transform/LayerNorm",
}
# These kernels lie in the files as (outputs, inputs).
_HEADS = layers_in("google")
_OUTPUTS = {"nsp": "cls/seq_relationship/output"}
for _layer in _HEADS.values():
    _OUTPUTS |= _layer
NAMES = {
    "encoder/embeddings/token/embeddings": "bert/embeddings/word_embeddings",
    "encoder/embeddings/position/embeddings": (
        "bert/embeddings/position_embeddings"
    ),
    "encoder/embeddings/segment/embeddings": (
        "bert/embeddings/token_type_embeddings"
    ),
    "mlm/bias": "cls/predictions/output_bias",
    **tensors.expand_names(_DENSE, _NORM),
    **tensors.expand_names(_OUTPUTS, ends=("_weights", "_bias")),
}
TRANSPOSED = tuple(f"{head}/kernel" for head in _OUTPUTS)


# Reading.


def open_google(prefix, source=None):
    """Return the `Checkpoint` of the original's files.

    Args:
        prefix: path of the checkpoint without `.index`; settings and
            vocabulary are next to it.
        source: path that the user named, for messages and the case in it.
    """
    folder, source = os.path.dirname(prefix), str(source or prefix)
    found, skipped = tensors.rename_tensors(
        read_tf_checkpoint(prefix), NAMES, source
    )
    for name in TRANSPOSED:
        if name in found:
            found[name] = found[name].transpose()
    path = os.path.join(folder, CONFIG)
    head, arguments = _head(found)
    return tensors.Checkpoint(
        source=source,
        format="google",
        encoder=read_config(path),
        head=head,
        head_arguments=arguments,
        tensors=found,
        skipped=skipped,
        read_text=text_settings.text_reader(
            os.path.join(folder, VOCABULARY),
            lambda: {"cases": name_cases(source)},
        ),
        initializer_range=read_json(path).number_or_none("initializer_range"),
    )


def read_config(path):
    """Return the arguments of `BertEncoder` in a `bert_config.json`.

    The original has no default sizes. Its code computes the tanh form of GELU
    for `gelu`.
    """
    config = read_json(path)
    config.choice("hidden_act", ["gelu"], "gelu")
    hidden = config.integer("hidden_size")
    if config.integer("embedding_size", hidden) != hidden:
        config.refuse("embedding_size", "that of hidden_size", "another")
    return {
        "vocabulary_size": config.integer("vocab_size"),
        "num_layers": config.integer("num_hidden_layers", maximum=1000),
        "num_heads": config.integer("num_attention_heads"),
        "hidden_dim": hidden,
        "intermediate_dim": config.integer("intermediate_size"),
        "max_sequence_length": config.integer("max_position_embeddings", 512),
        "num_segments": config.integer("type_vocab_size", 2),
        "dropout": config.fraction("hidden_dropout_prob", 0.1),
        "attention_dropout": config.fraction(
            "attention_probs_dropout_prob", 0.1
        ),
        "activation": "gelu_tanh",
        "attention": "bidirectional",
    }


# A whole word: "lowercased" and "showcased" do not count.
_CASE = re.compile(r"(?<![a-z])(un)?cased(?![a-z])")


def name_cases(source):
    """Return the case in the name of a released folder or zip."""
    name = os.path.basename(os.path.normpath(source)).lower()
    match = _CASE.search(name)
    return {f"the name {name}": match[1] == "un"} if match else {}


def _head(found):
    """Return the class of the weights beyond the encoder, and its arguments."""
    for head, layer in _HEADS.items():
        for name in layer:
            bias = found.get(f"{name}/bias")
            if bias is not None and HEADS[head].has_labels:
                return head, tensors.unnamed_labels(math.prod(bias.shape))
            if bias is not None:
                return head, {}
    if "mlm/bias" in found or "nsp/bias" in found:
        return "BertPretrainer", {}
    return "BertEncoder", {}


# The zip files in which the original's weights were released.

# Raised by zipfile for a damaged file.
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
# Weights, the optimizer's two copies of them, heads, and a reserve.
MOST_COPIES, SLACK = 4, 64 * 1024 * 1024
# The methods of every release; others unpack into memory as a whole.
METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
# Bytes that are read at once. The list of members has 1 KB.
PIECE = 1024 * 1024


def open_google_zip(path):
    """Return the `Checkpoint` of a released zip.

    Its four files are unpacked to a temporary folder, which is removed with
    the checkpoint. Folders inside the zip are ignored.
    """
    keep = tempfile.TemporaryDirectory(prefix="bert_keras_zip_")
    try:
        with _BoundedFile(path) as file, zipfile.ZipFile(file) as archive:
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


class _BoundedFile(io.FileIO):
    """File wrapper that bounds the size of each read."""

    def read(self, size=-1):
        if size > PIECE:
            raise zipfile.BadZipFile(f"a list of members of {size} bytes")
        return super().read(PIECE if size < 0 else size)


def _members(path, archive):
    """Return dict of plain file name -> member, of the checkpoint's files."""
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
    """Unpack index and data; return the checkpoint's name."""
    config = read_config(os.path.join(folder, CONFIG))
    count = sum(map(math.prod, tensors.encoder_shapes(config).values()))
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
    parts = {
        name: member
        for name, member in members.items()
        if name.startswith(f"{stem}.") and not name.endswith(".meta")
    }
    total = sum(member.file_size for member in parts.values())
    _check_size(path, stem, total, most)
    for name, member in parts.items():
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
        # zipfile unpacks no more bytes than the list of members states.
        shutil.copyfileobj(source, target, PIECE)
