"""Export to a SavedModel that takes raw strings.

`signatures.py` makes the signatures of a model. `load.py` calls the SavedModel,
and `verify.py` checks it in a new process.
"""

import collections
import dataclasses
import hashlib
import importlib
import json
import os
import platform
import sys
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import bert_keras
from bert_keras import files, json_files
from bert_keras.comparison import check_finite_answers
from bert_keras.errors import InputError, require_tensorflow
from bert_keras.files import PathLike
from bert_keras.interop.tensors import License, write_license
from bert_keras.interop.text_settings import check_fits
from bert_keras.manifest import add_hash, check_files, describe_files
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.weights import lora_layers
from bert_keras.serving import verify as verification
from bert_keras.serving.load import CARD, PROTO, plain_link, read_card
from bert_keras.serving.quantize import TOLERANCES, convert_weights
from bert_keras.serving.signatures import (
    NOT_A_MODEL,
    ExportOptions,
    drop_untrained,
    list_signatures,
    make_signatures,
    resolve_options,
)
from bert_keras.serving.texts import copy_for_serving
from bert_keras.text.preprocessor import BertPreprocessor

# Number of axes of an input -> its shape in the signature card.
AXES = {1: ("B",), 2: ("B", "N"), 3: ("B", "K", "N")}


def export_saved_model(
    models: keras.Model | Sequence[keras.Model],
    folder: PathLike,
    preprocessor: BertPreprocessor | None = None,
    *,
    pair: bool | None = None,
    top_k: int | None = None,
    pooling: str | None = None,
    normalize: bool | None = None,
    truncate_dim: int | None = None,
    features: str | None = None,
    hypothesis: str | None = None,
    long_text: str | None = None,
    ids_signature: str | None = None,
    portable: bool = False,
    weights_dtype: str = "float32",
    license: str | None = None,
    allow_untrained: bool = False,
    verify: bool = False,
) -> str:
    """Write one SavedModel that takes raw strings.

    A classifier has the signature `classify` or, for ranking, `rank`. A
    classifier of pairs with labels for entailment and its opposite also has
    `entail`. A pre-trainer has `fill_mask`, `next_sentence` and `embed`. The
    other models have `answer` (span predictor), `tag` (tagger), `choose`
    (chooser) or `embed` (embedder, encoder). If the preprocessor has prompts,
    an export with `embed` also has `embed_query` and `embed_document`. Every
    export has `tokenize`. The first signature of the first model is also
    `serving_default`. `signature_card.json` describes the inputs and outputs.

    A text that does not fit in the preprocessor's `sequence_length` is cut, and
    an output `truncated` is True. `next_sentence` and `answer` have no such
    output. `answer` reads the whole context. It cuts the question to 64 tokens,
    or fewer in a short row. `tokenize` and signatures with long_text="windows"
    read the whole text.

    Args:
        models: a model, or a list of models with one preprocessor.
        folder: a new or empty folder. A folder that already has the same export
            is kept.
        preprocessor: the `BertPreprocessor` that the models were trained with;
            None: the first model's `preprocessor`.
        pair: True if the classifier reads `text` and `text_pair`; None: the
            `pair` of the classifier.
        top_k: number of tokens that `fill_mask` returns for each mask, and
            maximum number of answers that `answer` returns; None: 5.
        pooling: pooling of `embed`: "mean" or "max" over the tokens, "cls",
            "last" or "pooled"; None: the model's setting, else "mean".
        normalize: True to scale vectors of `embed` to length 1; None: the
            model's setting, else False.
        truncate_dim: number of values to keep of a vector of `embed`, after
            scaling; None: the model's setting, else all.
        features: layers from which `embed` also returns a vector for each
            token: "embeddings", "second_to_last", "last", "sum_last_four",
            "concat_last_four", "sum_all", or a list like "concat:-1,-2".
        hypothesis: sentence for `entail` with {}, which a candidate label
            replaces; None: "This example is {}."
        long_text: "truncate", or "windows" to read a long text in overlapping
            windows. `classify` and `embed` return the mean over the windows.
            None: the setting that the model was trained with, else "truncate".
        ids_signature: adds the signature `ids`, which calls the first model
            with token ids. The value selects the names of inputs and outputs:
            "bert_keras", "original", "transformers" or "model_garden".
        portable: True to use only operations of TensorFlow's core, for servers
            without tensorflow_text; the tokenizer is slower.
        weights_dtype: "float32", also for a model trained in another dtype;
            "bfloat16", half the size; "int8", a quarter of the size. See
            `quantize.py`.
        license: license of the weights for the card, such as "apache-2.0";
            None: the license in the weights' folder, whose text (if any) is
            also written to `folder`.
        allow_untrained: True to export a loaded model with random weights. If
            False, such a model is refused. But a pre-trainer trained on one of
            its two tasks is exported without the other task's signature.
        verify: True to compare the export's answers in a new process with the
            answers in this process. The export is refused if strings or
            integers differ, or floats by more than 1e-5 (bfloat16: 0.05) of the
            output's greatest value or of 1, whichever is greater.

    Returns:
        The folder's path.

    Raises:
        InputError: Keras does not run on TensorFlow, the folder has a different
            or damaged export or other files, a model cannot be exported or does
            not fit the preprocessor, two models have the same signature, an
            option is invalid or fits no model, weights are random or not
            finite, an answer has NaN or infinity, or `verify` finds a
            difference.

    Examples:
        >>> import os, tempfile
        >>> from bert_keras import BertEmbedder, export_saved_model
        >>> model = BertEmbedder.from_preset("bert_keras_mini_en")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_saved_model(model, f"{folder}/served")
        ...     os.path.exists(f"{path}/saved_model.pb")
        True
    """
    require_tensorflow("An export")
    options = ExportOptions(
        pair=pair,
        top_k=top_k,
        pooling=pooling,
        normalize=normalize,
        truncate_dim=truncate_dim,
        features=features,
        hypothesis=hypothesis,
        long_text=long_text,
        ids_signature=ids_signature,
        portable=portable,
        dtype=weights_dtype,
        license=license,
        allow_untrained=allow_untrained,
    )
    _check_folder(folder)
    models = models if isinstance(models, list | tuple) else [models]
    _check_models(models)
    preprocessor = preprocessor or _find_preprocessor(models)
    return _export(
        models, files.absolute(folder), preprocessor, options, verify
    )


