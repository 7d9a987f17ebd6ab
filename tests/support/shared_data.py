"""Real data in the folder that BERT_KERAS_DATA names."""

import os
from pathlib import Path

import pytest


def shared(name):
    """Return a path in data/; skip the test if BERT_KERAS_DATA is not set."""
    folder = os.environ.get("BERT_KERAS_DATA")
    if not folder:
        pytest.skip("BERT_KERAS_DATA is not set: no real data")
    return Path(folder) / "data" / name
