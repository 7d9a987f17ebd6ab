import base64
import json

import jsonschema
import numpy as np
import pytest

from bert_keras.serving.rest import (
    Limits,
    RequestError,
    format_answer,
    openapi,
    parse,
)

CARD = {
    "default": "classify",
    "signatures": {
        "classify": {
            "input_order": ["text"],
            "inputs": {"text": "string (B,)"},
            "request": {"text": ["An hour well spent."]},
        },
        "next_sentence": {
            "input_order": ["text", "text_pair"],
            "inputs": {"text": "string (B,)", "text_pair": "string (B,)"},
            "request": {"text": ["An hour."], "text_pair": ["Another."]},
        },
        "choose": {
            "input_order": ["prompt", "choices"],
            "inputs": {"prompt": "string (B,)", "choices": "string (B, N)"},
        },
        "ids": {
            "input_order": ["token_ids"],
            "inputs": {"token_ids": "int32 (B, N)"},
        },
        "choice_ids": {
            "input_order": ["token_ids"],
            "inputs": {"token_ids": "int32 (B, K, N)"},
        },
    },
}
LIMITS = Limits(rows=4, text=50)


def parsed(**content):
    return parse(json.dumps(content).encode(), CARD, LIMITS)


def test_both_forms_and_their_short_forms_are_read():
    for content in (
        {"instances": [{"text": "caf\u00e9"}]},
        {"instances": ["caf\u00e9"]},
        {"inputs": {"text": ["caf\u00e9"]}},
        {"inputs": ["caf\u00e9"]},
        {"instances": [{"b64": base64.b64encode(b"caf\xc3\xa9").decode()}]},
    ):
        for name in ({}, {"signature_name": "serving_default"}):
            request = parsed(**content, **name)
            assert request.signature == "classify"
            assert request.inputs == {"text": [b"caf\xc3\xa9"]}
            assert request.by_row == ("instances" in content)


def test_the_longest_text_fits_a_body_however_it_is_spelled():
    assert Limits.of_text(100_000) == Limits()
    limits = Limits.of_text(3_000_000)
    escaped = '{"instances": ["' + "\\u0061" * 3_000_000 + '"]}'
    assert len(escaped) <= limits.body
    request = parse(escaped.encode(), CARD, limits)
    assert request.inputs == {"text": [b"a" * 3_000_000]}


def test_several_inputs_and_lists_are_read():
    pairs = [{"text": "a", "text_pair": "b"}, {"text": "c", "text_pair": "d"}]
    request = parsed(signature_name="next_sentence", instances=pairs)
    assert request.inputs == {"text": [b"a", b"c"], "text_pair": [b"b", b"d"]}
    columns = {"prompt": ["a"], "choices": [["b", "c"]]}
    request = parsed(signature_name="choose", inputs=columns)
    assert request.inputs["choices"] == [[b"b", b"c"]]
    request = parsed(signature_name="ids", instances=[[1, 2], [3]])
    assert request.inputs == {"token_ids": [[1, 2], [3]]}
    request = parsed(signature_name="choice_ids", instances=[[[1, 2], [3]]])
    assert request.inputs == {"token_ids": [[[1, 2], [3]]]}


