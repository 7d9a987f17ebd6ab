"""The benchmark of tokenizers and of pre-training data, on toy text."""

import json
import types

import pytest

from bert_keras.text.vocabulary import write_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS
from tools.benchmark import text

PIECES = [*SPECIAL_TOKENS, *"abehlnopru.", "##able", "un", "##b", "hear"]


@pytest.mark.long
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
    for name in "ab":
        (tmp_path / f"{name}.text").write_text("an hour\n\na b\n\n" * 40)
    # `tokenizers` reads [MASK] in a text as one token; bert_keras does not.
    (tmp_path / "c.text").write_text("un\u2026\n\n[MASK]\n", "utf-8")
    text.main(values)
    report = json.loads((tmp_path / "speed.json").read_text())
    assert report["lines"] == 161 and report["lines left out"] == 1
    assert len(report["seconds a megabyte"]) == 2
    for row in report["seconds a line"].values():
        assert 0 < row["least"] <= row["most"]
    characters = 160 * 5 + len("un\u2026[MASK]")
    assert report["million characters of text"] == characters / 1e6
    rates = [report[name] for name in report if "per second" in name]
    assert len(rates) == 5 and min(rates) > 0
