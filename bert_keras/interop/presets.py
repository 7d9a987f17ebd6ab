"""Models, preprocessors and tokenizers from a preset."""

import logging
import re
from numbers import Integral

import numpy as np
from keras import ops

from bert_keras.errors import InputError
from bert_keras.interop import huggingface_tokenizer, tensors
from bert_keras.interop.head_selection import select_head, select_labels
from bert_keras.interop.head_table import HEADS
from bert_keras.interop.load_report import (
    POSITIONS,
    LoadReport,
    mark_random_weights,
    warn_about_weights,
)
from bert_keras.interop.opening import FORMATS, open_checkpoint, read_text
from bert_keras.interop.tensors import WeightsError
from bert_keras.interop.text_settings import resolve_case
from bert_keras.modeling import memory, modes, weights
from bert_keras.modeling.heads import check_labels
from bert_keras.modeling.inputs import list_argument_names
from bert_keras.modeling.keras_adapter import delay_values
from bert_keras.modeling.layers import make_initializer
from bert_keras.modeling.sizes import DIMENSIONS
from bert_keras.modeling.weights import POOLER, in_encoder, published_weights

logger = logging.getLogger(__name__)

_LAYER = re.compile(r"encoder/layer_(\d+)/")
SEQUENCE_LENGTH = 128  # default, if the preset states no length


def load_model(cls, preset, *, revision=None, **arguments):
    """Return a model of class `cls` with the weights of `preset`.

    If `cls`, `labels`, `bilstm_dim`, `recipe` or `pooling` does not fit the
    preset's head, only the encoder is loaded. If `labels` has the head's labels
    and new ones, the head keeps the outputs of its labels. `load_report` of
    the model lists the loaded, skipped and initialised weights. The report is
    also logged, in three lines. An `UntrainedWarning` names the weights of a
    new head or pooler, and weights that were saved untrained.

    Args:
        cls: `BertEncoder` or a task model's class.
        preset: a path or a name; see `open_checkpoint`.
        revision: branch, tag or commit on the Hub.
        **arguments: arguments of `cls` and, for a task model, of
            `BertEncoder`. They override the preset's settings. Sizes are
            refused, because the weights decide them. If both classes have an
            argument, such as `dropout`, the task model gets it.

    Raises:
        InputError: `preset` or an argument is unknown or invalid.
        WeightsError: the checkpoint is incomplete or damaged.
    """
    texts = _take_text_arguments(cls, arguments)
    count = _check_labels_argument(cls, arguments)
    checkpoint = open_checkpoint(preset, cls.__name__, revision=revision)
    # The names of the preset's head are kept if their number is right.
    if count and len(checkpoint.head_arguments.get("labels") or ()) != count:
        arguments["labels"] = [str(number) for number in range(count)]
    encoder_arguments, head_arguments = _split_arguments(
        cls, arguments, checkpoint
    )
    found, head_arguments, why, new_labels = _select_tensors(
        cls, checkpoint, head_arguments
    )
    model = _make_checked_model(
        cls, checkpoint, found, encoder_arguments, head_arguments, why
    )
    encoder = getattr(model, "encoder", model)
    if getattr(model, "recipe", None):
        # A recipe's model does not train its encoder. No other model shares
        # this encoder, so no optimizer needs variables for it.
        encoder.trainable = False
    if texts is not None:
        _set_preprocessor(model, checkpoint, **texts)
    report = _assign(model, checkpoint, found)
    report.new_labels = new_labels
    positions = checkpoint.encoder["max_sequence_length"]
    if encoder.max_sequence_length > positions:
        report.old_positions = positions
    model.load_report = encoder.load_report = report
    if not why:
        _check_complete(model, checkpoint, report)
    warn_about_weights(model, checkpoint, report, why)
    encoder.license, encoder.origin = checkpoint.license, checkpoint.origin
    encoder.initializer_range = checkpoint.initializer_range
    for line in str(report).splitlines():
        logger.info("%s", line)
    return model


def load_head(model, checkpoint):
    """Load the head of a preset into a task model with a loaded encoder.

    The head stays random where `load_model` would make a new one. The new
    weights are marked; see `mark_new_weights`.

    Returns:
        The labels that the preset's head lacks.
    """
    found, _, why, new_labels = _select_tensors(
        type(model), checkpoint, model.arguments()
    )
    _check_tensors(model, checkpoint, found, why)
    tensors.run_checks(found)
    report = _assign(model, checkpoint, found, only_head=True)
    report.new_labels = new_labels
    if not why:
        _check_complete(model, checkpoint, report)
    mark_random_weights(model, checkpoint, report)
    return new_labels


