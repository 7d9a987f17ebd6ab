"""Processes of their own, and short forms of numbers and files.

The process that imports this holds TensorFlow imported and unused. What runs
TensorFlow runs in a fork of it, which starts at once and fresh.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import runpy
import shlex
import sys
import tempfile
import traceback
from typing import NamedTuple

import numpy as np
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# More of an output than this is told by its hash.
_CUT = 240


class Done(NamedTuple):
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


def forked(function, *arguments):
    """What the function returns, as JSON has it, from its own process."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as pipe:
                json.dump(function(*arguments), pipe)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    if os.waitpid(child, 0)[1]:
        raise RuntimeError(f"{function.__name__}{arguments} failed; see above")
    return json.loads(text)


def attempt(command):
    """Runs a script as `python COMMAND` would; returns `Done`."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("out", "err")]
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            _become(shlex.split(command), paths)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = [pathlib.Path(path).read_text() for path in paths]
    return Done(status, *map(placeless, texts))


def run(command):
    """Runs a script that must end well; returns `Done`."""
    done = attempt(command)
    if done.code:
        raise RuntimeError(f"{command}\nended in {done.code}:\n{done.stderr}")
    return done


def _become(words, paths):
    """The child of `attempt`: never returns."""
    code = 1
    try:
        for number, path in enumerate(paths, 1):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
        if words[0] == "-m":
            sys.argv, sys.path[0] = words[1:], os.getcwd()
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            script = ROOT / words[0]
            sys.argv, sys.path[0] = (
                [str(script), *words[1:]],
                str(script.parent),
            )
            runpy.run_path(str(script), run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def placeless(text):
    """The text without what depends on the machine's folders."""
    return text.replace(os.getcwd(), "<work>").replace(str(ROOT), "<root>")


def digest(content):
    """The first digits of a SHA-256 of bytes, text or plain values."""
    if not isinstance(content, bytes | str):
        content = json.dumps(content, sort_keys=True, default=str)
    if isinstance(content, str):
        content = content.encode()
    return hashlib.sha256(content).hexdigest()[:12]


def short(text):
    """The text, or its beginning and hash where it is long."""
    text = text.strip()
    if len(text) > _CUT:
        return f"{text[:_CUT]}... {digest(text)}"
    return text


def array_hash(values):
    """The hash of the bits of arrays, in a nest of dicts and tuples."""
    found = hashlib.sha256()
    for value in tf.nest.flatten(values):
        value = np.ascontiguousarray(value)
        found.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    return found.hexdigest()[:12]


def numbers(values):
    """The shape, the first four, and a sum in which each has its own share."""
    values = np.asarray(values, "float64")
    shares = np.random.default_rng(values.size).normal(size=values.size)
    share = values.ravel() @ shares / max(1, values.size) ** 0.5
    shape = "x".join(map(str, values.shape)) or "()"
    return [shape, *rounded([*values.ravel()[:4], share])]


def rounded(values):
    """Floats as they are kept; adding 0 leaves no -0.0."""
    return [round(float(value), 5) + 0.0 for value in values]


def plain(answer):
    """An answer of a model, by name: texts and whole numbers as they are."""
    if isinstance(answer, dict):
        return {name: plain(answer[name]) for name in sorted(answer)}
    if isinstance(answer, str | bool | int | None):
        return answer
    try:
        values = np.asarray(answer)
    except ValueError:  # rows of unequal length
        values = np.asarray(None)
    if values.dtype.kind in "fV" or values.dtype.name == "bfloat16":
        return numbers(values)
    if values.dtype == object:
        return [plain(one) for one in answer]
    whole = values.tolist()
    return whole if len(json.dumps(whole)) < _CUT else digest(whole)


# Beyond these, a file's bytes differ from run to run: times and leases,
# graphs, logs.
_TIMED = r"(^|/)(progress\.jsonl|\.lease|events\..*|checkpoint|.*\.pb)$"


def file_hashes(folder, leave_out=_TIMED):
    """Path below the folder -> hash of its bytes, or "" of what has times."""
    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file():
            timed = re.search(leave_out, name)
            found[name] = "" if timed else digest(path.read_bytes())
    return found


def exact(value):
    """Marks what only processors of one kind have in common, to the bit."""
    return {"exact": {processor(): value}}


def processor():
    """The model of processor and the TensorFlow that numbers come from.

    Models with the same instructions add in other orders: caches differ.
    """
    found = {}
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    names = "vendor_id", "cpu family", "model"
    model = "/".join(found.get(name, os.uname().machine) for name in names)
    return f"{model} tf{tf.__version__}"
