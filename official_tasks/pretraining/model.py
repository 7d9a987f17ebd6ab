"""The model that pre-training begins with: at random, or from weights."""

from bert_keras.errors import InputError

SIZE_FLAGS = ("num_layers", "hidden_dim", "num_heads")


def sizes(settings):
    """The numbers of the model by `settings.size` and those given beside."""
    from bert_keras.modeling.sizes import SIZES

    if settings.size not in SIZES:
        raise InputError(
            f"size is {settings.size!r}. Expected one of {', '.join(SIZES)}; "
            "any other size by --num_layers, --hidden_dim and --num_heads."
        )
    numbers = {k: SIZES[settings.size][k] for k in SIZE_FLAGS}
    if settings.hidden_dim is not None:
        # As in every published size, a head is 64 wide.
        numbers["num_heads"] = max(1, settings.hidden_dim // 64)
    given = {k: getattr(settings, k) for k in SIZE_FLAGS}
    numbers |= {k: v for k, v in given.items() if v is not None}
    return {**numbers, "intermediate_dim": 4 * numbers["hidden_dim"]}


def new_model(settings, objective, vocabulary, examples_per_row=None):
    """A model with random weights, not compiled."""
    import bert_keras

    encoder = bert_keras.BertEncoder(
        len(vocabulary),
        **sizes(settings),
        max_sequence_length=max(512, settings.longest),
        dropout=settings.dropout,
        attention_dropout=settings.dropout,
        dtype=settings.dtype,
        **objective.encoder_arguments,
    )
    return objective.build(encoder, examples_per_row)


def model_of_weights(settings, objective, vocabulary, made):
    """The model of `settings.init`, its vocabulary grown to `vocabulary`.

    Args:
        made: how the data was made; "lowercase" and "strip_accents".

    Raises:
        InputError: the vocabulary is neither that of the weights nor an
            extension of it; or length, case, accents or direction do not fit.
    """
    from bert_keras.interop.presets import open_checkpoint
    from bert_keras.text.extension import extend_model
    from bert_keras.text.preprocessor import BertPreprocessor

    checkpoint = open_checkpoint(settings.init)
    tokenizer = BertPreprocessor.from_preset(checkpoint).tokenizer
    extension = extension_between(
        tokenizer.vocabulary, vocabulary, settings.init
    )
    _check_fit(checkpoint, tokenizer, settings, objective, made)
    model = objective.model_class.from_preset(
        checkpoint,
        dropout=settings.dropout,
        attention_dropout=settings.dropout,
        dtype=settings.dtype,
    )
    if extension.replaced:
        model = extend_model(model, extension)
    return model


def _check_fit(checkpoint, tokenizer, settings, objective, made):
    given = [k for k in SIZE_FLAGS if getattr(settings, k) is not None]
    if given:
        raise InputError(
            f"{given[0]} is given beside init, whose weights decide the "
            "sizes. Leave one of the two out."
        )
    for name in ("lowercase", "strip_accents"):
        wanted = getattr(tokenizer, name)
        if made[name] != wanted:
            raise InputError(
                f"The weights of {settings.init} are of a vocabulary with "
                f"{name}={wanted}, and the data was made with "
                f"{name}={made[name]}. Make the data again with "
                f"--{'' if wanted else 'no'}{name}."
            )
    longest = checkpoint.encoder["max_sequence_length"]
    if settings.longest > longest:
        raise InputError(
            f"The weights of {settings.init} have {longest} positions, and "
            f"the longest sequence is {settings.longest}. Choose a shorter "
            "sequence_length, or phase_2_steps 0."
        )
    wanted = objective.encoder_arguments.get("attention", "bidirectional")
    found = checkpoint.encoder.get("attention", "bidirectional")
    if found != wanted:
        raise InputError(
            f"The weights of {settings.init} see {found} and the objectives "
            f"{settings.objectives} need {wanted}. Name other objectives or "
            "other weights."
        )


def extension_between(old, new, source):
    """The `Extension` that makes the vocabulary `new` of `old`.

    Old pieces keep their lines; new ones take those of `[unusedN]`, or come
    at the end.

    Args:
        old: the pieces of the weights.
        new: the pieces of the data.
        source: the weights, for messages.

    Raises:
        InputError: names the first line that is neither the old one nor
            free.
    """
    from bert_keras.text.extension import UNUSED, Extension
    from bert_keras.text.wordpiece import WordPiece

    law = WordPiece(old, False)
    replaced = {}
    for line, piece in enumerate(new):
        before = old[line] if line < len(old) else None
        if piece == before:
            continue
        if before is not None and not UNUSED.fullmatch(before):
            raise InputError(_other(line, before, piece, source))
        replaced[line] = law.ids(piece.removeprefix("##"))
    if len(new) < len(old):
        line = len(new)
        raise InputError(_other(line, old[line], None, source))
    return Extension(list(new), replaced)


def _other(line, before, piece, source):
    found = "is missing" if piece is None else f"is {piece!r}"
    return (
        f"The vocabulary of the data is not that of {source} and does not "
        f"extend it: line {line + 1} is {before!r} there and {found} here. "
        "Make the data with the vocabulary of the weights; new pieces may "
        "only take the lines of [unusedN] or come at the end."
    )


def with_rows_of(model, examples_per_row):
    """The model for rows of that many examples, None for one; same weights."""
    from bert_keras.modeling.weights import copy_weights

    arguments = model.arguments()
    if arguments.get("examples_per_row", examples_per_row) == examples_per_row:
        return model
    arguments["examples_per_row"] = examples_per_row
    copy = type(model)(model.encoder, **arguments)
    copy_weights(model, copy)
    return copy


def compiled_model(settings, objective, source, execution):
    """The model that a run begins with, compiled for its objective."""
    if settings.init:
        model = model_of_weights(
            settings, objective, source.vocabulary, source.tokenizer
        )
        model = with_rows_of(model, source.examples_per_row)
    else:
        model = new_model(
            settings, objective, source.vocabulary, source.examples_per_row
        )
    objective.prepare(model)
    if not settings.init:
        _mark_frozen(model)
    model.compile(
        _optimizer(settings, execution.accumulation),
        objective.losses(),
        weighted_metrics=objective.metrics(),
        steps_per_execution=execution.steps_per_execution,
    )
    return model


def _mark_frozen(model):
    """So that what a run from scratch does not train is known for that."""
    from bert_keras.modeling.weights import mark_untrained, published_weights

    frozen = {weight.path for weight in model.non_trainable_weights}
    weights = published_weights(model).items()
    mark_untrained(model, [k for k, v in weights if v.path in frozen])


def _optimizer(settings, accumulation):
    import bert_keras
    from bert_keras.training.optimizers import lamb

    schedule = {
        "learning_rate": settings.learning_rate,
        "steps": settings.steps,
        "warmup": settings.warmup,
        "accumulate": accumulation,
    }
    if settings.optimizer == "lamb":
        return lamb(**schedule)
    return bert_keras.adamw(
        **schedule, bias_correction=settings.bias_correction
    )
