"""The commands of docs/serving.md run."""

import dataclasses
import re
import shlex

import pytest
from run_script import ROOT, run_script
from served_samples import encoder, preprocessor, spread
from serving_process import call, server

from bert_keras.modeling.task_models import BertClassifier

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    ((?:python|saved_model_cli) .*)$", PAGE, re.M)


def command(part):
    """The only command that holds the part, split as a shell would."""
    (found,) = [c for c in COMMANDS if part in c]
    return shlex.split(found)


def script_of(words):
    if words[1] == "-m":
        return ROOT / (words[2].replace(".", "/") + ".py")
    return ROOT / words[1]


def test_the_limits_are_those_of_the_code():
    limits = pytest.importorskip(
        "bert_keras.serving.server", reason="needs the extra `serve`"
    )
    flags = dataclasses.asdict(limits.Limits())
    for name, limit in flags.items():
        assert re.search(rf"`--{name}`: [^|]* \| {limit:,} \|", PAGE)
    assert f"| {limits.MAX_VALUES:,} |" in PAGE


@pytest.mark.long
def test_the_commands_run(tmp_path, monkeypatch):
    model = spread(BertClassifier(encoder(), labels=["bad", "good"]))
    model.save_preset(tmp_path / "runs" / "yours" / "model", preprocessor())
    (tmp_path / "texts.txt").write_text("an hour well spent\nbad film\n")
    (tmp_path / "dev.csv").write_text("text,label\nan hour,good\nbad,bad\n")

    def run(words, *more):
        done = run_script(*words, *more, folder=tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        return " ".join(done.stdout.split())  # the bar breaks lines

    def ran(part, *more):
        words = command(part)
        rest = words[1:] if words[1] == "-m" else [script_of(words), *words[2:]]
        return run(rest, *more)

    assert "fill_mask" in ran("--output=runs/served_mini")
    assert "answers classify" in ran("yours/model --output=runs/served")
    code = re.search(r"^```python\n(.*?)^```", PAGE, re.M | re.S)[1]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    ran("--output=answers.jsonl")
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2
    ran("--dtype=bfloat16")
    ran("--keep=label")
    assert "'accuracy': [" in ran("tools/compare.py")
    words = command("tools/serve.py")
    with server(tmp_path / "runs" / "served", *words[3:]) as (port, _):
        assert call(port, "GET", "/health")[0] == 200
    cli = ["-m", "tensorflow.python.tools.saved_model_cli"]
    assert "probabilities" in run([*cli, *command("saved_model_cli")[1:]])