def _export(models, folder, preprocessor, options, verify):
    for model in models:
        check_fits(model, preprocessor)
    preprocess = copy_for_serving(preprocessor, options.portable)
    options = resolve_options(models, preprocess, options)
    stated = _find_license(models, options)
    options = dataclasses.replace(options, license=stated.name)
    signatures = list_signatures(models, preprocess, options)
    if not options.allow_untrained:
        signatures = drop_untrained(signatures, options)
    fingerprint = compute_fingerprint(models, preprocessor, options)
    is_exported = is_present(folder, fingerprint, options)
    if is_exported and not verify:
        return folder
    served = {id(m): convert_weights(m, options.dtype) for m in models}
    signatures = [(name, served[id(model)]) for name, model in signatures]
    signatures = make_signatures(signatures, preprocess, options)
    functions = {name: s.trace() for name, s in signatures.items()}
    answers = None
    if verify:
        answers = verification.answer_here(signatures, functions, preprocessor)
    if is_exported:
        _check_answers(folder, answers, TOLERANCES[options.dtype])
        return folder
    with files.atomic_output(folder, overwrite=False) as partial:
        os.mkdir(partial)
        write_license(stated, partial)
        _write_model(partial, served.values(), functions)
        foreign = find_foreign_operations(partial, options.portable)
        card = {
            **_make_card(signatures, functions, options),
            **_describe_needs(foreign),
            "fingerprint": fingerprint,
            "sequence_length": preprocess.sequence_length,
            "files": describe_files(partial, _list_files(partial)),
        }
        json_files.write_json(add_hash(card), os.path.join(partial, CARD))
        if verify:
            _check_answers(partial, answers, TOLERANCES[options.dtype])
    return folder


