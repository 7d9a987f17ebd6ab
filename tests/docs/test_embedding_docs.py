"""The Python of docs/embedding.md; its commands run in test_task_docs.py."""

import re

from run_script import ROOT
from served_samples import encoder, preprocessor, spread

from bert_keras import BertClassifier, export_saved_model

PAGE = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
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
    monkeypatch.chdir(tmp_path)
    ranker = spread(BertClassifier(encoder(), problem="ranking", pair=True))
    export_saved_model(ranker, preprocessor(), "runs/ranker/served")
    *lines, last = served.strip().splitlines()
    exec("\n".join(lines), names)
    assert sorted(eval(last, names)[0]) == [0, 1]
