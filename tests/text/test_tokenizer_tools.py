"""The benchmark of tokenizers does what it says."""

import json
import types

from bert_keras.text.vocabulary import write_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS
from tools.benchmark import tokenizer

PIECES = [*SPECIAL_TOKENS, *"abehlnopru.", "##able", "un", "##b", "hear"]


def test_the_benchmark_leaves_out_lines_with_other_ids(tmp_path):
    vocabulary = str(tmp_path / "vocab.txt")
    write_vocabulary(PIECES, vocabulary)
    makers = tokenizer.make_tokenizers(vocabulary)
    lines = ["an hour", "[MASK]", "un…", "a b"]  # to `tokenizers` a token
    assert tokenizer.compare_ids(makers, lines) == ["an hour", "un…", "a b"]
    (tmp_path / "text.txt").write_text("an hour\n\nun able\n\na b\n")
    values = types.SimpleNamespace(
        vocabulary=vocabulary,
        input=str(tmp_path / "text.txt"),
        output=str(tmp_path / "speed.json"),
        overwrite=False,
        megabytes=1,
        batch=1,
        turns=1,
    )
    tokenizer.main(values)
    report = json.loads((tmp_path / "speed.json").read_text())
    assert report["lines"] == 3 and report["lines left out"] == 0
    assert len(report["ms a megabyte"]) == 3
    for row in report["ms a line"].values():
        assert 0 < row["least"] <= row["most"]
