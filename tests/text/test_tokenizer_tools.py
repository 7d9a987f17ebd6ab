"""The benchmark of tokenizers does what it says."""

import types

from bert_keras.data.corpus import Document
from bert_keras.text.vocabulary import write_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS
from tools.benchmark import text

PIECES = [*SPECIAL_TOKENS, *"abehlnopru.", "##able", "un", "##b", "hear"]


def test_the_benchmark_leaves_out_lines_with_other_ids(tmp_path):
    values = types.SimpleNamespace(vocabulary=str(tmp_path / "v.txt"), turns=1)
    write_vocabulary(PIECES, values.vocabulary)
    # To `tokenizers` [MASK] is a token.
    documents = [Document("a", "", ["an hour", "[MASK]", "un…", "a b"])]
    report = text.time_tokenizers(documents, values)
    assert report["lines"] == 3 and report["lines left out"] == 1
    assert len(report["seconds a megabyte"]) == 2
    for row in report["seconds a line"].values():
        assert 0 < row["least"] <= row["most"]