def _select_tensors(cls, checkpoint, arguments):
    """Return (tensors, arguments of the head, reason, new labels).

    The reason says why the stored head is not used; see `select_head`.
    """
    # If the stored class is unknown, `checkpoint.head` is "BertEncoder". The
    # fault then concerns every task model.
    heads = ["BertEncoder", *(base.__name__ for base in cls.__mro__)]
    if (
        checkpoint.head_fault
        and hasattr(cls, "encoder_class")
        and checkpoint.head in heads
    ):
        raise checkpoint.head_fault
    found, arguments, why = select_head(cls, checkpoint, arguments)
    new_labels = []
    if not why:
        found, new_labels = select_labels(
            found, checkpoint.head_arguments, arguments
        )
    return found, arguments, why, new_labels


def _make_checked_model(cls, checkpoint, found, encoder, head, why):
    """Return a model whose weights have the shapes of the tensors `found`.

    The shapes come from a model without values, so nothing is allocated before
    they are checked.
    """
    _check_sizes(checkpoint)
    # The constructor of a user's class may compute with its weights. So only
    # the encoder's shapes are checked before the user's model is made.
    is_ours = cls.__module__.startswith("bert_keras.")
    with delay_values():
        model = (
            _make_model(cls, checkpoint, encoder, head)
            if is_ours
            else _make_model(_find_encoder(cls), checkpoint, {}, {})
        )
        _check_tensors(model, checkpoint, found, why)
        tensors.run_checks(found)
    return model if is_ours else _make_model(cls, checkpoint, encoder, head)


def _make_model(cls, checkpoint, encoder_arguments, head_arguments):
    encoder_class = getattr(cls, "encoder_class", cls)
    names = list_argument_names(encoder_class)
    stored = checkpoint.encoder_arguments.items()
    stored = {name: value for name, value in stored if name in names}
    with modes.use(draw_weights=False):
        encoder = encoder_class(
            **{**checkpoint.encoder, **stored, **encoder_arguments}
        )
        if encoder_class is not _find_encoder(cls):
            # Build the layers that a subclass builds when it is called.
            encoder(np.zeros((1, 1), "int32"))
    if checkpoint.embedding:
        encoder.sentence_embedding = checkpoint.embedding
    is_encoder = cls is encoder_class
    return encoder if is_encoder else cls(encoder, **head_arguments)


def _find_encoder(cls):
    """Return `BertEncoder`, which this file cannot import."""
    bases = getattr(cls, "encoder_class", cls).__mro__
    return next(base for base in bases if base.__name__ == "BertEncoder")


def _check_sizes(checkpoint):
    """Raise `WeightsError` for settings that no model can be made of.

    The layers are counted first, because a model takes time for each of them.
    """
    numbers = map(_LAYER.match, checkpoint.tensors)
    count = 1 + max((int(match[1]) for match in numbers if match), default=-1)
    if checkpoint.encoder["num_layers"] > count:
        name = f"encoder/layer_{count}/attention/query/kernel"
        _refuse_missing(checkpoint, name, "a tensor")
    hidden, heads = (checkpoint.encoder[k] for k in ("hidden_dim", "num_heads"))
    if hidden % heads:
        raise WeightsError(
            checkpoint.source,
            "the number of heads does not divide the hidden size",
            "Put the settings that belong to these weights into the folder",
            expected=f"a divisor of {hidden}",
            found=heads,
        )


def _check_labels_argument(cls, arguments):
    own = list_argument_names(cls)
    count = None
    if "num_classes" in arguments and "num_classes" not in own:
        count = _take_count(cls, arguments)
    for name in ("num_labels", "classes"):
        if name in arguments and name not in own:
            raise InputError(
                f"{cls.__name__} has no argument {name}. Pass the names of the "
                'classes, for example labels=["negative", "positive"], or '
                "their number, num_classes=2."
            )
    # Another head's argument may mean something else.
    is_known = any(base.__name__ in HEADS for base in cls.__mro__)
    if is_known and arguments.get("labels") is not None:
        problem = arguments.get("problem", "single")
        arguments["labels"] = check_labels(arguments["labels"], problem)
    return count


def _take_count(cls, arguments):
    """Remove `num_classes`; return it, unless `labels` names the classes."""
    count = arguments.pop("num_classes")
    labels = arguments.get("labels")
    is_count = isinstance(count, Integral) and count > 0
    if "labels" not in list_argument_names(cls) or not is_count:
        raise InputError(
            f"num_classes is {count!r}. Expected a whole number above 0, for a "
            "model with classes."
        )
    if labels is not None and len(labels) != count:
        raise InputError(
            f"num_classes is {count}, but labels has {len(labels)} names. "
            "Leave one of them out."
        )
    return count if labels is None else None


