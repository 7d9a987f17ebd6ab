"""What the demo asks the SavedModel, in a process of TensorFlow alone."""

import itertools
import re

import numpy as np

from bert_keras.serving.verification import answer_in_fresh_process

TYPED = (
    "Returns the indices of the maximum values along an axis.",
    "The gradient of the loss is applied by the optimizer.",
    "If the file cannot be opened, an OSError is raised.",
    "The layer returns a tensor of the same shape as its input.",
    "Parse a date string in the format used by the calendar.",
)
SENTENCES = 12  # shown in the report
WORD = re.compile(r"(?<!\S)[a-z]{2,}(?![\w-])")


def ask(served, texts, seed) -> dict:
    """Asks for the labels of typed sentences and for masked words.

    Args:
        served: folder of the SavedModel.
        texts: held-out sentences; words of some are masked.
        seed: of which.

    Returns:
        dict of "answers", each with "text", "label" and "probability", and
        "guesses", each with "text" (with [MASK] in it) and "masks", which
        have the "truth" and "guesses", pairs of piece and probability.
    """
    masked = _masked_sentences(texts, seed)
    labels, pieces = answer_in_fresh_process(
        served,
        [
            ("classify", {"text": list(TYPED)}),
            ("fill_mask", {"text": [text for text, _ in masked]}),
        ],
    )
    return {
        "answers": [
            {
                "text": text,
                "label": labels["label"][row].decode(),
                "probability": float(labels["probabilities"][row].max()),
            }
            for row, text in enumerate(TYPED)
        ],
        "guesses": [
            {
                "text": text,
                "masks": [
                    {"truth": truth, "guesses": _guesses(pieces, row, mask)}
                    for mask, truth in enumerate(truths)
                ],
            }
            for row, (text, truths) in enumerate(masked)
        ],
    }


def _guesses(answer, row, mask):
    guessed = zip(
        answer["pieces"][row, mask],
        answer["probabilities"][row, mask],
        strict=True,
    )
    return [(piece.decode(), float(share)) for piece, share in guessed]


def _masked_sentences(texts, seed):
    generator = np.random.default_rng(seed)
    masked = (
        _mask_words(texts[index], generator)
        for index in generator.permutation(len(texts))
    )
    return list(itertools.islice(filter(None, masked), SENTENCES))


def _mask_words(text, generator):
    """The text with one word in eight masked, and these; None if too short."""
    words = list(WORD.finditer(text))
    if len(words) < 6 or len(text) > 160:
        return None
    count = max(1, len(words) // 8)
    drawn = sorted(generator.permutation(len(words))[:count])
    pieces, end = [], 0
    for index in drawn:
        word = words[index]
        pieces += [text[end : word.start()], "[MASK]"]
        end = word.end()
    return "".join([*pieces, text[end:]]), [words[i].group() for i in drawn]
