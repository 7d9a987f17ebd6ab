"""Rows, windows and numbers for the checks of `live.py`, in plain Python."""

import numpy as np
import tensorflow as tf


def framed(preprocessor, *segments):
    """One row of the model's inputs, (1, T), for ids that fit or are cut."""
    tokenizer = preprocessor.tokenizer
    ids, numbers = [tokenizer.cls_id], [0]
    room = preprocessor.sequence_length - 1 - len(segments)
    for number, segment in enumerate(segments):
        kept = list(segment)[: max(room, 0)]
        room -= len(kept)
        ids += [*kept, tokenizer.sep_id]
        numbers += [number] * (len(kept) + 1)
    return {
        "token_ids": tf.constant([ids], tf.int32),
        "segment_ids": tf.constant([numbers], tf.int32),
        "padding_mask": tf.ones((1, len(ids)), tf.int32),
    }


def windows(length, room, stride):
    """(begin, end) of each window; the last is the first to reach the end."""
    found, begin = [], 0
    while True:
        found.append((begin, min(begin + room, length)))
        if begin + room >= length:
            return found
        begin += max(stride, 1)


def best_windows(cut, length):
    """For each place the window in which it has most context, the first."""

    def context(window, place):
        begin, end = cut[window]
        if not begin <= place < end:
            return -1.0
        edge = min(place - begin, end - 1 - place)
        return edge + 0.01 * (end - begin)

    return [
        max(range(len(cut)), key=lambda window: context(window, place))
        for place in range(length)
    ]


def softmax(logits):
    shifted = np.exp(logits - logits.max(-1, keepdims=True), dtype="float64")
    return shifted / shifted.sum(-1, keepdims=True)


def difference(left, right):
    """The greatest difference; infinite where the shapes are not the same or
    a number is none."""
    left, right = np.asarray(left), np.asarray(right)
    finite = np.isfinite(left).all() and np.isfinite(right).all()
    if left.shape != right.shape or not finite:
        return np.inf
    return float(np.abs(left - right).max(initial=0.0))
