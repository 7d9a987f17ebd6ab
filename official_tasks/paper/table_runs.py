"""Runs a table: pre-training, then each variant on each task, by seed."""

import os
import time
from typing import NamedTuple

import bert_keras
from bert_keras import files
from bert_keras.data.building import build_stores
from bert_keras.data.corpus import paragraphs, read_documents
from bert_keras.errors import InputError
from bert_keras.run_folder import check_same_settings
from bert_keras.text.learning import learn_vocabulary
from bert_keras.text.vocabulary import read_vocabulary, write_vocabulary
from official_tasks import progress
from official_tasks.engine import finetuning, grid
from official_tasks.engine.processes import in_a_process, workers
from official_tasks.paper.results import gathered
from official_tasks.paper.tables import SCALES, Table
from official_tasks.paper.variants import vary
from official_tasks.pretraining import runner
from official_tasks.pretraining.settings import Settings, model_sizes
from official_tasks.tasks.registry import find_task

HELD_OUT_SHARE = 0.05  # of the documents of a corpus
# Of rows and variants: what is shown with a score and does not decide it.
SHOWN = {"column", "windows", "only", "figures"}


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
    cls, fixed = find_task(row.task)
    options = options_of(row, inputs, recipe)
    return cls(**fixed, **options), options


def options_of(row, inputs, recipe=None):
    """The options that make the `Task` of a `TaskRow`."""
    options = {**row.options, **inputs.options.get(row.task, {})}
    own_files = {"train", "dev", "data_dir"} & options.keys()
    if inputs.data_dir and not own_files:
        options["data_dir"] = inputs.data_dir
    if recipe:
        options["recipe"] = recipe
    return options


def tuning_of(variant, row, over):
    """Arguments of `grid.run`; a tagger on features has its task's own.

    `over` goes before those of the row, such as a dtype for all rows.
    """
    left_out = set()
    if variant.recipe:
        left_out = {"epochs", "batch_size", "learning_rate"}
    elif row.rates:
        left_out = {"learning_rate"}
    own = {k: v for k, v in row.tuning.items() if k not in left_out}
    return {**own, **over}


class Work(NamedTuple):
    """The single runs of a table; it travels to other processes.

    Attributes:
        path: folder of the table.
        table: what `reproduce.table_of` returns.
        scale: of `SCALES`.
        inputs: what the table is computed from.
        pretraining, tuning: settings over those of the scale and the tasks.
    """

    path: str
    table: Table
    scale: str
    inputs: Inputs
    pretraining: dict = {}
    tuning: dict = {}

    def settings_of(self, run):
        """Settings of a pre-training run: the scale's, then its own."""
        own = self.table.runs[run]
        return {**SCALES[self.scale], **self.pretraining, **own}

    def run_folder(self, run, seed):
        """Where a pre-training run lies; released weights are their name."""
        if run not in self.table.runs:
            return run
        if self.inputs.pretrained:
            name = shared_name(self.settings_of(run), self.scale)
            return os.path.join(
                self.inputs.pretrained, self.scale, name, f"seed-{seed}"
            )
        return os.path.join(self.path, "pretrain", plain(run), f"seed-{seed}")

    def pretrain(self, data, run, seed):
        """Figures of a pre-training run on held-out documents."""
        figures = runner.run(
            data, self.run_folder(run, seed), **self.settings_of(run), seed=seed
        )
        return finetuning.scalars(figures)

    def decided(self, name, row):
        """What the score of a variant on a task follows from, but the seed."""
        variant = self.table.variants[name]
        runs = {variant.run, variant.second} & self.table.runs.keys()
        made = {
            **row._asdict(),
            **variant._asdict(),
            "pretraining": {run: self.settings_of(run) for run in runs},
        }
        return {key: made[key] for key in made.keys() - SHOWN}

    def score(self, name, row, seed) -> float:
        """The score of a variant, fine-tuned on a task."""
        variant = self.table.variants[name]
        task, options = task_of(row, self.inputs, variant.recipe)
        second = variant.second and os.path.join(
            self.run_folder(variant.second, seed), "model"
        )
        width = None
        if variant.bilstm:  # as wide, each way, as the encoder
            settings = Settings(**self.settings_of(variant.run))
            width = model_sizes(settings)["hidden_dim"]
        rows = {"train": row.rows, "dev": row.dev_rows}
        task = vary(task, rows, width, second, row.sentence)
        folder = os.path.join(plain(name), plain(row.name), f"seed-{seed}")
        results = grid.run(
            task,
            self.run_folder(variant.run, seed),
            os.path.join(self.path, "finetune", folder),
            learning_rates=row.rates,
            seed=seed,
            settings={**options, "variant": name},
            **tuning_of(variant, row, self.tuning),
        )
        return float(results[row.metric])


