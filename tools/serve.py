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
For trying a model and for small loads; TensorFlow Serving takes the same
folder and the same requests. Starts in about 5 seconds; Ctrl-C ends it.
Needs: pip install 'bert_keras[serve]'.
"""

import contextlib
import re
import socket

from absl import flags

from official_tasks import script


def define_flags():
    flags.DEFINE_string("model", None, "Folder of the SavedModel.")
    flags.DEFINE_string("name", "model", "What the addresses call the model.")
    flags.DEFINE_string("host", "127.0.0.1", "0.0.0.0 to be reached by others.")
    flags.DEFINE_integer("port", 8501, "Port.", 0, 65535)
    flags.DEFINE_integer("max_text", 100_000, "Bytes of a text at most.", 1)
    flags.DEFINE_integer(
        "max_tokens", 131_072, "Tokens that a request may have read.", 1
    )
    flags.DEFINE_integer("max_waiting", 256, "Texts that may wait.", 1)
    flags.DEFINE_float(
        "slow_client", 10.0, "Seconds for headers, and again for a body."
    )
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
    served = load_saved_model(values.model)
    app = create_app(
        served,
        values.name,
        Limits.of_text(values.max_text, tokens=values.max_tokens),
        values.max_waiting,
        values.slow_client,
        values.allowed_hosts or hosts_of(values.host),
    )
    config = server_config(app, values.host, values.port, values.slow_client)
    family = socket.AF_INET6 if ":" in values.host else socket.AF_INET
    address = values.host, values.port
    try:
        listening = socket.create_server(address, family=family)
    except OSError as error:
        raise InputError(
            f"--host={values.host} --port={values.port} cannot be listened "
            f"on: {error.strerror}. Choose another."
        ) from None
    with listening, contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    script.start(main, define_flags)
