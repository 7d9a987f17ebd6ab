"""Whether an export answers as the live model does, in a fresh process."""

import base64
import os
import subprocess
import sys
import tempfile

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.serving import live, replay
from bert_keras.serving import live as live_ids
from bert_keras.serving.load import read_card
from bert_keras.serving.quantize import narrowed

# What breaks text models: nothing, blanks, punctuation alone, bytes that are
# not UTF-8, other scripts, joined characters, markup, a very long text.
HARD_TEXTS = (
    "An hour well spent.",
    "The [MASK] of the [MASK] is long.",
    "",
    " \t\n\u3000",
    "?!...;--([{\u2014",
    b"caf\xe9 \xff\xfe ends badly",
    "\u4eca\u65e5\u306f \u0421\u043b\u043e\u0432\u043e e\u0301t\xe9 \ufb01n",
    "\U0001f469\u200d\U0001f4bb a\u0000b \u202eabc\u202c",
    "Long words and long texts. " * 40_000,
)


def greatest_difference(folder, models, preprocessor, texts=HARD_TEXTS):
    """Of all numbers that the export and the live model give for `texts`.

    The export answers in a process that imports TensorFlow and
    tensorflow-text alone. The live model answers in this one, in the
    export's dtype, called as in training: on the preprocessor's rows of full
    length.

    Args:
        folder: of `export_saved_model`.
        models: the model or the models that were exported.
        preprocessor: as exported.
        texts: strings, or bytes that need not be UTF-8.

    Returns:
        float; the export is good where it is at most 1e-5 (`TOLERANCES`).
    """
    models = models if isinstance(models, list | tuple) else [models]
    card = read_card(folder)
    dtype = card["options"]["dtype"]
    asked = _asked([narrowed(model, dtype) for model in models], card)
    texts = [t.encode() if isinstance(t, str) else t for t in texts]
    # Windows are compared one by one: some rows' worth of text is enough.
    few = [text[: 30 * preprocessor.sequence_length] for text in texts]
    in_windows = card["options"]["long_text"] == "windows"
    requests = []
    for name, model, _ in asked:
        if name == "ids":
            style = card["options"]["ids_signature"]
            made = live_ids.request(model, preprocessor, style, few)
            requests.append((name, made))
            continue
        entry = card["signatures"][name]
        examples = {
            key: entry["request"][key][0] for key in entry["input_order"]
        }
        chosen = few if in_windows or name == "answer" else texts
        requests.append((name, requested(examples, chosen)))
    answers = answer_in_fresh_process(folder, requests)
    return max(
        check(model, preprocessor, card["options"], answer, *request.values())
        for (_, model, check), (_, request), answer in zip(
            asked, requests, answers, strict=True
        )
    )


def _asked(models, card):
    """(signature, model, check) of all that the card offers."""
    asked = [
        (name, model, check)
        for model in models
        for name, check in live.CHECKS[type(model)].items()
        if name in card["signatures"]
    ]
    for name, check in (("tokenize", live_ids.tokenize), ("ids", live_ids.ids)):
        if name in card["signatures"]:
            asked.append((name, models[0], check))
    return asked


def requested(examples, texts):
    """The texts as a request: turned by one for each further input.

    Args:
        examples: input name -> an example for one row.
        texts: list of bytes.
    """
    request = {}
    for shift, (name, row) in enumerate(examples.items()):
        rows = texts[shift:] + texts[:shift]
        if isinstance(row, list):
            two = zip(rows, rows[1:] + rows[:1], strict=True)
            rows = [list(choices) for choices in two]
        request[name] = rows
    return request


def answer_in_fresh_process(folder, requests):
    """The export's answers, by a process that imports TensorFlow alone.

    Args:
        folder: of `export_saved_model`.
        requests: list of (signature, {input: rows}); rows are strings, bytes,
            or lists of them or of integers, all of one length.

    Returns:
        list of dict, output -> NumPy array; strings as bytes.
    """
    packages = [n for n in read_card(folder)["needs"] if n != "tensorflow"]
    encoded = [
        (name, {key: _encoded(rows) for key, rows in inputs.items()})
        for name, inputs in requests
    ]
    with tempfile.TemporaryDirectory() as scratch:
        asked = os.path.join(scratch, "requests.json")
        answered = os.path.join(scratch, "answers.npz")
        files.write_json(encoded, asked)
        done = subprocess.run(
            [sys.executable, replay.__file__, folder, asked, answered]
            + packages,
            capture_output=True,
            text=True,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
        )
        if done.returncode:
            raise InputError(
                f"A fresh process could not answer with {folder}; it ended "
                f"with {done.returncode}: {done.stderr.strip()[-2000:]}"
            )
        answers = [{} for _ in requests]
        with np.load(answered) as arrays:
            for key in arrays.files:
                number, _, name = key.partition("/")
                answers[int(number)][name] = arrays[key]
    return answers


def _encoded(value):
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    if isinstance(value, int):
        return value
    value = value.encode() if isinstance(value, str) else value
    return {"b64": base64.b64encode(value).decode()}
