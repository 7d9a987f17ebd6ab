import numpy as np

from bert_keras import align_words
from tests.support import tiny

WORDS = [["good", "badly", "bad"], ["bad"]]


def test_labels_are_at_first_pieces_and_cut_words_have_none():
    preprocess = tiny.preprocessor()
    inputs, word_ids = align_words(preprocess, WORDS)
    again, targets, weights = align_words(preprocess, WORDS, [[3, 4, 5], [6]])
    for name, rows in inputs.items():
        np.testing.assert_array_equal(rows, again[name])
    tokenizer = preprocess.tokenizer
    for words, labels, ids, kept, row, weight in zip(
        WORDS, [[3, 4, 5], [6]], inputs["token_ids"], word_ids, targets,
        weights, strict=True,
    ):  # fmt: skip
        # Second opinion: the words are tokenized one by one.
        expected = [-1]
        for i, word in enumerate(words):
            count = len(tokenizer(word))
            expected += [i] + [-1] * (count - 1)
        expected += [-1] * (len(ids) - len(expected))
        assert kept.tolist() == expected
        assert [labels[i] for i in kept[kept >= 0]] == row[kept >= 0].tolist()
        assert weight.tolist() == (kept >= 0).astype(float).tolist()
    short = tiny.preprocessor(sequence_length=3)
    _, cut = align_words(short, WORDS)
    assert cut.tolist() == [[-1, 0, -1], [-1, 0, -1]]
