"""Runs a table: pre-training, then each variant on each task, by seed."""

import os
import time
from typing import NamedTuple

from bert_keras.errors import InputError
from official_tasks import finetuning, pretrain, progress, several
from official_tasks.reproduce_results import gathered
from official_tasks.reproduce_scales import SCALES
from official_tasks.reproduce_variants import vary

HELD_OUT_SHARE = 0.05


class Inputs(NamedTuple):
    """What a table is computed from.

    Attributes:
        data: folder of `create_pretraining_data`; None makes it of `corpus`.
        corpus: for `read_documents`.
        vocabulary: file of the vocabulary of the corpus; None learns one.
        vocabulary_size: of the one that is learned.
        data_dir: folder of every task's files, where `options` has none.
        options: task -> its options by name.
        pretrained: folder of pre-training runs that several tables share;
            None keeps them in the table's own.
    """

    data: str | None = None
    corpus: str | None = None
    vocabulary: str | None = None
    vocabulary_size: int = 8000
    data_dir: str | None = None
    options: dict = {}
    pretrained: str | None = None


def task_of(row, inputs, recipe=None):
    """The `Task` of a `TaskRow` and the options that make it."""
    from official_tasks.tasks import find_task

    cls, fixed = find_task(row.task)
    options = {**row.options, **inputs.options.get(row.task, {})}
    own_files = {"train", "dev", "data_dir"} & options.keys()
    if inputs.data_dir and not own_files:
        options["data_dir"] = inputs.data_dir
    if recipe:
        options["recipe"] = recipe
    return cls(**fixed, **options), options


def tuning_of(variant, row):
    """Arguments of `several.run`; a tagger on features has its task's own."""
    left_out = set()
    if variant.recipe:
        left_out = {"epochs", "batch_size", "learning_rate"}
    elif row.rates:
        left_out = {"learning_rate"}
    return {k: v for k, v in row.tuning.items() if k not in left_out}


