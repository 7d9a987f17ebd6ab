"""Which questions a model answers, and which of its options that takes."""

import warnings

from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interop.presets import listed
from bert_keras.modeling.chooser import BertChooser
from bert_keras.modeling.classifier import BertClassifier
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.span import BertSpanPredictor
from bert_keras.modeling.tagger import BertTagger
from bert_keras.modeling.weights import felt, untrained_weights
from bert_keras.serving.answers import MOST_ANSWERS, answer
from bert_keras.serving.classification import choose, classify
from bert_keras.serving.embedding import embed
from bert_keras.serving.ids import ids
from bert_keras.serving.masked import fill_mask, next_sentence, tokenize
from bert_keras.serving.tags import tag

NOT_A_MODEL = (
    "A {} cannot be exported. Expected a BertEncoder or one of the task "
    "models, such as BertClassifier."
)


LONG_TEXTS = ("truncate", "windows")

# Option -> the models that can meet it. A span predictor reads windows anyway.
MET_BY = {
    "pair": (BertClassifier,),
    "top_k": (BertSpanPredictor, BertPretrainer),
    "pooling": (BertEncoder, BertPretrainer),
    "normalize": (BertEncoder, BertPretrainer),
    "features": (BertEncoder, BertPretrainer),
    "long_text": (
        BertClassifier,
        BertEncoder,
        BertPretrainer,
        BertSpanPredictor,
        BertTagger,
    ),
}


# Question -> weights that its answer does not depend on, by how their names
# begin; `embed` may be asked for the pooler's vector.
UNREAD = {
    "fill_mask": ("nsp/", "encoder/pooler/"),
    "next_sentence": ("mlm/",),
    "embed": ("mlm/", "nsp/", "encoder/pooler/"),
}
TASKS = ("fill_mask", "next_sentence")


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
        if len(random) == 1 and random.keys() <= set(TASKS):
            ((task, names),) = random.items()
            warnings.warn(
                f"The export does not answer {task}, which its model never "
                f"learnt: random are {listed(names)}",
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
        f"never trained: {listed(names)}. Train the model first, or export "
        "it as it is with allow_untrained=True."
    )


def _random_weights(model, options, has_ids):
    """Dict of question -> the random weights that it is answered from."""
    weights = felt(model, untrained_weights(model))
    questions = {BertPretrainer: list(UNREAD), BertEncoder: ["embed"]}
    unread = dict.fromkeys(questions.get(type(model), ["own"]), ())
    unread |= {name: UNREAD[name] for name in unread if name in UNREAD}
    if options["pooling"] == "pooled" and "embed" in unread:
        unread["embed"] = ("mlm/", "nsp/")
    if options["ids_signature"] and has_ids:
        unread["ids"] = ()
    found = {
        question: [name for name in weights if not name.startswith(others)]
        for question, others in unread.items()
    }
    return {question: names for question, names in found.items() if names}


def offered_by(models, rows, options, left_out=()):
    """Name -> signature, the default's first, without those left out."""
    _check(models, rows, options)
    offered = {}
    for model in models:
        for signature in signatures_of(model, rows, options):
            if signature.name in left_out:
                continue
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
    raise InputError(NOT_A_MODEL.format(type(model).__name__))


def settled(models, options):
    """The options, with what the models' homes say where nothing was asked.

    Raises:
        InputError: an option was asked for that none of the models can meet.
    """
    if options["long_text"] not in LONG_TEXTS:
        raise InputError(
            f"long_text is {options['long_text']!r}. Expected one of "
            f"{', '.join(LONG_TEXTS)}."
        )
    for name, classes in MET_BY.items():
        asked = options[name] not in (None, False, "truncate")
        if asked and not any(isinstance(model, classes) for model in models):
            known = " or ".join(known.__name__ for known in classes)
            raise InputError(
                f"{name} is for a {known}, and none is exported. Leave it out."
            )
    told = {
        "pair": any(getattr(model, "pair", False) for model in models),
        "top_k": 5,
        "pooling": "mean",
        "normalize": False,
    }
    for model in models:
        told |= getattr(model, "sentence_embedding", {})
    return told | {
        k: v for k, v in options.items() if v is not None or k not in told
    }


def _check(models, rows, options):
    """Refuses more answers or guesses than a model can give."""
    for model in models:
        most = None
        if isinstance(model, BertSpanPredictor):
            most = MOST_ANSWERS
        elif isinstance(model, BertPretrainer):
            most = rows.tokenizer.vocabulary_size
        top_k = options["top_k"]
        if most and not (type(top_k) is int and 1 <= top_k <= most):
            raise InputError(f"top_k is {top_k!r}. Expected 1 to {most}.")