def _take_text_arguments(cls, arguments):
    """Remove the arguments of the preprocessor; None if none is to be set."""
    if not hasattr(cls, "preprocessor"):
        return None
    own = list_argument_names(cls)
    if "preprocessor" in own:
        return None  # the constructor sets it
    names = {"preprocessor", "sequence_length"} - {*own}
    texts = {n: arguments.pop(n) for n in names if n in arguments}
    if len(texts) == 2:
        raise InputError(
            "`preprocessor` and `sequence_length` are both given. Expected "
            "one: a preprocessor has its own length."
        )
    return texts


def _set_preprocessor(
    model, checkpoint, preprocessor="auto", sequence_length=None
):
    """Set the model's preprocessor; "auto" loads it when it is first used."""
    if preprocessor != "auto":
        model.preprocessor = preprocessor
        return
    longest = model.encoder.max_sequence_length
    try:
        text = _read_needed_text(checkpoint)
    except InputError:  # such as a checkpoint without a vocabulary
        if sequence_length is None:
            return
        raise
    if sequence_length is not None:
        # Refuse it now.
        _choose_length(checkpoint, text, sequence_length, longest)

    def load(cls, tokenizer_class):
        arguments = {"sequence_length": sequence_length}
        return _make_preprocessor(
            cls, tokenizer_class, checkpoint, text, arguments, longest
        )

    model.load_preprocessor_with(load)


def load_preprocessor(cls, tokenizer_class, preset, revision, arguments):
    """Return the preprocessor of class `cls` for the weights of `preset`.

    `arguments`, for `cls` or `tokenizer_class`, override the preset's settings.
    """
    checkpoint = open_checkpoint(preset, revision=revision)
    text = _read_needed_text(checkpoint)
    longest = checkpoint.encoder["max_sequence_length"]
    return _make_preprocessor(
        cls, tokenizer_class, checkpoint, text, dict(arguments), longest
    )


def _make_preprocessor(
    cls, tokenizer_class, checkpoint, text, arguments, longest
):
    known = list_argument_names(tokenizer_class)
    of_tokenizer = {k: arguments.pop(k) for k in [*arguments] if k in known}
    tokenizer = _make_tokenizer(
        tokenizer_class, checkpoint.source, text, of_tokenizer
    )
    arguments["sequence_length"] = _choose_length(
        checkpoint, text, arguments.get("sequence_length"), longest
    )
    if text.prompts:
        prompts = arguments.get("prompts", text.prompts)
        arguments = {
            "prompts": prompts,
            # The preset's default may not be among the caller's prompts.
            "prompt": text.prompt if text.prompt in (prompts or ()) else None,
            "include_prompt": text.include_prompt,
            **arguments,
        }
    # A label of the preset's dicts may be missing in those of the caller.
    keys = {} if "text_keys" in arguments else text.keys
    return cls(tokenizer, **{**keys, **arguments})


def load_tokenizer(cls, preset, revision, arguments):
    """Return the tokenizer of class `cls` that belongs to a preset.

    `preset` may also be a folder with only a Hugging Face tokenizer.
    """
    text = huggingface_tokenizer.read_folder(preset)
    if text is not None:
        return _make_tokenizer(cls, preset, text, dict(arguments))
    checkpoint = open_checkpoint(preset, revision=revision)
    text = _read_needed_text(checkpoint)
    return _make_tokenizer(cls, checkpoint.source, text, arguments)


def _make_tokenizer(cls, source, text, arguments):
    lowercase = resolve_case(source, text, arguments.get("lowercase"))
    return cls(
        text.pieces, **{**text.tokenizer, **arguments, "lowercase": lowercase}
    )


def _split_arguments(cls, arguments, checkpoint):
    """Return the arguments of the encoder and those of the head; check them."""
    encoder_class = getattr(cls, "encoder_class", cls)
    encoder_names = list_argument_names(encoder_class)
    head_names = [] if cls is encoder_class else list_argument_names(cls)
    head = {k: v for k, v in arguments.items() if k in head_names}
    encoder = {k: v for k, v in arguments.items() if k not in head_names}
    sizes = {*DIMENSIONS} - {"max_sequence_length"}
    unknown = sorted({*encoder, *head} & {"self", "encoder", *sizes})
    unknown += sorted(set(encoder) - set(encoder_names))
    if unknown:
        raise InputError(
            f"{cls.__name__}.from_preset takes no {', '.join(unknown)}. Check "
            "the spelling, and leave out sizes: the weights decide them."
        )
    stored = checkpoint.encoder["max_sequence_length"]
    number = encoder.get("max_sequence_length", stored)
    if not isinstance(number, Integral) or number < stored:
        raise InputError(
            f"`max_sequence_length` is {number!r}. Expected a whole number of "
            f"at least {stored}, the positions of the weights. For shorter "
            "rows, set `sequence_length` of the preprocessor."
        )
    return encoder, head


