"""The REST form of TensorFlow Serving: requests checked, answers written.

Knows nothing of HTTP libraries: bytes in, plain values out. A request names a
signature (the default without) and gives `instances`, one object a row, or
`inputs`, one list an input; the answer is `predictions` or `outputs`.
"""

import base64
import binascii
import dataclasses
import json
import reprlib

import numpy as np

from bert_keras.errors import InputError
from bert_keras.serving.load import parse_kind

KEYS = {"signature_name", "instances", "inputs"}
JSON_TYPES = {"string": "string", "int32": "integer", "bool": "boolean"}


class RequestError(InputError):
    """A request that cannot be answered; `status` is the HTTP status."""

    def __init__(self, message, status=400):
        super().__init__(message)
        self.status = status


@dataclasses.dataclass
class Limits:
    """What a request may ask for.

    Attributes:
        body: bytes of a request.
        rows: rows of one request.
        text: bytes of one text.
        tokens: that the model reads for one request; see `batching.py`.
        values: numbers and texts in one answer.
    """

    body: int = 1 << 20
    rows: int = 256
    text: int = 100_000
    tokens: int = 1 << 17  # 256 rows of 512
    values: int = 1 << 21  # 40 MB of JSON

    @classmethod
    def of_text(cls, text, **others):
        """With room in the body for a text of so many bytes."""
        # JSON may spell each as six, such as \u0061; and what is around it.
        body = max(cls.body, 6 * text + 1024)
        return cls(body=body, text=text, **others)


@dataclasses.dataclass
class Request:
    """A request that can be answered.

    Attributes:
        signature: its name.
        inputs: input name -> list of rows.
        by_row: whether it came as `instances`.
    """

    signature: str
    inputs: dict[str, list]
    by_row: bool


def parse(body, card, limits):
    """The `Request` in a body of JSON.

    Raises:
        RequestError: it says what is wrong.
    """
    content = _read_json(body)
    if not isinstance(content, dict):
        raise RequestError("The body is not a JSON object.")
    name = content.get("signature_name", card["default"])
    name = card["default"] if name == "serving_default" else name
    if not isinstance(name, str) or name not in card["signatures"]:
        raise RequestError(
            f"There is no signature {reprlib.repr(name)}. Expected one of "
            f"{', '.join(sorted(card['signatures']))}.",
            404,
        )
    entry = card["signatures"][name]
    by_row = "instances" in content
    unknown = sorted(set(content) - KEYS)
    if unknown or by_row == ("inputs" in content):
        raise RequestError(
            "The body needs `instances` or `inputs`, one of them, and may have "
            f"`signature_name`; it has {_list_keys(content)}. Expected such "
            f"as {_example(entry)}."
        )
    inputs = (
        _from_instances(content["instances"], entry)
        if by_row
        else _from_inputs(content["inputs"], entry)
    )
    _check_rows(inputs, limits)
    for key, rows in inputs.items():
        dtype, axes = parse_kind(entry["inputs"][key])
        inputs[key] = [_row(x, key, dtype, axes - 1, limits) for x in rows]
    return Request(name, inputs, by_row)


def _read_json(body):
    try:
        return json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError(
            f"The body is not UTF-8: byte {error.start}. Send text that is "
            'not UTF-8 as {"b64": "..."}.'
        ) from None
    except json.JSONDecodeError as error:
        raise RequestError(f"The body is not JSON: {error}.") from None
    except ValueError:
        raise RequestError(
            "The body has a number of more digits than are read; token ids "
            "have ten at most."
        ) from None
    except RecursionError:
        raise RequestError("The body is nested too deeply.") from None


def _example(entry):
    """A body that the signature takes, for a message."""
    return json.dumps(_example_body(entry))


def _example_body(entry):
    """The card's own request."""
    rows = entry["request"]
    row = {name: rows[name][0] for name in entry["input_order"]}
    return {"instances": [row]}


def _list_keys(content):
    """The keys of an object, shortened."""
    return reprlib.repr(sorted(content)).strip("[]") or "nothing"


def _from_instances(instances, entry):
    order = entry["input_order"]
    if not isinstance(instances, list):
        raise RequestError(
            f"`instances` is not a list. Expected such as {_example(entry)}."
        )
    if len(order) == 1 and not any(map(_names_inputs, instances)):
        return {order[0]: instances}
    for number, row in enumerate(instances):
        if not _has_inputs(row, order):
            has = f": it has {_list_keys(row)}" if isinstance(row, dict) else ""
            raise RequestError(
                f"Instance {number} is not an object of {' and '.join(order)}"
                f"{has}. Expected such as {_example(entry)}."
            )
    return {key: [row[key] for row in instances] for key in order}


def _names_inputs(row):
    """Whether it is an object other than a text's bytes."""
    return isinstance(row, dict) and set(row) != {"b64"}


def _has_inputs(content, order):
    return isinstance(content, dict) and set(content) == set(order)