def _check_models(models):
    for model in models or [models]:  # an empty list is no model
        if not isinstance(getattr(model, "encoder", model), BertEncoder):
            raise InputError(NOT_A_MODEL.format(type(model).__name__))


def _write_model(folder, models, functions):
    """Write the SavedModel; the first function is also the default."""
    module = tf.Module()
    module.weights = [w.value for model in models for w in model.weights]
    default = {"serving_default": next(iter(functions.values()))}
    with plain_link(folder) as plain:
        tf.saved_model.save(module, plain, default | functions)


def _check_folder(folder):
    if not isinstance(folder, str | bytes | os.PathLike):
        raise InputError(
            f"`folder` is a {type(folder).__name__}. Expected a path, as in "
            "export_saved_model(model, folder) or export_saved_model(model, "
            "folder, preprocessor)."
        )


def _find_preprocessor(models):
    preprocessor = getattr(models[0], "preprocessor", None)
    if preprocessor is None:
        raise InputError(
            "The model has no preprocessor, but an export needs its "
            "vocabulary. Pass the BertPreprocessor that the model was trained "
            "with: export_saved_model(model, folder, preprocessor)."
        )
    return preprocessor


def _find_license(models, options):
    if options.license:
        return License(options.license)
    stated = (getattr(model, "encoder", model).license for model in models)
    return next(filter(None, stated), License())


def _check_answers(folder, answers, tolerance):
    difference = verification.measure_difference(folder, answers)
    if not difference <= tolerance:
        raise InputError(
            f"The export differs from the live model by {difference:.3g}, "
            f"more than {tolerance}. To examine the difference, export the "
            "model to a new folder with `verify=False`."
        )


def find_foreign_operations(folder, portable):
    """Count the operations outside TensorFlow's core; return name -> count.

    Raises:
        InputError: the export is `portable` and needs such operations.
    """
    proto = saved_model_pb2.SavedModel()
    with open(os.path.join(folder, PROTO), "rb") as file:
        proto.ParseFromString(file.read())
    counts = collections.Counter()
    for meta_graph in proto.meta_graphs:
        graph = meta_graph.graph_def
        counts.update(node.op for node in graph.node)
        for function in graph.library.function:
            counts.update(node.op for node in function.node_def)
    foreign = {
        name: count
        for name, count in sorted(counts.items())
        if not hasattr(tf.raw_ops, name)
    }
    if portable and foreign:
        raise InputError(
            "The portable export needs operations outside TensorFlow's core: "
            f"{', '.join(foreign)}. Remove the layers that use them, or export "
            "the model with `portable=False`."
        )
    return foreign


def _make_card(signatures, functions, options):
    """Return the card, a dict: signatures with examples, and options."""
    entries = {}
    for name, signature in signatures.items():
        request = {key: [row] for key, row in signature.inputs.items()}
        answer = functions[name](*map(tf.constant, request.values()))
        check_finite_answers(name, request, answer)
        entries[name] = {
            "inputs": {
                spec.name: {
                    "dtype": spec.dtype.name,
                    "shape": AXES[spec.shape.rank],
                }
                for spec in signature.specs()
            },
            "input_order": list(signature.inputs),
            "outputs": {
                key: dataclasses.asdict(output)
                for key, output in signature.outputs.items()
            },
            "labels": list(signature.labels),
            "reads_windows": signature.reads_windows,
            "skips_padding": signature.skips_padding,
            "request": request,
            "answer": {key: _to_json(value) for key, value in answer.items()},
        }
    return {
        "format": "bert_keras SavedModel",
        "format_version": 3,
        "default": next(iter(signatures)),
        "signatures": entries,
        "license_of_weights": options.license or "not stated",
        "options": dataclasses.asdict(options),
    }


def _describe_needs(foreign):
    needs = ["tensorflow"]
    if any(map(_is_from_tensorflow_text, foreign)):
        needs.append("tensorflow_text")
    # Import the packages. importlib.metadata would not find TensorFlow if it is
    # installed under another name, such as tensorflow-cpu.
    versions = {
        name: importlib.import_module(name).__version__
        for name in ("keras", *needs)
    }
    versions["python"] = platform.python_version()
    versions["bert_keras"] = bert_keras.__version__
    return {
        "needs": needs,
        "operations_outside_core": foreign,
        "versions": versions,
    }


