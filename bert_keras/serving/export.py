"""Models to one SavedModel that takes raw strings.

Which questions a model answers is in `signatures.py`; calling the result in
`loading.py`; checking it in a fresh process in `verification.py`.
"""

import os

import tensorflow as tf

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.license import License, write_license
from bert_keras.interop.text_side import check_fits
from bert_keras.modeling.backend import require_tensorflow
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.serving.audit import audit
from bert_keras.serving.card import write_card
from bert_keras.serving.fingerprint import already_there, fingerprint_of
from bert_keras.serving.narrowing import TOLERANCES, narrowed
from bert_keras.serving.rows import Rows
from bert_keras.serving.signatures import (
    NOT_A_MODEL,
    offered_by,
    settled,
    unlearnt,
)


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
    from bert_keras.serving.verification import greatest_difference

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
