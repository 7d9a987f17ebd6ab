"""Rows that another tool of this package measures, beside its own peers."""

import os
import subprocess
import sys
import tempfile

from bert_keras.errors import InputError
from bert_keras.files import read_json
from official_tasks.tools.contenders.environments import interpreter
from official_tasks.tools.contenders.turns import environment

TOOLS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def text_flags(inputs):
    return {
        "vocabulary": inputs.needed("vocabulary", "vocabulary"),
        "input": inputs.needed("text", "input"),
    }


def serving_flags(inputs):
    python = interpreter(inputs.environments, "transformers")
    return {"model": inputs.classifier(), "transformers_python": python}


def tokenizing(report):
    rate = "MB a second of processor time"
    rates = {name: row[rate] for name, row in report["tokenizers"].items()}
    ours = rates.pop("WordPieceTokenizer")
    return {name: ours / theirs for name, theirs in rates.items()}


def data(report):
    name = "the original's script"
    return {name: report[f"times {name}"]}


def inference(report):
    """By the processor's time, as the last of a system's figures says."""
    return {
        f"{system}, {case['batch']} x {case['tokens']}": values[-1]
        for case in report
        for system, values in case.items()
        if isinstance(values, list) and system != "savedmodel"
    }


# Row -> title, tool, what makes its flags, how many times as fast as whom its
# report says, and the goal.
TOOL_ROWS = {
    "tokenizing": {
        "title": "tokenizing at equal ids",
        "tool": "benchmark_tokenizer",
        "flags": text_flags,
        "times": tokenizing,
        "goal": 10,
    },
    "data": {
        "title": "text to records, by a core",
        "tool": "benchmark_data",
        "flags": text_flags,
        "times": data,
        "goal": 10,
    },
    "inference": {
        "title": "inference from raw strings",
        "tool": "benchmark_serving",
        "flags": serving_flags,
        "times": inference,
        "goal": 1.5,
    },
}


def run_tool(row, inputs):
    """Runs a row's tool; "times" as fast as whom, and its "report"."""
    path = os.path.join(TOOLS, f"{row['tool']}.py")
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "report.json")
        given = {**row["flags"](inputs), "output": output}
        command = [sys.executable, path]
        command += [f"--{name}={value}" for name, value in given.items()]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment(sys.executable),
        )
        if done.returncode:
            raise InputError(f"{row['tool']} failed:\n{done.stderr[-800:]}")
        report = read_json(output)
    return {"times": row["times"](report), "report": report}