class Run:
    """One table in its folder.

    Args:
        folder: an open `RunFolder`.
        table: `Table`.
        scale: of `SCALES`.
        seeds: how many.
        inputs: `Inputs`.
        pretraining, tuning: settings over those of the scale and the tasks.
    """

    def __init__(
        self, folder, table, scale, seeds, inputs, pretraining=None, tuning=None
    ):
        self.folder, self.table, self.seeds = folder, table, seeds
        self.inputs, self.scale = inputs, scale
        self.settings = {**SCALES[scale], **(pretraining or {})}
        self.tuning = tuning or {}

    def settings_of(self, run):
        """Settings of a pre-training run: the scale's, then its own."""
        return {**self.settings, **self.table.runs[run]}

    def finish(self) -> dict:
        """Runs what is not done yet; returns the results of the table."""
        held_out, scores = {}, {}
        data = self._data() if self.table.runs else None
        for seed in range(self.seeds):
            for run in self.table.runs:
                figures = self._timed(
                    f"pretrain-{plain(run)}-{seed}",
                    self._pretrain,
                    data,
                    run,
                    seed,
                )
                held_out.setdefault(run, []).append(figures)
            for name in self.table.variants:
                for row in self.table.tasks_of(name):
                    value = self._timed(
                        f"{plain(name)}-{plain(row.name)}-{seed}",
                        self._score,
                        name,
                        row,
                        seed,
                    )
                    scores.setdefault(name, {}).setdefault(row.name, [])
                    scores[name][row.name].append(value)
        return gathered(self.table, self.seeds, scores, held_out)

    def _timed(self, stage, work, *arguments):
        done = self.folder.done(stage)
        if done is None:
            began = time.monotonic()
            done = {"value": work(*arguments)}
            done["seconds"] = round(time.monotonic() - began, 1)
            self.folder.finish(stage, done)
        return done["value"]

    def _data(self):
        """The folder of pre-training data, made where none is given."""
        inputs = self.inputs
        if inputs.data:
            return inputs.data
        if inputs.pretrained:
            raise InputError(
                "Tables that share --pretrained share the data too: give "
                "--data, a folder of tools/create_pretraining_data.py."
            )
        if not inputs.corpus:
            raise InputError(
                "The table pre-trains: give --corpus, text, or --data, a "
                "folder of tools/create_pretraining_data.py."
            )
        self._timed("data", self._make_data)
        return self.folder.file("data")

    def _make_data(self):
        import bert_keras
        from bert_keras.data.building import build_stores
        from bert_keras.data.corpus import read_documents
        from bert_keras.text.vocabulary import read_vocabulary

        path = self.inputs.vocabulary or self._learn_vocabulary()
        tokenizer = bert_keras.WordPieceTokenizer(read_vocabulary(path))
        with progress.bar("Tokens") as update:
            stores = build_stores(
                read_documents(self.inputs.corpus),
                tokenizer,
                self.folder.file("data", "tokens"),
                HELD_OUT_SHARE,
                progress=lambda documents, characters: update(documents),
            )
        return {k: store.manifest["tokens"] for k, store in stores.items()}

    def _learn_vocabulary(self):
        from bert_keras.data.corpus import read_documents
        from bert_keras.text.learning import learn_vocabulary
        from bert_keras.text.vocabulary import write_vocabulary

        texts = (
            text
            for document in read_documents(self.inputs.corpus)
            for text in document.paragraphs
        )
        with progress.bar("Learning pieces") as update:
            pieces = learn_vocabulary(
                texts, self.inputs.vocabulary_size, progress=update
            )
        write_vocabulary(pieces, self.folder.file("vocab.txt"))
        return self.folder.file("vocab.txt")

    def run_folder(self, run, seed):
        """Where a pre-training run lies; released weights are their name."""
        if run not in self.table.runs:
            return run
        if self.inputs.pretrained:
            name = shared_name(self.settings_of(run), self.scale)
            return os.path.join(
                self.inputs.pretrained, self.scale, name, f"seed-{seed}"
            )
        return self.folder.file("pretrain", plain(run), f"seed-{seed}")

    def _pretrain(self, data, run, seed):
        figures = pretrain.run(
            data,
            self.run_folder(run, seed),
            **self.settings_of(run),
            seed=seed,
        )
        return finetuning.scalars(figures)

    def _score(self, name, row, seed):
        variant = self.table.variants[name]
        task, options = task_of(row, self.inputs, variant.recipe)
        second = variant.second and os.path.join(
            self.run_folder(variant.second, seed), "model"
        )
        task = vary(
            task,
            {"train": row.rows, "dev": row.dev_rows},
            self._width(variant) if variant.bilstm else None,
            second,
        )
        tuning = {**tuning_of(variant, row), **self.tuning}
        results = several.run(
            task,
            self.run_folder(variant.run, seed),
            self.folder.file(
                "finetune", plain(name), plain(row.name), f"seed-{seed}"
            ),
            learning_rates=row.rates,
            seed=seed,
            settings={**options, "variant": name},
            **tuning,
        )
        return float(results[row.metric])

    def _width(self, variant):
        """Of the BiLSTM, each way: that of the encoder."""
        from official_tasks.pretraining_model import sizes
        from official_tasks.pretraining_settings import Settings

        settings = Settings(**self.settings_of(variant.run))
        return sizes(settings)["hidden_dim"]


def shared_name(settings, scale):
    """A folder's name for settings, the same in each table of the scale."""
    from official_tasks.pretraining_settings import Settings

    usual = {**Settings()._asdict(), **SCALES[scale]}
    own = {k: v for k, v in sorted(settings.items()) if v != usual[k]}
    return "+".join(plain(f"{k}-{v}") for k, v in own.items()) or "usual"


def plain(name):
    """A name as it may stand in a path."""
    kept = (c if c.isalnum() or c in "+-" else "_" for c in name)
    return "".join(kept).strip("_")
