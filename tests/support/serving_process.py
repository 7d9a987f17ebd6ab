"""tools/serve.py in another process, and requests to it."""

import contextlib
import http.client
import json
import re
import resource
import subprocess
import sys

from tests.support.run_script import ROOT

PREDICT = "/v1/models/model:predict"


def start(folder, *flags, max_files=None):
    """Start the server; return the process, which may not be ready."""
    script = str(ROOT / "tools" / "serve.py")

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))

    return subprocess.Popen(
        [sys.executable, script, f"--model={folder}", "--port=0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit if max_files else None,
    )


@contextlib.contextmanager
def server(folder, *flags, **limits):
    """Yield (port, process) of a server that has printed its address."""
    process = start(folder, *flags, **limits)
    try:
        line = process.stdout.readline()
        found = re.fullmatch(r"ready: http://[^ ]+:(\d+)/\n", line)
        assert found, line + process.stderr.read()
        yield int(found[1]), process
    finally:
        process.kill()
        process.communicate()


def call(port, method, path, body=None, headers=None):
    """Return (status, text) of one request on a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


def predict(port, content, path=PREDICT):
    """Return (status, JSON) of a request; content is bytes or a JSON value."""
    body = content if isinstance(content, bytes) else json.dumps(content)
    status, text = call(port, "POST", path, body)
    return status, json.loads(text)
