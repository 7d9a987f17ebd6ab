"""The wheel, setup.cfg, and scripts that start without TensorFlow."""

import ast
import configparser
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import bert_keras
from official_tasks import cli
from tests.support.run_script import ROOT, call_script

pytestmark = pytest.mark.heavy

SCRIPTS = sorted(
    path.relative_to(ROOT)
    for folder in ("official_tasks", "tools")
    for path in (ROOT / folder).glob("*.py")
    if "\n    cli.start(main" in path.read_text(encoding="utf-8")
)


@pytest.fixture
def config():
    """The parsed setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Folder of the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    # Build from a copy: setuptools would also pack old files in ROOT/build.
    source = folder / "source"
    source.mkdir()
    for name in ("bert_keras", "official_tasks", "tools"):
        shutil.copytree(ROOT / name, source / name)
    for path in (*ROOT.glob("*.md"), *ROOT.glob("setup.*"), *ROOT.glob("LIC*")):
        shutil.copy(path, source)
    shutil.copy(ROOT / "pyproject.toml", source)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", source]
        + ["--no-build-isolation", "-w", folder],
        check=True,
    )
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def run(arguments, folder, path):
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.release
def test_the_wheel_holds_two_packages_and_every_module(wheel):
    top = {path.name for path in wheel.iterdir() if path.suffix != ".dist-info"}
    assert top == {"bert_keras", "official_tasks"}
    expected = {
        path.relative_to(ROOT)
        for folder in ("bert_keras", "official_tasks")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".npz", ".json", ".html", ".typed")
        or (path.is_file() and "packaged" in path.parts)
    } | {
        Path("official_tasks") / path.relative_to(ROOT)
        for path in (ROOT / "tools").glob("*")
        if path.suffix in (".py", ".json")
    }
    found = {
        path.relative_to(wheel)
        for top in ("bert_keras", "official_tasks")
        for path in (wheel / top).rglob("*")
        if path.is_file()
    }
    assert found == expected


def test_import_changes_nothing_in_the_process(tmp_path):
    code = "import gc, os, signal, sys\n"
    code += "def state():\n    return dict(os.environ), gc.collect, "
    code += "signal.getsignal(2), [k for k, v in sys.modules.items() if not v]"
    code += "\nbefore = state(); import bert_keras; print(state() == before)"
    assert run(["-c", code], tmp_path, ROOT).stdout == "True\n"


def test_setup_cfg_names_every_package(config):
    named = set(config["options"]["packages"].split())
    assert named == {
        ".".join(path.parent.relative_to(ROOT).parts)
        for folder in ("bert_keras", "official_tasks")
        for path in (ROOT / folder).rglob("__init__.py")
    } | {"official_tasks.tools"}


def test_every_dependency_has_a_lower_and_an_upper_bound(config):
    extras = config["options.extras_require"].values()
    lines = "\n".join([config["options"]["install_requires"], *extras])
    named = [line for line in lines.split("\n") if line.strip("# ")]
    assert len(named) > 30
    for line in named:
        bounded = re.search(r">=[\d.]+,<[\d.]+(,!=[\d.]+)?(; |$)", line)
        assert bounded or line.startswith("bert_keras["), line


def test_a_release_that_cannot_be_imported_is_not_installed(config):
    required = config["options"]["install_requires"].split("\n")
    (text,) = (x for x in required if x.startswith("tensorflow-text"))
    allowed = Requirement(text).specifier
    assert "2.20.0" in allowed and "2.21.1" in allowed
    assert "2.21.0" not in allowed  # undefined symbol: icudt77_dat


def test_no_text_sends_to_a_package_index():
    """A stranger's package could have the name there."""
    folders = ("bert_keras", "official_tasks", "tools", "docs")
    for path in (p for f in folders for p in (ROOT / f).rglob("*")):
        if path.suffix in (".py", ".md", ".ipynb"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"pip install \W?bert.keras", text), path


