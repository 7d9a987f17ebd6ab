"""Contenders in processes of their own that take turns, one step each."""

import json
import os
import statistics
import subprocess
import sys
import tempfile

import bert_keras
from bert_keras.errors import InputError

HERE = os.path.dirname(os.path.abspath(__file__))


class Contender:
    """One script in one environment, prepared and waiting for its turn.

    Args:
        python: path of the interpreter.
        script: file name beside this one.
        settings: JSON dict that the script takes.
    """

    def __init__(self, python, script, settings):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - close()
        self._process = subprocess.Popen(
            [python, os.path.join(HERE, script), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(python),
            text=True,
        )
        self.script = script
        ready = self._answer()
        self.examples = ready.pop("examples")
        self.told = ready
        self.seconds, self.peak = [], 0.0

    def take_turn(self):
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.seconds.append(answer["seconds"])
        self.peak = answer["peak"]

    def figures(self):
        return {
            "median": statistics.median(self.seconds) / self.examples,
            "least": min(self.seconds) / self.examples,
            "most": max(self.seconds) / self.examples,
            "examples": self.examples,
            "peak_megabytes": round(self.peak),
            **self.told,
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
        said = self._errors.read()[-800:]
        raise InputError(f"{self.script} ended before its turn:\n{said}")


def environment(python):
    """This very Python finds this very package, installed or not."""
    if python != sys.executable:
        return None
    home = os.path.dirname(os.path.dirname(bert_keras.__file__))
    return {**os.environ, "PYTHONPATH": home}


def measured(contenders, turns, told=lambda done: None):
    """Lets them take turns; returns name -> figures.

    Args:
        contenders: dict of name -> `(python, script, settings)`.
        turns: of each.
        told: function of the number of steps taken.

    Returns:
        dict of name -> dict: "median", "least", "most" (seconds an example),
        "examples" of a step,
        "peak_megabytes" of the process, "versions", and what else it told.
    """
    running = {}
    try:
        for name, arguments in contenders.items():
            running[name] = Contender(*arguments)
        for turn in range(turns):
            for contender in running.values():
                contender.take_turn()
            told(turn + 1)
    finally:
        for contender in running.values():
            contender.close()
    return {name: contender.figures() for name, contender in running.items()}
