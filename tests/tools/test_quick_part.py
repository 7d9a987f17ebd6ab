"""What `tests/conftest.py` says of files holds: `-m fast`, who begins first."""

import multiprocessing
import subprocess
import sys

import keras
import pytest
from run_script import ROOT


@pytest.fixture
def conftest(pytestconfig):
    path = str(ROOT / "tests" / "conftest.py")
    return pytestconfig.pluginmanager.get_plugin(path)


@pytest.mark.parametrize("names", ["FAST", "LONGEST"])
def test_the_files_that_are_named_are_there(conftest, names):
    listed = getattr(conftest, names)
    assert len(listed) == len(set(listed)) > 9
    for name in listed:
        assert (ROOT / "tests" / f"{name}.py").is_file(), name


@pytest.mark.parametrize(
    "begin",
    [
        lambda: subprocess.run([sys.executable, "-c", ""]),
        lambda: multiprocessing.Process(target=print).start(),
        lambda: keras.Sequential().fit(),
    ],
)
def test_a_quick_test_starts_no_process_and_fits_nothing(request, begin):
    assert request.node.get_closest_marker("fast")
    with pytest.raises(AssertionError, match="take its file out of FAST"):
        begin()
