"""From a described checkpoint to a model that holds its weights."""

import inspect
import logging
import warnings

from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interop import names
from bert_keras.interop.assigning import assign, check_shape, listed
from bert_keras.interop.checkpoint import WeightsError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.initialization import skip_initialization
from bert_keras.modeling.sizes import DIMENSIONS
from bert_keras.modeling.weights import POOLER, felt, mark_untrained

logger = logging.getLogger(__name__)

# A file may hold some of these heads and not the others, each of them whole.
PARTIAL = {"BertPretrainer": ("mlm/", "nsp/")}
# Weights with one output a label, on their last axis.
LABELLED = (
    "classifier/kernel",
    "classifier/bias",
    "tagger/kernel",
    "tagger/bias",
)


def build_model(cls, checkpoint, arguments):
    """A model of class `cls` with the checkpoint's weights.

    Args:
        cls: `BertEncoder` or a task model's class.
        checkpoint: a `Checkpoint`.
        arguments: for the constructors, over what the checkpoint says.

    Raises:
        WeightsError: a weight that the checkpoint's own class has is not in
            it. Weights that are new, as another class's head is, are drawn
            and named by an `UntrainedWarning`.
    """
    checkpoint = belonging_to(cls.__name__, checkpoint)
    encoder_given, head_given = _split(cls, arguments)
    tensors, head_arguments, why = _head(cls, checkpoint, head_given)
    check_tensors(cls.__name__, checkpoint, tensors, head_arguments, why)
    for tensor in tensors.values():
        if tensor.check is not None:
            tensor.check()
    with skip_initialization():
        encoder_class = cls if issubclass(cls, BertEncoder) else BertEncoder
        encoder = encoder_class(**{**checkpoint.encoder, **encoder_given})
    # The head is small and initialised as it likes: some of it may stay so.
    whole = encoder if cls is encoder_class else cls(encoder, **head_arguments)
    report = assign(whole, checkpoint, tensors)
    whole.load_report = encoder.load_report = report
    if not why:
        _check_whole(whole, checkpoint, report)
    _announce(whole, checkpoint, report, why)
    encoder.license, encoder.origin = checkpoint.license, checkpoint.origin
    encoder.initializer_range = checkpoint.initializer_range
    if checkpoint.embedding and whole is encoder:
        whole.sentence_embedding = checkpoint.embedding
    for line in str(report).splitlines():
        logger.info("%s", line)
    return whole


def belonging_to(name, checkpoint):
    """The checkpoint of the class of that name, where the files leave open
    whose they are; else as it is."""
    read = checkpoint.of_class.get(name)
    return read() if read else checkpoint


def _check_whole(model, checkpoint, report):
    """Refuses a trained head that lacks some of its weights."""
    name = type(model).__name__
    if checkpoint.head != name or isinstance(model, BertEncoder):
        return
    missing = felt(model, report.initialised)
    for head in PARTIAL.get(name, ()):
        if not any(loaded.startswith(head) for loaded in report.loaded):
            missing = [n for n in missing if not n.startswith(head)]
            if head == "nsp/":  # which alone reads the pooler
                missing = [n for n in missing if n not in POOLER]
    if missing:
        _refuse_lack(checkpoint, missing[0], "a tensor")


def _announce(model, checkpoint, report, why):
    """Warns of weights that begin at random, and remembers which."""
    drawn = {*report.initialised, *checkpoint.untrained} & {
        *report.initialised,
        *report.loaded,
    }
    mark_untrained(model, sorted(drawn))
    new = felt(model, sorted(drawn))
    if not new:
        return
    why = f" ({why})" if why else ""
    warnings.warn(
        f"{type(model).__name__} from {checkpoint.source}: these weights are "
        f"new, and random until they are trained{why}: {listed(new)}",
        UntrainedWarning,
        stacklevel=5,  # where `from_preset` is called
    )


