"""Fill in the settings that depend on the machine: texts, weights, files."""

import dataclasses
import functools
import glob
import os
from itertools import islice

import numpy as np

import bert_keras
from bert_keras.data.corpus import paragraphs, read_documents
from bert_keras.errors import InputError
from bert_keras.json_files import write_json
from bert_keras.modeling.sizes import SIZES
from bert_keras.text.vocabulary import read_vocabulary
from bert_keras.training.strategy import choose_dtype
from official_tasks.tasks.glue import MRPC, SST_2, glue_task
from official_tasks.tasks.squad import SQUAD_1, squad_task


@dataclasses.dataclass(eq=False)
class Inputs:
    """Settings of jobs that depend on the machine.

    Attributes:
        folder: for the files that jobs need.
        environments: folder of the other libraries' environments.
        text: what `read_documents` takes.
        data: folder of the official files of tasks; see `TASKS`.
        init: weights to fine-tune.
        vocabulary: file of word pieces.
        batch: replaces the batch size of each row; 0 keeps it.
        lines: number of lines that whole commands read.
    """

    folder: str | os.PathLike
    environments: str | None = None
    text: str | None = None
    data: str | None = None
    init: str | None = None
    vocabulary: str | None = None
    batch: int = 0
    lines: int = 20_000

    def fill(self, settings):
        """Return the settings with names replaced by values."""
        filled = dict(settings)
        if "batch" in settings:
            filled["batch"] = self.batch or settings["batch"]
        if "dtype" in settings:
            filled["dtype"] = choose_dtype(settings["dtype"])
        if "task" in settings:
            count = settings["steps"] * filled["batch"]
            filled["file"] = self.rows(settings["task"], count)
            filled["init"] = self.init
        if "words" in settings:
            filled["words"] = [w.format_map(self) for w in settings["words"]]
        return filled

    @functools.cache  # noqa: B019 - as long as the run
    def __getitem__(self, name):
        """Return the path of a file or folder; make it when first named.

        "base": random weights of base size in Hugging Face's format; "mini":
        the packaged model in it; "classifier", "tagger" and "embedder": --init
        with such a head; "served_" and one of these: its SavedModel; "lines":
        a text file; "init", "data", "text": that of the flag; "here": this
        folder; "output": a file to write.
        """
        path = os.path.join(self.folder, name)
        model = name.removeprefix("served_")
        if name in ("init", "data"):
            return self.require(name, name)
        if name == "text":
            return self.require("text", "input")
        if name == "here":
            return os.path.dirname(os.path.abspath(__file__))
        if model in MODELS:
            init = self["init"]
            preprocess = bert_keras.BertPreprocessor.from_preset(init)
            trained = MODELS[model](init)
            if name == model:
                trained.save_preset(path, preprocess)
            else:
                # The speed does not depend on what the head has learned.
                bert_keras.export_saved_model(
                    trained, preprocess, path, allow_untrained=True
                )
        elif name == "base":
            pieces = read_vocabulary(self.require("vocabulary", "vocabulary"))
            # Its form of GELU is that of the other libraries.
            encoder = bert_keras.BertEncoder(
                len(pieces), **SIZES["base"], activation="gelu_exact"
            )
            tokenizer = bert_keras.WordPieceTokenizer(pieces)
            preprocess = bert_keras.BertPreprocessor(tokenizer, 128)
            encoder.save_preset(path, preprocess)
        elif name == "mini":
            encoder = bert_keras.BertEncoder.from_preset(
                "bert_keras_mini_en", activation="gelu_exact"
            )
            preprocess = bert_keras.BertPreprocessor.from_preset(
                "bert_keras_mini_en"
            )
            encoder.save_preset(path, preprocess)
        elif name == "lines":
            texts = paragraphs(read_documents(self.require("text", "input")))
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(f"{t}\n" for t in islice(texts, self.lines))
        return path

    def require(self, name, flag):
        """Return an attribute; raise if its flag was not set."""
        value = getattr(self, name)
        if value is None:
            raise InputError(f"This row needs --{flag}.")
        return value

    @functools.cache  # noqa: B019
    def rows(self, task, count):
        """Write `count` rows of the task's ids; return the file."""
        data, init = self.require("data", "data"), self.require("init", "init")
        path = os.path.join(self.folder, f"{task}-{count}.json")
        return write_rows(task, data, init, count, path)


# Head of whole commands -> function from weights to a model.
MODELS = {
    "classifier": lambda init: bert_keras.BertClassifier.from_preset(
        init, labels=["negative", "positive"]
    ),
    "tagger": lambda init: bert_keras.BertTagger.from_preset(
        init, labels=["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    ),
    "embedder": bert_keras.BertEmbedder.from_preset,
}


def _glue(row):
    return lambda path: glue_task(row, data_dir=path)


def _squad(pattern):
    found = sorted(glob.glob(pattern))
    if not found:
        raise InputError(f"No file of SQuAD's training texts: {pattern}")
    return squad_task(SQUAD_1, train=found[0])


# Task -> path of its training texts under --data, tokens of a row, and a
# function from the path to the task.
TASKS = {
    "SST-2": ("glue/SST-2", 128, _glue(SST_2)),
    "MRPC": ("glue/MRPC", 128, _glue(MRPC)),
    "SQuAD": ("squad/train-v1.1*.json", 384, _squad),
}


def write_rows(name, data, init, count, path, seed=0):
    """Encode `count` rows, drawn at random by the seed, into a JSON file.

    Args:
        name: key of `TASKS`.
        data: folder of the official files.
        init: weights, for their vocabulary.
        count: number of rows.
        path: of the file.
        seed: of the sampling.

    Returns:
        str, `path`: a dict of "token_ids" and "segment_ids", lists of R rows,
        and "labels", or "start" and "end".
    """
    subfolder, length, make = TASKS[name]
    preprocess = bert_keras.BertPreprocessor.from_preset(
        init, sequence_length=length, pad_to_longest=True
    )
    task, random = make(f"{data}/{subfolder}"), np.random.default_rng(seed)
    examples = task.read("train")
    drawn = random.permutation(len(examples))[:count]
    encoded = task.encode([examples[i] for i in drawn], preprocess)
    targets = encoded.targets
    if not isinstance(targets, dict):
        targets = {"labels": targets}
    rows = {
        name: encoded.inputs[name].to_list()
        for name in ("token_ids", "segment_ids")
    }
    rows |= {name: np.asarray(v).tolist() for name, v in targets.items()}
    # A question may have several windows.
    drawn = random.permutation(len(rows["token_ids"]))[:count]
    rows = {name: [values[i] for i in drawn] for name, values in rows.items()}
    write_json(rows, path)
    return str(path)
