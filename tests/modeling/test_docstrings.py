"""The examples in the docstrings of `bert_keras.modeling`."""

import doctest
import importlib
from pathlib import Path

import numpy as np
import pytest

from bert_keras import modeling

MODULES = [
    path.stem
    for path in sorted(Path(modeling.__file__).parent.glob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
NAMES = {"np": np}


def examples(name):
    module = importlib.import_module(f"bert_keras.modeling.{name}")
    tests = doctest.DocTestFinder().find(module, extraglobs=NAMES)
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name):
    runner = doctest.DocTestRunner()
    tests = examples(name)
    assert tests
    for test in tests:
        assert runner.run(test).failed == 0
