"""The example of each public name runs as it stands."""

import doctest

import pytest

import bert_keras

# Examples with lines that do not run, and the reason.
SKIPPED = {"push_to_hub": "it uploads to the Hugging Face Hub"}


@pytest.mark.parametrize("name", bert_keras._MODULES)
def test_the_example_of_a_public_name_runs(name):
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(getattr(bert_keras, name), name, globs={})
    assert test.examples, f"bert_keras.{name} has no example"
    skipped = [e for e in test.examples if doctest.SKIP in e.options]
    assert bool(skipped) == (name in SKIPPED)
    failed, _ = doctest.DocTestRunner().run(test)
    assert not failed
