"""The signatures of a model, and the options and weights that they use."""

import dataclasses
import warnings
from collections.abc import Callable

from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interop.head_table import HEADS
from bert_keras.interop.load_report import list_names
from bert_keras.modeling.heads import check_long_text
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_models import BertSpanPredictor
from bert_keras.modeling.weights import drop_unused_pooler, untrained_weights
from bert_keras.serving.classification import (
    HYPOTHESIS,
    choose,
    classify,
    entail,
    find_entailment,
    rank,
)
from bert_keras.serving.embedding import embed, embed_with_prompts
from bert_keras.serving.pretraining import fill_mask, next_sentence
from bert_keras.serving.spans import MAX_ANSWERS, answer, tag
from bert_keras.serving.tokens import ids, tokenize

NOT_A_MODEL = (
    "A {} cannot be exported. Expected a BertEncoder or one of the task "
    "models, such as BertClassifier."
)
# Names of options that only some models take. `resolve_options` checks the
# option `hypothesis` separately.
OPTIONS = (
    *("pair", "top_k", "pooling", "normalize", "truncate_dim", "features"),
    "long_text",
)


@dataclasses.dataclass
class Family:
    """A signature's function, and the options and weights that it uses.

    Attributes:
        build: function of a model, its preprocessor and `options`; returns the
            `Signature`, which has the function's name.
        options: names of arguments of `export_saved_model` that `build` takes.
        unread: prefixes of names of weights that the signature does not use.
        unchanged_by: names of options that the signature accepts and ignores.
    """

    build: Callable
    options: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    unchanged_by: tuple[str, ...] = ()

    @property
    def name(self):
        return self.build.__name__

    def signature(self, model, preprocess, options):
        chosen = {name: options[name] for name in self.options}
        return self.build(model, preprocess, **chosen)


# With pooling="pooled", `embed` uses the pooler, although `unread` lists it.
# `_find_random_weights` handles this case.
EMBED = Family(
    embed,
    ("pooling", "normalize", "truncate_dim", "long_text", "features"),
    unread=("mlm/", "nsp/", "encoder/pooler/"),
)
# `rank` needs a `BertClassifier` with the problem "ranking"; `entail` needs a
# `BertClassifier` of pairs with labels for entailment and its opposite.
RANK = Family(rank)
ENTAIL = Family(entail, ("hypothesis",))
# Signature name -> `Family`. `HEADS` lists the signatures of each class.
FAMILIES = {
    family.name: family
    for family in (
        Family(classify, ("pair", "long_text")),
        # `answer` always reads long texts in windows.
        Family(answer, ("top_k",), unchanged_by=("long_text",)),
        Family(tag, ("long_text",)),
        Family(choose),
        EMBED,
        Family(fill_mask, ("top_k",), unread=("nsp/", "encoder/pooler/")),
        Family(next_sentence, unread=("mlm/",)),
    )
}
# If a pre-trainer was trained on only one of these two tasks, the export has no
# signature for the other task.
PRETRAINING = {"fill_mask", "next_sentence"}


def find_families(model):
    """Return list of the model's `Family` objects, the default first.

    Raises:
        InputError: the model is of a class that cannot be exported.
    """
    if getattr(model, "problem", None) == "ranking":
        return [RANK]
    for base in type(model).__mro__:
        if base.__name__ in HEADS and HEADS[base.__name__].signatures:
            families = [FAMILIES[n] for n in HEADS[base.__name__].signatures]
            is_entailment = getattr(model, "problem", "") == "single" and (
                find_entailment(model.labels)
            )
            return families + [ENTAIL] * bool(is_entailment)
    raise InputError(NOT_A_MODEL.format(type(model).__name__))


def resolve_options(models, options):
    """Return the options; where an option is None, use its default.

    The default is a model's setting or, if no model has one, a constant. Some
    options have no default and stay None.

    Raises:
        InputError: `long_text` is invalid, or no model takes an option that is
            set.
    """
    if options["long_text"] is not None:
        check_long_text(options["long_text"])
    for name in OPTIONS:
        is_set = options[name] not in (None, False, "truncate")
        if is_set and not any(
            _has_option(name, find_families(model)) for model in models
        ):
            known = [
                f.name for f in FAMILIES.values() if _has_option(name, [f])
            ]
            found = [f.name for m in models for f in find_families(m)]
            raise InputError(
                f"`{name}` is an option of {' and '.join(known)}, but the "
                f"export has {', '.join(found)}. Leave `{name}` out."
            )
    # `rank` always reads pairs, so it does not read the option `pair`.
    readers = [m for m in models if _has_option("pair", find_families(m))]
    lengths = {getattr(model, "long_text", "truncate") for model in models}
    defaults = {
        "pair": any(getattr(m, "pair", False) for m in readers or models),
        # None: each model uses its own setting; see `make_signatures`.
        "long_text": lengths.pop() if len(lengths) == 1 else None,
        "top_k": 5,
        "pooling": "mean",
        "normalize": False,
        "truncate_dim": None,
        "hypothesis": HYPOTHESIS,
    }
    for model in models:
        defaults |= getattr(model, "sentence_embedding", {})
    resolved = defaults | {
        k: v for k, v in options.items() if v is not None or k not in defaults
    }
    if options["hypothesis"] is not None and not (
        resolved["pair"] and any(ENTAIL in find_families(m) for m in models)
    ):
        raise InputError(
            f"`hypothesis` is {options['hypothesis']!r}, but no model has "
            "the signature entail. Expected a BertClassifier with `pair=True`, "
            'a label that begins with "entail" and an opposite label, such as '
            '"contradiction".'
        )
    return resolved


