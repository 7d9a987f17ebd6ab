"""One door for weights of any format: load a model, its text side, save."""

import inspect
import os

from bert_keras.errors import InputError
from bert_keras.interop import hub, released
from bert_keras.interop.casing import settle_case
from bert_keras.interop.checkpoint import Checkpoint, WeightsError
from bert_keras.interop.formats import is_path, open_path
from bert_keras.interop.loading import build_model
from bert_keras.interop.own import save_own
from bert_keras.modeling.classifier import check_labels

# Tokens a row where neither the caller nor the preset says.
SEQUENCE_LENGTH = 128


def open_checkpoint(preset, revision=None):
    """The `Checkpoint` of a preset.

    Args:
        preset: a path of any known format, `org/name` or `hf://org/name` on
            the Hugging Face Hub, or the name of weights that the original
            released, in its or keras-hub's spelling. A `Checkpoint` that was
            opened before passes through.
        revision: branch, tag or commit on the Hub.
    """
    if isinstance(preset, Checkpoint):
        return preset
    if not isinstance(preset, str | os.PathLike):
        raise InputError(
            f"The preset is {preset!r}. Expected a path or a name as a string."
        )
    preset = os.fspath(preset)
    name = None if is_path(preset) else hub.hub_name(preset)
    if revision is not None and name is None:
        raise InputError(
            f"revision is {revision!r}, but {preset} is not on the Hub. "
            "Leave it out."
        )
    if name is not None:
        folder, source = hub.fetch(name, revision)
        checkpoint = open_path(folder)
        checkpoint.source = checkpoint.origin = source
        return checkpoint
    if not is_path(preset) and released.released_name(preset):
        return open_path(released.fetch(released.released_name(preset)))
    return open_path(preset)


def load_model(cls, preset, *, revision=None, **arguments):
    """A model of class `cls` with the weights of `preset`.

    Weights of another class give their encoder; the head begins at random.
    What was loaded, skipped and initialised is on the model as
    `load_report`, and goes to the log in three lines.

    Args:
        cls: `BertEncoder` or a task model's class.
        preset: a path or a name; see `open_checkpoint`.
        revision: branch, tag or commit on the Hub.
        **arguments: of the class and, for a task model, of `BertEncoder`,
            over what the preset says. What both have, as `dropout`, is the
            class's.
    """
    for name in ("num_classes", "num_labels", "classes"):
        if name in arguments:
            raise InputError(
                f"{cls.__name__} takes the names of its classes, not {name}: "
                'for example labels=["negative", "positive"].'
            )
    if arguments.get("labels") is not None:
        check_labels(arguments["labels"], arguments.get("problem", "single"))
        arguments["labels"] = list(map(str, arguments["labels"]))
    return build_model(cls, open_checkpoint(preset, revision), arguments)


def load_preprocessor(preset, *, revision=None, **arguments):
    """The `BertPreprocessor` that belongs to the weights of `preset`.

    Args:
        preset: a path or a name; see `open_checkpoint`.
        revision: branch, tag or commit on the Hub.
        **arguments: of `BertPreprocessor` and `WordPieceTokenizer`, over what
            the preset says.
    """
    from bert_keras.text.preprocessor import BertPreprocessor
    from bert_keras.text.tokenizer import WordPieceTokenizer

    checkpoint = open_checkpoint(preset, revision)
    text = _text(checkpoint)
    known = inspect.signature(WordPieceTokenizer.__init__).parameters
    given = {k: arguments.pop(k) for k in list(arguments) if k in known}
    given["lowercase"] = settle_case(
        checkpoint.source,
        text.cases,
        [] if text.settled else text.pieces,
        given.get("lowercase"),
    )
    tokenizer = WordPieceTokenizer(text.pieces, **{**text.tokenizer, **given})
    arguments["sequence_length"] = _length(
        checkpoint, text, arguments.get("sequence_length")
    )
    return BertPreprocessor(tokenizer, **arguments)


def save_preset(folder, model, preprocessor=None):
    """Writes configuration, weights and vocabulary in the own format.

    The folder is written beside and renamed, so that it is there whole or
    not at all. The optimizer's state does not go into it.
    """
    save_own(folder, model, preprocessor)


def _text(checkpoint):
    """The text side; its vocabulary fits the model."""
    if checkpoint.read_text is None:
        raise WeightsError(
            checkpoint.source,
            "there is no vocabulary",
            "Put the vocab.txt that the model was trained with beside it",
        )
    text, size = checkpoint.read_text(), checkpoint.encoder["vocabulary_size"]
    if len(text.pieces) > size:
        raise WeightsError(
            checkpoint.source,
            "the vocabulary does not belong to the weights",
            "Put the vocab.txt that the model was trained with beside them",
            expected=f"at most {size} pieces",
            found=f"{len(text.pieces)}",
        )
    return text


def _length(checkpoint, text, wanted):
    from bert_keras.text.packing import check_length

    longest = checkpoint.encoder["max_sequence_length"]
    if wanted is None:
        return min(text.sequence_length or SEQUENCE_LENGTH, longest)
    check_length(wanted)
    if wanted > longest:
        raise InputError(
            f"sequence_length is {wanted}, but the model of "
            f"{checkpoint.source} has {longest} positions. Choose at most "
            f"{longest}."
        )
    return wanted
