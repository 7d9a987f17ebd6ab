"""The README's scripts in order on toy text, and their error messages."""

import csv
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import bert_keras
from bert_keras.files import remove
from bert_keras.text.vocabulary import write_vocabulary
from bert_keras.training.strategy import choose_dtype
from tests.support.data_samples import corpus, toy_tokenizer
from tests.support.numpy_bert import softmax
from tests.support.page_commands import small_commands
from tests.support.run_script import ROOT, call_script, run_script

pytestmark = pytest.mark.heavy

SUBJECTS = {
    "sea": "The ship sailed over the waves while {} sang about the harbour.",
    "hill": "A goat climbed the rocks where {} had built a small stone hut.",
}
NAMES = "Ada Ben Cleo Dora Emil Fay Gus Hana Ivo Jana Karl Lena".split()


def write_toy(folder):
    """Write text files on two subjects, and two CSV files of sentences."""
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
    for name in ("yours.csv", "new.csv"):
        with open(folder / name, "w", newline="") as file:
            csv.writer(file).writerows(rows)


# Script -> flags appended to its README command, so that it takes seconds.
SMALLER = {
    "train_vocabulary": "--vocabulary_size=120 --workers=1",
    "create_pretraining_data": "--held_out_share=0.3 --workers=1",
    "pretrain": "--num_layers=1 --hidden_dim=32 --num_heads=2 "
    "--sequence_length=32 --max_predictions=5 --batch_size=8 --steps=20 "
    "--evaluations=2",
    "finetune": "--init=runs/pretrain/model --epochs=12 --batch_size=16 "
    "--learning_rate=2e-3 --sequence_length=32 --nopad_to_longest "
    "--dtype=auto",
    "evaluate": "",
    "export": "--model=runs/yours/model,runs/pretrain/model",
    "predict": "",
    "serve": "",
}
CONVERT = "tools/convert_checkpoint.py --source=runs/yours"
CONVERT += " --output=runs/huggingface"


def readme_commands():
    """Return script name -> words of its README command at toy size."""
    return dict(small_commands("README.md", SMALLER))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The `runs` folder after the README's commands at toy size."""
    folder = tmp_path_factory.mktemp("job")
    write_toy(folder)
    commands = readme_commands()
    assert commands.keys() == SMALLER.keys()
    # Keep the order of `SMALLER`: `finetune` needs the model of `pretrain`.
    # `serve` does not end.
    job = [commands[name] for name in SMALLER if name != "serve"]
    script, *words = CONVERT.split()
    for command in [*job, [ROOT / script, *words]]:
        done = call_script(*command, folder=folder)
        assert done.returncode == 0, done.stderr[-3000:]
    return folder / "runs"


def test_the_job_ends_in_a_saved_model_that_reads_raw_text(job):
    results = json.loads((job / "yours" / "results.json").read_text())
    assert results["accuracy"] > 0.9  # the classes share some words
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
    served = bert_keras.load_saved_model(job / "served")
    np.testing.assert_allclose(
        served.classify(texts)["probabilities"],
        softmax(logits),
        atol=1e-5,
    )


