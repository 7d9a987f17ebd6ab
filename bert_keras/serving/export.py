"""Models to one SavedModel that takes raw strings."""

import collections
import hashlib
import importlib
import json
import os
import platform

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import bert_keras
from bert_keras import files
from bert_keras.errors import InputError, require_tensorflow
from bert_keras.interop.tensors import License, write_license
from bert_keras.interop.text_settings import check_fits
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.serving.graph import Rows
from bert_keras.serving.load import CARD
from bert_keras.serving.quantize import TOLERANCES, narrowed
from bert_keras.serving.signatures import (
    NOT_A_MODEL,
    offered_by,
    settled,
    unlearnt,
)

# What operations an export is made of, and that none does harm.

# They run Python, or read and write files, when the model is called.
FORBIDDEN = {
    "EagerPyFunc",
    "FixedLengthRecordReaderV2",
    "InitializeTableFromTextFile",
    "InitializeTableFromTextFileV2",
    "MatchingFiles",
    "PyFunc",
    "PyFuncStateless",
    "ReadFile",
    "TFRecordReaderV2",
    "TextLineReaderV2",
    "WholeFileReaderV2",
    "WriteFile",
}


def operations(folder):
    """Operation -> how often it stands in the SavedModel's graphs."""
    proto = saved_model_pb2.SavedModel()
    with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
        proto.ParseFromString(file.read())
    counts = collections.Counter()
    for meta_graph in proto.meta_graphs:
        graph = meta_graph.graph_def
        counts.update(node.op for node in graph.node)
        for function in graph.library.function:
            counts.update(node.op for node in function.node_def)
    return dict(counts)


def outside_core(counts):
    """Of these, the operations that TensorFlow alone does not have."""
    return {
        name: count
        for name, count in sorted(counts.items())
        if not hasattr(tf.raw_ops, name)
    }


def audit(folder, portable):
    """Refuses an export that a server could not or should not run.

    Returns:
        Operation -> count, of those outside TensorFlow's core.

    Raises:
        InputError: it runs Python or touches files when called, or is
            `portable` and needs more than TensorFlow's core.
    """
    counts = operations(folder)
    foreign = outside_core(counts)
    harmful = sorted(FORBIDDEN & counts.keys())
    if harmful:
        raise InputError(
            f"The export holds operations that no server should run: "
            f"{', '.join(harmful)}. Take what makes them out of the model."
        )
    if portable and foreign:
        raise InputError(
            "The portable export needs operations outside TensorFlow's core: "
            f"{', '.join(foreign)}. Take what makes them out of the model, or "
            "export it with portable=False."
        )
    return foreign


# The signature card: what goes into an export, what comes out, from what.


def write_card(
    folder, offered, functions, options, fingerprint, foreign, sequence_length
):
    """Writes the card of the SavedModel in `folder`, hashes included.

    Args:
        offered: name -> `Signature`, the default's first.
        functions: name -> the function that was saved.
        options: what the export was asked for.
        fingerprint: hash of all that decides what it answers.
        foreign: the operations that TensorFlow alone does not have.
        sequence_length: tokens of a row at most.
    """
    needs = ["tensorflow", *(["tensorflow_text"] if foreign else [])]
    card = _card(offered, functions, options, fingerprint, needs)
    card["operations_outside_core"] = foreign
    card["sequence_length"] = sequence_length
    card["sha256"] = _hashes(folder)
    files.write_json(card, os.path.join(folder, CARD))


def _card(offered, functions, options, fingerprint, needs):
    entries = {}
    for name, signature in offered.items():
        request = {key: [row] for key, row in signature.inputs.items()}
        answer = functions[name](*map(tf.constant, request.values()))
        entries[name] = {
            "inputs": {s.name: _shown(s) for s in signature.specs()},
            "input_order": list(signature.inputs),
            "outputs": signature.outputs,
            "padded": list(signature.padded),
            "labels": list(signature.labels),
            "request": request,
            "answer": {key: _plain(value) for key, value in answer.items()},
        }
    return {
        "format": "bert_keras SavedModel",
        "format_version": 1,
        "default": next(iter(offered)),
        "signatures": entries,
        "needs": needs,
        "license_of_weights": options["license"] or "not stated",
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ["keras", *needs]},
            "bert_keras": bert_keras.__version__,
        },
        "options": options,
        "fingerprint": fingerprint,
    }


