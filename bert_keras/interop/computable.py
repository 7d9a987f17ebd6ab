"""Whether another implementation computes what a model of ours computes."""

from bert_keras.errors import InputError

# What the original and keras-hub always compute.
ORIGINAL = {
    "activation": "gelu_tanh",
    "attention": "bidirectional",
    "norm_epsilon": 1e-12,
}


def check_computable(encoder, whose, only):
    """Refuses settings under which the other code computes otherwise.

    Args:
        encoder: a `BertEncoder`.
        whose: name of the other implementation.
        only: dict of setting -> the only value that it knows.
    """
    for name, value in only.items():
        found = getattr(encoder, name)
        if found != value:
            raise InputError(
                f"The model's {name} is {found!r}, but {whose} computes "
                f"{value!r}: the outputs would differ. Load the model with "
                f"{name}={value!r} to accept that, or save another format."
            )
