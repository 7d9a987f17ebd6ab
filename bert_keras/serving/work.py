"""What a request costs the model, counted before it is answered.

Counted in tokens that the model reads. A token is one byte of text at least,
so bytes tell the most that a text can cost; the tokenizer tells it exactly.
"""

import tensorflow as tf

# Without it in the card: the longest row of the published models.
SEQUENCE_LENGTH = 512
FRAME = 3  # [CLS] and two [SEP]
# Windows in which `answer` reads a token, of rows of up to 384 tokens; in
# longer ones they begin 128 tokens apart. The other signatures: two at most.
ANSWER_WINDOWS, ANSWER_STRIDE = 3, 128
WINDOWED = ("classify", "embed", "tag")
TEXTS_AT_ONCE = 32


def row_tokens(name, inputs, card, length=len):
    """The most tokens that the model reads for each row of a request.

    Args:
        name: of the signature.
        inputs: input name -> list of rows, as `rest.parse` gives them.
        card: of the export.
        length: tokens of a text at most: its bytes, or as counted.

    Returns:
        list of int.
    """
    in_row = card.get("sequence_length", SEQUENCE_LENGTH)
    columns = list(inputs.values())
    if card["signatures"][name]["inputs"][next(iter(inputs))][:3] == "int":
        return [_padded(columns[0])] * len(columns[0])
    if name == "tokenize":
        return [length(text) for text in columns[0]]
    windows = card.get("options", {}).get("long_text") == "windows"
    if name == "answer":
        overlap = max(in_row / ANSWER_STRIDE, ANSWER_WINDOWS)
    else:
        overlap = 2 if windows and name in WINDOWED else 0
    return [
        _tokens(row, in_row, overlap, length) + _masks(name, row, in_row)
        for row in zip(*columns, strict=True)
    ]


def _padded(rows):
    """Ids of a row when all rows are as long as the longest."""
    longest = max(map(len, rows))
    if isinstance(rows[0][0], list):
        longest *= max(len(ids) for row in rows for ids in row)
    return longest


def _tokens(row, in_row, overlap, length):
    """Of one row: texts, or a text and the list of its choices."""
    *first, last = row
    before = sum(map(length, first)) + FRAME
    texts = last if isinstance(last, list) else [last]
    found = 0
    for text in texts:
        tokens = before + length(text)
        if tokens > in_row:
            tokens = int(tokens * overlap) + in_row
        found += tokens
    return found


def _masks(name, row, in_row):
    """The product with the vocabulary for a mask is another token's worth.

    It takes 0.3 of what a token takes in BERT-Base and as much in 6 layers
    of width 384.
    """
    if name != "fill_mask":
        return 0
    return min(row[0].count(b"[MASK]"), in_row)


def counter(inputs, tokenize):
    """The `length` of `row_tokens` that knows each text's tokens exactly.

    Args:
        inputs: input name -> list of rows of texts.
        tokenize: that signature of the export.
    """
    rows = [row for column in inputs.values() for row in column]
    lists = [row if isinstance(row, list) else [row] for row in rows]
    texts = sorted({text for row in lists for text in row}, key=len)
    counts = {}
    for first in range(0, len(texts), TEXTS_AT_ONCE):
        some = texts[first : first + TEXTS_AT_ONCE]
        count = tokenize(text=tf.constant(some))["count"].numpy()
        counts |= dict(zip(some, count.tolist(), strict=True))
    return counts.__getitem__