def _split(cls, arguments):
    """The caller's arguments for the encoder, and those for the head."""
    of_encoder = inspect.signature(BertEncoder.__init__).parameters
    of_head = inspect.signature(cls.__init__).parameters
    if issubclass(cls, BertEncoder):
        of_encoder, of_head = of_head, {}
    head = {k: v for k, v in arguments.items() if k in of_head}
    encoder = {k: v for k, v in arguments.items() if k not in of_head}
    unknown = sorted({*encoder, *head} & {"self", "encoder", *DIMENSIONS})
    unknown += sorted(set(encoder) - set(of_encoder))
    if unknown:
        raise InputError(
            f"{cls.__name__}.from_preset takes no {', '.join(unknown)}: the "
            "preset's weights decide its sizes. Leave it out."
        )
    return encoder, head


def _head(cls, checkpoint, given):
    """The tensors that the class has a place for, the head's arguments, and
    why the stored head is not among them, None where it is."""
    stored = checkpoint.head_arguments
    classes = [base.__name__ for base in cls.__mro__]
    if checkpoint.head not in classes:
        kept = _encoder_only(checkpoint.tensors)
        return kept, given, f"the weights are of a {checkpoint.head}"
    arguments = {**stored, **given}
    if stored and not issubclass(cls, BertEncoder):
        _check_arguments(cls, checkpoint, arguments)
    order = _order(stored.get("labels"), arguments.get("labels"))
    differs = "labels" if order is None else None
    if stored.get("bilstm_dim") != arguments.get("bilstm_dim"):
        differs = "bilstm_dim"
    if differs is None:
        return _reordered(checkpoint.tensors, order), arguments, None
    old, new = stored.get(differs), arguments.get(differs)
    why = f"the weights are for {differs}={old}, not {new}"
    return _encoder_only(checkpoint.tensors), arguments, why


def _check_arguments(cls, checkpoint, arguments):
    """Refuses stored arguments that the class does not take."""
    try:
        inspect.signature(cls.__init__).bind(None, None, **arguments)
    except TypeError as error:
        raise WeightsError(
            checkpoint.source,
            f"{cls.__name__} cannot be made of the settings ({error})",
            "Correct the file or fetch it again",
        ) from None


def _encoder_only(tensors):
    return {k: v for k, v in tensors.items() if k.startswith("encoder/")}


def _order(stored, wanted):
    """Where each label that is wanted stands among the stored ones.

    None where they are others; labels that never had names take any.
    """
    stored = list(stored or ["LABEL_0"])
    wanted = list(wanted or stored)
    unnamed = [f"LABEL_{index}" for index in range(len(wanted))]
    if stored == unnamed:
        return list(range(len(wanted)))
    if sorted(stored) == sorted(wanted):
        return [stored.index(label) for label in wanted]
    return None


def _reordered(tensors, order):
    """The same tensors, the outputs of a head with labels in that order."""
    if order == sorted(order):
        return tensors
    return {
        name: tensor.reordered(order) if name in LABELLED else tensor
        for name, tensor in tensors.items()
    }


def check_tensors(head, checkpoint, tensors, head_arguments, why=None):
    """Refuses tensors whose shapes contradict the settings, or missing ones.

    Nothing is allocated yet: a settings file that lies is found out here.
    """
    needed = names.encoder_shapes(checkpoint.encoder)
    for name in POOLER:  # that some heads never trained and do without
        if name not in tensors:
            del needed[name]
    of_head = names.head_shapes(head, head_arguments, checkpoint.encoder)
    if not why and "mlm/bias" not in of_head:
        needed |= of_head
    for name, shape in needed.items():
        if name not in tensors:
            _refuse_lack(checkpoint, name, f"a tensor of shape {shape}")
    expected = needed | of_head
    for name, tensor in tensors.items():
        check_shape(tensor, expected.get(name, tensor.shape))


def _refuse_lack(checkpoint, name, expected):
    raise WeightsError(
        checkpoint.source,
        "the weights are not complete",
        "Fetch the files again, or name a folder that holds all",
        tensor=name,
        expected=expected,
        found="none",
    )