def test_the_install_without_dependencies_names_each_of_them(config):
    page = (ROOT / "docs" / "tpu.md").read_text(encoding="utf-8")
    required = config["options"]["install_requires"].split("\n")[1:]
    is_other = re.compile("(?!tensorflow(-text)?>)").match
    others = list(filter(is_other, required))
    assert len(others) == len(required) - 2
    assert [line for line in others if f'"{line}"' not in page] == []


HELP = """
import json, sys
from tests.support.run_script import call_script
answers = [call_script(s, "--help", folder=".").stdout for s in sys.argv[1:]]
assert not {"tensorflow", "keras"} & {*sys.modules}
print(json.dumps(answers))
"""


def test_help_answers_without_tensorflow_with_a_full_command(tmp_path):
    path = os.environ["PYTHONPATH"]
    done = run(["-c", HELP, *(ROOT / s for s in SCRIPTS)], tmp_path, path)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    for script, answer in zip(SCRIPTS, answers, strict=True):
        text = (ROOT / script).read_text(encoding="utf-8")
        docstring = ast.get_docstring(ast.parse(text))
        assert docstring.splitlines()[0] in answer, script
        assert "    bert-keras " in answer, script


@pytest.mark.release
def test_every_script_is_imported_from_the_wheel_and_one_answers(
    wheel, tmp_path
):
    modules = [".".join(script.with_suffix("").parts) for script in SCRIPTS]
    names = [
        f"official_tasks.{name}" if name.startswith("tools") else name
        for name in modules
    ]
    code = f"import importlib; [*map(importlib.import_module, {names})]"
    done = run(["-c", code], tmp_path, wheel)
    assert done.returncode == 0, done.stderr
    command = ["-m", "official_tasks.tools.export", "--help"]
    done = run(command, tmp_path, wheel)
    assert done.returncode == 0, done.stderr
    assert "    bert-keras " in done.stdout


@pytest.mark.release
def test_the_console_script_lists_the_commands_of_the_wheel(wheel, tmp_path):
    config = configparser.ConfigParser()
    (path,) = wheel.glob("*.dist-info/entry_points.txt")
    config.read(path)
    module, _, function = config["console_scripts"]["bert-keras"].partition(":")
    code = (
        f"import sys; from {module} import {function}\n"
        f"sys.argv = ['bert-keras', '--list']; {function}()\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    done = run(["-c", code], tmp_path, wheel)
    assert done.returncode == 0, done.stderr
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert listed == {
        script.stem: ast.get_docstring(
            ast.parse((ROOT / script).read_text(encoding="utf-8"))
        ).splitlines()[0]
        for script in SCRIPTS
    }


def test_a_command_is_the_script_of_its_name(tmp_path):
    def call(*words):
        done = call_script(*words, folder=tmp_path)
        return done.returncode, done.stdout.splitlines()

    asked = call("-m", "official_tasks.cli", "finetune", "--help")
    assert asked == call(ROOT / "official_tasks" / "finetune.py", "--help")
    assert "  --task: " in "\n".join(asked[1])
    done = call_script(
        *("-m", "official_tasks.cli", "convert-checkpoint", "--colour=1"),
        folder=tmp_path,
    )
    assert done.returncode == 2
    assert "convert_checkpoint.py: Unknown command line flag" in done.stderr


TOOLS = "official_tasks.tools"


def test_a_clone_that_is_not_installed_has_all_commands(tmp_path, monkeypatch):
    installed = cli.find_commands()
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *rest: None if name == TOOLS else find_spec(name, *rest),
    )
    found = cli.find_commands()
    assert [(name, line) for name, (_, line) in found.items()] == [
        (name, line) for name, (_, line) in installed.items()
    ]
    for module, _ in found.values():
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
    monkeypatch.syspath_prepend(ROOT)
    words = ("-m", "official_tasks.cli", "export", "--help")
    done = call_script(*words, folder=tmp_path)
    assert done.returncode == 0 and "--model" in done.stdout


