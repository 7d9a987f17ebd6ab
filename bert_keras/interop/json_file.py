"""JSON from strangers: bounded in size and depth, each field checked."""

import os

from bert_keras import files
from bert_keras.interop.checkpoint import WeightsError


def read_json(path, kind=dict, inside=None):
    """The JSON object in the file, as `Fields`; a list with `kind=list`.

    Args:
        path: the file.
        kind: dict or list.
        inside: the folder that it must be in; its own one by default.
    """
    try:
        text = files.read_bytes(
            path, files.MOST_JSON, inside or os.path.dirname(path)
        )
    except OSError as error:
        raise WeightsError(
            path,
            f"the file cannot be read ({error.strerror})",
            "Fetch the file again",
        ) from None
    return parse_json(text, path, kind)


def parse_json(text, path, kind=dict):
    """The JSON value in `text`, as `Fields`; `path` is for messages."""
    try:
        value = files.parse_json(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise WeightsError(
            path, f"this is not JSON ({error})", "Fetch the file again"
        ) from None
    if not isinstance(value, kind):
        raise WeightsError(
            path,
            "the file holds no settings",
            "Fetch the file again",
            expected=f"a JSON {'object' if kind is dict else 'array'}",
            found=f"a {type(value).__name__}",
        )
    return Fields(value, path)


def _refuse_constant(name):
    raise ValueError(f"{name} is not a number")


class Fields:
    """The fields of one JSON object; a wrong type names file and field."""

    def __init__(self, values, path):
        self.values, self.path = values, path

    def __contains__(self, name):
        return self.values.get(name) is not None

    def raw(self, name, default=None):
        """The value as it stands; the caller checks it."""
        value = self.values.get(name)
        return default if value is None else value

    def integer(self, name, default=None, maximum=2**31 - 1):
        value = self._required(name, default)
        if type(value) is not int or not 1 <= value <= maximum:
            self.refuse(name, f"a whole number 1 to {maximum}", value)
        return value

    def share(self, name, default=None):
        """A number from 0 to 1, 1 excluded: a dropout rate."""
        value = self._required(name, default)
        if type(value) not in (int, float) or not 0 <= value < 1:
            self.refuse(name, "a number from 0 to below 1", value)
        return float(value)

    def handed_on(self, name):
        """A number that decides nothing here; None where there is none."""
        value = self.raw(name)
        known = type(value) in (int, float) and 0 <= value <= 1000
        return value if known else None

    def text(self, name, default=None):
        return self._typed(name, default, str, "a text")

    def boolean(self, name, default=None):
        return self._typed(name, default, bool, "true or false")

    def object(self, name, default=None):
        value = self._typed(name, default, dict, "a JSON object")
        return Fields(value, self.path)

    def texts(self, name, default=None):
        value = self._typed(name, default, list, "a list of texts")
        if not all(type(item) is str for item in value):
            self.refuse(name, "a list of texts", value)
        return value

    def refuse(self, name, expected, found):
        """Raises the error that the field is not what it must be."""
        raise WeightsError(
            self.path,
            f'the setting "{name}" cannot be used',
            "Correct the file or fetch it again",
            expected=expected,
            found=shortened(found),
        )

    def _typed(self, name, default, kind, expected):
        value = self._required(name, default)
        if type(value) is not kind:
            self.refuse(name, expected, value)
        return value

    def _required(self, name, default):
        value = self.raw(name, default)
        if value is None:
            self.refuse(name, "a value", "none")
        return value


def shortened(value, length=80):
    """A value for a message: never longer than a line."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= length else text[: length - 3] + "..."
