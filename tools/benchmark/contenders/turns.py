"""Contenders take turns, each in a process and an environment of its own."""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import venv

import bert_keras
from bert_keras import files
from bert_keras.errors import InputError

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.dirname(HERE)
# Peer -> what pip installs into its environment.
REQUIREMENTS = {
    "keras_hub": ["keras-hub", "safetensors", "tensorflow", "tensorflow-text"],
    "model_garden": ["tf-models-official"],
    "transformers": ["transformers", "torch"],
}


class Worker:
    """A contender's process, prepared and waiting for its turn.

    Args:
        python: path of the interpreter.
        module, job, settings: as in `rows.Contender`, the settings filled in.
        variables: dict of more environment variables.
    """

    def __init__(self, python, module, job, settings, variables=None):
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
        self._name = f"{job} of {module}.py"
        self.facts = self._answer()
        self.examples = self.facts.pop("examples")
        self.seconds, self.peak = [], 0.0

    def ask(self, *arguments):
        """One step: dict of "seconds", "processor" (seconds) and "result"."""
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.seconds.append(answer["seconds"])
        self.peak = answer["peak"]
        return answer

    def figures(self):
        return {
            "median": statistics.median(self.seconds) / self.examples,
            "least": min(self.seconds) / self.examples,
            "most": max(self.seconds) / self.examples,
            "examples": self.examples,
            "peak_megabytes": round(self.peak),
            **self.facts,
        }

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()

    def _answer(self):
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        errors = self._errors.read()[-800:]
        raise InputError(f"{self._name} ended before its turn:\n{errors}")


def environment(python):
    """This very Python finds this very package, installed or not."""
    if python != sys.executable:
        return dict(os.environ)
    home = os.path.dirname(os.path.dirname(bert_keras.__file__))
    return {**os.environ, "PYTHONPATH": home}


def measure(workers, turns, report=lambda done: None):
    """Lets workers take turns, one step each.

    Args:
        workers: name -> arguments of `Worker`.
        turns: of each.
        report: function of the number of turns taken.

    Returns:
        dict, name -> dict of "median", "least", "most" (seconds an example),
        "examples" of a step, "peak_megabytes" of the process, "versions", and
        what else the job reports.
    """
    running = {}
    try:
        for name, arguments in workers.items():
            running[name] = Worker(*arguments)
        for turn in range(turns):
            for worker in running.values():
                worker.ask()
            report(turn + 1)
    finally:
        for worker in running.values():
            worker.close()
    return {name: worker.figures() for name, worker in running.items()}


def measure_row(row, inputs, turns):
    """A row's figures: its tool's, or those of its contenders in turns.

    Args:
        row: of `rows.ROWS`.
        inputs: `inputs.Inputs`.
        turns: of each contender, at most.
    """
    from official_tasks import progress

    if "tool" in row:
        return run_tool(row, inputs)
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
        return {"contenders": measure(workers, turns, update)}


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


def run_tool(row, inputs):
    """Runs a row's tool: the row's "times" and the tool's "report"."""
    path = os.path.join(TOOLS, f"{row['tool']}.py")
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "report.json")
        command = [sys.executable, path, f"--output={output}"]
        for name, value in row["flags"](inputs).items():
            values = value if isinstance(value, list) else [value]
            command += [f"--{name}={x}" for x in values]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment(sys.executable),
        )
        if done.returncode:
            raise InputError(f"{row['tool']} failed:\n{done.stderr[-800:]}")
        report = files.read_json(output)
    return {"times": row["times"](report), "report": report}


def machine() -> dict:
    """What decides the figures besides the package."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line for line in file if line.startswith("model name")]
    return {
        "processor": models[0].split(":")[1].strip() if models else "",
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
            cwd=os.path.dirname(os.path.abspath(__file__)),
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