def _is_from_tensorflow_text(operation):
    """Return True if a library of tensorflow_text defines the operation."""
    name = operation.replace(">", "_")
    return any(
        name in vars(value)
        for path, module in list(sys.modules.items())
        if path.startswith("tensorflow_text.")
        for value in list(vars(module).values())
        # TensorFlow sets this attribute on a library's generated module.
        if getattr(value, "_IS_TENSORFLOW_PLUGIN", None) is True
    )


def _to_json(tensor):
    """Return a tensor as a list for the card, with up to 8 values per axis."""
    values = tensor.numpy()
    values = values[tuple(slice(8) for _ in values.shape)]
    if values.dtype == object:
        return np.vectorize(bytes.decode, otypes=[object])(values).tolist()
    if values.dtype.kind == "f":
        values = np.round(values.astype("float64"), 6)
    return values.tolist()


def _list_files(folder):
    return sorted(os.path.relpath(path, folder) for path in files.walk(folder))


def compute_fingerprint(models, preprocessor, options):
    """Return a hash of everything that the export's answers depend on."""
    digest = hashlib.sha256()

    def add(value):
        digest.update(json.dumps(value, sort_keys=True).encode())

    options = dataclasses.asdict(options)
    add([bert_keras.__version__, tf.__version__, options])
    add(_drop_names(preprocessor.get_config()))
    for model in models:
        add(_drop_names(model.get_config()))
        # LoRA's alpha is only in `adaptation`, which `_drop_names` removes.
        add([float(layer.lora_alpha) for layer in lora_layers(model)])
        for weight in model.weights:
            add([weight.dtype, list(weight.shape)])
            digest.update(keras.ops.convert_to_numpy(weight).tobytes())
    return digest.hexdigest()


def _drop_names(config):
    """Return a layer's configuration without the keys `name` and `adaptation`.

    Keras numbers layer names within a process, and `adaptation` has paths with
    these names. So both keys may differ between models with the same answers.
    """
    if not isinstance(config, dict):
        return config
    return {
        k: _drop_names(v)
        for k, v in config.items()
        if k not in ("name", "adaptation")
    }


def is_present(folder, fingerprint, options):
    """Return True if the folder has this export, False if it is new or empty.

    `options`, the resolved `ExportOptions`, are compared for the message.

    Raises:
        InputError: the folder has a different export, a damaged export, or
            other files; or `folder` is a file or an invalid name.
    """
    files.check_name(folder)
    if not (os.path.lexists(folder) or files.exists(folder)):
        return False
    if files.is_folder(folder) and not files.list_folder(folder):
        return False
    fix = "Name a new folder, or remove the existing one."
    try:
        card = read_card(folder)
    except InputError:
        if files.is_file(folder):
            raise InputError(f"{folder} exists and is a file. {fix}") from None
        raise InputError(f"The folder {folder} is not empty. {fix}") from None
    if card["fingerprint"] != fingerprint:
        raise InputError(
            f"The folder {folder} holds another export: "
            f"{_describe_difference(card, options)}. {fix}"
        )
    check_files(folder, card["files"], fix)
    return True


def _describe_difference(card, options):
    """Return what differs between a card's export and the present one."""
    before, now = card["options"], dataclasses.asdict(options)
    changes = [
        f"`{name}` was {before[name]!r} and is now {value!r}"
        for name, value in now.items()
        if name in before and before[name] != value
    ]
    versions = {"tensorflow": tf.__version__}
    versions["bert_keras"] = bert_keras.__version__
    before = card["versions"]
    changes += [
        f"{name} {before[name]} wrote it, and this is {name} {version}"
        for name, version in versions.items()
        if name in before and before[name] != version
    ]
    return "; ".join(changes) or (
        "of another model, with another preprocessor, or by an earlier "
        "bert_keras"
    )