def test_a_converted_model_keeps_its_head_and_its_labels(job):
    config = json.loads((job / "huggingface" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "hill", "1": "sea"}


def test_auto_is_noted_as_what_it_became(job):
    """A recorded "auto" could give another dtype on another machine."""
    for name in ("pretrain", "yours"):
        settings = json.loads((job / name / "run.json").read_text())
        assert choose_dtype() in json.dumps(settings)
        assert '"auto"' not in json.dumps(settings)


def test_the_curves_and_figures_of_pre_training_are_written(job):
    results = json.loads((job / "pretrain" / "results.json").read_text())
    assert [line["step"] for line in results["curve"]] == [10, 20]
    lines = (job / "pretrain" / "metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in lines]
    assert logged == results["curve"]
    assert results["mlm_accuracy"] == results["curve"][-1]["val_mlm_accuracy"]
    assert list((job / "pretrain" / "logs").rglob("events.out*"))


def test_a_finished_run_is_not_trained_again_and_other_settings_are_refused(
    job,
):
    command = readme_commands()["finetune"]
    weights = job / "yours" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    # In a new process, as a user starts the training script.
    assert run_script(*command, folder=job.parent).returncode == 0
    assert weights.stat().st_mtime_ns == before
    done = call_script(*command, "--epochs=13", "--seed=1", folder=job.parent)
    assert done.returncode == 2
    assert "epochs was 12.0 and is now 13.0" in done.stderr
    assert "seed was 0 and is now 1" in done.stderr
    assert "Traceback" not in done.stderr


def test_by_default_two_of_few_documents_are_held_out(tmp_path):
    (tmp_path / "books").mkdir()
    for number, document in enumerate(corpus(6)):
        text = "\n".join(document.paragraphs)
        (tmp_path / "books" / f"{number}.txt").write_text(text)
    (tmp_path / "books" / "list.csv").write_text("title\nA book\n")
    write_vocabulary(toy_tokenizer().vocabulary, tmp_path / "vocab.txt")
    done = call_script(
        *(ROOT / "tools/create_pretraining_data.py", "--input=books"),
        *("--vocabulary=vocab.txt", "--output=data"),
        "--workers=1",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    store = tmp_path / "data" / "tokens" / "held_out" / "store.json"
    assert json.loads(store.read_text())["documents"] >= 2
    assert os.listdir(tmp_path / "data" / "tokens") and not (
        {"train", "held_out"} & {*os.listdir(tmp_path / "data")}
    )
    assert "--held_out_share=" in done.stdout + done.stderr
    assert "books: 1 file is not read" in done.stdout + done.stderr
    assert "list.csv" in done.stdout + done.stderr


SAYS_ITS_PATHS = """
import dataclasses
from official_tasks import cli
from official_tasks.options import option

@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    output: str = option("", "")
    inputs: tuple[str, ...] = option((), "")

cli.start(lambda values: print(values.output, *values.inputs), Options)
"""


def test_a_path_below_the_home_folder_is_found_there(tmp_path):
    (tmp_path / "says.py").write_text(SAYS_ITS_PATHS)
    (tmp_path / "flags.txt").write_text("--output=~/e")
    home = os.path.expanduser("~")
    for words, expected in (
        (["--output=~/a b"], [f"{home}/a b"]),
        (["--output", "~/a"], [f"{home}/a"]),
        (["--inputs=~/a,b,~c,~/d"], [f"{home}/a", "b", "~c", f"{home}/d"]),
        (["--flagfile=flags.txt"], [f"{home}/e"]),
    ):
        done = call_script("says.py", *words, folder=tmp_path)
        assert done.stdout.strip() == " ".join(expected), done.stderr


MISTAKES = {
    "no such file": (
        "tools/train_vocabulary.py --input=none.txt --output=v.txt",
        "No text found at 'none.txt'",
    ),
    "an output file that is a folder": (
        "tools/train_vocabulary.py --input=books --output=runs",
        "runs is a folder. Name the file to write.",
    ),
    "a name that is no part of an address": (
        "tools/serve.py --model=none --name=a/b",
        "letters, digits, . _ -",
    ),
    "a vocabulary that is there": (
        "tools/train_vocabulary.py --input=books --output=runs/vocab.txt",
        "runs/vocab.txt exists. Name another one, or add --over",
    ),
    "a vocabulary of next to nothing": (
        "tools/train_vocabulary.py --input=books --output=v.txt "
        "--vocabulary_size=10",
        "of the words are [UNK]",
    ),
    "a model that is there": (
        "tools/convert_checkpoint.py --source=runs/yours/model "
        "--output=runs/pretrain/model",
        "runs/pretrain/model exists",
    ),
    "scores of another model": (
        "-m official_tasks.evaluate --task=classify --dev=yours.csv "
        "--model=runs/yours --output=runs/yours",
        "runs/yours/results.json exists, with other content",
    ),
    "predictions of another model": (
        "-m official_tasks.predict --task=classify --dev=yours.csv --split=dev "
        "--model=runs/yours --output=runs/yours/predictions",
        "predictions.csv exists, with other content",
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
        "--vocabulary=runs/vocab.txt --output=out --records "
        "--sequence_length=7",
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
    "an output folder that would be read": (
        "tools/create_pretraining_data.py --input=books "
        "--vocabulary=runs/vocab.txt --output=books/data",
        "is in the folder books",
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
    "an input file that is a folder": (
        "tools/extract_features.py --input=books --model=runs/pretrain/model "
        "--output=out.npz",
        "books cannot be written or read: Is a directory",
    ),
    "an ending that no format has": (
        "tools/extract_features.py --input=yours.csv --model=none "
        "--output=out.json",
        ".npz",
    ),
    "no text, and no weights": (
        "tools/extract_features.py --input=absent.txt --model=none "
        "--output=out.npz",
        "absent.txt",
    ),
    "a split that no task has": (
        "-m official_tasks.evaluate --task=classify --dev=yours.csv "
        "--model=books --split=tset",
        "train|dev|test",
    ),
    "no weights": (
        "-m official_tasks.finetune --train=yours.csv --output=out",
        ": --init is missing (see --help)",
    ),
    "no task and no run": (
        "-m official_tasks.evaluate --dev=yours.csv --model=none",
        "none has no run settings",
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


def words_of(command):
    words = command.split()
    return [ROOT / words[0], *words[1:]] if words[0] != "-m" else words


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
    done = call_script(*words_of(command), folder=folder)
    assert done.returncode == 2, done.stderr[-2000:]
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert set(folder.rglob("*")) == before


# Name -> (command, size limit of its files in bytes).
ON_A_FULL_DISK = {
    "data": (
        "tools/create_pretraining_data.py --input=books --output=full "
        "--vocabulary=runs/vocab.txt --records --sequence_length=32 "
        "--workers=1 --held_out_share=0.2",
        8_000,
    ),
    "data with two processes": (
        "tools/create_pretraining_data.py --input=books --output=full "
        "--vocabulary=runs/vocab.txt --records --sequence_length=32 "
        "--workers=2 --held_out_share=0.2",
        8_000,
    ),
    "pretrain": (
        "-m official_tasks.pretrain --data=runs/data --output=full --steps=4 "
        "--num_layers=1 --hidden_dim=32 --sequence_length=32 --batch_size=8 "
        "--evaluations=1 --evaluation_steps=1",
        20_000,
    ),
    "finetune": (
        "-m official_tasks.finetune --train=yours.csv --output=full "
        "--init=runs/pretrain/model --epochs=0.1 --sequence_length=32",
        20_000,
    ),
    "export": (
        "tools/export.py --model=runs/yours/model --output=full",
        20_000,
    ),
    "predict": (
        "-m official_tasks.predict --model=runs/served --signature=classify "
        "--input=yours.csv --columns=text --output=full.jsonl",
        5_000,
    ),
    "convert": (
        "tools/convert_checkpoint.py --source=runs/yours/model --output=full",
        20_000,
    ),
}


# Each command would write over one of its inputs, or into it.
OUTPUT_IS_INPUT = (
    """
tools/train_vocabulary.py --input=yours.csv --output=yours.csv --overwrite
tools/train_vocabulary.py --input=*.csv --output=yours.csv --overwrite
tools/train_vocabulary.py --input=books --output=books/0.txt --overwrite
tools/extend_vocabulary.py --vocabulary=runs/vocab.txt --input=books
    --output=runs/vocab.txt --overwrite
tools/create_pretraining_data.py --input=books --output=books
    --vocabulary=runs/vocab.txt
tools/extract_features.py --input=lines.npz --output=lines.npz --overwrite
    --model=runs/pretrain/model
tools/export.py --model=runs/yours/model --output=runs/yours/model
tools/convert_checkpoint.py --source=runs/huggingface
    --output=runs/huggingface --overwrite
tools/publish.py --model=runs/yours/model --output=runs/yours/model
    --repo_id=o/m --overwrite
-m official_tasks.pretrain --data=runs/data --output=runs/data
-m official_tasks.pretrain --data=runs/data --init=runs/yours/model
    --output=runs/yours/model
-m official_tasks.finetune --train=yours.csv --init=runs/pretrain/model
    --output=runs/pretrain/model
-m official_tasks.predict --model=runs/served --input=new.csv --columns=text
    --signature=classify --output=new.csv --overwrite
-m official_tasks.predict --model=runs/served --input=new.csv --columns=text
    --signature=classify --output=runs/served/card.json --overwrite
-m official_tasks.predict --task=classify --dev=own/predictions.csv --split=dev
    --model=runs/yours --output=own --overwrite
-m official_tasks.evaluate --task=classify --dev=own/predictions.csv
    --model=runs/yours --output=own --overwrite
-m official_tasks.evaluate --task=mlm --input=own/results.json
    --model=runs/pretrain/model --output=own --overwrite
""".strip()
    .replace("\n    ", " ")
    .splitlines()
)


@pytest.mark.parametrize("command", OUTPUT_IS_INPUT)
def test_an_output_that_is_an_input_is_refused_and_stays(command, job):
    folder = job.parent
    (folder / "lines.npz").write_text("The ship sailed.\n")
    (folder / "own").mkdir(exist_ok=True)
    for name in ("predictions.csv", "results.json"):
        (folder / "own" / name).write_bytes((folder / "yours.csv").read_bytes())
    before = read_tree(folder)
    done = call_script(*words_of(command), folder=folder)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert read_tree(folder) == before


def read_tree(folder):
    """Return path -> bytes of every file below a folder."""
    return {
        path: path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("data", "convert")
        else pytest.param(name, marks=pytest.mark.long)
        for name in ON_A_FULL_DISK
    ],
)
def test_a_full_disk_gets_one_sentence_and_costs_nothing(name, job):
    command, fits = ON_A_FULL_DISK[name]
    words = words_of(command)
    done = run_script(*words, folder=job.parent, largest_file=fits)
    assert done.returncode == 2, done.stderr[-2000:]
    sizes = (
        r"(it needs N bytes|N bytes of it were written), and N bytes are free"
    )
    expected = rf"full\S* could not be written \(File too large: {sizes}\)"
    assert re.search(expected.replace("N", r"[\d,]+"), done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert "could not be written" in lines[-1]
    again = call_script(*words, folder=job.parent)
    assert again.returncode == 0, again.stderr[-2000:]
    if name == "predict":
        lines = (job.parent / "full.jsonl").read_text().splitlines()
        assert [json.loads(line)["row"] for line in lines] == list(range(120))
        remove(job.parent / "full.jsonl")
    remove(job.parent / "full")


OUTPUTS = {"predict": "full.jsonl"}


def start_process(name, folder):
    """Start a command of `ON_A_FULL_DISK` in a new process."""
    return subprocess.Popen(
        [sys.executable, *words_of(ON_A_FULL_DISK[name][0])],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# These files hold times or the names of processes.
NOT_COMPARED = {".lock", "metrics.jsonl", "pretrain.json"}
NOT_COMPARED |= {"report.html", "results.json"}
# These hold random numbers, or the operations of a graph in any order.
NOT_COMPARED |= {"fingerprint.pb", "signature_card.json", "saved_model.pb"}


def lasting_files(output):
    """Return path -> bytes of the files that are equal in each run.

    Of the checkpoints, only weights and optimizer of the last are included: a
    stopped run has one more checkpoint, and Keras gives the metrics of a
    resumed run other names. If `output` is a file, return its bytes.
    """
    found = read_tree(output) if output.is_dir() else {}
    last = max(output.glob("state/*"), default=None)
    return {
        path.relative_to(output): content
        for path, content in found.items()
        if path.name not in NOT_COMPARED
        and path.parent.parent.name != "logs"
        and (
            path.parent.parent.name != "state"
            or path.parent == last
            and path.name in ("model.safetensors", "optimizer.safetensors")
        )
    } or output.read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(job):
    """Function: name in `ON_A_FULL_DISK` -> `lasting_files` of a whole run."""
    kept = {}

    def files_of(name):
        if name not in kept:
            folder = job.parent
            output = folder / OUTPUTS.get(name, "full")
            # A script sets environment variables that TensorFlow reads only
            # on import, so the script needs a new process.
            process = start_process(name, folder)
            _, errors = process.communicate(timeout=200)
            assert process.returncode == 0, errors[-2000:]
            kept[name] = lasting_files(output)
            remove(output)
        return kept[name]

    return files_of


@pytest.mark.long
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("name", ON_A_FULL_DISK)
def test_a_script_that_is_stopped_at_any_moment_ends_with_the_same_bytes(
    name, number, job, uninterrupted
):
    folder = job.parent
    output = folder / OUTPUTS.get(name, "full")
    expected = uninterrupted(name)
    seed = random.SystemRandom().randrange(1000)
    moments = random.Random(seed).sample(range(1000, 9000), 5)
    for milliseconds in (50, *sorted(moments)):
        process = start_process(name, folder)
        time.sleep(milliseconds / 1000)
        process.send_signal(signal.Signals[number])
        _, errors = process.communicate(timeout=60)
        code = process.returncode
        if milliseconds == 50:  # Python does not handle signals yet
            assert code in (1, 75, -signal.Signals[number]), errors[-2000:]
            continue
        assert "Traceback" not in errors, (seed, errors[-2000:])
        if code == 75:
            assert "Stopped" in errors
        else:
            assert code in (0, -signal.SIGKILL), (seed, errors[-2000:])
        if code == 0:
            assert lasting_files(output) == expected, seed
            remove(output)
    again = start_process(name, folder)
    _, errors = again.communicate(timeout=200)
    assert again.returncode == 0, (seed, errors[-2000:])
    assert lasting_files(output) == expected, seed
    assert not list(folder.glob(".full*partial*"))
    remove(output)


@pytest.mark.long
@pytest.mark.parametrize("name", ON_A_FULL_DISK)
def test_of_two_writers_one_writes_all_and_the_other_is_refused(name, job):
    folder = job.parent
    output = folder / OUTPUTS.get(name, "full")
    ended = [
        (process, process.communicate(timeout=120)[1])
        for process in [start_process(name, folder) for _ in range(2)]
    ]
    codes = sorted(process.returncode for process, _ in ended)
    assert codes in ([0, 0], [0, 2]), ended
    assert not any("Traceback" in errors for _, errors in ended), ended
    assert not list(folder.glob(".full*partial*"))
    if name == "predict":
        lines = output.read_text().splitlines()
        assert [json.loads(line)["row"] for line in lines] == list(range(120))
    before = lasting_files(output)
    again = call_script(*words_of(ON_A_FULL_DISK[name][0]), folder=folder)
    # A refusal is one line that names the output.
    is_refused = again.returncode == 2 and re.fullmatch(
        rf".*\b{output.name}\b.*\n", again.stderr
    )
    assert again.returncode == 0 or is_refused, again.stderr[-2000:]
    assert lasting_files(output) == before
    remove(output)


@pytest.mark.long
def test_a_full_pipe_gets_one_sentence(job):
    command = (
        f"{sys.executable} -m official_tasks.predict --model=runs/served "
        "--signature=classify --input=yours.csv --columns=text > /dev/full"
    )
    done = subprocess.run(
        command,
        shell=True,
        cwd=job.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr[-2000:]
    assert "No space left on device" in done.stderr
    assert "Exception" not in done.stderr


FINETUNE = "official_tasks.finetune --init=m --output=o"
PRETRAIN = "official_tasks.pretrain --data=d --output=o"
DATA = "tools.create_pretraining_data --input=i --vocabulary=v"
DATA += " --output=o"
EXPORT = "tools.export --model=m --output=o"
PREDICT = "official_tasks.predict --model=m --output=o"
# (command, other flags, flag that has no effect with them)
WITHOUT_EFFECT = [
    (FINETUNE, "", "--tpu=mine"),
    (FINETUNE, "--distribution=mirrored", "--tpu=mine"),
    (FINETUNE, "--distribution=auto", "--tpu=mine"),
    (FINETUNE, "--task=ner", "--lstm_dim=8"),
    (FINETUNE, "--train=t.csv --dev=d.csv", "--split_seed=3"),
    (FINETUNE, "--task=squad2", "--null_odds=null_odds.json"),
    (PRETRAIN, "", "--tpu=mine"),
    (PRETRAIN, "--phase_2_steps=0", "--phase_2_sequence_length=64"),
    (PRETRAIN, "--records", "--phase_2_batch_size=64"),
    (PRETRAIN, "--records --phase_2_steps=0", "--phase_2_data=x"),
    (PRETRAIN, "--steps=9", "--phase_2_max_predictions=9"),
    (PRETRAIN, "--steps=9 --phase_2_steps=9", "--sequence_length=64"),
    (PRETRAIN, "--objectives=left_to_right", "--mask_rate=0.2"),
    (PRETRAIN, "--objectives=right_to_left", "--whole_word"),
    (PRETRAIN, "--optimizer=lamb", "--bias_correction"),
    (DATA, "", "--copies=2"),
    (DATA, "", "--mask_mix=70,20,10"),
    (DATA, "", "--seed=1"),
    (DATA, "--beam=", "--workers=77"),
    (EXPORT, "--format=onnx", "--pair"),
    (EXPORT, "--format=onnx", "--noverify"),
    (PREDICT, "--task=sst2", "--input=in.txt"),
    (PREDICT, "--task=sst2", "--batch_size=8"),
    (PREDICT, "--input=in.csv", "--split=dev"),
    (PREDICT, "--data_dir=glue", "--input=in.csv"),
    (PREDICT, "--input=in.txt", "--columns=review"),
    ("tools.publish --model=m --repo_id=o/m", "--output=o", "--private"),
    ("tools.publish --model=m --repo_id=o/m", "", "--overwrite"),
]


@pytest.mark.parametrize(("command", "given", "flag"), WITHOUT_EFFECT)
def test_a_flag_that_cannot_act_is_refused(command, given, flag, tmp_path):
    words = ["-m", *command.split(), *given.split(), flag]
    done = call_script(*words, folder=tmp_path)
    assert done.returncode == 2, done.stderr[-2000:]
    name = flag.split("=")[0]
    assert f": {name} only applies " in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_no_script_imports_from_the_folder_of_scripts():
    """A script's `sys.path` has its own folder, not the parent of `tools`.

    The tests' `sys.path` has both, so `import tools` fails only in scripts.
    """
    scripts = sorted(pathlib.Path(ROOT, "tools").rglob("*.py"))
    assert len(scripts) > 20
    pattern = re.compile(r"^\s*(from|import) tools\b", re.MULTILINE)
    assert [s for s in scripts if pattern.search(s.read_text())] == []
