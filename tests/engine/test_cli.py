"""Help, flags and filtered TensorFlow messages, shared by all scripts."""

import dataclasses
import math
import os
import re
import signal
import subprocess
import sys
import urllib.error
from fnmatch import fnmatch

import pytest
from absl import flags

from bert_keras import InputError
from official_tasks import cli, loading, options, progress
from tests.support.run_script import ROOT, run_script
from tests.support.script_flags import parse_flags

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
RETRIEVAL = {"text", "queries", "recall_at", "separator"}


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        (["finetune"], {"train", "text", "label"}, {"data_dir", "stride"}),
        (
            ["finetune", "--task=classify"],
            {"text", "label", "drop_unlabelled", "separator"},
            {"stride", "answer", "objective", "label_separator", "classes"},
        ),
        (
            ["finetune", "--task=multilabel"],
            {"text", "label", "label_separator", "classes"},
            {"drop_unlabelled", "problem"},
        ),
        (
            ["finetune", "--task=spans"],
            {"answer", "stride", "train"},
            {"text", "label"},
        ),
        (["finetune", "--task=squad2"], {"stride"}, {"text", "separator"}),
        (["finetune", "--task=GLUE"], {"data_dir"}, {"text", "stride"}),
        (["evaluate", "--task=rank"], RETRIEVAL, {"objective", "stride"}),
        (["evaluate", "--task=mlm"], {"text", "encoding"}, {"train"}),
        (["predict"], {"separator", "input"}, {"train", "stride"}),
    ],
)
def test_help_shows_the_flags_of_the_task(tmp_path, words, shown, hidden):
    script, *words = words
    done = run_script(
        "-m", f"official_tasks.{script}", *words, "--help", folder=tmp_path
    )
    assert f"    bert-keras {script} --task=" in done.stdout
    names = re.findall(r"^  --(?:\[no\])?(\w+):", done.stdout, re.MULTILINE)
    assert len(set(names)) == len(names)
    assert shown | {"task", "output"} <= {*names}
    assert not hidden & {*names}
    _, _, training = done.stdout.partition("\ntraining:\n")
    assert ("--lora_rank" in training) == (script == "finetune")


def test_help_has_groups_and_the_range_of_each_number(tmp_path):
    words = ("-m", "official_tasks.pretrain", "--help")
    _, *parts = re.split(
        r"^(flags|model|data|phase 2|devices):$",
        run_script(*words, folder=tmp_path).stdout,
        flags=re.MULTILINE,
    )
    groups = dict(zip(parts[::2], parts[1::2], strict=True))
    for title, name in {
        "flags": "--steps",
        "model": "--num_layers",
        "data": "--mask_rate",
        "phase 2": "--phase_2_steps",
        "devices": "--tpu",
    }.items():
        assert f"\n  {name}: " in groups[title]
    dropout = groups["model"].partition("--dropout: ")[2].split("\n")
    assert dropout[1:3] == [
        "    (default: '0.1')",
        "    (a number from 0 to below 1)",
    ]


@pytest.mark.parametrize(
    ("more", "inside", "outside"),
    [
        ({"at_least": 0}, [0, 3], [-1, 0.5, math.inf]),
        ({"at_least": 1, "at_most": 3}, [1, 3], [0, 4]),
        ({"more_than": 2}, [3], [2]),
        ({"at_least": 1, "below": 3}, [1, 2], [0, 3]),
    ],
)
def test_flags_and_python_have_the_same_range(more, inside, outside):
    field = ("x", int, options.option(inside[0], "", **more))
    cls = dataclasses.make_dataclass("A", [field], kw_only=True)
    for value in inside:
        options.check(cls(x=value))
        assert parse_flags(cls, [f"--x={value}"]).x == value
    for value in outside:
        with pytest.raises(InputError, match=f"`x` is {value}; expected a who"):
            options.check(cls(x=value))
        with pytest.raises(flags.Error, match="--x=.*: "):
            parse_flags(cls, [f"--x={value}"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task=bert", "--help"], "squad2, "),
        (["--task=custom", "--help"], "--task=custom is now --task=classify, "),
        # The flag went with the name of the task.
        (["--task=custom", "--problem=multi"], "is now --task=classify, multi"),
    ],
)
def test_a_task_that_does_not_exist_leads_to_those_that_do(
    tmp_path, words, message
):
    words = ["-m", "official_tasks.finetune", *words]
    done = run_script(*words, folder=tmp_path)
    assert done.returncode == 2 and message in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_whose_reader_has_ended_ends_without_a_message():
    words = [sys.executable, "-m", "official_tasks.finetune", "--help"]
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    ) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, b"")


