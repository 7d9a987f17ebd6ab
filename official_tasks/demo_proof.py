"""What the demo asks the SavedModel, in a process of TensorFlow alone."""

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


def answer_typed(served) -> list[dict]:
    """The label and its probability for each of the typed sentences."""
    request = ("classify", {"text": list(TYPED)})
    (answer,) = answer_in_fresh_process(served, [request])
    return [
        {
            "text": text,
            "label": answer["label"][row].decode(),
            "probability": float(answer["probabilities"][row].max()),
        }
        for row, text in enumerate(TYPED)
    ]


def guess_masks(served, texts, seed) -> list[dict]:
    """Held-out sentences with words masked, and the five best guesses.

    Args:
        served: folder of the SavedModel.
        texts: held-out sentences to draw from.
        seed: of the drawing.

    Returns:
        list of dict: "text" with [MASK] in it and "masks", each with the
        "truth" and "guesses", pairs of piece and probability.
    """
    generator = np.random.default_rng(seed)
    chosen = []
    for index in generator.permutation(len(texts)):
        masked = _mask_words(texts[index], generator)
        if masked and len(chosen) < SENTENCES:
            chosen.append(masked)
    request = ("fill_mask", {"text": [text for text, _ in chosen]})
    (answer,) = answer_in_fresh_process(served, [request])
    return [
        {
            "text": text,
            "masks": [
                {
                    "truth": truth,
                    "guesses": [
                        (piece.decode(), float(probability))
                        for piece, probability in zip(
                            answer["pieces"][row, mask],
                            answer["probabilities"][row, mask],
                            strict=True,
                        )
                    ],
                }
                for mask, truth in enumerate(truths)
            ],
        }
        for row, (text, truths) in enumerate(chosen)
    ]


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