@pytest.mark.parametrize(
    ("body", "said", "status"),
    [
        (b"", "not JSON", 400),
        (b"\xff{}", "not UTF-8: byte 0", 400),
        (b"[1]", "not a JSON object", 400),
        (b"[" * 100_000, "nested too deeply|not JSON", 400),
        (b'{"instances": [' + b"9" * 5000 + b"]}", "more digits", 400),
        (b"{}", "has nothing", 400),
        ({"instances": ["a"], "inputs": ["a"]}, "one of them", 400),
        (
            {"signature_name": "s" * 9000, "instances": []},
            "'s+\\.\\.\\.s+'",
            404,
        ),
        ({"signature_name": "speak", "instances": ["a"]}, "classify", 404),
        ({"signature_name": {}, "instances": ["a"]}, "no signature", 404),
        ({"instances": "a"}, "not a list", 400),
        ({"instances": []}, "0 rows", 400),
        ({"instances": ["a"] * 5}, "5 rows", 400),
        ({"instances": [3]}, "not a string: int", 400),
        ({"instances": [None]}, "not a string: NoneType", 400),
        ({"instances": [["a"]]}, "not a string: list", 400),
        (
            {"instances": ["a", {"txt": "b"}]},
            "Instance 0 is not an object of text",
            400,
        ),
        (
            {"instances": [{"txt": "a"}]},
            'has \'txt\'.*{"text": "An hour well spent."}',
            400,
        ),
        ({"text": "a"}, "has 'text'.*\"instances\"", 400),
        ({"instances": ["a"], "signature": "tag"}, "has 'instances', 's", 400),
        ({"instances": ["a" * 51]}, "51 bytes", 413),
        ({"instances": ["\ud800"]}, "surrogate", 400),
        ({"instances": [{"b64": "%"}]}, "base64", 400),
        ({"instances": [{"b64": 3}]}, "base64", 400),
        ({"inputs": {"txt": ["a"]}}, "a list each for text; it has 't", 400),
        ({"inputs": {"text": "a"}}, "a list each for text", 400),
        (
            {"signature_name": "next_sentence", "instances": [{"text": "a"}]},
            "Instance 0 is not an object of text and text_pair",
            400,
        ),
        (
            {
                "signature_name": "next_sentence",
                "inputs": {"text": ["a"], "text_pair": []},
            },
            "unequal lengths",
            400,
        ),
        (
            {
                "signature_name": "choose",
                "instances": [{"prompt": "a", "choices": []}],
            },
            "is empty",
            400,
        ),
        ({"signature_name": "ids", "instances": [[1, "a"]]}, "token ids", 400),
        ({"signature_name": "ids", "instances": [[True]]}, "token ids", 400),
        ({"signature_name": "ids", "instances": [[2**31]]}, "token ids", 400),
        ({"signature_name": "ids", "instances": [[1] * 51]}, "51 values", 413),
        (
            {"signature_name": "choice_ids", "instances": [[[1], ["a"]]]},
            "token ids",
            400,
        ),
        (
            {"signature_name": "choice_ids", "instances": [[1, 2]]},
            "not a list",
            400,
        ),
    ],
)
def test_each_mistake_is_named(body, said, status):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(RequestError, match=said) as raised:
        parse(body, CARD, LIMITS)
    assert raised.value.status == status
    assert len(str(raised.value)) < 400


def test_answers_are_written_by_row_or_by_output():
    outputs = {
        "label": np.array([b"good", b"\xff"], object),
        "probabilities": np.array([[0.25, 0.75], [1, 0]], "float32"),
    }
    not_text = {"b64": base64.b64encode(b"\xff").decode()}
    assert format_answer(outputs, by_row=True) == {
        "predictions": [
            {"label": "good", "probabilities": [0.25, 0.75]},
            {"label": not_text, "probabilities": [1.0, 0.0]},
        ]
    }
    assert format_answer(outputs, by_row=False) == {
        "outputs": {
            "label": ["good", not_text],
            "probabilities": [[0.25, 0.75], [1.0, 0.0]],
        }
    }
    one = {"probability": np.array([0.5], "float32")}
    assert format_answer(one, by_row=True) == {"predictions": [0.5]}
    assert format_answer(one, by_row=False) == {"outputs": [0.5]}


def test_requests_and_answers_are_as_openapi_describes_them(toy_served):
    card = toy_served.card
    page = openapi(card, "m")
    json.dumps(page)
    operation = page["paths"]["/v1/models/m:predict"]["post"]

    def schemas(part):
        content = part["content"]["application/json"]["schema"]["anyOf"]
        return {schema["title"]: schema for schema in content}

    bodies = schemas(operation["requestBody"])
    answers = schemas(operation["responses"]["200"])
    assert set(bodies) == set(answers) == set(card["signatures"])
    for name, entry in card["signatures"].items():
        (example,) = bodies[name]["examples"]
        jsonschema.validate(example, bodies[name])
        request = parse(json.dumps(example).encode(), card, Limits())
        assert request.signature == name
        assert set(request.inputs) == set(entry["inputs"])
        answer = {key: np.array(v) for key, v in entry["answer"].items()}
        jsonschema.validate(format_answer(answer, True), answers[name])
        for wrong in ({}, {**example, "instances": [{"txt": "a"}]}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(wrong, bodies[name])