def _version(name):
    """As the package itself has it: tensorflow may be of tensorflow-cpu."""
    return importlib.import_module(name).__version__


def _shown(spec):
    axes = {1: "(B,)", 2: "(B, N)", 3: "(B, K, N)"}[spec.shape.rank]
    return f"{spec.dtype.name} {axes}"


def _plain(tensor):
    """A tensor as the card shows it: decoded; at most eight of an axis."""
    values = tensor.numpy()
    shown = values[tuple(slice(8) for _ in values.shape)]
    if values.dtype == object:
        return np.vectorize(bytes.decode, otypes=[object])(shown).tolist()
    if values.dtype.kind == "f":
        shown = np.round(shown.astype("float64"), 6)
    return shown.tolist()


def _hashes(folder):
    paths = [
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
    ]
    return {os.path.relpath(p, folder): files.sha256(p) for p in sorted(paths)}


# Whether a folder holds the very export that was asked for.


def fingerprint_of(models, preprocessor, options):
    """One hash of all that decides what the export answers."""
    digest = hashlib.sha256()

    def add(value):
        digest.update(json.dumps(value, sort_keys=True).encode())

    add([bert_keras.__version__, tf.__version__, options])
    add(_without_names(preprocessor.get_config()))
    for model in models:
        add(_without_names(model.get_config()))
        for weight in model.weights:
            add([weight.dtype, list(weight.shape)])
            digest.update(keras.ops.convert_to_numpy(weight).tobytes())
    return digest.hexdigest()


def _without_names(config):
    """A layer's configuration less what no answer depends on.

    That is the names, which Keras numbers by the process, and what trains.
    """
    if not isinstance(config, dict):
        return config
    return {
        k: _without_names(v)
        for k, v in config.items()
        if k not in ("name", "adaptation")
    }


