"""Builds or loads the compiled model of a pre-training run."""

import dataclasses

import bert_keras
from bert_keras.errors import InputError
from bert_keras.interop.opening import open_checkpoint
from bert_keras.modeling.weights import (
    copy_weights,
    mark_new_weights,
    published_weights,
    split_trainable,
)
from bert_keras.text.extension import UNUSED, Extension, extend_model
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.wordpiece import WordPiece
from official_tasks import optimizers
from official_tasks.options import list_changes
from official_tasks.pretraining.settings import SIZE_FIELDS, model_sizes


def compiled_model(settings, objective, source, execution):
    """Return the initial model of a run, compiled for `objective`."""
    rows = source.examples_per_row
    if settings.init:
        model = load_model(
            settings, objective, source.vocabulary, source.tokenizer
        )
        model = change_examples_per_row(model, rows)
    else:
        model = new_model(settings, objective, len(source.vocabulary), rows)
    objective.prepare(model)
    if not settings.init:
        # Weights that no step updates keep their random initial values. Mark
        # them as new, so that a saved model lists them as untrained.
        updated = {weight.path for weight in split_trainable(model)[0]}
        weights = published_weights(model).items()
        mark_new_weights(
            model, [k for k, v in weights if v.path not in updated]
        )
    model.compile(
        make_optimizer(settings, execution),
        objective.losses(),
        weighted_metrics=objective.metrics(),
        steps_per_execution=execution.steps_per_execution,
    )
    return model


def make_optimizer(settings, execution):
    values = {**dataclasses.asdict(settings), **dataclasses.asdict(execution)}
    changed = {**list_changes(settings), **list_changes(execution)}
    return optimizers.make_optimizer(
        settings.optimizer,
        settings.learning_rate,
        settings.steps,
        values,
        changed,
    )


def new_model(settings, objective, vocabulary_size, examples_per_row=None):
    """Return a model with random weights, not compiled."""
    encoder = bert_keras.BertEncoder(
        vocabulary_size,
        **model_sizes(settings),
        max_sequence_length=max(512, settings.longest),
        dropout=settings.dropout,
        attention_dropout=settings.dropout,
        rematerialize=settings.rematerialize,
        dtype=settings.dtype,
        **objective.encoder_arguments,
    )
    return objective.build(encoder, examples_per_row)


def load_model(settings, objective, vocabulary, tokenizer):
    """Return the model of `settings.init`, extended to `vocabulary`."""
    checkpoint, extension = check_weights(
        settings, objective, vocabulary, tokenizer
    )
    model = objective.model_class.from_preset(
        checkpoint,
        dropout=settings.dropout,
        attention_dropout=settings.dropout,
        rematerialize=settings.rematerialize,
        dtype=settings.dtype,
    )
    if extension.replaced:
        model = extend_model(model, extension)
    return model


def change_examples_per_row(model, examples_per_row):
    """Return `model`, or a copy if its `examples_per_row` differs.

    The copy shares the encoder of `model`.
    """
    arguments = model.arguments()
    if arguments.get("examples_per_row", examples_per_row) == examples_per_row:
        return model
    arguments["examples_per_row"] = examples_per_row
    copy = type(model)(model.encoder, **arguments)
    copy_weights(model, copy)
    model.copy_metadata(copy)
    return copy


def check_weights(settings, objective, vocabulary, tokenizer):
    """Check that the weights `settings.init` fit the data and other settings.

    Return the `Checkpoint`, and the `Extension` from its vocabulary to the
    vocabulary of the data. The values of the weights are not read.

    Args:
        settings: `Settings`.
        objective: a value of `objectives.OBJECTIVES`.
        vocabulary: vocabulary of the data, which the model will use.
        tokenizer: dict of "lowercase" and "strip_accents" of the data.

    Raises:
        InputError: the data's vocabulary does not extend the vocabulary of the
            weights, or a setting does not fit the weights.
    """
    checkpoint = open_checkpoint(settings.init)
    expected = BertPreprocessor.from_preset(checkpoint).tokenizer
    extension = extension_between(
        expected.vocabulary, vocabulary, settings.init
    )
    sizes = [k for k in SIZE_FIELDS if getattr(settings, k) is not None]
    if sizes:
        raise InputError(
            f"`{sizes[0]}` and `init` exclude each other, because the weights "
            "of `init` fix the model's size. Leave one of the two out."
        )
    for name in ("lowercase", "strip_accents"):
        value = getattr(expected, name)
        if tokenizer[name] != value:
            raise InputError(
                f"The vocabulary of {settings.init} has {name}={value}, but "
                f"the data was made with {name}={tokenizer[name]}. Make the "
                f"data again with --{'' if value else 'no'}{name}."
            )
    positions = checkpoint.encoder["max_sequence_length"]
    if settings.longest > positions:
        raise InputError(
            f"The weights of {settings.init} have {positions} positions, but "
            f"the longest sequence has {settings.longest}. Choose a "
            "`sequence_length` and a `phase_2_sequence_length` of at most "
            f"{positions}. Without phase 2 (`phase_2_steps=0`), only "
            "`sequence_length` counts."
        )
    needed = objective.encoder_arguments.get("attention", "bidirectional")
    attention = checkpoint.encoder.get("attention", "bidirectional")
    if attention != needed:
        raise InputError(
            f"The weights of {settings.init} have {attention} attention, but "
            f"objectives={settings.objectives} needs {needed} attention. "
            "Name other objectives or other weights."
        )
    return checkpoint, extension


def extension_between(old, new, source):
    """Return the `Extension` that turns the vocabulary `old` into `new`.

    Old tokens keep their lines. New tokens replace `[unusedN]` or are appended.

    Args:
        old: the vocabulary of the weights.
        new: the vocabulary of the data.
        source: name of the weights, for messages.

    Raises:
        InputError: a line is missing in `new`, or replaces a token of `old`
            other than `[unusedN]`. The message names the first such line.
    """
    word_piece = WordPiece(old, False)
    replaced = {}
    for line in range(max(len(old), len(new))):
        before = old[line] if line < len(old) else None
        token = new[line] if line < len(new) else None
        if token == before:
            continue
        is_free = before is None or UNUSED.fullmatch(before)
        if token is None or not is_free:
            now = "missing" if token is None else repr(token)
            raise InputError(
                f"The vocabulary of the data does not extend that of {source}: "
                f"line {line + 1} is {before!r} in {source}, but {now} in the "
                "data. Make the data with the vocabulary of the weights. New "
                "tokens may only replace [unusedN] or come at the end."
            )
        replaced[line] = word_piece.ids(token.removeprefix("##"))
    return Extension(list(new), replaced)
