"""A fake Google Cloud Storage with the requests of TensorFlow's `gs://` only.

TensorFlow always uses Google's addresses, but its libcurl connects through the
proxy that `https_proxy` names. This server is such a proxy: it answers the
requests to Google's two hosts itself, with its own certificate, and forwards
nothing. A listing has pages of five names. Every seventh upload fails once,
after half of its bytes.
"""

import contextlib
import http.server
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import urllib.parse

HOSTS = ("www.googleapis.com", "storage.googleapis.com")
TOKEN = "a-token"
PAGE, BROKEN = 5, 7
# The groups are the first byte, the last byte and the total length.
_RANGE = re.compile(r"bytes[ =](?:(\d+)-(\d+)|\*)(?:/(\d+))?")


class Bucket:
    """The objects of a bucket, and the uploads that have begun.

    Args:
        folder: folder for the certificate.
    """

    def __init__(self, folder):
        self.objects = {}  # name -> bytes
        self.generations = {}  # name -> number
        self.uploads = []  # [name, received bytes, has failed]
        self.lock = threading.RLock()
        self.certificate = os.path.join(folder, "certificate.pem")
        self.key = os.path.join(folder, "key.pem")
        names = ",".join(f"DNS:{host}" for host in HOSTS)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes"]
            + ["-days", "2", "-subj", "/CN=stand-in"]
            + ["-addext", f"subjectAltName={names}"]
            + ["-keyout", self.key, "-out", self.certificate],
            check=True,
            capture_output=True,
        )

    def put(self, name, content):
        self.objects[name] = content
        self.generations[name] = self.generations.get(name, 0) + 1

    def folder(self, prefix):
        """Return path below the prefix -> bytes, without folder markers."""
        return {
            name.removeprefix(f"{prefix}/"): content
            for name, content in self.objects.items()
            if name.startswith(f"{prefix}/") and not name.endswith("/")
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_CONNECT(self):
        self.send_response(200)
        self.end_headers()
        self.connection = self.server.tls.wrap_socket(
            self.connection, server_side=True
        )
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb")
        self.close_connection = False

    def handle_expect_100(self):
        super().handle_expect_100()
        self.wfile.flush()  # else curl waits a second before the body
        return True

    def answer(self, status, body=b"", **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        """Read the body; ignore its Content-Length if it is also chunked."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def handle_any(self):
        bucket, body = self.server.bucket, self.body()
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        # Split before unquoting: a "/" in an object's name comes as "%2F".
        words = [urllib.parse.unquote(w) for w in parts.path.split("/")[1:]]
        with bucket.lock:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.answer(401)
            if self.headers["Host"].startswith("storage."):
                return self.read(bucket, words[1])
            match self.command, words:
                case "GET", ["storage", "v1", "b", name]:
                    return self.answer(200, {"name": name})
                case "GET", ["storage", "v1", "b", _, "o"]:
                    return self.list(bucket, query)
                case "GET", ["storage", "v1", "b", _, "o", name]:
                    return self.stat(bucket, name)
                case "DELETE", ["storage", "v1", "b", _, "o", name]:
                    there = bucket.objects.pop(name, None) is not None
                    return self.answer(204 if there else 404)
                case "POST", ["upload", "storage", "v1", "b", _, "o"]:
                    return self.begin(bucket, query)
                case "PUT", ["upload", number]:
                    return self.upload(bucket, int(number), body)
            return self.answer(400, f"unknown: {self.command} {self.path}")

    do_GET = do_POST = do_PUT = do_DELETE = handle_any

    def read(self, bucket, name):
        if name not in bucket.objects:
            return self.answer(404)
        first, last, _ = _RANGE.match(self.headers["Range"]).groups()
        content = bucket.objects[name][int(first) : int(last) + 1]
        return self.answer(206 if content else 416, content)

    def stat(self, bucket, name):
        if name not in bucket.objects:
            return self.answer(404)
        facts = {
            "size": str(len(bucket.objects[name])),
            "generation": str(bucket.generations[name]),
            "updated": "2020-01-01T00:00:00.000Z",
        }
        return self.answer(200, facts)

    def list(self, bucket, query):
        prefix, end = query.get("prefix", ""), query.get("delimiter")
        found = set()
        for name in bucket.objects:
            if name.startswith(prefix):
                cut = name.find(end, len(prefix)) if end else -1
                found.add(name if cut < 0 else name[: cut + 1])
        rest = sorted(n for n in found if n > query.get("pageToken", ""))
        page = rest[: min(PAGE, int(query.get("maxResults", PAGE)))]
        listed = {
            "items": [{"name": n} for n in page if n in bucket.objects],
            "prefixes": [n for n in page if n not in bucket.objects],
        }
        if len(rest) > len(page):
            listed["nextPageToken"] = page[-1]
        return self.answer(200, listed)

    def begin(self, bucket, query):
        if query["uploadType"] == "media":  # an empty folder marker
            there = query["name"] in bucket.objects
            if not there:
                bucket.put(query["name"], b"")
            return self.answer(412 if there else 200, {})
        bucket.uploads.append([query["name"], b"", False])
        place = f"https://{HOSTS[0]}/upload/{len(bucket.uploads) - 1}"
        return self.answer(200, {}, Location=place)

    def upload(self, bucket, number, body):
        upload = bucket.uploads[number]
        name, come, has_broken = upload
        given = _RANGE.match(self.headers.get("Content-Range", "bytes */0"))
        if given[1] is None and given[3] != str(len(come)):  # a status query
            known = {"Range": f"bytes=0-{len(come) - 1}"} if come else {}
            return self.answer(308, **known)
        if number % BROKEN == BROKEN - 1 and not has_broken:
            upload[1:] = come + body[: len(body) // 2], True
            return self.answer(503)
        if given[1] is not None and int(given[1]) != len(come):
            return self.answer(400)
        upload[1] = come + body
        bucket.put(name, upload[1])
        return self.answer(200, {})


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            # A ConnectionError is expected, because tests kill clients.
            super().handle_error(request, client_address)


@contextlib.contextmanager
def storage_server(folder):
    """Yield a `Bucket` for all `gs://` names, and environment variables.

    A process that is started with these variables uses the bucket. The server
    ends with the block.
    """
    bucket = Bucket(folder)
    server = _Server(("127.0.0.1", 0), _Handler)
    server.bucket = bucket
    server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.tls.load_cert_chain(bucket.certificate, bucket.key)
    proxy = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield (
            bucket,
            {
                "https_proxy": proxy,
                "HTTPS_PROXY": proxy,
                "no_proxy": "",
                "NO_PROXY": "",
                "CURL_CA_BUNDLE": bucket.certificate,
                "GOOGLE_AUTH_TOKEN_FOR_TESTING": TOKEN,
                "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "1000",
            },
        )
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