def test_scripts_load_tensorflow_after_its_messages_are_filtered():
    names = ", ".join(p.stem for p in ROOT.glob("official_tasks/[a-z]*.py"))
    program = f"import sys\nfrom official_tasks import {names}\n"
    program += "assert not {'keras', 'tensorflow'} & set(sys.modules)"
    done = run_program(program, {**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


# TensorFlow 2.21 writes such lines from C++, not through sys.stderr.
LOADS = r"""
import os
os.write(2, b"I0000 00:00:1 2 port.cc:153] oneDNN custom operations are on. \n")
os.write(2, b"F0000 00:00:1 2 cpu.cc:1] This library needs AVX instructions\n")
os.abort()
"""
USES = """
from official_tasks import cli, loading
loading.DEVICE_FILES = {files}
def main(values):
    import tensorflow as tf
    tf.config.list_physical_devices()
    print("done")
cli.start(main)
"""


def start(path, files, **environment):
    environment = {**os.environ, **environment, "PYTHONPATH": f"{path}:{ROOT}"}
    return run_program(USES.format(files=files), environment)


def run_program(program, environment):
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def no_level(monkeypatch):
    monkeypatch.delenv(LEVEL, raising=False)


def test_a_native_abort_is_seen_and_known_lines_are_not(tmp_path, no_level):
    (tmp_path / "tensorflow.py").write_text(LOADS)
    done = start(tmp_path, [])
    assert done.returncode == -signal.SIGABRT
    assert "needs AVX instructions" in done.stderr
    assert "oneDNN" not in done.stderr
    assert "oneDNN" not in start(tmp_path, [], **{LEVEL: "3"}).stderr
    for files, level in ((["/dev/null"], {}), ([], {LEVEL: "0"})):
        assert "oneDNN" in start(tmp_path, files, **level).stderr


# TensorFlow warns from C++ if a cache is not read to its end.
WARNS = """
from official_tasks import cli, loading
loading.DEVICE_FILES = []
def main(values):
    import tensorflow as tf
    next(iter(tf.data.Dataset.range(9).cache().take(2)))
cli.start(main)
"""


@pytest.mark.long  # imports TensorFlow
def test_a_warning_after_the_start_is_seen(no_level):
    done = run_program(WARNS, {**os.environ, "PYTHONPATH": str(ROOT)})
    assert "cache_dataset_ops" in done.stderr


def test_a_note_says_that_bytecode_is_missing(tmp_path, no_level):
    """Only where Python may not write it: else, it does so at this start."""
    (tmp_path / "tensorflow.py").write_text(
        "class config:\n    def list_physical_devices(): pass\n"
    )
    new = str(tmp_path / "cache" / "of all")
    for variable, prefix, notes in (
        *(("1", "", 1), ("", new, 0), ("1", new, 0)),
        *(("1", "", 1), ("", "", 0), ("1", "", 0)),  # "" writes it
    ):
        variables = {"PYTHONDONTWRITEBYTECODE": variable}
        variables["PYTHONPYCACHEPREFIX"] = prefix
        done = start(tmp_path, [], **variables)
        assert done.stdout == "done\n"
        assert done.stderr.count("note: TensorFlow's bytecode") == notes
        assert done.stderr.count(f"compileall -q {tmp_path.parent}") == notes
        assert done.stderr.count("\n") == notes


USES_KERAS = """
import importlib.util, sys
from official_tasks import cli
{before}
def main(values):
    importlib.util.find_spec("keras")  # does not import it
    import keras, sklearn
    print(keras.wrappers, sklearn.__name__)
cli.start(main)
"""


def test_scikit_learn_is_hidden_from_keras_alone(tmp_path, no_level):
    (tmp_path / "sklearn.py").write_text("")
    (tmp_path / "keras.py").write_text(
        "wrappers = True\n"
        "try:\n    import sklearn\nexcept ImportError:\n    wrappers = False\n"
    )
    paths = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    for before, found in (("", False), ("import sklearn", True)):
        done = run_program(USES_KERAS.format(before=before), paths)
        assert (done.stdout, done.stderr) == (f"{found} sklearn\n", "")


@pytest.mark.release
def test_scripts_start_without_scikit_learn(no_level):
    program = (
        "import sys\nfrom official_tasks import cli\n"
        "def main(values):\n    import keras\n"
        "    print('sklearn' in sys.modules)\n"
        "cli.start(main)\n"
    )
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert run_program(program, paths).stdout == "False\n"


def test_accelerators_of_all_makes_are_known():
    names = ("nvidia0", "dxg", "kfd", "accel0", "accel", "vfio/3")
    for path in (f"/dev/{name}" for name in names):
        assert any(fnmatch(path, known) for known in loading.DEVICE_FILES)


@pytest.mark.release
def test_scripts_start_without_a_line_of_tensorflow(tmp_path, no_level):
    done = start(tmp_path, [])
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.parametrize("name", ["EIO", "ETIMEDOUT"])
def test_an_error_of_a_disk_or_a_network_gives_one_line(name):
    program = (
        "import errno\nfrom official_tasks import cli\n"
        "def main(values):\n"
        f"    raise OSError(errno.{name}, 'no answer', 'gs://bucket/run')\n"
        "cli.start(main)\n"
    )
    done = run_program(program, {**os.environ, "PYTHONPATH": str(ROOT)})
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "gs://bucket/run could not be read or written (no answer)" in line


def test_a_child_runs_this_package_wherever_it_is_called(tmp_path, monkeypatch):
    (tmp_path / "official_tasks").mkdir()
    (tmp_path / "official_tasks/__init__.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    cli.run_module(["official_tasks.progress"])


def test_codes_of_emoji_in_texts_are_printed_as_they_are(capsys):
    progress.console.print("labels: :key: and [bold]")
    assert capsys.readouterr().out == "labels: :key: and [bold]\n"


@pytest.mark.parametrize(
    "words", [("-m",), ("-um",), ("-Pu", "-m"), ("-mofficial_tasks.evaluate",)]
)
def test_options_of_python_may_stand_beside_the_module(words):
    module = () if "." in words[0] else ("official_tasks.evaluate",)
    done = subprocess.run(
        [sys.executable, *words, *module, "--nope"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("evaluate")


def test_a_home_folder_is_expanded_in_paths_only(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    expanded = [
        cli._expand_home(word)
        for word in ("--data=~/a,~/b", "~/c", "--text=a=~/b", "--text=a ~/b")
    ]
    paths = ["--data=/home/me/a,/home/me/b", "/home/me/c"]
    assert expanded == [*paths, "--text=a=~/b", "--text=a ~/b"]


def test_only_errors_of_the_system_are_explained_by_their_path():
    error = urllib.error.HTTPError("https://a.b/c", 404, "Not Found", {}, None)
    assert cli._explain(error) is None
    assert "/c cannot be" in cli._explain(FileNotFoundError(2, "gone", "/c"))
