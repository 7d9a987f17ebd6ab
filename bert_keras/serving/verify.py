"""Comparison of an export's answers in this process and in a new process.

In this process, the traced functions answer some requests. A new process
without bert_keras loads the folder and answers the same requests.
"""

import base64
import os
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow as tf

from bert_keras import comparison, json_files
from bert_keras.errors import InputError
from bert_keras.serving import replay
from bert_keras.serving.load import as_tensor, plain_link, read_card
from bert_keras.serving.texts import copy_for_serving
from bert_keras.serving.tokens import ID_INPUTS

# Usual and hard texts: masks, empty, white space, punctuation alone, bytes that
# are not UTF-8, other scripts, control characters, a very long text.
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


def answer_here(signatures, functions, preprocessor):
    """Return a list of (signature, request, answer), computed in this process.

    `functions` is a dict of signature name -> traced function.
    """
    texts = [t.encode() if isinstance(t, str) else t for t in HARD_TEXTS]
    # Signatures that read windows are slow, so they get shorter texts.
    few = [text[: 30 * preprocessor.sequence_length] for text in texts]
    answers = []
    for name, signature in signatures.items():
        if name == "ids":
            request = make_ids_request(signature, preprocessor, few)
        else:
            chosen = few if signature.reads_windows else texts
            request = make_request(signature.inputs, chosen)
        tensors = map(as_tensor, request.values(), signature.specs())
        answer = functions[name](*tensors)
        for output, tensor in answer.items():
            array = tensor.numpy()  # strings are bytes here
            answer[output] = (
                array.astype("S") if array.dtype == object else array
            )
        comparison.check_finite_answers(name, request, answer)
        answers.append((signature, request, answer))
    return answers


def make_request(examples, texts):
    """Return dict of input name -> `texts`, rotated by the input's index.

    For an input of lists, each row is a list of two texts.

    Args:
        examples: dict of input name -> an example for one row.
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


def make_ids_request(signature, preprocessor, texts):
    """Return a request of token ids, a dict of input name -> padded rows."""
    preprocess = copy_for_serving(preprocessor)
    packed = preprocess.packer(preprocess.tokenizer(tf.constant(texts)))
    columns = [packed[name].numpy().tolist() for name in ID_INPUTS]
    if signature.specs()[0].shape.rank == 3:  # (B, K, T), two choices each
        columns = [[[row, rows[0]] for row in rows] for rows in columns]
    return dict(zip(signature.inputs, columns, strict=True))


def measure_difference(folder, answers):
    """Return the greatest difference of `answers` from a new process's answers.

    See `greatest_difference` with `relative=True`.
    """
    requests = [(s.name, request) for s, request, _ in answers]
    fresh = answer_in_fresh_process(folder, requests)
    return max(
        comparison.greatest_difference(
            _drop_padding(signature, request, here),
            _drop_padding(signature, request, there),
            relative=True,
        )
        if here.keys() == there.keys()
        else np.inf
        for (signature, request, here), there in zip(
            answers, fresh, strict=True
        )
    )


def _drop_padding(signature, request, answer):
    """Return the answer without its values at padding."""
    values = dict(answer)
    for name, output in signature.outputs.items():
        if output.padded:
            width = np.arange(values[name].shape[1])
            is_real = width < values["count"][:, np.newaxis]  # (B, N)
            values[name] = values[name][is_real]
        elif output.per_token:
            mask = np.array(list(request.values())[1], bool)
            values[name] = values[name][mask]
    return values


def answer_in_fresh_process(folder, requests):
    """Return the export's answers from a new process without bert_keras.

    Args:
        folder: folder that `export_saved_model` wrote.
        requests: list of (signature name, {input: rows}). A row is a string,
            bytes, or a (nested) list of strings, bytes or integers. All lists
            of an input have equal length.

    Returns:
        list of dict of output name -> NumPy array, in which strings are bytes.
    """
    packages = [n for n in read_card(folder)["needs"] if n != "tensorflow"]
    encoded = [
        (name, {key: _encode(rows) for key, rows in inputs.items()})
        for name, inputs in requests
    ]
    with tempfile.TemporaryDirectory() as scratch:
        requests_path = os.path.join(scratch, "requests.json")
        answers_path = os.path.join(scratch, "answers.npz")
        json_files.write_json(encoded, requests_path)
        with plain_link(folder) as plain:
            done = subprocess.run(
                [
                    sys.executable,
                    replay.__file__,
                    plain,
                    requests_path,
                    answers_path,
                ]
                + packages,
                capture_output=True,
                text=True,
                env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
            )
        if done.returncode:
            raise InputError(
                f"A new process could not run the export {folder}. Exit code "
                f"{done.returncode}: {done.stderr.strip()[-2000:]}"
            )
        answers = [{} for _ in requests]
        with np.load(answers_path) as arrays:
            for key in arrays.files:
                number, _, name = key.partition("/")
                answers[int(number)][name] = arrays[key]
    return answers


def _encode(value):
    """Return the value for JSON, with each text as {"b64": ...}."""
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, int):
        return value
    value = value.encode() if isinstance(value, str) else value
    return {"b64": base64.b64encode(value).decode()}
