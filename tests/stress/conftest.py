"""Fixtures of the folders whose subjects these tests damage or kill."""

from tests.data.conftest import tokenizer
from tests.engine.conftest import place
from tests.interop.conftest import no_memory, samples

__all__ = ["no_memory", "place", "samples", "tokenizer"]
