"""Contenders take turns, each in a process and an environment of its own."""

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import venv

import bert_keras
from bert_keras import files
from bert_keras.errors import InputError
from official_tasks import progress

HERE = os.path.dirname(os.path.abspath(__file__))
HOME = os.path.dirname(os.path.dirname(os.path.abspath(bert_keras.__file__)))
# Peer -> what pip installs into its environment. "bert_keras" is this package
# without extras: Keras imports scikit-learn and others where they are.
REQUIREMENTS = {
    "bert_keras": ["--editable", HOME],
    "keras_hub": ["keras-hub", "safetensors", "tensorflow", "tensorflow-text"],
    "model_garden": ["tf-models-official"],
    "transformers": ["transformers", "torch"],
}


class LeftOutError(InputError):
    """What cannot be measured here, or takes too long."""


class Worker:
    """A contender's process, prepared and waiting for its turn.

    Args:
        python: path of the interpreter.
        module, job, settings: as in `rows.Contender`, the settings filled in.
        variables: dict of more environment variables.
        limit: seconds that it may take to be prepared, and for a step; as
            long as it takes where None.

    Raises:
        LeftOutError: it took longer, here or in `ask`; its process is ended.
        InputError: it ended with an error.
    """

    def __init__(
        self, python, module, job, settings, variables=None, limit=None
    ):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - close()
        path = os.path.join(HERE, "worker.py")
        self._process = subprocess.Popen(
            [python, path, module, job, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(python) | (variables or {}),
            text=True,
        )
        self._name, self._limit = f"{job} of {module}.py", limit
        self.facts = self._answer()
        self.examples = self.facts.pop("examples")
        self.seconds, self.processor, self.peak = [], [], 0.0

    def ask(self, *arguments):
        """One step: dict of "seconds", "processor" (seconds) and "result"."""
        with contextlib.suppress(BrokenPipeError):  # `_answer` says why
            self._process.stdin.write(json.dumps(arguments) + "\n")
            self._process.stdin.flush()
        answer = self._answer()
        self.seconds.append(answer["seconds"])
        self.processor.append(answer["processor"])
        self.peak = answer["peak"]
        return answer

    def figures(self):
        return {
            "median": statistics.median(self.seconds) / self.examples,
            "least": min(self.seconds) / self.examples,
            "most": max(self.seconds) / self.examples,
            "processor": statistics.median(self.processor) / self.examples,
            "examples": self.examples,
            "peak_megabytes": round(self.peak),
            **self.facts,
        }

    def close(self):
        with contextlib.suppress(BrokenPipeError):  # its process was ended
            self._process.stdin.close()
        self._process.wait()
        self._errors.close()

    def _answer(self):
        late = threading.Event()

        def end():
            late.set()
            self._process.kill()

        clock = threading.Timer(self._limit or threading.TIMEOUT_MAX, end)
        clock.daemon = True
        clock.start()
        line = self._process.stdout.readline()
        clock.cancel()
        if line:
            return json.loads(line)
        self._process.wait()
        if late.is_set():
            raise LeftOutError(
                f"{self._name} had no answer within {self._limit:g} seconds."
            )
        self._errors.seek(0)
        errors = self._errors.read()[-800:]
        raise InputError(f"{self._name} ended before its turn:\n{errors}")


def environment(python):
    """This very Python finds this very package, installed or not."""
    if python != sys.executable:
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": HOME}


def measure(workers, turns, report=lambda done: None, limit=None):
    """Lets workers take turns, one step each.

    Args:
        workers: name -> arguments of `Worker`.
        turns: of each.
        report: function of the number of turns taken.
        limit: as that of `Worker`; who takes longer is left out.

    Returns:
        two dicts. name -> dict of "median", "least", "most" (seconds an
        example), "processor" (the median of all its threads' seconds),
        "examples" of a step, "peak_megabytes" of the process,
        "versions", and what else the job reports; and name -> why it was left
        out.
    """
    running, left_out = {}, {}
    try:
        for name, arguments in workers.items():
            try:
                running[name] = Worker(*arguments, limit=limit)
            except LeftOutError as error:
                left_out[name] = str(error)
        for turn in range(turns):
            for name in [name for name in running if name not in left_out]:
                try:
                    running[name].ask()
                except LeftOutError as error:
                    left_out[name] = str(error)
            report(turn + 1)
    finally:
        for worker in running.values():
            worker.close()
    figures = {
        name: worker.figures()
        for name, worker in running.items()
        if name not in left_out
    }
    return figures, left_out


def measure_row(row, inputs, turns, limit=None):
    """The figures of a row's contenders, which take turns.

    Args:
        turns: of each contender, at most.
        limit: seconds a contender may take to be prepared, and for a step;
            peers that take longer are left out.

    Raises:
        LeftOutError: this package itself took longer, or the row is of
            bfloat16, which the processor emulates or is slower in.
    """
    from bert_keras.training.strategy import BFLOAT16, fast_bfloat16

    dtypes = [c.settings.get("dtype") for c in row["contenders"].values()]
    if BFLOAT16 in dtypes and not fast_bfloat16():
        raise LeftOutError("This processor is not faster in bfloat16.")
    turns = min(turns, row.get("turns", turns))
    workers = {
        name: (
            interpreter(inputs.environments, contender.environment),
            contender.module,
            contender.job,
            inputs.fill(contender.settings),
        )
        for name, contender in row["contenders"].items()
    }
    with progress.bar(row["title"], turns) as update:
        figures, left_out = measure(workers, turns, update, limit)
    if "ours" not in figures:
        raise LeftOutError(" ".join(left_out.values()))
    return {"contenders": figures, "left_out": left_out}


def interpreter(folder, peer):
    """Path of the peer's Python; a missing environment is made with pip.

    Args:
        folder: of environments, one a peer. An existing one, made by hand or
            linked, is used as it is.
        peer: a key of `REQUIREMENTS`, or "ours" for this very Python.
    """
    if peer == "ours":
        return sys.executable
    home = os.path.join(folder, peer)
    python = os.path.join(home, "bin", "python")
    if not os.path.exists(python):
        try:
            _make(home, python, REQUIREMENTS[peer])
        except BaseException:  # Ctrl-C too: without Python, it is made again
            files.remove(python)
            raise
    return python


def _make(home, python, requirements):
    venv.create(home, with_pip=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *requirements],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise InputError(
            f"The environment {home} could not be made:\n"
            f"{done.stderr[-1000:]}\nMake it by hand with "
            f"{', '.join(requirements)}, and run this again."
        )


def kind() -> str:
    """The widest instructions of the processor that decide how rows compare."""
    from bert_keras.training.strategy import fast_bfloat16, instructions

    kinds = ("avx512_vnni", "avx2")
    if fast_bfloat16():
        kinds = ("amx_bf16", "avx512_bf16", *kinds)
    return next((name for name in kinds if name in instructions()), "other")


def machine() -> dict:
    """What decides the figures besides the package."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            models = [line for line in file if line.startswith("model name")]
    except OSError:  # another system than Linux
        models = []
    return {
        "processor": (
            models[0].split(":")[1].strip() if models else platform.machine()
        ),
        "kind": kind(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "commit": _commit() or "unknown",
    }


def _commit():
    """That of this checkout; none of a wheel, or where there is no git."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            cwd=HERE,
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
