"""The examples in the docstrings of `bert_keras.modeling`."""

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import bert_keras
from bert_keras import modeling
from bert_keras.modeling.encoder import BertEncoder

MODULES = [
    path.stem
    for path in sorted(Path(modeling.__file__).parent.glob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
NAMES = {"np": np, "BertEncoder": BertEncoder}


class AnyBackend(doctest.OutputChecker):
    """Output checker that reads `TensorShape([2, 3])` as `(2, 3)`."""

    def check_output(self, want, got, optionflags):
        got = re.sub(r"TensorShape\(\[(.*)\]\)", r"(\1)", got)
        return super().check_output(want, got, optionflags)


def examples(name):
    module = importlib.import_module(f"bert_keras.modeling.{name}")
    tests = doctest.DocTestFinder().find(module, extraglobs=NAMES)
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name):
    runner = doctest.DocTestRunner(AnyBackend())
    tests = examples(name)
    assert tests
    for test in tests:
        assert runner.run(test).failed == 0


def test_every_public_name_of_modeling_has_an_example():
    found = {test.name for name in MODULES for test in examples(name)}
    public = [getattr(bert_keras, name) for name in bert_keras.__all__]
    names = {f"{value.__module__}.{value.__name__}" for value in public}
    assert {n for n in names if n.startswith(modeling.__name__)} <= found
