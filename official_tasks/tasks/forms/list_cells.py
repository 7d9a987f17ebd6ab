"""Parse cells that are lists, as JSON, Python, pandas or NumPy writes them."""

import ast
import contextlib
import json
import re

# pandas writes ['a', 'b'], NumPy ['a' 'b'] and [1 0 1], without commas.
# Quantifiers are possessive, so that matching takes linear time.
_ITEM = (
    r"'(?:[^'\\]|\\.)*+'"
    r'|"(?:[^"\\]|\\.)*+"'
    r"|[-+]?[0-9][0-9.eE+-]*+"
)
# From version 2, NumPy writes np.str_('a') in a list of its values.
_NUMPY_VALUE = re.compile(rf"(?<=[\[, ])np\.\w+\(({_ITEM})\)")
_ITEMS = re.compile(rf"\[\s*+(?:(?:{_ITEM})\s*+,?\s*+)*+\]", re.DOTALL)
_ERRORS = (ValueError, SyntaxError, RecursionError, MemoryError)


# pandas also writes tuples and sets: ('a', 'b'), ('a',) and {'a', 'b'}. But
# ('a') is a text.
_STRING = _ITEM.rpartition("|")[0]
_TEXTS = re.compile(
    rf"\((?:(?:{_STRING}),\s*+)++(?:{_STRING})?+\)"
    rf"|\{{(?:{_STRING})(?:,\s*+(?:{_STRING}))*+\}}",
    re.DOTALL,
)


def parse_list(text: str) -> list | None:
    """Return the list, or the tuple or set of texts, that a cell is, or None.

    `[1]` is a text, such as a footnote, and not a list with one number.
    """
    text = text.strip()
    if text in ("()", "set()"):
        return []
    is_list = text.startswith("[") and text.endswith("]")
    if not (is_list or _TEXTS.fullmatch(text)):
        return None
    try:
        values = _parse(text)
    except _ERRORS:
        return None
    is_number = len(values) == 1 and isinstance(values[0], int | float)
    return None if is_number else values


def unstack(value):
    """Return a dict of lists as a list of dicts, and other values unchanged.

    TFDS and older versions of `datasets` store a list of dicts so.
    """
    if not isinstance(value, dict) or not value:
        return value
    columns = list(value.values())
    if not all(
        isinstance(x, list) and len(x) == len(columns[0]) for x in columns
    ):
        return value
    rows = zip(*columns, strict=True)
    return [dict(zip(value, row, strict=True)) for row in rows]


def _parse(text):
    try:
        return json.loads(text)
    except ValueError:
        # Python would join 'a' 'b' to 'ab', so parse each item.
        if _ITEMS.fullmatch(text):
            items = re.findall(_ITEM, text, re.DOTALL)
            return [ast.literal_eval(item) for item in items]
        return list(ast.literal_eval(_NUMPY_VALUE.sub(r"\1", text)))


def parse_labels(text: str) -> list | None:
    """Return the labels of a cell such as [1] or {1, 2}, or None.

    The cell is a text for `parse_list`, because it has numbers.

    Raises:
        ValueError: the cell is a list in an unknown form.
    """
    brackets = text[:1] + text[-1:]
    is_array = text.endswith(")") and re.match(r"[\w.]+\(\[", text)
    if brackets in ("[]", "{}", "()"):
        with contextlib.suppress(*_ERRORS):
            values = ast.literal_eval(text)
            if isinstance(values, list | tuple | set):
                return [str(value) for value in values]
    if is_array or brackets in ("[]", "{}"):
        raise ValueError
    return None
