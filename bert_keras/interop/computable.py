"""What other implementations compute, and whether a model of ours is that."""

from bert_keras.errors import InputError

ORIGINAL = {"activation": "gelu_tanh", "norm_epsilon": 1e-12}
# Its masked-word head takes Keras's defaults, whatever its backbone has.
KERAS_HUB_HEAD = {"mlm_activation": "gelu_exact", "mlm_norm_epsilon": 1e-5}
# A head that computes as its encoder does.
SAME_HEAD = {"mlm_activation": None, "mlm_norm_epsilon": None}
# Format -> setting -> the only value that its home knows.
COMPUTES = {
    "bert_keras": {},
    "huggingface": SAME_HEAD,
    "google": ORIGINAL | SAME_HEAD,
    "keras_hub": ORIGINAL | KERAS_HUB_HEAD,
}


def check_computable(model, format, whose):
    """Refuses settings under which the other code computes otherwise.

    Args:
        model: `BertEncoder` or a task model.
        format: a key of `COMPUTES`.
        whose: name of the other implementation.
    """
    encoder = getattr(model, "encoder", model)
    if encoder.attention != "bidirectional":
        raise InputError(
            f"The model's attention is {encoder.attention!r}, but {whose} "
            "computes 'bidirectional': the outputs would be others. Save "
            "another format."
        )
    for name, value in COMPUTES[format].items():
        found = getattr(model if name in SAME_HEAD else encoder, name, value)
        if found == value or _same_in_effect(name, found, value, encoder):
            continue
        raise InputError(
            f"The model's {name} is {found!r}, but {whose} computes "
            f"{value!r}: the outputs would differ. Load the model with "
            f"{name}={value!r} (--accept_difference of convert_checkpoint) "
            "to accept that, or save another format."
        )


def _same_in_effect(name, found, value, encoder):
    """Whether None, the encoder's own, is what is wanted, or the reverse."""
    if name not in SAME_HEAD:
        return False
    own = getattr(encoder, name.removeprefix("mlm_"))
    return (found or own) == (value or own)


def settings_of_start(model):
    """How the model's home draws new weights, where it said so itself."""
    known = getattr(model, "encoder", model).initializer_range
    return {} if known is None else {"initializer_range": known}