def _check_tensors(model, checkpoint, found, why):
    """Raise `WeightsError` if a tensor is missing or its shape is wrong.

    The pooler may be missing: some heads do not use it. A pre-training head (a
    head with `mlm/bias`) may be missing too. `why` is the reason why the stored
    head is not used. If it is given, any head may be missing.
    """
    expected = {k: tuple(w.shape) for k, w in published_weights(model).items()}
    # The model may have more positions; see `_assign`.
    rows = checkpoint.encoder["max_sequence_length"]
    expected[POSITIONS] = rows, *expected[POSITIONS][1:]
    needs_head = not why and "mlm/bias" not in expected
    for name, shape in expected.items():
        is_needed = in_encoder(name) or needs_head
        if name not in found and is_needed and name not in POOLER:
            _refuse_missing(checkpoint, name, f"a tensor of shape {shape}")
    for name, tensor in found.items():
        _check_shape(tensor, expected.get(name, tensor.shape))


def _check_shape(tensor, expected):
    if tuple(tensor.shape) != tuple(expected):
        raise WeightsError(
            tensor.file,
            "the shape contradicts the settings in the folder",
            "Put the settings that belong to these weights into the folder",
            tensor=tensor.name,
            expected=f"the shape {tuple(expected)}",
            found=f"{tuple(tensor.shape)}",
        )


def _refuse_missing(checkpoint, name, expected):
    raise WeightsError(
        checkpoint.source,
        "the weights are not complete",
        "Fetch the files again, or pass a folder with all weights",
        tensor=name,
        expected=expected,
        found="none",
    )


def _assign(model, checkpoint, found, only_head=False):
    """Set the weights, one tensor at a time, and return the `LoadReport`.

    With `only_head`, the encoder's weights are left as they are.
    """
    variables = {
        name: weight
        for name, weight in published_weights(model).items()
        if not (only_head and in_encoder(name))
    }
    report = LoadReport(checkpoint.source, [], list(checkpoint.skipped), [])
    for name, tensor in checkpoint.tensors.items():
        if name in variables and name in found:
            value, shape = found[name].load(), variables[name].shape
            if name == POSITIONS and len(value) < shape[0]:
                new = make_initializer()((shape[0] - len(value), shape[1]))
                value = np.concatenate([value, ops.convert_to_numpy(new)])
            else:
                _check_shape(found[name], shape)
            variables[name].assign(memory.share_memory(value))
            report.loaded.append(name)
        else:
            report.skipped.append(tensor.name)
    if any(tensor.source is None for tensor in found.values()):
        _check_unchanged(checkpoint)
    report.initialised = sorted(set(variables) - set(report.loaded))
    # The head was built with random weights, but BERT's encoder with zeros. So
    # its pooler, if missing, gets random values here.
    if POOLER[0] in report.initialised:
        kernel = variables[POOLER[0]]
        kernel.assign(make_initializer()(kernel.shape))
    return report


def _check_complete(model, checkpoint, report):
    name = type(model).__name__
    if checkpoint.head != name or not hasattr(model, "encoder_class"):
        return
    missing = weights.drop_unused_pooler(model, report.initialised)
    for head in HEADS[name].parts if name in HEADS else ():
        if not any(loaded.startswith(head) for loaded in report.loaded):
            missing = [n for n in missing if not n.startswith(head)]
            if head == "nsp/":  # only this part uses the pooler
                missing = [n for n in missing if n not in POOLER]
    if missing:
        _refuse_missing(checkpoint, missing[0], "a tensor")


def _check_unchanged(checkpoint):
    checkpoint.check_unchanged()


def _read_needed_text(checkpoint):
    """Return the `TextSettings`; raise `WeightsError` without a vocabulary."""
    text = read_text(checkpoint)
    if text is None:
        file = FORMATS[checkpoint.format].vocabulary
        raise WeightsError(
            checkpoint.source,
            "there is no vocabulary next to the weights",
            f"Put the model's {file} next to the weights",
        )
    return text


def _choose_length(checkpoint, text, requested, longest):
    if requested is None:
        return min(text.sequence_length or SEQUENCE_LENGTH, longest)
    # The packer refuses other types.
    if isinstance(requested, Integral) and requested > longest:
        raise InputError(
            f"`sequence_length` is {requested!r}, but the model of "
            f"{checkpoint.source} has {longest} positions. Choose a "
            f"number of at most {longest}."
        )
    return requested
