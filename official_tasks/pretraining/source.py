"""The folder that `create_pretraining_data` wrote, as pre-training reads it."""

import dataclasses
import itertools
import os
import time

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from official_tasks.pretraining.settings import phases

SIDES = ("train", "held_out")
SAMPLED = 20  # batches from which `facts` are taken


def manifests(data, settings) -> list:
    """The files that vouch for what a run reads, the vocabulary included."""
    from bert_keras.data import record_files, token_store

    found = [(os.path.join(data, "tokens"), token_store.MANIFEST)]
    if settings.records:
        folders = data, settings.phase_2_data
        found += [
            (folder, record_files.MANIFEST) for folder in folders if folder
        ]
    return [
        os.path.join(folder, side, name)
        for folder, name in found
        for side in SIDES
    ]


class PretrainingSource:
    """Training and held-out batches of each phase, and the vocabulary.

    Args:
        folder: of `create_pretraining_data`.
        settings: `Settings`.
        objective: of `OBJECTIVES`.

    Raises:
        InputError: what is needed does not lie in the folder.
    """

    def __init__(self, folder, settings, objective):
        from bert_keras.data.token_store import TokenStore

        self.folder = folder
        self.tokens = os.path.join(folder, "tokens")
        if not files.is_folder(self.tokens):
            raise InputError(
                f"{folder} holds no pre-training data: expected the folder "
                "that tools/create_pretraining_data.py wrote"
            )
        self.settings, self.objective = settings, objective
        self.store = TokenStore(os.path.join(self.tokens, "train"))
        if not files.is_folder(os.path.join(self.tokens, "held_out")):
            raise InputError(
                f"{folder} holds no held-out documents, on which pre-training "
                "is evaluated: make the data in another folder with "
                "--held_out_share above 0"
            )
        self.vocabulary = self.store.vocabulary
        self.tokenizer = _tokenizer(self.store.tokenizer, settings.init)
        self._held_out = {}

    def check(self):
        """Compares every byte of the data with what its manifests say."""
        from bert_keras.data.batches import check_source

        if self.settings.vocabulary:
            self._check_vocabulary(self.settings.vocabulary)
        used = phases(self.settings)
        corpora: dict = {}  # hash of the documents -> where they lie
        folders = {self.tokens, *(self._examples(phase) for phase in used)}
        for folder, side in itertools.product(sorted(folders), SIDES):
            place = os.path.join(folder, side)
            manifest = check_source(place, self.vocabulary, side)
            found = corpora.setdefault(manifest["corpus_hash"], (side, place))
            if found[0] != side:
                raise InputError(
                    f"{place} and {found[1]} were made of the same documents: "
                    "what is held out must not be trained on. Make the data "
                    "again in a new folder."
                )
        if self.settings.records:
            for phase in used:
                self._check_rules(phase)

    def _examples(self, phase):
        """The folder of a phase's examples, or of what they are drawn from."""
        if not self.settings.records:
            return self.tokens
        return self.folder if phase.number == 1 else self.settings.phase_2_data

    def _check_vocabulary(self, path):
        from bert_keras.text.vocabulary import read_vocabulary

        wanted = read_vocabulary(path)
        pairs = itertools.zip_longest(wanted, self.vocabulary)
        for line, (there, here) in enumerate(pairs, 1):
            if there != here:
                raise InputError(
                    f"The data in {self.folder} was made with another "
                    f"vocabulary than {path}: line {line} is {there!r} there "
                    f"and {here!r} in the data. Make the data with that one."
                )

    def _check_rules(self, phase):
        """Refuses records that were drawn by other rules than a phase's.

        Lengths must fit the model; the others would do nothing, and the
        report tells them as what decided the run.
        """
        from bert_keras.data.record_files import read_manifest, rules_of

        folder = self._examples(phase)
        manifest = read_manifest(os.path.join(folder, "train"))
        made = dataclasses.asdict(rules_of(manifest))
        for name, wanted in dataclasses.asdict(self.rules(phase)).items():
            if made[name] != wanted:
                raise InputError(
                    f"The records in {folder} were made with {name} "
                    f"{made[name]}, and phase {phase.number} has {wanted}. "
                    "Give what the records have, or leave --records out: "
                    "pairs are then drawn anew."
                )

    def batches(self, phase, first_step):
        """Endless training batches of a phase from a step of the run on."""
        return self._drawn(phase, first_step - phase.first).map(self._element)

    def _drawn(self, phase, first_step):
        from bert_keras.data.batches import pretraining_dataset

        return pretraining_dataset(
            os.path.join(self._examples(phase), "train"),
            phase.batch_size,
            # Another seed for each phase: pairs and order are drawn anew.
            self.settings.seed + phase.number - 1,
            first_step,
            rules=self.rules(phase),
        )

    def held_out(self, phase):
        """The held-out batches of a phase, the same each time."""
        if phase not in self._held_out:
            self._held_out[phase] = self._drawn_held_out(phase).map(
                self._element
            )
        return self._held_out[phase]

    def _element(self, x, y, w):
        return self.objective.element(*_filled(x, y, w, self.examples_per_row))

    def _drawn_held_out(self, phase):
        from bert_keras.data.batches import evaluation_dataset

        batches = evaluation_dataset(
            os.path.join(self._examples(phase), "held_out"),
            phase.batch_size,
            rules=self.rules(phase),
        )
        return batches.take(self.settings.evaluation_steps)

    def rules(self, phase):
        """The `SamplingRules` by which a phase's examples are drawn."""
        from bert_keras.data.sampling import SamplingRules

        settings = self.settings
        return SamplingRules(
            phase.sequence_length,
            phase.max_predictions,
            settings.short_probability,
            settings.mask_rate,
            settings.mask_mix,
            settings.whole_word,
            settings.max_ngram,
            settings.packed,
        )

    @property
    def examples_per_row(self):
        """Most examples in a row of any phase; None where none is packed."""
        if not self.settings.packed:
            return None
        rows = [self.rules(phase) for phase in phases(self.settings)]
        return max(rules.examples_per_row for rules in rows)

    def epoch_size(self, phase):
        """Examples in one epoch of a phase."""
        if self.settings.records:
            from bert_keras.data.record_files import read_manifest

            folder = os.path.join(self._examples(phase), "train")
            return read_manifest(folder)["examples"]
        from bert_keras.data.examples import block_sizes

        return int(block_sizes(self.store, self.rules(phase)).sum())

    def preprocessor(self):
        """The preprocessor that goes with the weights."""
        import bert_keras

        tokenizer = bert_keras.WordPieceTokenizer(
            self.vocabulary, **self.tokenizer
        )
        return bert_keras.BertPreprocessor(tokenizer, self.settings.longest)

    def facts(self, phase):
        """What the first batches of a phase are like, and how fast they come.

        Returns:
            dict: "mask_rate", predictions per token; "random_next", share of
            pairs whose second sentence is a random one; "padding", share of
            places that hold no token; "input_tokens_per_second", places that
            the pipeline gives when nothing trains beside it.
        """
        batches = iter(self._drawn(phase, 0))
        sums = np.zeros(5)
        next(batches)  # starts the pipeline: not timed
        began = time.monotonic()
        for _ in range(SAMPLED):
            x, y, w = next(batches)
            mask, pairs = x["padding_mask"].numpy(), w["nsp"].numpy()
            sums += (
                w["mlm"].numpy().sum(),
                mask.sum(),
                mask.size,
                (y["nsp"].numpy() * pairs).sum(),
                pairs.sum(),
            )
        seconds = time.monotonic() - began
        predicted, tokens, places, random, pairs = sums
        return {
            "mask_rate": predicted / tokens,
            "random_next": random / pairs,
            "padding": 1 - tokens / places,
            "input_tokens_per_second": places / seconds,
        }

    def baselines(self, phase):
        """What the simplest guesses reach on the held-out batches.

        Returns:
            dict: "unigram", share of predictions that the commonest piece
            hits; "nsp_majority", share of the commoner answer to the
            next-sentence question.
        """
        commonest = self._commonest()
        hits = np.zeros(2)
        totals = np.zeros(2)
        for x, y, w in self._drawn_held_out(phase):
            element = _as_numpy(self._element(x, y, w))
            ids, weights = element[1:]
            if isinstance(ids, dict):
                ids, weights = ids["mlm"], weights["mlm"]
            labels, pairs = _as_numpy((y["nsp"], w["nsp"]))
            hits += weights[ids == commonest].sum(), (labels * pairs).sum()
            totals += weights.sum(), pairs.sum()
        unigram, random = (hits / totals).tolist()
        return {"unigram": unigram, "nsp_majority": max(random, 1 - random)}

    def _commonest(self):
        """The id of the commonest piece of the training text."""
        counts = np.zeros(len(self.vocabulary), np.int64)
        tokens = self.store.tokens
        for start in range(0, len(tokens), 1 << 22):
            part = tokens[start : start + (1 << 22)]
            counts += np.bincount(part, minlength=len(counts))
            self.store.release()
        return counts.argmax()


def _tokenizer(made, init):
    """How the model that is trained on the data is to read text.

    As the data was made; but what a word's greatest length is, and whether
    "[MASK]" in a text is the token, is kept as with the weights of `init`:
    next to no text of the data depends on it.
    """
    if not init:
        return made
    from bert_keras.text.preprocessor import BertPreprocessor

    before = BertPreprocessor.from_preset(init).tokenizer
    kept = ("max_word_length", "keep_special_tokens")
    return {**made, **{name: getattr(before, name) for name in kept}}


def _as_numpy(element):
    import tensorflow as tf

    return tf.nest.map_structure(lambda tensor: tensor.numpy(), element)


def _filled(x, y, w, examples_per_row):
    """A batch with places for as many examples a row as the model has."""
    if examples_per_row is None:
        return x, y, w
    import tensorflow as tf

    more = [[0, 0], [0, examples_per_row - y["nsp"].shape[1]]]
    y, w = (part | {"nsp": tf.pad(part["nsp"], more)} for part in (y, w))
    return x, y, w
