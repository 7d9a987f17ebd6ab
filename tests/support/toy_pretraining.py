"""Toy pre-training data, and the smallest settings of a run."""

import json

from bert_keras.data.corpus import Document
from bert_keras.data.pretraining_data import (
    BuildOptions,
    create_pretraining_data,
)
from bert_keras.data.sampling import SamplingRules
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.tokenizer import WordPieceTokenizer
from tests.support.model_samples import fill

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FREE = ["[unused0]", "[unused1]"]
WORDS = (
    "the old ship goat sailed climbed over under waves rocks while ada ben "
    "cleo emil sang slept near harbour hut . tin ##ker"
).split()
PIECES = SPECIAL + FREE + WORDS
RULES = SamplingRules(16, 3)
# Settings of a run with both phases that takes seconds.
SMALLEST = {
    "num_layers": 1,
    "hidden_dim": 16,
    "num_heads": 2,
    "sequence_length": 16,
    "max_predictions": 3,
    "batch_size": 4,
    "steps": 12,
    "phase_2_steps": 4,
    "phase_2_sequence_length": 24,
    "phase_2_max_predictions": 4,
    "evaluations": 3,
    "evaluation_steps": 2,
    "learning_rate": 1e-2,
}


def documents():
    names = ["ada", "ben", "cleo", "emil"]
    for number in range(24):
        lines = [
            f"the old {'ship' if number % 2 else 'goat'} {verb} over the "
            f"{place} while {a} and {b} sang ."
            for a in names[number % 3 :]
            for b in names[number % 2 :: 2]
            for verb, place in (("sailed", "waves"), ("climbed", "rocks"))
        ]
        yield Document(str(number), lines)


def write_data(
    folder, pieces=PIECES, rules=RULES, held_out_share=0.3, **tokenizer
):
    """Write pre-training data of the toy documents; return the folder."""
    create_pretraining_data(
        documents(),
        WordPieceTokenizer(pieces, **tokenizer),
        str(folder),
        BuildOptions(held_out_share, records=True, rules=rules),
    )
    return str(folder)


def save_pretrainer(folder):
    """Save a random pre-trainer that knows `PIECES`; return the folder."""
    pretrainer = BertPretrainer(BertEncoder(len(PIECES), 1, 2, 16, 64))
    tokenizer = WordPieceTokenizer(PIECES, lowercase=True)
    fill(pretrainer).save_preset(folder, BertPreprocessor(tokenizer, 24))
    return folder


def read_lines(path):
    """Return the objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
