"""The table of signatures, and the options of an export.

`SIGNATURES` has a row for each signature. To add one, write a function that
returns a `Signature`, add a row here, and name it in the `HEADS` of the models
that have it.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interop.head_table import HEADS
from bert_keras.interop.load_report import list_names
from bert_keras.modeling.heads import check_long_text
from bert_keras.modeling.weights import drop_unused_pooler, untrained_weights
from bert_keras.serving.classification import (
    HYPOTHESIS,
    choose,
    classify,
    entail,
    find_entailment,
    rank,
)
from bert_keras.serving.embedding import embed
from bert_keras.serving.pretraining import fill_mask, next_sentence
from bert_keras.serving.spans import answer, tag
from bert_keras.serving.tokens import INPUTS, ids, tokenize

NOT_A_MODEL = (
    "A {} cannot be exported. Expected a BertEncoder or one of the task "
    "models, such as BertClassifier."
)
NO_ENTAILMENT = (
    " The signature entail needs a BertClassifier with `pair=True`, a label "
    'that begins with "entail" and an opposite label, such as "contradiction".'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an export; see `export_saved_model`.

    Raises:
        InputError: an option is invalid for every model.
    """

    pair: bool | None = None
    top_k: int | None = None
    pooling: str | None = None
    normalize: bool | None = None
    truncate_dim: int | None = None
    features: str | None = None
    hypothesis: str | None = None
    long_text: str | None = None
    ids_signature: str | None = None
    portable: bool = False
    dtype: str = "float32"
    license: str | None = None
    allow_untrained: bool = False

    def __post_init__(self):
        if self.long_text is not None:
            check_long_text(self.long_text)
        if self.hypothesis is not None and self.hypothesis.count("{}") != 1:
            raise InputError(
                f"`hypothesis` is {self.hypothesis!r}. Expected a text with "
                f"{{}} once, for the candidate, such as {HYPOTHESIS!r}."
            )
        if self.ids_signature not in (None, *INPUTS):
            raise InputError(
                f"`ids_signature` is {self.ids_signature!r}. Expected one of "
                f"{', '.join(INPUTS)}."
            )


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of `SIGNATURES`.

    Attributes:
        build: function of a model, its preprocessor (see `copy_for_serving`)
            and `options`; returns the `Signature`.
        options: names of the `ExportOptions` that `build` takes.
        find_unread: function of the `ExportOptions`; returns prefixes of names
            of weights that the signature does not use.
        suits: function of a model that names the signature, its preprocessor
            and the `ExportOptions`; returns False if the export lacks it.
    """

    build: Callable
    options: tuple[str, ...] = ()
    find_unread: Callable[[ExportOptions], tuple[str, ...]] = lambda _: ()
    suits: Callable[[Any, Any, ExportOptions], bool] = lambda *_: True

    def make(self, model, preprocess, options):
        chosen = {name: getattr(options, name) for name in self.options}
        if chosen.get("long_text", "") is None:
            chosen["long_text"] = getattr(model, "long_text", "truncate")
        return self.build(model, preprocess, **chosen)


EMBED_OPTIONS = ("pooling", "normalize", "truncate_dim", "long_text")


def _unread_by_embed(options):
    pooler = () if options.pooling == "pooled" else ("encoder/pooler/",)
    return ("mlm/", "nsp/", *pooler)


def _embed_with_prompt(kind):
    """Return the row of `embed_query` or `embed_document`."""
    return Row(
        functools.partial(embed, kind=kind),
        EMBED_OPTIONS,
        _unread_by_embed,
        lambda _, preprocess, options: any(preprocess.prompts.values()),
    )


def _can_entail(model, _, options):
    return (
        bool(options.pair)
        and model.problem == "single"
        and find_entailment(model.labels) is not None
    )


SIGNATURES = {
    "classify": Row(
        classify,
        ("pair", "long_text"),
        suits=lambda model, *_: model.problem != "ranking",
    ),
    "rank": Row(rank, suits=lambda model, *_: model.problem == "ranking"),
    "entail": Row(entail, ("hypothesis",), suits=_can_entail),
    # `answer` always reads long texts in windows.
    "answer": Row(
        lambda model, preprocess, top_k, long_text: answer(
            model, preprocess, top_k
        ),
        ("top_k", "long_text"),
    ),
    "tag": Row(tag, ("long_text",)),
    "choose": Row(choose),
    "embed": Row(embed, (*EMBED_OPTIONS, "features"), _unread_by_embed),
    "embed_query": _embed_with_prompt("query"),
    "embed_document": _embed_with_prompt("document"),
    "fill_mask": Row(
        fill_mask, ("top_k",), lambda _: ("nsp/", "encoder/pooler/")
    ),
    "next_sentence": Row(next_sentence, (), lambda _: ("mlm/",)),
    # Every export has `tokenize`, and `ids` with the option `ids_signature`.
    "tokenize": Row(
        lambda model, preprocess: tokenize(preprocess), (), lambda _: ("",)
    ),
    "ids": Row(
        lambda model, preprocess, ids_signature: ids(
            model, preprocess, ids_signature
        ),
        ("ids_signature",),
    ),
}
# If a pre-trainer was trained on only one of these two tasks, the export has no
# signature for the other task.
PRETRAINING = {"fill_mask", "next_sentence"}


def list_signatures(models, preprocess, options):
    """Return a list of (name, model), the default signature first.

    Raises:
        InputError: a model is of a class that cannot be exported.
    """
    found = [
        (name, model)
        for model in models
        for name in _find_head(model).signatures
        if SIGNATURES[name].suits(model, preprocess, options)
    ]
    found.append(("tokenize", models[0]))
    return found + [("ids", models[0])] * bool(options.ids_signature)


def _find_head(model):
    for base in type(model).__mro__:
        if base.__name__ in HEADS and HEADS[base.__name__].signatures:
            return HEADS[base.__name__]
    raise InputError(NOT_A_MODEL.format(type(model).__name__))


def resolve_options(models, preprocess, options):
    """Return the `ExportOptions` with the models' defaults in place of None.

    The default is a model's setting or, if no model has one, a constant. Some
    options have no default and stay None.

    Raises:
        InputError: no signature takes an option that is set.
    """
    lengths = {getattr(model, "long_text", "truncate") for model in models}
    defaults = {
        "pair": _find_pair(models, preprocess, options),
        # None: each model uses its own setting; see `Row.make`.
        "long_text": lengths.pop() if len(lengths) == 1 else None,
        "top_k": 5,
        "pooling": "mean",
        "normalize": False,
        "hypothesis": HYPOTHESIS,
    }
    for model in models:
        defaults |= getattr(model, "sentence_embedding", {})
    resolved = dataclasses.replace(
        options,
        **{k: v for k, v in defaults.items() if getattr(options, k) is None},
    )
    found = [name for name, _ in list_signatures(models, preprocess, resolved)]
    optional = {name for row in SIGNATURES.values() for name in row.options}
    for name in sorted(optional):
        is_set = getattr(options, name) not in (None, False, "truncate")
        if is_set and not any(name in SIGNATURES[s].options for s in found):
            known = [s for s, row in SIGNATURES.items() if name in row.options]
            raise InputError(
                f"`{name}` is an option of {' and '.join(known)}, but the "
                f"export has {', '.join(found)}. Leave `{name}` out."
                + NO_ENTAILMENT
                * (name == "hypothesis")
            )
    return resolved


def _find_pair(models, preprocess, options):
    """Return True if one of the models that take the option `pair` has it."""
    takers = [
        model
        for name, model in list_signatures(models, preprocess, options)
        if "pair" in SIGNATURES[name].options
    ]
    # `rank` always reads pairs, so it does not take the option.
    return any(getattr(model, "pair", False) for model in takers or models)


def drop_untrained(signatures, options):
    """Return the `signatures` without a task that was not trained.

    If a pre-trainer was trained on only one of its two tasks, the weights of
    the other task are random. The signature of that other task is left out,
    with an `UntrainedWarning`.

    Args:
        signatures: from `list_signatures`; the models must be in the dtype that
            they were trained in.
        options: from `resolve_options`.

    Raises:
        InputError: a signature uses random weights and cannot be left out.
    """
    left_out = []
    for model in {id(model): model for _, model in signatures}.values():
        weights = drop_unused_pooler(model, untrained_weights(model))
        random = {}
        for name in [name for name, one in signatures if one is model]:
            unread = SIGNATURES[name].find_unread(options)
            if used := [w for w in weights if not w.startswith(unread)]:
                random[name] = used
        if len(random) == 1 and random.keys() <= PRETRAINING:
            ((task, names),) = random.items()
            warnings.warn(
                f"The export has no signature {task}, because these weights "
                f"are random: {list_names(names)}",
                UntrainedWarning,
                stacklevel=4,  # the line that calls `export_saved_model`
            )
            left_out.append(task)
        elif random:
            refuse_random_weights(model, sorted(set().union(*random.values())))
    return [pair for pair in signatures if pair[0] not in left_out]


def refuse_random_weights(model, names):
    raise InputError(
        f"These weights of the {type(model).__name__} are random: "
        f"{list_names(names)}. Train the model first, or export it with "
        "`allow_untrained=True`."
    )


def make_signatures(signatures, preprocess, options):
    """Return dict of name -> `Signature`, in the order of `signatures`.

    Args:
        signatures: list of (name, model), from `list_signatures`.
        preprocess: the models' preprocessor; see `copy_for_serving`.
        options: options of the export, from `resolve_options`.
    """
    made: dict = {}
    for name, model in signatures:
        if name in made:
            raise InputError(
                f"Two models have a signature {name!r}. Export them to two "
                "folders."
            )
        made[name] = SIGNATURES[name].make(model, preprocess, options)
        _check_segments(model, made[name])
        head = _find_head(model)
        if preprocess.prompt is not None and "embed" not in head.signatures:
            raise InputError(
                f"The preprocessor puts its prompt {preprocess.prompt!r} "
                f"before each text, but a {type(model).__name__} is served "
                "without prompts. Train and export it with "
                "preprocessor.with_prompt(None)."
            )
    return made


def _check_segments(model, signature):
    is_pair = len(signature.inputs) == 2
    if is_pair and getattr(model, "encoder", model).num_segments == 1:
        raise InputError(
            f"{signature.name} reads {' and '.join(signature.inputs)} as a "
            "pair, but the model has num_segments=1. Export a model with two "
            "segments."
        )
