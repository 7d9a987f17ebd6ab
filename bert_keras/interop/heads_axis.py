"""Attention weights of formats that give each head an axis of its own."""

import re

_PATTERN = re.compile(r"/attention/(query|key|value|output)/(kernel|bias)$")


def joined(name, tensor):
    """The tensor as the library has it: the heads side by side.

    Args:
        name: the library's name of the weight.
        tensor: a `Tensor`, of any weight.
    """
    match = _PATTERN.search(name)
    shape = tensor.shape
    if not match:
        return tensor
    if match[2] == "bias" and len(shape) == 2:  # (N, H)
        return tensor.reshaped((shape[0] * shape[1],))
    if match[2] == "kernel" and len(shape) == 3:
        if match[1] == "output":  # (N, H, D)
            return tensor.reshaped((shape[0] * shape[1], shape[2]))
        return tensor.reshaped((shape[0], shape[1] * shape[2]))  # (D, N, H)
    return tensor


def parted(name, shape, heads):
    """The shape of the library's weight where each head has an axis."""
    match = _PATTERN.search(name)
    if not match or (match[1], match[2]) == ("output", "bias"):
        return tuple(shape)
    if match[2] == "bias":
        return (heads, shape[0] // heads)
    if match[1] == "output":
        return (heads, shape[0] // heads, shape[1])
    return (shape[0], heads, shape[1] // heads)
