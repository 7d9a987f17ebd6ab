"""A small vocabulary and its preprocessor; the tokenizer is made once."""

import functools

from bert_keras import BertPreprocessor, WordPieceTokenizer

WORDS = (
    "who was he ada love ##lace lived in bern , london ( 1815 ) and . she "
    "opens closes the door window it"
).split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


@functools.cache  # tracing a tokenizer takes seconds
def tokenizer():
    return WordPieceTokenizer(PIECES)


def preprocessor(sequence_length=16):
    return BertPreprocessor(tokenizer(), sequence_length, pad_to_longest=True)


def pieces_of(encoded):
    """Return the rows of `Encoded` as lists of tokens."""
    rows = encoded.inputs["token_ids"].to_list()
    return [[PIECES[i] for i in row] for row in rows]
