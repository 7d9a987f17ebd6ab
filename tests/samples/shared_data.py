"""Real data of a folder that BERT_KERAS_DATA names."""

import os
from pathlib import Path

import pytest


def shared(name):
    """Returns a path below data/ of the folder; skips where there is none."""
    folder = os.environ.get("BERT_KERAS_DATA")
    if not folder:
        pytest.skip("BERT_KERAS_DATA is not set: no real data")
    return Path(folder) / "data" / name