def _from_inputs(inputs, entry):
    order = entry["input_order"]
    if len(order) == 1 and isinstance(inputs, list):
        return {order[0]: inputs}
    if not _has_inputs(inputs, order) or not all(
        isinstance(rows, list) for rows in inputs.values()
    ):
        has = ""
        if isinstance(inputs, dict):
            has = f"; it has {_list_keys(inputs)}"
        raise RequestError(
            f"`inputs` is not an object with a list each for "
            f"{' and '.join(order)}{has}."
        )
    return dict(inputs)


def _check_rows(inputs, limits):
    lengths = {key: len(rows) for key, rows in inputs.items()}
    if len(set(lengths.values())) > 1:
        raise RequestError(f"The inputs have unequal lengths: {lengths}.")
    count = next(iter(lengths.values()))
    if not 1 <= count <= limits.rows:
        raise RequestError(
            f"The request has {count} rows; 1 to {limits.rows} are answered "
            "at once."
        )


def _row(value, key, dtype, axes, limits):
    """One row of an input: a text, or lists, `axes` deep, of texts or ids."""
    if not axes:
        return _text(value, key, limits)
    if not isinstance(value, list) or not value:
        raise RequestError(f"{key} has a row that is not a list, or is empty.")
    if len(value) > limits.text:
        raise RequestError(f"{key} has a row of {len(value)} values.", 413)
    if axes > 1 or dtype == "string":
        return [_row(item, key, dtype, axes - 1, limits) for item in value]
    # `type`, as True is an int too.
    if not all(type(item) is int and 0 <= item < 1 << 31 for item in value):
        raise RequestError(f"{key} has a row that is not all of token ids.")
    return value


def _text(value, key, limits):
    """The bytes of a text."""
    if isinstance(value, dict) and set(value) == {"b64"}:
        try:
            value = base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise RequestError(f"{key} has a row of bad base64.") from None
    elif isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError:
            raise RequestError(
                f"{key} has a row with half a surrogate pair."
            ) from None
    else:
        raise RequestError(
            f"{key} has a row that is not a string: {type(value).__name__}."
        )
    if len(value) > limits.text:
        raise RequestError(
            f"{key} has a text of {len(value)} bytes; {limits.text} are read.",
            413,
        )
    return value


def openapi(card, name):
    """Requests and answers of the model in OpenAPI 3.1, for makers of clients.

    Args:
        card: the signature card.
        name: what the addresses call the model.
    """
    bodies, answers = [], []
    for signature, entry in card["signatures"].items():
        needed = ["instances"]
        if signature != card["default"]:
            needed.append("signature_name")
        rows = {"type": "array", "items": _object(entry["inputs"])}
        bodies.append(
            _titled(
                signature,
                {"signature_name": {"const": signature}, "instances": rows},
                needed,
                [{"signature_name": signature} | _example_body(entry)],
            )
        )
        outputs = entry["outputs"]
        row = _object(outputs)
        if len(outputs) == 1:  # its values stand alone
            (row,) = row["properties"].values()
        rows = {"type": "array", "items": row}
        answers.append(_titled(signature, {"predictions": rows}))
    error = _titled("error", {"error": {"type": "string"}})
    operation = {
        "operationId": "predict",
        "requestBody": {"required": True, **_json({"anyOf": bodies})},
        "responses": {
            "200": {"description": "The answers.", **_json({"anyOf": answers})},
            "default": {"description": "What is wrong.", **_json(error)},
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": "1"},
        "paths": {f"/v1/models/{name}:predict": {"post": operation}},
    }


def _json(schema):
    return {"content": {"application/json": {"schema": schema}}}


def _titled(title, properties, required=None, examples=()):
    schema = {"title": title, "type": "object", "properties": properties}
    schema["required"] = required or list(properties)
    return {**schema, "examples": list(examples)} if examples else schema


def _object(kinds):
    """The JSON schema of a row: name -> kind, such as "string (B, N): what"."""
    properties = {}
    for name, kind in kinds.items():
        kind, _, description = kind.partition(": ")
        dtype, _, axes = kind.partition(" ")
        schema = {"type": JSON_TYPES.get(dtype, "number")}
        _, *inner = filter(str.strip, axes.strip("()").split(","))
        for _ in inner:  # letters or numbers, as in (B, 5)
            schema = {"type": "array", "items": schema}
        properties[name] = {**schema, "description": description}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }


def format_answer(outputs, by_row):
    """The answer's JSON value, of output name -> NumPy array."""
    values = {key: _to_json(array) for key, array in outputs.items()}
    if len(values) == 1:  # its values stand alone
        (values,) = values.values()
    elif by_row:
        rows = zip(*values.values(), strict=True)
        values = [dict(zip(values, row, strict=True)) for row in rows]
    return {"predictions" if by_row else "outputs": values}


def _to_json(array):
    if array.dtype == object and array.size:
        array = np.frompyfunc(_decode, 1, 1)(array)
    return np.asarray(array).tolist()


def _decode(value):
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}
