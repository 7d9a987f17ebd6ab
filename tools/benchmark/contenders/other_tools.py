"""Rows that another tool of this package measures, beside its own peers."""

import os
import subprocess
import sys
import tempfile

from bert_keras.errors import InputError
from bert_keras.files import read_json
from official_tasks.tools.benchmark.contenders.turns import environment

TOOLS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def text_flags(inputs):
    return {
        "vocabulary": inputs.needed("vocabulary", "vocabulary"),
        "input": inputs.needed("text", "input"),
    }


def serving_flags(inputs):
    """One thread: waking another costs a short text more than it helps."""
    sst2 = os.path.join(inputs.needed("data", "data"), "glue/SST-2/dev.tsv")
    return {
        "model": inputs.classifier(),
        "environments": inputs.environments,
        "threads": 1,
        "texts": [f"{sst2}:sentence", f"{inputs.contexts()}:context"],
    }


def tokenizing(report):
    """Beside the one other tokenizer that has the original's ids."""
    rate, rows = "MB a second of processor time", report["tokenizers"]
    ours, theirs = (
        rows[name][rate] for name in ("WordPieceTokenizer", "tokenizers")
    )
    return {"tokenizers": ours / theirs}


def data(report):
    name = "the original's script"
    return {name: report[f"times {name}"]}


def inference(report):
    """By the processor's time, as the last of a system's figures says."""
    found = {}
    for case in report:
        told = case.get("texts") or f"{case['batch']} x {case['tokens']}"
        for peer in ("transformers", "onnxruntime"):
            found[f"{peer}, {told}"] = case[peer][-1]
    return found


# Row -> title, tool, what makes its flags, how many times as fast as whom its
# report says, and the goal, of each peer its own where they differ.
TOOL_ROWS = {
    "tokenizing": {
        "title": "tokenizing at equal ids",
        "tool": "tokenizer",
        "flags": text_flags,
        "times": tokenizing,
        "goal": 10,
    },
    "data": {
        "title": "text to records, by a core",
        "tool": "data",
        "flags": text_flags,
        "times": data,
        "goal": 10,
    },
    "inference": {
        "title": "inference from raw strings",
        "tool": "serving",
        "flags": serving_flags,
        "times": inference,
        "goal": {"transformers": 1.5, "onnxruntime": 1.0},
    },
}


def run_tool(row, inputs):
    """Runs a row's tool; "times" as fast as whom, and its "report"."""
    path = os.path.join(TOOLS, f"{row['tool']}.py")
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "report.json")
        given = {**row["flags"](inputs), "output": output}
        command = [sys.executable, path]
        for name, value in given.items():
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
        report = read_json(output)
    return {"times": row["times"](report), "report": report}
