"""The examples in the docstrings of the model."""

import doctest
import importlib
import pkgutil
import re

import numpy as np
import pytest

from bert_keras import modeling
from bert_keras.modeling.encoder import BertEncoder

MODULES = [module.name for module in pkgutil.iter_modules(modeling.__path__)]
NAMES = {"np": np, "BertEncoder": BertEncoder}


class AnyBackend(doctest.OutputChecker):
    """A shape is a shape, whether TensorFlow prints it or JAX."""

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
    for test in examples(name):
        assert runner.run(test).failed == 0
