"""Tables of names: the library's on the left, another format's on the right.

In a table, {} stands for the number of the layer. A table is written for
whole layers: `dense` gives kernel and bias, `norm` gamma and beta.
"""

import re

DENSE = ("kernel", "bias")
NORM = ("gamma", "beta")


def expanded(table, ours, theirs=None):
    """Each entry with both endings: `expanded(table, DENSE)`.

    Args:
        table: dict of the library's prefix -> the other format's prefix.
        ours: the library's endings.
        theirs: the other format's, in the same order; ours where None.
    """
    return {
        f"{left}/{mine}": f"{right}{yours}"
        for left, right in table.items()
        for mine, yours in zip(
            ours, theirs or [f"/{end}" for end in ours], strict=True
        )
    }


def mapped(name, table):
    """What the table has for the name, the layer's number carried over."""
    found = table.get(name)
    if found is not None:
        return found
    for number in re.finditer(r"\d+", name):
        pattern = name[: number.start()] + "{}" + name[number.end() :]
        if pattern in table:
            return table[pattern].format(number[0])
    return None


def turned(table):
    """The same table from the other format to the library."""
    return {theirs: ours for ours, theirs in table.items()}
