"""The benchmark of tokenizers does what it says."""

import json
import types

import pytest

from bert_keras.data.corpus import Document
from bert_keras.text.vocabulary import write_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS
from tools.benchmark import text

PIECES = [*SPECIAL_TOKENS, *"abehlnopru.", "##able", "un", "##b", "hear"]


def test_the_benchmark_leaves_out_lines_with_other_ids(tmp_path):
    values = types.SimpleNamespace(
        vocabulary=str(tmp_path / "vocab.txt"),
        input=str(tmp_path / "*.text"),
        output=str(tmp_path / "speed.json"),
        overwrite=False,
        megabytes=1,
        turns=1,
        seconds=0.01,
    )
    write_vocabulary(PIECES, values.vocabulary)
    # To `tokenizers` [MASK] is a token.
    documents = [Document("a", "", ["an hour", "[MASK]", "un…", "a b"])]
    report = text.time_tokenizers(documents, values)
    assert report["lines"] == 3 and report["lines left out"] == 1
    assert len(report["seconds a megabyte"]) == 2
    for row in report["seconds a line"].values():
        assert 0 < row["least"] <= row["most"]
    for name in "ab":
        (tmp_path / f"{name}.text").write_text("an hour\n\na b\n\n" * 40)
    text.main(values)
    written = json.loads((tmp_path / "speed.json").read_text())
    assert written["lines"] == 160 and written["lines left out"] == 0
    assert written["million characters of text"] == pytest.approx(8e-4)
    rates = [written[name] for name in written if "/s" in name]
    assert len(rates) == 5 and min(rates) > 0