def test_the_version_is_printed(tmp_path):
    words = ("-m", "official_tasks.cli", "--version")
    done = call_script(*words, folder=tmp_path)
    assert done.stdout == f"bert_keras {bert_keras.__version__}\n"


# Prints in both ways, then writes a file, which gets the lowest descriptor.
PRINTS = """
from official_tasks import cli, progress

def main(values):
    progress.console.print("done")
    print("done")
    with open("written", "w") as file:
        file.write("text")

cli.start(main)
"""
FINETUNE = "-m official_tasks.cli finetune --help"


@pytest.mark.parametrize(
    ("words", "code", "lines"),
    [
        ("prints.py >&-", 0, 0),
        ("prints.py >&- 2>&- <&-", 0, 0),
        ("prints.py 2>/dev/full", 0, 2),
        ("prints.py >/dev/full", 2, 1),
        ("prints.py --no_such_flag 2>/dev/full", 2, 0),
        ("prints.py --no_such_flag 2>&-", 2, 0),
        (f"{FINETUNE} >&-", 0, 0),
        (f"{FINETUNE} >/dev/full", 2, 1),
        ("-m official_tasks.cli --list >/dev/full", 2, 1),
        ("-m official_tasks.cli --list >&-", 0, 0),
        ("-m official_tasks.cli nothing 2>/dev/full", 2, 0),
        ("-m official_tasks.predict --model=m <&-", 2, 1),
        ("-m official_tasks.predict --model=m >&-", 2, 1),
    ],
)
def test_a_closed_or_full_stream_gets_no_traceback(
    words, code, lines, tmp_path
):
    (tmp_path / "prints.py").write_text(PRINTS)
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} {words}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    printed = (done.stdout + done.stderr).splitlines()
    assert (done.returncode, len(printed)) == (code, lines), printed
    if words.startswith("prints.py >&-"):
        assert (tmp_path / "written").read_text() == "text"


@pytest.mark.parametrize(
    ("name", "guess"), [("fintune", "finetune"), ("xyz", None)]
)
def test_an_unknown_command_gets_the_nearest_name(tmp_path, name, guess):
    done = call_script("-m", "official_tasks.cli", name, folder=tmp_path)
    assert done.returncode == 2
    assert f"no command {name!r}" in done.stderr
    assert ("Did you mean" in done.stderr) == bool(guess)
    assert f"mean {guess}?" in done.stderr or guess is None
    assert "--list" in done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_an_unknown_flag_exits_with_2_and_one_line(script, tmp_path):
    done = call_script(ROOT / script, "--no_such_flag=1", folder=tmp_path)
    assert done.returncode == 2
    assert "no_such_flag" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_editable_mapping_names_the_folder_of_the_tools(config):
    folders = dict(
        line.replace(" ", "").split("=")
        for line in config["options"]["package_dir"].split("\n")
        if line
    )
    assert folders == {"": ".", "official_tasks.tools": "tools"}
    assert not (ROOT / "official_tasks" / "tools").exists()


def test_importing_the_package_imports_no_framework(tmp_path):
    code = (
        "import sys, bert_keras; dir(bert_keras); bert_keras.InputError; "
        "print({'keras', 'tensorflow', 'numpy'} & set(sys.modules))"
    )
    assert run(["-c", code], tmp_path, ROOT).stdout.strip() == "set()"


def test_a_star_import_loads_no_beam(tmp_path):
    code = "from bert_keras import *; import sys; assert BertClassifier; "
    code += "print('apache_beam' in sys.modules)"
    assert run(["-c", code], tmp_path, ROOT).stdout.strip() == "False"


def test_every_public_name_is_there():
    for name in bert_keras._MODULES:
        assert getattr(bert_keras, name).__name__ == name


def test_without_tensorflow_one_sentence_says_so(tmp_path):
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "import bert_keras\n"
        "try:\n    bert_keras.WordPieceTokenizer\n"
        "except ImportError as error:\n    print(error)"
    )
    text = run(["-c", code], tmp_path, ROOT).stdout.strip()
    assert "needs tensorflow, which is not installed" in text
