"""Which questions a model answers, from which options and which weights."""

import dataclasses
import warnings
from collections.abc import Callable

from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interop.head_table import HEADS
from bert_keras.interop.presets import list_names
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_models import BertSpanPredictor
from bert_keras.modeling.weights import drop_unused_pooler, untrained_weights
from bert_keras.serving.classification import choose, classify, rank
from bert_keras.serving.embedding import embed, embed_with_prompts
from bert_keras.serving.pieces import fill_mask, ids, next_sentence, tokenize
from bert_keras.serving.spans import MOST_ANSWERS, answer, tag

NOT_A_MODEL = (
    "A {} cannot be exported. Expected a BertEncoder or one of the task "
    "models, such as BertClassifier."
)
LONG_TEXTS = ("truncate", "windows")
# What some models can meet and others cannot.
OPTIONS = ("pair", "top_k", "pooling", "normalize", "features", "long_text")


@dataclasses.dataclass
class Family:
    """A signature's function and what its answer depends on.

    Attributes:
        build: of a model, its `Rows` and the options below; gives the
            `Signature`, whose name is the function's.
        options: of `export_saved_model`, which it takes.
        unread: weights that it does not read, by how their names begin.
        unchanged_by: options that are allowed and change nothing.
    """

    build: Callable
    options: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    unchanged_by: tuple[str, ...] = ()

    @property
    def name(self):
        return self.build.__name__

    def signature(self, model, rows, options):
        chosen = {name: options[name] for name in self.options}
        return self.build(model, rows, **chosen)


# `embed` may be asked for the pooler's vector: see `_random_weights`.
EMBED = Family(
    embed,
    ("pooling", "normalize", "truncate_dim", "long_text", "features"),
    ("mlm/", "nsp/", "encoder/pooler/"),
)
RANK = Family(rank)  # of a `BertClassifier` with the problem "ranking"
# By name; the table of heads says which classes answer them.
FAMILIES = {
    family.name: family
    for family in (
        Family(classify, ("pair", "long_text")),
        # It reads windows of a long text anyway.
        Family(answer, ("top_k",), unchanged_by=("long_text",)),
        Family(tag, ("long_text",)),
        Family(choose),
        EMBED,
        Family(fill_mask, ("top_k",), ("nsp/", "encoder/pooler/")),
        Family(next_sentence, (), ("mlm/",)),
    )
}
# Of a pre-trainer that learnt one of them, the other one is left out.
PRETRAINING = {"fill_mask", "next_sentence"}


def families_of(model):
    """Return the signatures that the model answers, its default first.

    Raises:
        InputError: it is not a model that can be exported.
    """
    if getattr(model, "problem", None) == "ranking":
        return [RANK]
    for base in type(model).__mro__:
        if base.__name__ in HEADS and HEADS[base.__name__].signatures:
            return [FAMILIES[n] for n in HEADS[base.__name__].signatures]
    raise InputError(NOT_A_MODEL.format(type(model).__name__))


def settle_options(models, options):
    """The options, with what the models' folders say where nothing was asked.

    Raises:
        InputError: an option was asked for that none of the models can meet.
    """
    if options["long_text"] not in LONG_TEXTS:
        raise InputError(
            f"long_text is {options['long_text']!r}. Expected one of "
            f"{', '.join(LONG_TEXTS)}."
        )
    for name in OPTIONS:
        asked = options[name] not in (None, False, "truncate")
        if asked and not any(
            _takes(name, families_of(model)) for model in models
        ):
            known = [
                cls
                for cls, head in HEADS.items()
                if _takes(name, map(FAMILIES.get, head.signatures))
            ]
            if "BertClassifier" in known and any(
                families_of(model) == [RANK] for model in models
            ):
                raise InputError(
                    f"{name} is not for a BertClassifier with problem="
                    "'ranking', which answers `rank`: it reads pairs, and "
                    "cuts them. Leave it out."
                )
            raise InputError(
                f"{name} is for a {' or '.join(known)}, and none is exported. "
                "Leave it out."
            )
    defaults = {
        "pair": any(getattr(model, "pair", False) for model in models),
        "top_k": 5,
        "pooling": "mean",
        "normalize": False,
        "truncate_dim": None,
    }
    for model in models:
        defaults |= getattr(model, "sentence_embedding", {})
    return defaults | {
        k: v for k, v in options.items() if v is not None or k not in defaults
    }


