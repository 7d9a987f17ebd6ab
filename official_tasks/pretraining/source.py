"""Pre-training batches from data that `create_pretraining_data` wrote."""

import dataclasses
import itertools
import os

import numpy as np
import tensorflow as tf

import bert_keras
from bert_keras import files
from bert_keras.data import record_files, token_store
from bert_keras.data.batches import (
    check_source,
    evaluation_dataset,
    pretraining_dataset,
)
from bert_keras.data.examples import block_sizes
from bert_keras.errors import InputError
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.vocabulary import read_vocabulary, resolve_settings
from official_tasks.pretraining.objectives import unmask
from official_tasks.pretraining.settings import phases, sampling_rules

SIDES = ("train", "held_out")
MASKS = ("max_predictions", "mask_rate", "mask_mix", "whole_word")
SAMPLED = 20  # number of batches that `measure_data` reads


def list_manifests(data, settings) -> list[str]:
    """Return the paths of the manifests, which hold the hashes of all data."""
    tokens = os.path.join(data, "tokens")
    folders = [data, settings.phase_2_data] if settings.records else []
    return [
        os.path.join(folder, side, name)
        for folder, name in (
            (tokens, token_store.MANIFEST),
            *((folder, record_files.MANIFEST) for folder in folders if folder),
        )
        for side in SIDES
    ]


