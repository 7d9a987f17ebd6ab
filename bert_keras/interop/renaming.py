"""A file's tensors under the library's names."""

from bert_keras.interop.checkpoint import WeightsError
from bert_keras.interop.layer_names import mapped, turned


def renamed(tensors, table, source, theirs=lambda name: name):
    """Returns the tensors by library name, and the names that have none.

    Args:
        tensors: dict of the file's names -> `Tensor`.
        table: the library's names -> the format's.
        source: the folder, for messages.
        theirs: the format's name for a name in the file; None skips it.
    """
    table = turned(table)
    found, skipped = {}, []
    for name, tensor in tensors.items():
        plain = theirs(name)
        ours = plain and mapped(plain, table)
        if not ours:
            skipped.append(name)
            continue
        if ours in found:
            raise WeightsError(
                source,
                f"{name} and {found[ours].name} are the same weight",
                "Remove one of them from the file",
            )
        found[ours] = tensor
    return found, skipped
