"""Example requests of an export, by saved_model_cli and to the server."""

import json
import subprocess
import sys

# This program does the work of `saved_model_cli run`, for all signatures in one
# process. It imports neither bert_keras nor tensorflow_text.
CLI = """
import json, sys
import numpy as np
from tensorflow.python.tools import saved_model_cli as cli
folder, asked = sys.argv[1], json.loads(sys.argv[2])
for name, expressions in asked.items():
    print("signature", name)
    feed = cli.load_inputs_from_input_arg_string("", expressions, "")
    cli.run_saved_model_with_feed_dict(folder, "serve", name, feed, None, False)
assert "tensorflow_text" not in sys.modules
"""


def requests(served):
    """Return signature -> its example request (input name -> one row)."""
    entries = served.card["signatures"]
    return {name: entry["request"] for name, entry in entries.items()}


def expressions(inputs):
    """Return a request as a value of `--input_exprs`."""
    return ";".join(f"{key}={rows!r}" for key, rows in inputs.items())


def printed_by_cli(folder, asked):
    """Return signature -> text that saved_model_cli prints for it."""
    asked = {name: expressions(inputs) for name, inputs in asked.items()}
    # A fork may have tensorflow_text: the package's workers load it for theirs.
    done = subprocess.run(
        [sys.executable, "-c", CLI, str(folder), json.dumps(asked)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    parts = done.stdout.split("signature ")[1:]
    return {part.split("\n")[0]: part for part in parts}


def check_cli(folder, served):
    """Check that saved_model_cli prints every output of every signature."""
    asked = requests(served)
    printed = printed_by_cli(folder, asked)
    for name in asked:
        for output in served.card["signatures"][name]["outputs"]:
            assert f"Result for output key {output}:" in printed[name]


def answered_by_server(client, served, name, inputs):
    """Send a request to `client`; return output name -> rows."""
    body = {"signature_name": name, "inputs": inputs}
    reply = client.post("/v1/models/model:predict", json=body)
    assert reply.status_code == 200, reply.text
    outputs = reply.json()["outputs"]
    if isinstance(outputs, dict):
        return outputs
    (key,) = served.card["signatures"][name]["outputs"]
    return {key: outputs}
