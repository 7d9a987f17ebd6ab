"""Which examples share a packed row."""

import numpy as np


def fill_rows(lengths, width: int, most: int, rng):
    """Packs examples into rows, the longest first, each where it fits best.

    Args:
        lengths: int `(N,)`, pieces of each example, at most `width`.
        width: pieces of a row.
        most: examples of a row, at most.
        rng: puts the rows into a random order, and each row's examples.

    Returns:
        int64 `(N,)` twice: the examples in the order of the rows, and the
        row of each; and the number of rows.
    """
    rows, count = _best_fit(np.asarray(lengths), width, most)
    rows = rng.permutation(count)[rows]
    order = np.lexsort([rng.random(len(rows)), rows])
    return order, rows[order], count


def _best_fit(lengths, width: int, most: int):
    """The row of each example, and the number of rows."""
    open_rows = [[] for _ in range(width + 1)]  # by the room that is left
    rooms = 0  # bit r is set where there is an open row with room r
    held = []  # the number of examples of each row
    rows = np.empty(len(lengths), np.int64)
    order = np.argsort(-lengths, kind="stable")
    for example, length in zip(
        order.tolist(), lengths[order].tolist(), strict=True
    ):
        fitting = rooms >> length
        if fitting:
            # The lowest bit that is set: the least room that is enough.
            room = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[room].pop()
            if not open_rows[room]:
                rooms ^= 1 << room
        else:
            room, row = width, len(held)
            held.append(0)
        rows[example] = row
        held[row] += 1
        room -= length
        if room and held[row] < most:
            open_rows[room].append(row)
            rooms |= 1 << room
    return rows, len(held)
