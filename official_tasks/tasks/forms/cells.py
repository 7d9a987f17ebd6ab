"""Read the cells of a table: text, numbers and names."""

import json
import math
import re

from bert_keras.errors import InputError
from bert_keras.text.wordpiece import encodable

ID = "id"  # column that predictions repeat, so that rows can be joined
LARGEST_NUMBER = 1e18  # its square, in a loss, does not overflow float32


def to_text(where, column, value) -> str:
    """Return a cell as text, "" for null and NaN; refuse lists and dicts."""
    if value is None:
        return ""
    if isinstance(value, dict | list):
        raise InputError(
            f"{where}: expected text in {column!r}, got "
            f"{json.dumps(value, default=str)[:60]}"
        )
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{where}: expected UTF-8 text in {column!r}, got the byte "
                f"{value[error.start]:#04x}"
            ) from None
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float) and math.isnan(value):
        return ""  # pandas writes NaN for a missing number
    is_json = isinstance(value, bool | int | float)
    return json.dumps(value) if is_json else str(value)  # str() for dates


def show_id(value):
    """Return a value that `to_text` accepts."""
    if isinstance(value, dict | list | bytes):
        value = json.dumps(value, default=str).strip('"')
    return value


def read_number(text: str) -> float | None:
    """Return a cell as a float; None for other text, NaN and huge numbers."""
    try:
        number = float(text.replace("_", "x"))  # 1_000 is Python, not data
    except ValueError:
        return None
    return number if abs(number) <= LARGEST_NUMBER else None  # NaN gives None


def drop_zeros(text: str) -> str:
    """Return "1" for "1.0", and any other text unchanged.

    In a column with an empty cell, pandas and Parquet store whole numbers as
    floats.
    """
    return re.sub(r"\A(-?[0-9]+)\.0+\Z", r"\1", text)


def read_index(text: str, count: int) -> int | None:
    """Return a cell as a whole number below `count`; None for other text."""
    is_short = len(text) <= 9  # int() raises for thousands of digits
    number = int(text) if is_short and text.isdecimal() else count
    return number if number < count else None
