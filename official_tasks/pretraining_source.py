"""The folder that `create_pretraining_data` wrote, as pre-training reads it."""

import functools
import os

import numpy as np

from bert_keras.errors import InputError


class PretrainingSource:
    """Training and held-out batches, the vocabulary, and a baseline.

    Args:
        folder: of `create_pretraining_data`.
        records: take the examples that were written, rather than drawing
            pairs and masks anew in each epoch.
        laws: `Laws` by which examples are drawn; of records, what they were
            drawn by stands.
        batch_size: examples a step.
        evaluation_steps: held-out batches, at most.
        seed: of order, pairs and masks.

    Raises:
        InputError: what is needed does not lie in the folder.
    """

    def __init__(
        self, folder, records, laws, batch_size, evaluation_steps, seed
    ):
        from bert_keras.data.pipeline import check_source
        from bert_keras.data.store import TokenStore

        self.tokens = os.path.join(folder, "tokens")
        if not os.path.isdir(self.tokens):
            raise InputError(
                f"{folder} holds no pre-training data: expected the folder "
                "that tools/create_pretraining_data.py wrote"
            )
        self.examples = folder if records else self.tokens
        self.laws, self.batch_size, self.seed = laws, batch_size, seed
        self.evaluation_steps = evaluation_steps
        self.store = TokenStore(os.path.join(self.tokens, "train"))
        self.vocabulary = self.store.vocabulary
        for side in ("train", "held_out"):
            check_source(os.path.join(self.examples, side), self.vocabulary)

    def batches(self, first_step):
        """Endless training batches from a step on."""
        from bert_keras.data.pipeline import pretraining_dataset

        return pretraining_dataset(
            os.path.join(self.examples, "train"),
            self.batch_size,
            self.seed,
            first_step,
            laws=self.laws,
        )

    @functools.cached_property
    def held_out(self):
        """The held-out batches, the same each time."""
        from bert_keras.data.pipeline import evaluation_dataset

        batches = evaluation_dataset(
            os.path.join(self.examples, "held_out"),
            self.batch_size,
            laws=self.laws,
            fill_remainder=True,
        )
        return batches.take(self.evaluation_steps)

    def preprocessor(self):
        """The preprocessor that goes with the weights."""
        import bert_keras

        tokenizer = bert_keras.WordPieceTokenizer(
            self.vocabulary, lowercase=self.store.manifest["lowercase"]
        )
        return bert_keras.BertPreprocessor(tokenizer, self.laws.sequence_length)

    def unigram_baseline(self):
        """Share of held-out predictions that the commonest piece hits."""
        counts = np.bincount(self.store.tokens, minlength=len(self.vocabulary))
        commonest = counts.argmax()
        hits = total = 0.0
        for _, y, w in self.held_out:
            ids, weights = y["mlm"].numpy(), w["mlm"].numpy()
            hits += weights[ids == commonest].sum()
            total += weights.sum()
        return float(hits / total)
