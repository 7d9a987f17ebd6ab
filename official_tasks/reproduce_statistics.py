"""Whether a difference between two variants is more than their spread."""

import math

import numpy as np

LEVEL = 0.05  # probability under which a difference counts

AGREES = "agrees"
DISAGREES = "disagrees"
HIDDEN = "hidden by spread"
UNTESTED = "one seed tells no spread"


def compare(one, other, claimed=1) -> dict:
    """A paired test of two variants over the same seeds.

    Args:
        one, other: their scores, one a seed.
        claimed: sign of `one` minus `other` in the paper; 0 where it has
            neither above the other.

    Returns:
        dict: "difference", its mean; "deviation" of the differences and "p",
        two-sided, of a paired t test (None of one seed); "verdict".
    """
    differences = np.asarray(one, float) - np.asarray(other, float)
    mean, count = float(differences.mean()), len(differences)
    if count < 2:
        told = {"difference": mean, "deviation": None, "p": None}
        return {**told, "verdict": UNTESTED}
    deviation = float(differences.std(ddof=1))
    p = two_sided(mean, deviation / math.sqrt(count), count - 1)
    verdict = HIDDEN
    if p < LEVEL:
        verdict = AGREES if mean * claimed > 0 else DISAGREES
    return {
        "difference": mean,
        "deviation": deviation,
        "p": p,
        "verdict": verdict,
    }


def two_sided(mean, error, freedom) -> float:
    """Probability of a mean this far from 0, by Student's t.

    Args:
        error: standard error of the mean.
        freedom: its degrees of freedom.
    """
    import tensorflow as tf

    if error == 0:
        return 1.0 if mean == 0 else 0.0
    share = freedom / (freedom + (mean / error) ** 2)
    half = np.float64(0.5)
    return float(tf.math.betainc(half * freedom, half, np.float64(share)))
