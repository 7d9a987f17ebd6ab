"""Every command of docs/data.md runs, on toy text."""

import json
import sys

import pytest
from damages import DAMAGES
from data_samples import contents, corpus, toy_tokenizer
from page_commands import commands
from run_script import ROOT, call_script

from bert_keras.data.batches import check_source
from bert_keras.text.vocabulary import write_vocabulary

TEXT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
COMMANDS = commands("docs/data.md")


def output_of(command):
    (output,) = (w for w in command if w.startswith("--output="))
    return output.removeprefix("--output=")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    (folder / "books").mkdir()
    for number, document in enumerate(corpus(40)):
        path = folder / "books" / f"{number}.txt"
        path.write_text("\n".join(document.paragraphs), encoding="utf-8")
    (folder / "runs").mkdir()
    write_vocabulary(toy_tokenizer().vocabulary, folder / "runs" / "vocab.txt")
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=output_of)
def test_a_command_runs(folder, command):
    if any(word.startswith("--beam") for word in command):
        pytest.importorskip(
            "apache_beam", reason="needs pip install 'bert_keras[beam]'"
        )
    more = ["--held_out_share=0.2"]
    if not any(word.startswith("--beam") for word in command):
        more.append("--workers=1")
    if "benchmark" in command[0]:
        more = ["--seconds=0.01"]
    done = call_script(ROOT / command[0], *command[1:], *more, folder=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    output = folder / output_of(command)
    if output.suffix == ".json":
        figures = json.loads(output.read_text())
        assert figures["sequences/s of 128, sampled on the fly"] > 100
        assert "MB/s, text to records of 128" in done.stdout
        return
    check_source(str(output / "tokens" / "train"))
    written = {path.split("/")[0] for path in contents(output)}
    if "--norecords" in command:
        assert written == {"tokens"}
        return
    assert written == {"tokens", "train", "held_out"}
    rules = check_records(output)["rules"]
    assert rules["packed"] == ("--packed" in command)


# In place of the Model Garden's script: takes its flags, "learns" in no time.
ORIGINAL = """
import pathlib
from absl import flags

for name in ("input_file", "output_file", "vocab_file"):
    flags.DEFINE_string(name, None, "")
flags.DEFINE_bool("do_lower_case", True, "")
flags.DEFINE_integer("dupe_factor", 10, "")

def main(_):
    text = pathlib.Path(flags.FLAGS.input_file).read_text()
    assert text.count("\\n\\n") == 40 and flags.FLAGS.dupe_factor == 1
    assert pathlib.Path(flags.FLAGS.vocab_file).exists()
    sum(range(1_000_000))
"""


@pytest.mark.parametrize(
    "python, script, message",
    [
        (sys.executable, ORIGINAL, None),
        (sys.executable, "raise OSError('no disk')", "no disk"),
        ("/nowhere/python", "", "--peer_python does not start"),
    ],
    ids=["times it", "its script fails", "no interpreter"],
)
def test_the_original_is_timed_on_the_same_text(
    folder, tmp_path, monkeypatch, python, script, message
):
    package = tmp_path / "official" / "nlp" / "data"
    package.mkdir(parents=True)
    (package / "create_pretraining_data.py").write_text(script)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = call_script(
        ROOT / "tools/benchmark/data.py",
        "--input=books",
        "--vocabulary=runs/vocab.txt",
        f"--output={tmp_path}/speed.json",
        "--seconds=0.01",
        f"--peer_python={python}",
        folder=folder,
    )
    if message:
        assert done.returncode == 2 and message in done.stderr
        return
    figures = json.loads((tmp_path / "speed.json").read_text())
    ours = figures["MB/s, text to records of 128"]
    original = figures["MB/s, the original's script"]
    assert figures["times the original's"] == ours / original


def check_records(output):
    check_source(str(output / "train"))
    return json.loads((output / "train" / "manifest.json").read_text())


def test_the_page_lists_every_damage_that_is_tested():
    for damage in DAMAGES:
        kind = damage.__doc__.rstrip(".")
        assert f"| {kind[0].lower()}{kind[1:]} |" in TEXT
