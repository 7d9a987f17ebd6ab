"""Models to one SavedModel that takes raw strings.

Which questions a model answers is in `signatures.py`; calling the result in
`loading.py`; checking it in a fresh process in `verification.py`.
"""

import hashlib
import json
import os

import keras
import tensorflow as tf

import bert_keras
from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.modeling.chooser import BertChooser
from bert_keras.modeling.classifier import BertClassifier
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.span import BertSpanPredictor
from bert_keras.modeling.tagger import BertTagger
from bert_keras.serving.answers import answer
from bert_keras.serving.audit import audit
from bert_keras.serving.card import write_card
from bert_keras.serving.choices import choose
from bert_keras.serving.classification import classify
from bert_keras.serving.embedding import embed
from bert_keras.serving.ids import ids
from bert_keras.serving.loading import CARD
from bert_keras.serving.narrowing import TOLERANCES, narrowed
from bert_keras.serving.pieces import tokenize
from bert_keras.serving.pretraining import fill_mask, next_sentence
from bert_keras.serving.rows import Rows
from bert_keras.serving.tags import tag

_NOT_A_MODEL = (
    "A {} cannot be exported. Expected a BertEncoder or one of the task "
    "models, such as BertClassifier."
)


def export_saved_model(
    models,
    preprocessor,
    folder,
    *,
    pair=False,
    top_k=5,
    pooling=None,
    normalize=None,
    features=None,
    long_text="truncate",
    ids_signature=None,
    portable=False,
    dtype="float32",
    license=None,
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
        folder: made; the very same export may be there already.
        pair: the classifier reads two texts, `text` and `text_pair`.
        top_k: how many pieces `fill_mask` gives for a mask, and how many
            answers `answer` gives.
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
        license: of the weights, for the card, such as "apache-2.0".
        verify: loads the result in a fresh process and refuses it where it
            differs from the live models, in this dtype, by more than 1e-5
            (with bfloat16 0.05).

    Returns:
        The folder's path.

    Raises:
        InputError: another folder of that name, a model that cannot be
            served, two models that answer the same question, an option that
            does not fit, a difference found by `verify`.
    """
    options = dict(locals())
    for name in ("models", "preprocessor", "folder", "verify"):
        del options[name]
    folder = os.path.abspath(folder)
    models = models if isinstance(models, list | tuple) else [models]
    for model in models:
        _check_fits(model, preprocessor)
    options |= _pooling(models, pooling, normalize)
    fingerprint = _fingerprint(models, preprocessor, options)
    if _already_there(folder, fingerprint):
        return folder
    served = [narrowed(model, dtype) for model in models]
    rows = Rows(preprocessor, portable)
    offered = _offered(served, rows, options)
    module, functions = _module(served, offered)
    with files.written_beside(folder) as partial:
        os.mkdir(partial)
        tf.saved_model.save(module, partial, functions)
        foreign = audit(partial, portable)
        write_card(partial, offered, functions, options, fingerprint, foreign)
        if verify:
            _verify(partial, models, preprocessor, TOLERANCES[dtype])
    return folder


def _pooling(models, pooling, normalize):
    """What was asked for, or what the weights' home says, or the mean."""
    home = {"pooling": "mean", "normalize": False}
    for model in models:
        home |= getattr(model, "sentence_embedding", {})
    asked = {"pooling": pooling, "normalize": normalize}
    return home | {k: v for k, v in asked.items() if v is not None}


def _offered(models, rows, options):
    """Name -> signature, the default's first."""
    offered = {}
    for model in models:
        for signature in signatures_of(model, rows, options):
            if signature.name in offered:
                raise InputError(
                    f"Two of the models answer {signature.name!r}. Export "
                    "them to two folders."
                )
            offered[signature.name] = signature
    offered["tokenize"] = tokenize(rows)
    if options["ids_signature"]:
        offered["ids"] = ids(models[0], rows, options["ids_signature"])
    return offered


def signatures_of(model, rows, options):
    """What the model answers; its own first."""
    long_text, top_k = options["long_text"], options["top_k"]
    if isinstance(model, BertClassifier):
        return [classify(model, rows, options["pair"], long_text)]
    if isinstance(model, BertSpanPredictor):
        return [answer(model, rows, top_k)]
    if isinstance(model, BertTagger):
        return [tag(model, rows, long_text)]
    if isinstance(model, BertChooser):
        return [choose(model, rows)]
    vectors = embed(
        model,
        rows,
        options["pooling"],
        options["normalize"],
        long_text,
        options["features"],
    )
    if isinstance(model, BertPretrainer):
        filled = fill_mask(model, rows, top_k)
        return [filled, next_sentence(model, rows), vectors]
    if isinstance(model, BertEncoder):
        return [vectors]
    raise InputError(_NOT_A_MODEL.format(type(model).__name__))


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
    functions = {}
    for name, signature in offered.items():
        function = tf.function(signature.function, autograph=False)
        functions[name] = function.get_concrete_function(*signature.specs())
    default = next(iter(functions.values()))
    return module, {"serving_default": default, **functions}


def _check_fits(model, preprocessor):
    """Refuses what is no model, or was trained with another preprocessor."""
    encoder = getattr(model, "encoder", model)
    if not isinstance(encoder, BertEncoder):
        raise InputError(_NOT_A_MODEL.format(type(model).__name__))
    made = preprocessor.tokenizer.vocabulary_size, preprocessor.sequence_length
    taken = encoder.vocabulary_size, encoder.max_sequence_length
    for what, needed, most in zip(
        ("pieces in the vocabulary", "tokens in a row"),
        made,
        taken,
        strict=True,
    ):
        if needed > most:
            raise InputError(
                f"The preprocessor makes {needed} {what}; {model.name} takes "
                f"at most {most}. Export it with its own preprocessor."
            )


def _fingerprint(models, preprocessor, options):
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
    """A layer's configuration less what Keras numbers by the process."""
    if not isinstance(config, dict):
        return config
    return {k: _without_names(v) for k, v in config.items() if k != "name"}


def _already_there(folder, fingerprint):
    """Whether the same export is there; refuses anything else."""
    if not os.path.lexists(folder):
        return False
    try:
        card = files.read_json(os.path.join(folder, CARD))
        if card["fingerprint"] == fingerprint:
            return True
        what = "another export"
    except (OSError, ValueError, KeyError, TypeError):
        what = "something else"
    if os.path.isdir(folder) and not os.listdir(folder):
        return False
    raise InputError(
        f"{folder} is there and holds {what}. Name a new folder, or remove "
        "that one."
    )