def already_there(folder, fingerprint):
    """Whether the same export is there, whole; refuses anything else.

    Where a file of it is damaged or missing it is to be written anew, unless
    that would remove files that are not its own.
    """
    if not (os.path.lexists(folder) or files.exists(folder)):
        return False
    try:
        card = files.read_json(os.path.join(folder, CARD))
        found, hashes = card["fingerprint"], dict(card["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        found, hashes = None, {}
    if found == fingerprint:
        return _is_whole(folder, hashes)
    if files.is_folder(folder) and not files.list_folder(folder):
        return False
    what = "another export" if found else "something else"
    raise InputError(
        f"{folder} is there and holds {what}. Name a new folder, or remove "
        "that one."
    )


def _is_whole(folder, hashes):
    """Whether every file has its hash; refuses to replace what has others."""
    there = {os.path.relpath(path, folder) for path in files.walk(folder)}
    if all(
        name in there and files.sha256(os.path.join(folder, name)) == digest
        for name, digest in hashes.items()
    ):
        return True
    others = sorted(there - {CARD, *hashes})
    if others:
        raise InputError(
            f"The export in {folder} is damaged, and other files are there "
            f"({', '.join(others[:5])}), which writing it anew would remove. "
            "Name a new folder."
        )
    return False


# Models to one SavedModel that takes raw strings. Which questions a model
# answers is in `signatures.py`; calling the result in `loading.py`; checking it
# in a fresh process in `verification.py`.


def export_saved_model(
    models,
    preprocessor,
    folder,
    *,
    pair=None,
    top_k=None,
    pooling=None,
    normalize=None,
    features=None,
    long_text="truncate",
    ids_signature=None,
    portable=False,
    dtype="float32",
    license=None,
    allow_untrained=False,
    verify=False,
):
    """Writes one SavedModel that takes raw strings.

    A classifier answers `classify`, a span predictor `answer`, a tagger
    `tag`, a chooser `choose`, a pre-trainer `fill_mask`, `next_sentence` and
    `embed`, an encoder `embed`; every export answers `tokenize`. The first
    model's first answer is also `serving_default`. Text longer than the
    preprocessor's `sequence_length` is cut, and said to be.
    `signature_card.json` in the folder says what goes in and what comes out.

    Args:
        models: a model, or a list of them that share the preprocessor.
        preprocessor: the `BertPreprocessor` that they were trained with.
        folder: made; the very same export may be there already, and is
            written anew where a file of it is damaged.
        pair: the classifier reads two texts, `text` and `text_pair`; None:
            as it says itself.
        top_k: how many pieces `fill_mask` gives for a mask, and how many
            answers `answer` gives; None: 5.
        pooling: what `embed` gives for a text: "mean" or "max" over its
            tokens, "cls" or "pooled"; None: what the weights' home says,
            else the mean.
        normalize: makes the vectors of `embed` of length 1; None: what the
            weights' home says, else not.
        features: `embed` also gives a vector a token: "embeddings",
            "second_to_last", "last", "sum_last_four", "concat_last_four" or
            "sum_all".
        long_text: "truncate", or "windows": a text longer than a row is
            read in overlapping ones; `classify` and `embed` give their mean.
        ids_signature: adds `ids`, which takes the first model's ids under
            the names of "ours", "original", "transformers" or "model_garden".
        portable: only operations of TensorFlow's core, for servers without
            tensorflow_text; the tokenizer is slower.
        dtype: "float32", whatever the model was trained in; "bfloat16", half
            the size; "int8", a quarter. See `narrowing.py`.
        license: of the weights, for the card, such as "apache-2.0"; None:
            what their home says. Its text, if that is there, goes along.
        allow_untrained: export a loaded model with weights that are random
            still; without, it is refused, and a pre-trainer that learnt one
            of its two tasks answers that one alone.
        verify: loads the result in a fresh process and refuses it where it
            differs from the live models, in this dtype, by more than 1e-5
            (with bfloat16 0.05).

    Returns:
        The folder's path.

    Raises:
        InputError: another folder of that name, a model that cannot be
            served, two models that answer the same question, an option that
            does not fit, random weights, a difference found by `verify`.
    """
    options = dict(locals())
    require_tensorflow("An export")
    for name in ("models", "preprocessor", "folder", "verify"):
        del options[name]
    folder = files.absolute(folder)
    models = models if isinstance(models, list | tuple) else [models]
    for model in models:
        if not isinstance(getattr(model, "encoder", model), BertEncoder):
            raise InputError(NOT_A_MODEL.format(type(model).__name__))
        check_fits(model, preprocessor)
    options = settled(models, options)
    stated = License(license) if license else _license(models)
    options["license"] = stated.name
    left_out = [] if allow_untrained else unlearnt(models, options)
    fingerprint = fingerprint_of(models, preprocessor, options)
    if already_there(folder, fingerprint):
        if verify:
            _verify(folder, models, preprocessor, TOLERANCES[dtype])
        return folder
    with files.written_beside(folder) as partial:
        os.mkdir(partial)
        write_license(stated, partial)
        rows = Rows(preprocessor, portable)
        _write(partial, models, rows, options, fingerprint, left_out)
        if verify:
            _verify(partial, models, preprocessor, TOLERANCES[dtype])
    return folder


def _license(models):
    """The `License` of the first model whose weights' home states one."""
    stated = (getattr(model, "encoder", model).license for model in models)
    return next(filter(None, stated), License())


def _write(folder, models, rows, options, fingerprint, left_out):
    """Writes the SavedModel and its card into the folder."""
    served = [narrowed(model, options["dtype"]) for model in models]
    offered = offered_by(served, rows, options, left_out)
    module, functions = _module(served, offered)
    tf.saved_model.save(module, folder, functions)
    foreign = audit(folder, options["portable"])
    length = rows.sequence_length
    write_card(
        folder, offered, functions, options, fingerprint, foreign, length
    )


def _verify(folder, models, preprocessor, tolerance):
    from bert_keras.serving.verify import greatest_difference

    difference = greatest_difference(folder, models, preprocessor)
    if not difference <= tolerance:
        raise InputError(
            f"The export differs from the live model by {difference:.3g}, "
            f"more than {tolerance}; nothing was written. Export it with "
            "verify=False to look into it."
        )


def _module(models, offered):
    """What `tf.saved_model.save` writes, and its functions by name."""
    module = tf.Module()
    module.weights = [w.value for model in models for w in model.weights]
    functions = {
        name: signature.traced() for name, signature in offered.items()
    }
    default = next(iter(functions.values()))
    return module, {"serving_default": default, **functions}