def _has_option(option, families):
    return any(option in (*f.options, *f.unchanged_by) for f in families)


def find_untrained_signatures(models, options):
    """Return the names of signatures to leave out of the export.

    If a pre-trainer was trained on only one of its two tasks, the weights of
    the other task are random. The signature of that other task is left out,
    with an `UntrainedWarning`.

    Args:
        models: the models, in the dtype that they were trained in.
        options: options of the export, from `resolve_options`.

    Raises:
        InputError: a signature uses random weights and cannot be left out.
    """
    left_out = []
    for index, model in enumerate(models):
        random = _find_random_weights(model, options, index == 0)
        if len(random) == 1 and random.keys() <= PRETRAINING:
            ((task, names),) = random.items()
            warnings.warn(
                f"The export has no signature {task}, because these weights "
                f"are random: {list_names(names)}",
                UntrainedWarning,
                stacklevel=3,  # the line that calls `export_saved_model`
            )
            left_out.append(task)
        elif random:
            refuse_random_weights(model, sorted(set().union(*random.values())))
    return left_out


def refuse_random_weights(model, names):
    raise InputError(
        f"These weights of the {type(model).__name__} are random: "
        f"{list_names(names)}. Train the model first, or export it with "
        "`allow_untrained=True`."
    )


def _find_random_weights(model, options, has_ids):
    """Return dict of signature -> names of random weights that it uses.

    `has_ids` is True for the first model, which the signature `ids` calls.
    """
    weights = drop_unused_pooler(model, untrained_weights(model))
    unread = {family.name: family.unread for family in find_families(model)}
    if options["pooling"] == "pooled" and "embed" in unread:
        unread["embed"] = ("mlm/", "nsp/")
    if options["ids_signature"] and has_ids:
        unread["ids"] = ()
    random = {
        signature: [name for name in weights if not name.startswith(others)]
        for signature, others in unread.items()
    }
    return {signature: names for signature, names in random.items() if names}


def make_signatures(model, preprocess, options):
    """Return list of the model's `Signature` objects, the default first."""
    _check_top_k(model, preprocess, options)
    if options["long_text"] is None:
        long_text = getattr(model, "long_text", "truncate")
        options = options | {"long_text": long_text}
    families = find_families(model)
    if not options["pair"] and ENTAIL in families:
        families.remove(ENTAIL)  # `entail` needs pairs
    signatures = [f.signature(model, preprocess, options) for f in families]
    if EMBED in families:
        chosen = {name: options[name] for name in EMBED.options}
        signatures += embed_with_prompts(model, preprocess, chosen)
    elif preprocess.prompt is not None:
        raise InputError(
            f"The preprocessor puts its prompt {preprocess.prompt!r} before "
            f"each text, but a {type(model).__name__} is served without "
            "prompts. Train and export it with preprocessor.with_prompt(None)."
        )
    return signatures


def all_signatures(models, preprocess, options, left_out=()):
    """Return dict of name -> signature, the default first.

    Args:
        models: the models, in the dtype that they are served in.
        preprocess: their preprocessor; see `copy_for_serving`.
        options: options of the export, from `resolve_options`.
        left_out: names from `find_untrained_signatures`.
    """
    signatures = {}
    for model in models:
        for signature in make_signatures(model, preprocess, options):
            if signature.name in left_out:
                continue
            if signature.name in signatures:
                raise InputError(
                    f"Two models have a signature {signature.name!r}. Export "
                    "them to two folders."
                )
            _check_segments(model, signature)
            signatures[signature.name] = signature
    signatures["tokenize"] = tokenize(preprocess)
    if options["ids_signature"]:
        signatures["ids"] = ids(models[0], preprocess, options["ids_signature"])
    return signatures


def _check_segments(model, signature):
    is_pair = len(signature.inputs) == 2
    if is_pair and getattr(model, "encoder", model).num_segments == 1:
        raise InputError(
            f"{signature.name} reads {' and '.join(signature.inputs)} as a "
            "pair, but the model has num_segments=1. Export a model with two "
            "segments."
        )


def _check_top_k(model, preprocess, options):
    most = None
    if isinstance(model, BertSpanPredictor):
        most = MAX_ANSWERS
    elif isinstance(model, BertPretrainer):
        most = preprocess.tokenizer.vocabulary_size
    top_k = options["top_k"]
    if most and not (type(top_k) is int and 1 <= top_k <= most):
        raise InputError(
            f"`top_k` is {top_k!r}. Expected a whole number from 1 to {most}."
        )
