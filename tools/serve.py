r"""Serves an exported model over HTTP, in TensorFlow Serving's REST form.

    bert-keras serve --model=runs/served

In: the folder of a SavedModel that bert-keras export made, or the parent folder
of numbered versions, of which it serves the highest. The script calls each
signature once and then prints the address. http://127.0.0.1:8501/ is a page to
try the signatures. This command returns one answer:

    curl -d '{"instances": [{"text": "An hour well spent."}]}' \
        http://127.0.0.1:8501/v1/models/model:predict

A CPU answers two requests at the same time, another device one. docs/serving.md
lists the limits of requests and their HTTP statuses. The server is for trials
and small loads. It has no encryption and no password. In production,
TensorFlow Serving takes the same requests and, after an export with --portable,
the same folder. Ctrl-C or SIGTERM ends the server after the requests in
progress, at most 30 seconds later. Starts in about 5 seconds. Needs the extra
`serve`.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses
import os
import re
import signal
import socket

from bert_keras.errors import InputError
from official_tasks import cli, progress
from official_tasks.options import option

LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
GRACE_SECONDS = 30  # maximum time for the requests in progress at the end
IDLE_SECONDS = 10  # minimum time without a request before a connection closes
MAX_FILES = 1024  # the usual limit of a process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    model: str = option(
        help="Folder of the SavedModel, or of numbered versions."
    )
    name: str = option("model", "Name of the model in URLs.")
    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 means all.")
    port: int = option(
        8501, "Port; 0 for a free one.", at_least=0, at_most=65535
    )
    max_request_rows: int = option(64, "Maximum rows of a request.", at_least=1)
    max_request_bytes: int = option(
        131_072, "Maximum bytes of all texts of a request.", at_least=1
    )


def main(values):
    if not re.fullmatch(r"[\w.-]+", values.name):
        raise InputError(
            f"--name={values.name}: expected letters, digits, . _ -"
        )
    with _listen(values.host, values.port) as listening:
        server = _make_server(values)

        def stop(*_):
            server.should_exit = True

        # Set handlers although uvicorn has its own for SIGINT and SIGTERM. At
        # its end, uvicorn restores our handlers and raises the received signal
        # again. Then `stop` runs, and the exit code is 0.
        names = {"SIGINT", "SIGTERM", "SIGHUP"}  # Windows has no SIGHUP
        for number in signal.valid_signals():
            # For example, nohup makes this process ignore SIGHUP.
            is_ignored = signal.getsignal(number) == signal.SIG_IGN
            if getattr(number, "name", "") in names and not is_ignored:
                signal.signal(number, stop)
        listening.listen()
        host = f"[{values.host}]" if ":" in values.host else values.host
        port = listening.getsockname()[1]
        print(f"ready: http://{host}:{port}/", flush=True)
        server.run(sockets=[listening])
    os._exit(0)  # ends at once, even during a call of TensorFlow


def _listen(host, port):
    """Return a bound socket. It refuses connections before `listen()`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        raise InputError(
            f"--host={host} --port={port}: {error.strerror}. Change one flag."
        ) from None
    return listening


def _make_server(values):
    """Call each signature once; return a `uvicorn.Server`.

    The first call of a signature is slow.
    """
    from bert_keras.comparison import check_finite_answers
    from bert_keras.errors import install_command
    from bert_keras.serving.load import load_saved_model, to_tensors

    try:
        import uvicorn

        from bert_keras.serving.server import Limits, create_app
    except ModuleNotFoundError as error:
        raise InputError(
            f"Serving needs {error.name}: {install_command('serve')}."
        ) from None
    served = load_saved_model(values.model)
    progress.console.stderr = True  # stdout gets only the address
    progress.print_version(values.model, served)
    progress.show_devices()
    for name, entry in served.card["signatures"].items():
        tensors = to_tensors(entry, entry["request"])
        answer = served.loaded.signatures[name](**tensors)
        check_finite_answers(name, entry["request"], answer)
    is_local = values.host in LOOPBACK
    app = create_app(
        served,
        values.name,
        Limits(values.max_request_rows, values.max_request_bytes),
        LOOPBACK if is_local else ["*"],
    )
    # Keep half of the files free, because a burst of connections opens more.
    connections = Connections(_count_files() // 8)
    config = uvicorn.Config(
        app,
        http=connections.open,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        # asyncio accepts up to `backlog` connections at once.
        limit_concurrency=connections.most + connections.backlog,
        backlog=connections.backlog,
        callback_notify=connections.close_idle,
        timeout_notify=IDLE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(config)


def _count_files():
    """Return how many files, and thus connections, the process may open."""
    files = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else -1
    return min(files, MAX_FILES) if files > 0 else MAX_FILES


class Connections:
    """Open connections of uvicorn, and a limit on those without a request.

    uvicorn limits only the time from an answer to the next byte. A connection
    that sends no request, or a part of one, would stay open.
    """

    def __init__(self, backlog):
        self.backlog, self.most, self.num_closed = backlog, 2 * backlog, 0
        self.states = {}  # connection -> state at the last `close_idle`

    def open(self, **arguments):
        """Return a new connection; close idle ones if there are too many."""
        from uvicorn.protocols.http.h11_impl import H11Protocol

        for connection in list(self.states):  # the longest open one first
            transport = connection.transport
            if transport and transport.is_closing():
                del self.states[connection]
            elif len(self.states) >= self.most and _read_idle_state(connection):
                self._close(connection)
        connection = H11Protocol(**arguments)
        self.states[connection] = None
        return connection

    async def close_idle(self):
        """Close the connections that are idle since the last call; log it."""
        for connection, earlier in list(self.states.items()):
            state = _read_idle_state(connection)
            self.states[connection] = state
            if state and state == earlier:
                self._close(connection)
        if self.num_closed:
            progress.console.print(f"closed {self.num_closed} idle connections")
            self.num_closed = 0

    def _close(self, connection):
        connection.transport.abort()
        del self.states[connection]
        self.num_closed += 1


def _read_idle_state(connection):
    """Return last request and unsent bytes of an idle connection, or None.

    A connection with a request is idle if its client does not read the answer.
    """
    if not connection.transport or connection.transport.is_closing():
        return None
    cycle = connection.cycle
    num_unsent = connection.transport.get_write_buffer_size()
    is_idle = num_unsent or cycle is None or cycle.response_complete
    return (cycle, num_unsent) if is_idle else None


if __name__ == "__main__":
    cli.start(main, Options)
