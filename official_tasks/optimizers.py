"""Optimizers of fine-tuning and pre-training, by the values of --optimizer."""

import inspect
from collections.abc import Callable

import bert_keras
from bert_keras.errors import InputError

# Value of --optimizer -> function that returns the function that makes the
# optimizer. The latter takes a learning rate, and some of `steps` and the
# values of `ARGUMENTS`; it returns any Keras optimizer. The lambdas put off the
# import of TensorFlow, so that --help is fast.
OPTIMIZERS: dict[str, Callable[[], Callable]] = {
    "adamw": lambda: bert_keras.adamw,
    "lamb": lambda: bert_keras.lamb,
}
# Option -> argument of the function that makes the optimizer.
ARGUMENTS = {
    "warmup": "warmup",
    "schedule": "schedule",
    "weight_decay": "weight_decay",
    "clip_norm": "clip_norm",
    "layer_decay": "layer_decay",
    "ema": "ema",
    "bias_correction": "bias_correction",
    "accumulation": "accumulate",
}


def make_optimizer(name, learning_rate, steps, options, changed):
    """Return a Keras optimizer.

    Args:
        name: key of `OPTIMIZERS`.
        learning_rate: peak learning rate.
        steps: number of training steps.
        options: dict of options. Those of `ARGUMENTS` reach the optimizer, if
            it takes them.
        changed: names of the options that do not have their default values.

    Raises:
        InputError: the optimizer does not take an option of `changed`.
    """
    make = OPTIMIZERS[name]()
    taken = inspect.signature(make).parameters
    arguments = {"steps": steps} if "steps" in taken else {}
    for option, argument in ARGUMENTS.items():
        if argument in taken and option in options:
            arguments[argument] = options[option]
        elif option in changed:
            raise InputError(
                f"`{option}` has no effect with `optimizer={name}`. Leave it "
                "out, or choose another optimizer."
            )
    return make(learning_rate, **arguments)
