"""Groups of tokens, such as words, that are masked together or not at all."""

import tensorflow as tf


def span_starts(starts, selectable, lengths):
    """Of the units' starts `(B, T)`, those where a run of units begins.

    A run takes as many units as drawn for its first place, or as there are
    up to the next token that cannot be selected.
    """

    def step(state, place):
        left, _ = state
        is_start, is_selectable, length = place
        left = tf.where(is_selectable, left, 0)
        begins = is_start & (left == 0)
        left = tf.where(begins, length, left) - tf.cast(is_start, tf.int32)
        return left, begins

    places = [tf.transpose(x) for x in (starts, selectable, lengths)]  # (T, B)
    nothing = tf.zeros_like(lengths[:, 0])
    _, begins = tf.scan(step, tuple(places), (nothing, nothing > 0))
    return tf.transpose(begins)


def selected_tokens(starts, selectable, order, number, places):
    """Tokens of the groups that are taken in random order, `bool (B, T)`.

    Args:
        starts: where a group begins, `bool (B, T)`.
        selectable: tokens that may be selected, `bool (B, T)`.
        order: random numbers, of which those at the starts count, `(B, T)`.
        number: tokens to select, `int32 (B,)`.
        places: the most that a row may select.
    """
    group = tf.cumsum(tf.cast(starts, tf.int32), axis=1)
    group = tf.where(selectable, group, 0)  # group 0: never selected
    sizes = _sizes(group)
    # The groups' random numbers, by group: each stands at its first token.
    ranked = tf.argsort(tf.where(starts, order, 2.0), axis=1, stable=True)
    in_order = tf.gather(group, ranked, axis=1, batch_dims=1)
    exists = tf.gather(starts, ranked, axis=1, batch_dims=1)
    sizes = tf.where(exists, tf.gather(sizes, in_order, batch_dims=1), 0)
    taken = _taken(sizes, number)
    # Back from the order of the draw to the tokens.
    by_group = _scattered(taken, tf.where(exists, in_order, 0))
    selected = selectable & tf.gather(by_group, group, batch_dims=1)
    chosen = tf.cumsum(tf.cast(selected, tf.int32), axis=1)
    return selected & (chosen <= places)


def _taken(sizes, number):
    """Which groups of the given sizes, in order, are taken, `bool (B, T)`.

    Each is taken if it fits in what is left of `number`. That is done in a
    few rounds: all that fit and whose running sum does too are taken at
    once, and the next round sees only those that fit in the rest.
    """

    def some_fit(left, taken):
        return tf.reduce_any(_fits(left, taken))

    def take(left, taken):
        size = tf.where(_fits(left, taken), sizes, 0)
        now = (size > 0) & (tf.cumsum(size, axis=1) <= left[:, tf.newaxis])
        left -= tf.reduce_sum(tf.where(now, size, 0), axis=1)
        return left, taken | now

    def _fits(left, taken):
        return ~taken & (sizes > 0) & (sizes <= left[:, tf.newaxis])

    _, taken = tf.while_loop(some_fit, take, (number, sizes < 0))
    nothing = ~tf.reduce_any(taken, axis=1, keepdims=True)
    is_first = tf.range(tf.shape(sizes)[1]) == 0
    return taken | (nothing & is_first & (sizes > 0))


def _sizes(group):
    """Members of each group of each row, `int32 (B, T + 1)`."""
    rows, width = tf.shape(group)[0], tf.shape(group)[1] + 1
    flat = group + tf.range(rows)[:, tf.newaxis] * width
    ones = tf.ones_like(group)
    counted = tf.math.unsorted_segment_sum(ones, flat, rows * width)
    return tf.reshape(counted, [rows, width])


def _scattered(values, places):
    """`values` moved to `places` in their row, `bool (B, T + 1)`."""
    rows, width = tf.shape(places)[0], tf.shape(places)[1] + 1
    flat = places + tf.range(rows)[:, tf.newaxis] * width
    values = tf.cast(values, tf.int32)
    moved = tf.math.unsorted_segment_max(values, flat, rows * width)
    return tf.reshape(moved > 0, [rows, width])
