"""Runs the quick tests under each Python, with newest and lowest dependencies.

    python tools/maintenance/matrix.py --output=build/matrix

In: the checkout, and the interpreters of this machine; one that is missing is
named and skipped. Out: the log of each environment, and a table in Markdown.
An environment takes 4 GB of disk and is removed once its tests have run; all
six take a quarter of an hour on two cores, and a download of 2 GB.
"""

import datetime
import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from absl import flags

from official_tasks import script

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHONS = ["3.11", "3.12", "3.13"]
RESOLUTIONS = {"newest": "highest", "lowest": "lowest-direct"}
# Built from source everywhere: it has no wheel.
SOURCE_ONLY = "seqeval"
SHOWN = ("tensorflow", "keras", "numpy")


def define_flags():
    flags.DEFINE_string("output", None, "Folder of environments and logs.")
    flags.DEFINE_list("python", PYTHONS, "Versions of Python.")
    flags.DEFINE_list("versions", list(RESOLUTIONS), "newest, lowest, or both.")
    flags.DEFINE_string(
        "tests", "-m fast", "What pytest runs: its flags, separated by blanks."
    )
    flags.mark_flag_as_required("output")
    script.require(
        " or ".join(RESOLUTIONS), lambda name: name in RESOLUTIONS, "versions"
    )


def find_python(version: str) -> str | None:
    """The path of an interpreter of this version, such as "3.12"."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    paths = [
        shutil.which(f"python{version}"),
        *sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")),
    ]
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in filter(None, paths):
        # A shim of pyenv is there for versions that it does not run.
        done = subprocess.run(
            [path, "-c", code], capture_output=True, text=True
        )
        if done.stdout.strip() == version:
            return str(path)
    return None


def compiled(setup: str) -> list[str]:
    """The dependencies of a setup.cfg that are taken as wheels only.

    A release too old for a Python has no wheel for it; the lowest that runs
    there is meant, not one that is compiled for an hour.
    """
    return sorted(set(re.findall(r"([\w.-]+)>=", setup)) - {SOURCE_ONLY})


def try_one(values, uv: Path, version: str, versions: str) -> dict:
    """Makes an environment, runs the tests in it; a row of the table."""
    folder = Path(values.output).absolute() / f"{version}-{versions}"
    row = {"Python": version, "dependencies": versions}
    path = find_python(version)
    if path is None:
        return {**row, "outcome": f"skipped: no python{version} here"}
    python = folder / "bin" / "python"
    wheels = [
        word
        for name in compiled((ROOT / "setup.cfg").read_text(encoding="utf-8"))
        for word in ("--only-binary", name)
    ]
    started = time.monotonic()
    with open(f"{folder}.log", "w+", encoding="utf-8") as log:
        for command in (
            [uv, "venv", "--clear", "--python", path, folder],
            [uv, "pip", "install", "--python", python, *wheels]
            + ["--resolution", RESOLUTIONS[versions], "-e", f"{ROOT}[test]"],
            [python, "-m", "pytest", *values.tests.split()],
        ):
            code = subprocess.run(
                command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
            ).returncode
            if code:
                break
        log.seek(0)
        text = log.read()
    for package in SHOWN:
        found = re.search(rf"^ \+ {package}==(\S+)", text, re.MULTILINE)
        row[package] = found.group(1) if found else ""
    counts = re.findall(r"^\d+ (?:passed|failed|skipped|error).*", text, re.M)
    row["outcome"] = counts[-1] if counts else "no test ran"
    if code or not counts:
        row["outcome"] = f"FAILED: {row['outcome']}; see {log.name}"
    row["minutes"] = f"{(time.monotonic() - started) / 60:.1f}"
    shutil.rmtree(folder, ignore_errors=True)
    return row


def table(rows: list[dict]) -> str:
    """Rows as Markdown."""
    columns = ["Python", "dependencies", *SHOWN, "outcome", "minutes"]
    lines = [columns, ["---"] * len(columns)]
    lines += [[row.get(column, "") for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(values):
    output = Path(values.output).absolute()
    output.mkdir(parents=True, exist_ok=True)
    # uv finds the lowest versions, which pip cannot.
    subprocess.run([sys.executable, "-m", "venv", output / "uv"], check=True)
    pip = [output / "uv" / "bin" / "pip", "install", "--quiet", "uv>=0.5,<1"]
    subprocess.run(pip, check=True)
    uv = output / "uv" / "bin" / "uv"
    rows = []
    for version, versions in itertools.product(values.python, values.versions):
        rows.append(try_one(values, uv, version, versions))
        print(
            f"Python {version}, {versions}: {rows[-1]['outcome']}", flush=True
        )
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    print(f"\n{table(rows)}\n")
    print(
        f"{datetime.date.today()}, commit {commit or 'unknown'}, "
        f"{platform.platform()}; pytest {values.tests}"
    )
    sys.exit(any(row["outcome"].startswith("FAILED") for row in rows))


if __name__ == "__main__":
    script.start(main, define_flags, tensorflow=False)
