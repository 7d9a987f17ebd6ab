"""The whole job, script by script, on toy text; and what mistakes get."""

import csv
import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf
from page_commands import small_commands
from run_script import ROOT, run_script

import bert_keras
from bert_keras.training.numerics import choose_dtype

SUBJECTS = {
    "sea": "The ship sailed over the waves while {} sang about the harbour.",
    "hill": "A goat climbed the rocks where {} had built a small stone hut.",
}
NAMES = "Ada Ben Cleo Dora Emil Fay Gus Hana Ivo Jana Karl Lena".split()


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Text files of two subjects, and a CSV of their sentences."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "books").mkdir()
    rows = [("text", "label")]
    for number in range(24):
        subject = sorted(SUBJECTS)[number % 2]
        lines = [
            SUBJECTS[subject].format(f"{a} and {b}")
            for a in NAMES[number % 5 :: 2]
            for b in NAMES[number % 3 :: 3]
        ]
        path = folder / "books" / f"{number}.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        rows += [(line, subject) for line in lines[:5]]
    with open(folder / "yours.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


# Appended to the README's commands, so that they take seconds.
SMALLER = {
    "train_vocabulary": "--size=120",
    "create_pretraining_data": "--held_out_share=0.3 --sequence_length=32 "
    "--max_predictions=5 --workers=1",
    "pretrain": "--num_layers=1 --hidden_dim=32 --num_heads=2 "
    "--sequence_length=32 --max_predictions=5 --batch_size=8 --steps=20 "
    "--evaluations=2",
    "finetune": "--epochs=12 --batch_size=16 --learning_rate=2e-3 "
    "--sequence_length=32 --dtype=auto",
    "export": "",
    "predict": "",
    "convert_checkpoint": "",
}


def readme_commands():
    """Script name -> words of its command in the README's step by step."""
    return dict(small_commands("README.md", SMALLER))


@pytest.fixture(scope="module")
def job(toy):
    """The folder after the README's commands, made smaller."""
    commands = readme_commands()
    assert list(commands) == list(SMALLER)
    for command in commands.values():
        done = run_script(*command, folder=toy)
        assert done.returncode == 0, done.stderr[-3000:]
    return toy / "runs"


def test_the_job_ends_in_a_saved_model_that_reads_raw_text(job):
    results = json.loads((job / "yours" / "results.json").read_text())
    assert results["accuracy"] > 0.9  # the subjects share no word
    served = bert_keras.load_saved_model(job / "served")
    answer = served.classify([SUBJECTS["sea"].format("Zoe"), "goat rocks"])
    assert answer["label"] == ["sea", "hill"]
    guesses = served.fill_mask(["The ship [MASK] over the waves."])
    assert guesses["count"].tolist() == [1]
    assert len(guesses["pieces"][0][0]) == 5


def test_the_exported_model_equals_the_one_that_was_trained(job):
    preset = job / "yours" / "model"
    model = bert_keras.BertClassifier.from_preset(preset)
    preprocess = bert_keras.BertPreprocessor.from_preset(preset)
    texts = ["A goat climbed the ship.", "Ada sang."]
    logits = model.predict(preprocess(texts), verbose=0)
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    served = bert_keras.load_saved_model(job / "served")
    np.testing.assert_allclose(
        served.classify(texts)["probabilities"],
        shifted / shifted.sum(-1, keepdims=True),
        atol=1e-5,
    )


def test_a_converted_model_keeps_its_head_and_its_labels(job):
    config = json.loads((job / "huggingface" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "hill", "1": "sea"}


def test_auto_is_noted_as_what_it_became(job):
    """So that a run on another kind of processor is not gone on with."""
    for name in ("pretrain", "yours"):
        settings = json.loads((job / name / "run.json").read_text())
        assert choose_dtype() in json.dumps(settings)
        assert '"auto"' not in json.dumps(settings)


def test_the_curves_and_figures_of_pre_training_are_written(job):
    results = json.loads((job / "pretrain" / "results.json").read_text())
    assert [line["step"] for line in results["curve"]] == [10, 20]
    lines = (job / "pretrain" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == results["curve"]
    assert results["mlm_accuracy"] == results["curve"][-1]["val_mlm_accuracy"]
    assert list((job / "pretrain" / "logs").rglob("events.out*"))


def test_a_finished_run_is_not_trained_again_and_other_settings_are_refused(
    job,
):
    command = readme_commands()["finetune"]
    weights = job / "yours" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert run_script(*command, folder=job.parent).returncode == 0
    assert weights.stat().st_mtime_ns == before
    done = run_script(*command, "--epochs=13", "--seed=1", folder=job.parent)
    assert done.returncode == 2
    assert "epochs was 12.0 and is now 13.0" in done.stderr
    assert "seed was 0 and is now 1" in done.stderr
    assert "Traceback" not in done.stderr


SAYS_ITS_PATHS = """
from absl import flags
from official_tasks import script

def define_flags():
    flags.DEFINE_string("output", "~/runs", "")
    flags.DEFINE_list("inputs", [], "")

script.start(
    lambda values: print(values.output, *values.inputs), define_flags, False
)
"""


def test_a_path_below_the_home_folder_is_found_there(tmp_path):
    (tmp_path / "says.py").write_text(SAYS_ITS_PATHS)
    home = os.path.expanduser("~")
    for words, expected in (
        (["--output=~/a b"], [f"{home}/a b"]),
        (["--inputs=~/a,b,~c"], [f"{home}/runs", f"{home}/a", "b", "~c"]),
    ):
        done = run_script("says.py", *words, folder=tmp_path)
        assert done.stdout.strip() == " ".join(expected), done.stderr


MISTAKES = {
    "no such file": (
        "tools/train_vocabulary.py --input=none.txt --output=v.txt",
        "No text found at 'none.txt'",
    ),
    "a folder in the place of a file": (
        "tools/train_vocabulary.py --input=books --output=runs",
        "runs is a folder. Name the file to write.",
    ),
    "an input beside a task's own files": (
        "-m official_tasks.predict --task=sst2 --model=m --output=o "
        "--input=in.txt",
        "own files; --input would change nothing. Leave that out.",
    ),
    "a name that is no part of an address": (
        "tools/serve.py --model=none --name=a/b",
        "letters, digits, . _ -",
    ),
    "an empty corpus": (
        "tools/train_vocabulary.py --input=empty.txt --output=v.txt",
        "holds no text",
    ),
    "bytes that are not UTF-8": (
        "tools/train_vocabulary.py --input=latin.txt --output=v.txt",
        "latin.txt",
    ),
    "a single document": (
        "tools/create_pretraining_data.py --input=books/0.txt "
        "--vocabulary=runs/vocab.txt --output=out",
        "at least two documents",
    ),
    "a vocabulary without [CLS]": (
        "tools/create_pretraining_data.py --input=books "
        "--vocabulary=no_cls.txt --output=out",
        "[CLS]",
    ),
    "a sequence length under 8": (
        "tools/create_pretraining_data.py --input=books "
        "--vocabulary=runs/vocab.txt --output=out --sequence_length=7",
        "at least 8",
    ),
    "a sequence length above the model's": (
        "-m official_tasks.finetune --train=yours.csv "
        "--init=runs/pretrain/model --output=out --sequence_length=513",
        "512 positions",
    ),
    "an output folder that is not writable": (
        "-m official_tasks.finetune --train=yours.csv "
        "--init=runs/pretrain/model --output=yours.csv/out",
        "cannot be made",
    ),
    "no copy of the text": (
        "tools/create_pretraining_data.py --input=books "
        "--vocabulary=runs/vocab.txt --output=out --copies=0",
        "--copies=0",
    ),
    "a seed below 0": (
        "-m official_tasks.finetune --train=yours.csv "
        "--init=runs/pretrain/model --output=out --seed=-1",
        "--seed=-1",
    ),
    "a folder in place of a file": (
        "tools/extract_features.py --input=books --model=runs/pretrain/model "
        "--output=out.npz",
        "books cannot be written or read: Is a directory",
    ),
    "a split that no task has": (
        "-m official_tasks.evaluate --task=custom --dev=yours.csv "
        "--model=books --split=tset",
        "train|dev|test",
    ),
    "no pre-training data": (
        "-m official_tasks.pretrain --data=books --output=out",
        "holds no pre-training data",
    ),
    "a folder that is no model": (
        "tools/export.py --model=books --output=out",
        "books",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_plain_message_and_leaves_nothing(mistake, job):
    folder = job.parent
    (folder / "empty.txt").write_text("")
    (folder / "latin.txt").write_bytes(b"caf\xe9 au lait\n")
    pieces = (job / "vocab.txt").read_text(encoding="utf-8")
    (folder / "no_cls.txt").write_text(
        pieces.replace("[CLS]\n", ""), encoding="utf-8"
    )
    before = set(folder.rglob("*"))
    command, message = MISTAKES[mistake]
    words = command.split()
    if words[0].startswith("tools/"):
        words[0] = ROOT / words[0]
    done = run_script(*words, folder=folder)
    assert done.returncode == 2, done.stderr[-2000:]
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert set(folder.rglob("*")) == before


def test_the_ten_lines_of_the_readme_run(job, tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.search(r"```python\n(import bert_keras.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    sentences = [SUBJECTS[name].format(n) for n in NAMES for name in SUBJECTS]
    data = tf.data.Dataset.from_tensor_slices((sentences, [1, 0] * len(NAMES)))
    names = {
        "preset": str(job / "pretrain" / "model"),
        "dataset": data.batch(8),
        "steps": 3,
    }
    exec(lines[1], names)
    served = bert_keras.load_saved_model("served")
    answer = served.classify(["An hour well spent."])
    assert answer["label"][0] in ("negative", "positive")
    live = names["model"].predict(
        names["preprocess"](["An hour well spent."]), verbose=0
    )
    assert answer["label_index"][0] == live.argmax()
