"""The toy data and weights of the engine's tests."""

from tests.engine.conftest import place

__all__ = ["place"]