class Run:
    """One table in its folder.

    Args:
        folder: an open `RunFolder`.
        work: `Work`.
        seeds: how many.
        jobs: how many runs at once, each in a process of its own if several.
    """

    def __init__(self, folder, work, seeds, jobs=1):
        self.folder, self.work = folder, work
        self.seeds, self.jobs = seeds, jobs

    def finish(self) -> dict:
        """Runs what is not done yet; returns the results of the table."""
        table = self.work.table
        self._check_tasks()
        data = self._data() if table.runs else None
        with workers(self.jobs) as start:
            figures, scores = self._begin(start, data)

            def by_seed(futures, *key):
                return [futures[*key, s].result() for s in range(self.seeds)]

            return gathered(
                table,
                self.seeds,
                {
                    name: {
                        row.name: by_seed(scores, name, row.name)
                        for row in table.tasks_of(name)
                    }
                    for name in table.variants
                },
                {run: by_seed(figures, run) for run in table.runs},
            )

    def _begin(self, start, data):
        """Starts every run; returns the futures of figures and scores."""
        table, figures, scores = self.work.table, {}, {}
        # Scores wait for their encoders: those of the next seeds are begun
        # before them, so that no job stands still meanwhile.
        ahead = min(self.jobs - 1, self.seeds)
        for seed in range(self.seeds + ahead):
            if seed < self.seeds:
                for run in table.runs:
                    figures[run, seed] = start(self._pretrain, data, run, seed)
            if seed >= ahead:
                self._begin_scores(start, figures, scores, seed - ahead)
        return figures, scores

    def _begin_scores(self, start, figures, scores, seed):
        table = self.work.table
        for name, variant in table.variants.items():
            runs = {variant.run, variant.second} & table.runs.keys()
            earlier = [figures[run, seed] for run in runs]
            for row in table.tasks_of(name):
                scores[name, row.name, seed] = start(
                    self._score, earlier, name, row, seed
                )

    def _check_tasks(self):
        """Reports a mistake in a task's files before hours of training."""
        for row in self.work.table.tasks:
            task, _ = task_of(row, self.work.inputs)
            task.read("train")
            task.read("dev")

    def _pretrain(self, data, run, seed):
        stage = f"pretrain-{plain(run)}-{seed}"
        settings = self.work.settings_of(run)
        return self._timed(stage, settings, self.work.pretrain, data, run, seed)

    def _score(self, earlier, name, row, seed):
        for run in earlier:
            run.result()
        stage = f"{plain(name)}-{plain(row.name)}-{seed}"
        settings = self.work.decided(name, row)
        return self._timed(stage, settings, self.work.score, name, row, seed)

    def _timed(self, stage, settings, work, *arguments):
        done = self.folder.done(stage)
        if done is not None:
            before = done.get("settings", {})
            check_same_settings(before, settings, self.folder.file(stage))
            return done["value"]
        began = time.monotonic()
        if self.jobs > 1:
            value = in_a_process(work, *arguments, jobs=self.jobs, quiet=True)
        else:
            value = work(*arguments)
        seconds = round(time.monotonic() - began, 1)
        self.folder.finish(
            stage, {"value": value, "seconds": seconds, "settings": settings}
        )
        progress.console.print(f"{stage}: {seconds:,.0f} s")
        return value

    def _data(self):
        """The folder of pre-training data, made where none is given."""
        inputs = self.work.inputs
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
        path = self.folder.file("data")
        if self.folder.done("data") is None:
            self.folder.finish("data", make_data(inputs, path))
        return path


def make_data(inputs, path) -> dict:
    """Builds token stores in the folder `path`; returns the tokens of each.

    The vocabulary is learned where the inputs name none.
    """
    vocabulary = inputs.vocabulary
    if not vocabulary:
        with progress.bar("Learning pieces") as update:
            pieces = learn_vocabulary(
                paragraphs(read_documents(inputs.corpus)),
                inputs.vocabulary_size,
                progress=update,
            )
        files.make_folder(path)
        vocabulary = os.path.join(path, "vocab.txt")
        write_vocabulary(pieces, vocabulary)
    tokenizer = bert_keras.WordPieceTokenizer(read_vocabulary(vocabulary))
    with progress.bar("Tokens") as update:
        stores = build_stores(
            read_documents(inputs.corpus),
            tokenizer,
            os.path.join(path, "tokens"),
            HELD_OUT_SHARE,
            progress=lambda documents, characters: update(documents),
        )
    return {k: store.manifest["tokens"] for k, store in stores.items()}


def shared_name(settings, scale):
    """A folder's name for settings, the same in each table of the scale."""
    usual = {**Settings()._asdict(), **SCALES[scale]}
    own = {k: v for k, v in sorted(settings.items()) if v != usual[k]}
    return "+".join(plain(f"{k}-{v}") for k, v in own.items()) or "usual"


def plain(name):
    """A name as it may stand in a path."""
    kept = (c if c.isalnum() or c in "+-" else "_" for c in name)
    return "".join(kept).strip("_")
