"""Read, check, write and hash JSON, which may be untrusted."""

import hashlib
import json
import math
import re
from collections.abc import Callable
from typing import NamedTuple

from bert_keras.files import read_bytes

# Limits. The largest known file, tokenizer.json of multilingual BERT, has 3 MB.
# The deepest known nesting has 8 levels.
MAX_JSON_BYTES, MAX_JSON_DEPTH = 16 * 1024 * 1024, 64
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


def json_hash(value):
    """Return the SHA-256 of a JSON value, in hexadecimal.

    The order of keys has no effect.
    """
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_json(value, path):
    """Write one JSON value to a local file, indented."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False, sort_keys=True)
        file.write("\n")


def without_nan(value):
    """Return the value with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value


def read_json(path, most=MAX_JSON_BYTES):
    """Read one JSON value.

    Args:
        path: path of a file, which may be untrusted.
        most: largest allowed size in bytes; None for any size.

    Raises:
        ValueError: the content is not valid JSON; see `parse_json`.
        InputError: the file is not a regular file, or too large.
        OSError: the file does not exist or cannot be read.
    """
    return parse_json(read_bytes(path, most))


def parse_json(text, **arguments):
    """Return the value of JSON text, which may be untrusted.

    Args:
        text: str or bytes.
        **arguments: keyword arguments of `json.loads`.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or has half
            of a surrogate pair, which UTF-8 cannot encode.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    try:
        value = json.loads(text, **arguments)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH:
        _check_depth(value)
    if _HALF_PAIR.search(text):
        # Raise UnicodeEncodeError, a ValueError, for an unpaired surrogate.
        json.dumps(value, ensure_ascii=False, default=repr).encode()
    return value


def _check_depth(value):
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {MAX_JSON_DEPTH} levels deep")


class Kind(NamedTuple):
    """Type and range of a JSON value.

    words: the values that fit, for messages.
    fits: function of a value; returns True if it fits.
    cast: function that returns the value as the reader needs it.
    """

    words: str
    fits: Callable
    cast: Callable = lambda value: value


def count_to(most):
    """Return the `Kind` of a whole number from 1 to `most`."""
    return Kind(
        f"a whole number from 1 to {most}",
        lambda v: type(v) is int and 1 <= v <= most,
    )


COUNT = count_to(2**31 - 1)
NATURAL = Kind(
    "a whole number, 0 or more", lambda v: type(v) is int and 0 <= v < 2**63
)
TEXT = Kind("a text", lambda v: type(v) is str)
BOOLEAN = Kind("true or false", lambda v: type(v) is bool)
NUMBER = Kind(
    "a number", lambda v: type(v) in (int, float) and math.isfinite(v), float
)
LIST = Kind("a list", lambda v: type(v) is list)
TEXTS = Kind(
    "a list of texts",
    lambda v: type(v) is list and all(type(item) is str for item in v),
)
NUMBERS = Kind(
    "a list of numbers",
    lambda v: type(v) is list and all(map(NUMBER.fits, v)),
)
OBJECT = Kind("a JSON object", lambda v: type(v) is dict)
