"""How far the weights of one training are from those of another."""

import numpy as np

BOUNDS = {"float32": 1e-6, "float64": 1e-9}


def differences(ours, reference):
    """Norm of the difference over that of the weights; the largest one."""
    names = [name for name in reference if "/" in name]
    assert len(names) == 30
    apart = [ours[name] - reference[name] for name in names]
    norm = np.sqrt(sum((d.astype("float64") ** 2).sum() for d in apart))
    length = np.sqrt(
        sum((reference[n].astype("float64") ** 2).sum() for n in names)
    )
    return norm / length, max(abs(d).max() for d in apart)


def check(results, reference, dtype="float32"):
    """Each case, such as "lamb-4", with its optimizer's of one device.

    Args:
        results: case -> name -> array, weights by their paths and figures.
        reference: the same for "adamw-1" and "lamb-1".
        dtype: of the training; see `BOUNDS`.
    """
    for case, ours in results.items():
        expected = reference[f"{case.split('-')[0]}-1"]
        relative, largest = differences(ours, expected)
        print(f"{case}: {relative:.1e} of the norm, at most {largest:.1e}")
        assert relative <= BOUNDS[dtype], case
        assert largest <= BOUNDS[dtype], case
        assert ours["norm"] > 1.5, "clipping was not active"
        for name in ours.keys() - {"norm"}:
            if "/" not in name:
                assert abs(ours[name] - expected[name]) <= 1e-5, name
