"""Functions that send the example requests of an export by CLI and HTTP."""

import contextlib
import http.client
import json
import sys
import threading
import time

from tests.support import forks

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
    done = forks.run(
        [sys.executable, "-c", CLI, str(folder), json.dumps(asked)]
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


@contextlib.contextmanager
def address(served):
    """Yield the port of a server in this process."""
    import uvicorn

    from bert_keras.serving.server import create_app

    config = uvicorn.Config(create_app(served), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def answered_by_http(port, served, name, inputs):
    """Send a request by HTTP; return output name -> rows."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps({"signature_name": name, "inputs": inputs})
    connection.request("POST", "/v1/models/model:predict", body)
    reply = connection.getresponse()
    content = json.loads(reply.read())
    assert reply.status == 200, content
    outputs = content["outputs"]
    if isinstance(outputs, dict):
        return outputs
    (key,) = served.card["signatures"][name]["outputs"]
    return {key: outputs}
