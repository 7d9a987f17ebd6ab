"""The Python of docs/embedding.md; its commands run in test_task_docs.py."""

import re

from run_script import ROOT

PAGE = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs():
    code, served = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    names = {}
    exec(code, names)
    vectors = names["model"].predict(
        names["preprocess"](names["questions"]), verbose=0
    )
    assert vectors.shape == (2, 256)
    assert abs((vectors**2).sum(axis=1) - 1).max() < 1e-5
    for loss in re.findall(r"^\| `(\w+\(.*?\))` ", PAGE, re.M):
        exec(f"bert_keras.{loss}", names)
    assert ".rank(" in served  # asked in tests/engine/test_family_runs.py