class PretrainingSource:
    """Training and held-out batches of each phase, and the vocabulary.

    Args:
        folder: folder that `create_pretraining_data` wrote.
        settings: `Settings`.
        objective: a value of `objectives.OBJECTIVES`.

    Raises:
        InputError: the folder lacks the tokens or the held-out documents.
    """

    def __init__(self, folder, settings, objective):
        self.folder = folder
        self.tokens = os.path.join(folder, "tokens")
        if not files.is_folder(self.tokens):
            raise InputError(
                f"{folder} holds no pre-training data. Expected the folder "
                "that bert-keras create_pretraining_data wrote."
            )
        self.settings, self.objective = settings, objective
        train = os.path.join(self.tokens, "train")
        if not files.is_file(os.path.join(train, token_store.MANIFEST)):
            raise InputError(
                f"The data in {folder} is not finished. Run again the "
                "bert-keras create_pretraining_data that writes this folder."
            )
        self.store = token_store.TokenStore(train)
        if not files.is_folder(os.path.join(self.tokens, "held_out")):
            raise InputError(
                f"{folder} holds no held-out documents, which pre-training "
                "needs for evaluation. Make the data again in another folder, "
                "with --held_out_share above 0."
            )
        self.vocabulary = self.store.vocabulary
        self.tokenizer = _tokenizer(self.store.tokenizer, settings.init)
        self._held_out = {}

    def check_once(self, folder) -> dict:
        """Check the data unless this run has checked the same files before.

        Files are the same if their sizes and modification times are equal.

        Args:
            folder: the run's `RunFolder`.

        Returns:
            dict: path of each file -> [bytes, modification time in ns]. The
            caller must record the dict as results of the stage "data_files".
        """
        versions = {
            path: files.describe_version(path)
            for data in self._list_folders()
            for path in files.walk(data)
        }
        if folder.read_results("data_files") != versions:
            self.check()
        return versions

    def _list_folders(self) -> list[str]:
        used = phases(self.settings)
        folders = {self.tokens, *(self._examples(phase) for phase in used)}
        return [
            os.path.join(folder, side)
            for folder in sorted(folders)
            for side in SIDES
        ]

    def check(self):
        """Raise `InputError` if the data contradicts manifests or settings."""
        if self.settings.vocabulary:
            self._check_vocabulary(self.settings.vocabulary)
        # hash of the documents -> (side, folder); side: "train" or "held_out"
        corpora: dict = {}
        firsts: dict = {}  # side -> hash and path of the first folder
        for phase in phases(self.settings) if self.settings.records else ():
            examples = self._examples(phase)
            if not files.is_folder(os.path.join(examples, "train")):
                raise InputError(
                    f"{examples} holds no records. To add them, repeat the "
                    "command that made the data, with --records, or leave "
                    "--records out here."
                )
        for folder in self._list_folders():
            side = os.path.basename(folder)
            manifest = check_source(folder, self.vocabulary, side)
            found = manifest["corpus_hash"]
            other_side, other = corpora.setdefault(found, (side, folder))
            if other_side != side:
                raise InputError(
                    f"{folder} and {other} were made of the same documents. "
                    "Held-out documents must not be trained on. Make the data "
                    "again in a new folder."
                )
            expected, first = firsts.setdefault(side, (found, folder))
            if found != expected:
                raise InputError(
                    f"{folder} and {first} were made of different documents. "
                    "Make both again, of the same text with the same "
                    "--held_out_share."
                )
        if self.settings.records:
            for phase in phases(self.settings):
                self._check_rules(phase)

    def _examples(self, phase):
        """Return the folder of a phase's records, or of its token stores."""
        if not self.settings.records:
            return self.tokens
        return self.folder if phase.number == 1 else self.settings.phase_2_data

    def _check_vocabulary(self, path):
        pairs = itertools.zip_longest(read_vocabulary(path), self.vocabulary)
        for line, (there, here) in enumerate(pairs, 1):
            if there != here:
                raise InputError(
                    f"The data in {self.folder} was made with another "
                    f"vocabulary: line {line} is {there!r} in {path}, but "
                    f"{here!r} in the data. Make the data with {path}."
                )
        names = ("lowercase", "strip_accents")
        for name, saved in zip(names, resolve_settings(path), strict=True):
            made = self.store.tokenizer[name]
            if saved not in (None, made):
                raise InputError(
                    f"The data in {self.folder} was made with {name}={made}, "
                    f"but the settings next to {path} say {saved}. Make the "
                    f"data with {path}, or leave --vocabulary out."
                )

    def _check_rules(self, phase):
        """Raise `InputError` if a phase's rules differ from its records' rules.

        Other rules would have no effect, because records hold fixed examples.
        """
        folder = self._examples(phase)
        manifest = record_files.read_manifest(os.path.join(folder, "train"))
        made = dataclasses.asdict(record_files.read_rules(manifest))
        # A unidirectional objective removes the masks of the records.
        is_masked = self.settings.objectives.startswith("mlm")
        unused = () if is_masked else MASKS
        for name, value in dataclasses.asdict(self.rules(phase)).items():
            if name not in unused and made[name] != value:
                raise InputError(
                    f"The records in {folder} were made with {name} "
                    f"{made[name]}, but phase {phase.number} has {value}. Use "
                    "the settings of the records, or leave --records out to "
                    "sample pairs on the fly."
                )

    def batches(self, phase, first_step):
        """Return a phase's endless batches from the run's step `first_step`."""
        return self._draw(phase, first_step - phase.first).map(self._select)

    def _draw(self, phase, first_step):
        seed = self.settings.seed
        # Derive another seed, so that phase 2 draws other pairs than phase 1.
        if phase.number > 1:
            sequence = np.random.SeedSequence([seed, phase.number])
            seed = int(sequence.generate_state(1)[0])
        return pretraining_dataset(
            os.path.join(self._examples(phase), "train"),
            phase.batch_size,
            seed,
            first_step,
            rules=self.rules(phase),
        )

    def held_out(self, phase):
        """Return the held-out batches of a phase, the same in each call."""
        if phase not in self._held_out:
            batches = self._draw_held_out(phase).map(self._select)
            self._held_out[phase] = batches
        return self._held_out[phase]

    def _select(self, x, y, w):
        if self.examples_per_row is not None:
            # (B, E) -> (B, examples_per_row), the shape of the model's output
            more = [[0, 0], [0, self.examples_per_row - y["nsp"].shape[1]]]
            y, w = (
                part | {"nsp": tf.pad(part["nsp"], more)} for part in (y, w)
            )
        return self.objective.select(x, y, w)

    def _draw_held_out(self, phase):
        batches = evaluation_dataset(
            os.path.join(self._examples(phase), "held_out"),
            phase.batch_size,
            rules=self.rules(phase),
        )
        return batches.take(self.settings.evaluation_steps)

    def rules(self, phase):
        return sampling_rules(self.settings, phase)

    @property
    def examples_per_row(self):
        """Maximum number of examples in a row; None if rows are not packed."""
        if not self.settings.packed:
            return None
        rows = [self.rules(phase) for phase in phases(self.settings)]
        return max(rules.examples_per_row for rules in rows)

    def epoch_size(self, phase):
        """Return the number of examples, or packed rows, in a phase's epoch."""
        if self.settings.records:
            folder = os.path.join(self._examples(phase), "train")
            return record_files.read_manifest(folder)["examples"]
        return int(block_sizes(self.store, self.rules(phase)).sum())

    def preprocessor(self):
        """Return the preprocessor to save with the model."""
        tokenizer = bert_keras.WordPieceTokenizer(
            self.vocabulary, **self.tokenizer
        )
        return bert_keras.BertPreprocessor(tokenizer, self.settings.longest)

    def measure_data(self, phase):
        """Return statistics of the first batches of a phase.

        Returns:
            dict: "mask_rate", predictions per token; "random_next", fraction
            of pairs with a random second sentence; "padding", fraction of
            positions without a token; "unknown", fraction of tokens that are
            [UNK] before masking.
        """
        sums = np.zeros(6)
        unknown = self.vocabulary.index("[UNK]")
        for x, y, w in self._draw(phase, 0).take(SAMPLED):
            mask, pairs = x["padding_mask"].numpy(), w["nsp"].numpy()
            ids = unmask(x, y["mlm"], w["mlm"]).numpy()
            sums += (
                w["mlm"].numpy().sum(),
                mask.sum(),
                mask.size,
                (y["nsp"].numpy() * pairs).sum(),
                pairs.sum(),
                (ids == unknown).sum(),
            )
        predicted, tokens, positions, random, pairs, unknowns = sums
        return {
            "mask_rate": predicted / tokens,
            "random_next": random / pairs,
            "padding": 1 - tokens / positions,
            "unknown": unknowns / tokens,
        }

    def baselines(self, phase):
        """Return the accuracies of constant predictions on held-out batches.

        Returns:
            dict: "unigram", the accuracy of always predicting the most frequent
            token of the training text; "nsp_majority", the accuracy of always
            predicting the more frequent next-sentence label.
        """
        most_frequent = self._find_most_frequent()
        hits, totals = np.zeros(2), np.zeros(2)
        for x, y, w in self._draw_held_out(phase):
            _, ids, weights = self._select(x, y, w)
            if isinstance(ids, dict):
                ids, weights = ids["mlm"], weights["mlm"]
            ids, weights = ids.numpy(), weights.numpy()
            labels, pairs = y["nsp"].numpy(), w["nsp"].numpy()
            hits += weights[ids == most_frequent].sum(), (labels * pairs).sum()
            totals += weights.sum(), pairs.sum()
        unigram, random = (hits / totals).tolist()
        return {"unigram": unigram, "nsp_majority": max(random, 1 - random)}

    def _find_most_frequent(self):
        """Return the id of the most frequent token of the training text."""
        counts = np.zeros(len(self.vocabulary), np.int64)
        tokens = self.store.tokens
        for start in range(0, len(tokens), 1 << 22):
            part = tokens[start : start + (1 << 22)]
            counts += np.bincount(part, minlength=len(counts))
            self.store.release()
        return counts.argmax()


def _tokenizer(made, init):
    """Return the tokenizer arguments of the trained model.

    `made` are the arguments of the data's tokenizer. With `init`, the values of
    `max_word_length` and `keep_special_tokens` come from the initial weights.
    They may differ from the data's values, because these two arguments change
    the tokens of only a few texts.
    """
    if not init:
        return made
    tokenizer = BertPreprocessor.from_preset(init).tokenizer
    names = ("max_word_length", "keep_special_tokens")
    return {**made, **{name: getattr(tokenizer, name) for name in names}}
