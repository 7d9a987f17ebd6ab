"""Compute the answers of a SavedModel without bert_keras.

`verify.py` runs this file in a new process:

    python replay.py FOLDER REQUESTS.json ANSWERS.npz

The requests are a list of [signature, {input: rows}], with strings in the form
{"b64": ...}. The answers are arrays named `INDEX/OUTPUT`, with the index of the
request. Any further arguments name packages that register operations.
"""

import base64
import importlib
import json
import sys


def main(folder, requests, answers, *packages):
    import numpy as np
    import tensorflow as tf

    for package in packages:
        importlib.import_module(package)
    loaded = tf.saved_model.load(folder)
    with open(requests, encoding="utf-8") as file:
        requests = json.load(file)
    arrays = {}
    for number, (signature, inputs) in enumerate(requests):
        inputs = {k: tf.constant(_decode(v)) for k, v in inputs.items()}
        for name, value in loaded.signatures[signature](**inputs).items():
            array = value.numpy()
            if array.dtype == object:  # NumPy would pickle objects
                array = array.astype("S")
            arrays[f"{number}/{name}"] = array
    if "bert_keras" in sys.modules:
        raise SystemExit(
            "This process imported bert_keras. So its answers do not show that "
            "the export works without bert_keras."
        )
    np.savez(answers, **arrays)


def _decode(value):
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else value


if __name__ == "__main__":
    main(*sys.argv[1:])
