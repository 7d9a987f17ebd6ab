"""Runs the tests under each Python, with the newest and lowest dependencies.

    nox                                      # quick tests in six environments
    nox -s "tests-3.13(highest)" -- -n 2     # what `make test` runs

Needs nox with uv (`pip install "nox[uv]"`), which finds the lowest versions.
An environment takes 4 GB of disk.
"""

import re
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv"
SETUP = Path(__file__).with_name("setup.cfg").read_text(encoding="utf-8")
FAST = ["-m", "fast and not long"]
# Install these packages only from wheels. Without this rule, a lowest release
# that has no wheel for a new Python is compiled for an hour. seqeval has no
# wheels.
WHEELS = sorted(set(re.findall(r"([\w.-]+)>=", SETUP)) - {"seqeval"})


@nox.session(python=["3.11", "3.12", "3.13"])
@nox.parametrize(
    "versions", ["highest", "lowest-direct"], ids=["highest", "lowest"]
)
def tests(session, versions):
    """Run pytest; arguments after `--` replace those of the fast tests."""
    wheels = [word for name in WHEELS for word in ("--only-binary", name)]
    session.install(*wheels, "--resolution", versions, "-e", ".[test]")
    session.run("python", "-m", "pytest", *(session.posargs or FAST))
