"""Two records beside each other: what differs, and how they are written."""

import json
import os

TOLERANCE = 1.1e-5  # two roundings to 5 decimals are up to 1e-5 apart


def differences(recorded, found, part, place=""):
    """A line for each difference; of a `part`, what is absent is none."""
    if isinstance(found, dict) and isinstance(recorded, dict):
        if "exact" in found:
            yield from _of_one_processor(recorded, found, place)
            return
        for name in [*recorded, *sorted(set(found) - set(recorded))]:
            inner = f"{place} / {name}" if place else name
            if name not in recorded:
                yield f"{inner}: is new: {_shown(found[name])}"
            elif name in found:
                yield from differences(recorded[name], found[name], part, inner)
            elif not part:
                yield f"{inner}: is gone; was {_shown(recorded[name])}"
    elif isinstance(found, list) and isinstance(recorded, list):
        yield from _of_lists(recorded, found, part, place)
    elif not _agree(recorded, found):
        yield f"{place}: was {_shown(recorded, found)}, is " + _shown(
            found, recorded
        )


def _of_one_processor(recorded, found, place):
    (kind,) = found["exact"]
    known = recorded.get("exact", {})
    if kind in known:
        yield from differences(known[kind], found["exact"][kind], False, place)


def _of_lists(recorded, found, part, place):
    if len(found) != len(recorded) and not (
        part and len(found) < len(recorded)
    ):
        yield f"{place}: had {len(recorded)} entries, has {len(found)}"
    wrong = [
        number
        for number, pair in enumerate(zip(recorded, found, strict=False))
        if [*differences(*pair, part)]
    ]
    if wrong:
        first = wrong[0]
        one = differences(
            recorded[first], found[first], part, f"{place} / {first}"
        )
        more = f" (and {len(wrong) - 1} more of it)" if wrong[1:] else ""
        yield next(one) + more


def _agree(recorded, found):
    if {type(recorded), type(found)} <= {int, float}:
        return abs(recorded - found) <= TOLERANCE or recorded == found
    return type(recorded) is type(found) and recorded == found


def _shown(value, other=None):
    """The value on a line; of long texts, what is around the difference."""
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= 160:
        return repr(text)
    start = 0
    if isinstance(value, str) and isinstance(other, str):
        start = max(0, len(os.path.commonprefix([value, other])) - 40)
    return f"{'...' if start else ''}{text[start : start + 160]!r}..."


def merged(recorded, found):
    """What is found, with the hashes of other processors kept."""
    if not (isinstance(found, dict) and isinstance(recorded, dict)):
        return found
    if "exact" in found:
        return {"exact": {**recorded.get("exact", {}), **found["exact"]}}
    return {name: merged(recorded.get(name), found[name]) for name in found}


def lines_of(value, depth=0):
    """JSON with one entry a line and each list on its line."""
    if not isinstance(value, dict) or not value or "exact" in value:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    inner = ",\n".join(
        f"{' ' * (depth + 1)}{json.dumps(name)}: {lines_of(one, depth + 1)}"
        for name, one in value.items()
    )
    return f"{{\n{inner}\n{' ' * depth}}}"
