"""Serves an exported model over HTTP, in TensorFlow Serving's REST form.

    python tools/serve.py --model=runs/served

In: the folder of a SavedModel that tools/export.py made. Then
http://127.0.0.1:8501/ is a page to try every signature on, and

    curl -d '{"instances": [{"text": "An hour well spent."}]}' \
        http://127.0.0.1:8501/v1/models/model:predict

asks for one answer. /health and /metrics (Prometheus) are for machines.
Requests that wait are answered together; too many are answered 429, too large
ones 413. Only the hosts of --allowed_hosts are served: by default what the
server listens on; with --host=0.0.0.0 this machine's name and every address.
--workers=4 starts as many processes, each with its model and its share of the
cores; one that ends is replaced. For trying a model and for small loads;
TensorFlow Serving takes the same folder and the same requests. Starts in about
5 seconds; Ctrl-C ends it.
Needs: pip install 'bert_keras[serve]'.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import socket
import sys
import threading

from absl import flags

from official_tasks import script


def define_flags():
    flags.DEFINE_string("model", None, "Folder of the SavedModel.")
    flags.DEFINE_string("name", "model", "What the addresses call the model.")
    flags.DEFINE_string(
        "host", "127.0.0.1", "Address to listen on; 0.0.0.0 is every one."
    )
    flags.DEFINE_integer("port", 8501, "Port.", 0, 65535)
    flags.DEFINE_integer("max_text", 100_000, "Bytes of a text at most.", 1)
    flags.DEFINE_integer(
        "max_tokens", 131_072, "Tokens that a request may have read.", 1
    )
    flags.DEFINE_integer("max_waiting", 256, "Texts that may wait.", 1)
    flags.DEFINE_float(
        "slow_client", 10.0, "Seconds for headers, and again for a body."
    )
    flags.DEFINE_integer("workers", 1, "Processes that answer.", 1)
    flags.DEFINE_list(
        "allowed_hosts",
        None,
        "Names and addresses that browsers may ask for, without ports, such "
        "as model.example.com; * is any. Default: those that it listens on.",
    )
    flags.mark_flag_as_required("model")
    script.require_positive("slow_client")
    script.require(
        "letters, digits, . _ -", re.compile(r"[\w.-]+").fullmatch, "name"
    )
    script.require(
        "names or addresses without http:// and without ports",
        lambda host: "/" not in host and host.count(":") != 1,
        "allowed_hosts",
    )


def main(values):
    from bert_keras.errors import InputError

    settings = {
        name: getattr(values, name)
        for name in ("model", "name", "host", "port", "max_text", "max_tokens")
        + ("max_waiting", "slow_client", "allowed_hosts")
    }
    family = socket.AF_INET6 if ":" in values.host else socket.AF_INET
    with socket.socket(family) as listening:
        # Bound now; connections are accepted from when a model is loaded.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((values.host, values.port))
        except OSError as error:
            raise InputError(
                f"--host={values.host} --port={values.port} cannot be "
                f"listened on: {error.strerror}. Choose another."
            ) from None
        if values.workers == 1:
            answer(listening, settings)
        else:
            supervise(listening, settings, values.workers)


def answer(listening, settings, number=0, ready=None):
    """Answers what comes on a bound socket, until the process is to end.

    Args:
        settings: flags by name.
        number: of this process, where there are several.
        ready: event that is set once the model is loaded. The process that
            started this one holds it, and ends this one when it ends.
    """
    from bert_keras.errors import InputError
    from bert_keras.serving.load import load_saved_model

    try:
        import uvicorn

        from bert_keras.serving.rest import Limits
        from bert_keras.serving.server import (
            create_app,
            hosts_of,
            server_config,
        )
    except ModuleNotFoundError as error:
        raise InputError(
            f"Serving needs {error.name}: pip install 'bert_keras[serve]'"
        ) from None
    host, slow_client = settings["host"], settings["slow_client"]
    app = create_app(
        load_saved_model(settings["model"]),
        settings["name"],
        Limits.of_text(settings["max_text"], tokens=settings["max_tokens"]),
        settings["max_waiting"],
        slow_client,
        settings["allowed_hosts"] or hosts_of(host),
        number,
    )
    config = server_config(app, host, settings["port"], slow_client)
    server = uvicorn.Server(config)
    if ready is not None:
        ready.set()
        threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listening])


def _end_with_parent():
    parent = multiprocessing.parent_process().sentinel
    multiprocessing.connection.wait([parent])
    os._exit(1)


def supervise(listening, settings, count):
    """Keeps so many processes that answer; one that ends is replaced.

    Raises:
        InputError: one ended before it could answer.
    """
    from bert_keras.errors import InputError
    from official_tasks import progress

    cores = os.cpu_count() or 1
    if count > cores:
        progress.console.print(
            f"note: --workers={count} on {cores} cores: each holds the model, "
            "and more than the cores answer no faster"
        )
    # TensorFlow would start a thread a core in each of them.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(max(1, cores // count)))
    context = multiprocessing.get_context("spawn")
    workers = {}

    def start(number):
        ready = context.Event()
        process = context.Process(
            target=answer, args=(listening, settings, number, ready)
        )
        process.start()
        workers[number] = process, ready

    # Ends as Ctrl-C does, so that the others end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        for number in range(count):
            start(number)
        while True:
            ends = [process.sentinel for process, _ in workers.values()]
            multiprocessing.connection.wait(ends)
            for number, (process, ready) in list(workers.items()):
                if process.is_alive():
                    continue
                code = process.exitcode
                if not ready.is_set():
                    raise InputError(
                        f"Worker {number} ended with code {code} before it "
                        "could answer. --workers=1 shows its reason."
                    )
                progress.console.print(
                    f"worker {number}, process {process.pid}, ended with code "
                    f"{code}; another takes its place"
                )
                start(number)
    except KeyboardInterrupt:
        pass
    finally:
        for process, _ in workers.values():
            process.terminate()
        for process, _ in workers.values():
            process.join(10)
            process.kill()


if __name__ == "__main__":
    # Only the processes that answer need it.
    script.start(main, define_flags, tensorflow=False)
