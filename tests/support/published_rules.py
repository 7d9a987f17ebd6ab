"""The original BERT's pair and masking rules, restated token by token.

The code is slow and plain: it draws one random number at a time, uses lists of
tokens, and shares nothing with the package. `random` is a `random.Random`.
"""


def pairs_of_document(documents, own, room, short_probability, random):
    """Return triples (A, B, is random) of `documents[own]`."""
    sentences = documents[own]
    target = room
    if random.random() < short_probability:
        target = random.randint(2, room)
    pairs = []
    begin = 0
    while begin < len(sentences):
        end = begin
        while end < len(sentences):
            end += 1
            if sum(map(len, sentences[begin:end])) >= target:
                break
        chunk = sentences[begin:end]
        in_a = 1 if len(chunk) == 1 else random.randint(1, len(chunk) - 1)
        a = sum(chunk[:in_a], [])
        if len(chunk) == 1 or random.random() < 0.5:
            b = another_text(documents, own, target - len(a), random)
            pairs.append((*shortened(a, b, room, random), True))
            begin += in_a
        else:
            b = sum(chunk[in_a:], [])
            pairs.append((*shortened(a, b, room, random), False))
            begin = end
    return pairs


def another_text(documents, own, wanted, random):
    other = own
    for _ in range(10):
        if other == own:
            other = random.randrange(len(documents))
    text = []
    for sentence in documents[other][random.randrange(len(documents[other])) :]:
        text = text + sentence
        if len(text) >= wanted:
            break
    return text


def shortened(a, b, room, random):
    a, b = list(a), list(b)
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if random.random() < 0.5 else -1)
    return a, b


def masked(row, specials, most, rate, size, mask_id, random):
    """Return one row of ids with masks, and {position: true id}."""
    places = [i for i, piece in enumerate(row) if piece not in specials]
    random.shuffle(places)
    count = min(most, max(1, int(round(len(row) * rate))))
    result, truth = list(row), {}
    for place in places[:count]:
        truth[place] = row[place]
        if random.random() < 0.8:
            result[place] = mask_id
        elif random.random() < 0.5:
            result[place] = random.randrange(size)
    return result, truth


def masked_words(segments, count, random):
    """Return the positions to predict, by the original's whole-word rule.

    Args:
        segments: lists of words; a word is a list of positions.
    """
    words = sum(segments, [])
    random.shuffle(words)
    covered = set()
    for places in words:
        if len(covered) >= count:
            break
        if len(covered) + len(places) > count:
            continue
        covered |= set(places)
    return covered