def _takes(option, families):
    """Return True if one of the signatures can meet the option."""
    return any(option in (*f.options, *f.unchanged_by) for f in families)


def unlearnt(models, options):
    """The questions to leave out, as the model learnt nothing for them.

    They are one of the two tasks of a pre-trainer that learnt the other one;
    an `UntrainedWarning` says so.

    Args:
        models: in the dtype that they were trained in.
        options: of the export, settled.

    Raises:
        InputError: other answers would come from weights that are random.
    """
    left_out = []
    for index, model in enumerate(models):
        random = _random_weights(model, options, index == 0)
        if len(random) == 1 and random.keys() <= PRETRAINING:
            ((task, names),) = random.items()
            warnings.warn(
                f"The export does not answer {task}, which its model never "
                f"learnt: random are {list_names(names)}",
                UntrainedWarning,
                stacklevel=3,  # where `export_saved_model` is called
            )
            left_out.append(task)
        elif random:
            refuse_untrained(model, sorted(set().union(*random.values())))
    return left_out


def refuse_untrained(model, names):
    raise InputError(
        f"These weights of the {type(model).__name__} are random and were "
        f"never trained: {list_names(names)}. Train the model first, or export "
        "it as it is with allow_untrained=True."
    )


def _random_weights(model, options, has_ids):
    """Dict of question -> the random weights that it is answered from."""
    weights = drop_unused_pooler(model, untrained_weights(model))
    unread = {family.name: family.unread for family in families_of(model)}
    if options["pooling"] == "pooled" and "embed" in unread:
        unread["embed"] = ("mlm/", "nsp/")
    if options["ids_signature"] and has_ids:
        unread["ids"] = ()
    random = {
        question: [name for name in weights if not name.startswith(others)]
        for question, others in unread.items()
    }
    return {question: names for question, names in random.items() if names}


def signatures_of(model, rows, options):
    """What the model answers; its own first."""
    _check_top_k(model, rows, options)
    families = families_of(model)
    signatures = [f.signature(model, rows, options) for f in families]
    if EMBED in families:
        chosen = {name: options[name] for name in EMBED.options}
        signatures += embed_with_prompts(model, rows, chosen)
    elif rows.prompt is not None:
        raise InputError(
            f"The preprocessor puts its prompt {rows.prompt!r} before each "
            f"text, and a {type(model).__name__} is served without prompts. "
            "Train and export it with preprocessor.with_prompt(None)."
        )
    return signatures


def all_signatures(models, rows, options, left_out=()):
    """Name -> signature, the default's first, without those left out.

    Args:
        models: in the dtype that they are served in.
        rows: `Rows` of their preprocessor.
        options: settled.
        left_out: names; see `unlearnt`.
    """
    signatures = {}
    for model in models:
        for signature in signatures_of(model, rows, options):
            if signature.name in left_out:
                continue
            if signature.name in signatures:
                raise InputError(
                    f"Two of the models answer {signature.name!r}. Export "
                    "them to two folders."
                )
            signatures[signature.name] = signature
    signatures["tokenize"] = tokenize(rows)
    if options["ids_signature"]:
        signatures["ids"] = ids(models[0], rows, options["ids_signature"])
    return signatures


def _check_top_k(model, rows, options):
    """Refuses more answers or guesses than the model can give."""
    most = None
    if isinstance(model, BertSpanPredictor):
        most = MOST_ANSWERS
    elif isinstance(model, BertPretrainer):
        most = rows.tokenizer.vocabulary_size
    top_k = options["top_k"]
    if most and not (type(top_k) is int and 1 <= top_k <= most):
        raise InputError(f"top_k is {top_k!r}. Expected 1 to {most}.")
