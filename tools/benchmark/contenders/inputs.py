"""What rows ask for by name and only the driver can find: texts, weights."""

import dataclasses
import functools
import glob
import os

import numpy as np

import bert_keras
from bert_keras.data.corpus import DOCUMENTATION, read_documents
from bert_keras.errors import InputError
from bert_keras.files import write_json
from bert_keras.modeling.sizes import SIZES
from bert_keras.text.vocabulary import read_vocabulary
from bert_keras.training.strategy import choose_dtype
from official_tasks.tasks.glue import MRPC, SST_2, GlueTask
from official_tasks.tasks.squad import SQUAD_1, SquadTask


@dataclasses.dataclass(eq=False)
class Inputs:
    """Fills in the settings of contenders.

    Attributes:
        folder: where what is made for them goes.
        environments: folder of the peers' environments.
        text: what `read_documents` takes; the installed documentation where
            None.
        data: folder of the official files of tasks; see `TASKS`.
        init: weights to fine-tune.
        vocabulary: file of word pieces.
    """

    folder: str | os.PathLike
    environments: str | None = None
    text: str | None = None
    data: str | None = None
    init: str | None = None
    vocabulary: str | None = None

    def fill(self, settings):
        """The settings with, in the place of names, what they stand for."""
        filled = {}
        if "dtype" in settings:
            filled["dtype"] = choose_dtype(settings["dtype"])
        if "lengths" in settings:
            filled["lengths"] = self.lengths(settings)
        if "task" in settings:
            filled["file"] = self.rows(settings["task"], settings["rows"])
            filled["init"] = self.init
        if "base" in settings:
            filled["base"] = self.base()
        if "mini" in settings:
            filled |= self.mini()
        return {**settings, **filled}

    def lengths(self, settings):
        """Of documents installed with Python, or of paragraphs of text."""
        longest = settings["length"]
        if settings["lengths"] == "documentation":
            return natural_lengths(None, longest)
        source = self.needed("text", "input")
        return natural_lengths(source, longest, by="paragraphs")

    def needed(self, name, flag):
        value = getattr(self, name)
        if value is None:
            raise InputError(f"This row needs --{flag}.")
        return value

    @functools.cache  # noqa: B019 - as long as the run
    def rows(self, task, count):
        """File of the task's rows of ids."""
        data, init = self.needed("data", "data"), self.needed("init", "init")
        path = os.path.join(self.folder, f"{task}.json")
        return write_rows(task, data, init, count, path)

    @functools.cache  # noqa: B019
    def base(self):
        """Folder of random weights of base size, in Hugging Face's format."""
        path = os.path.join(self.folder, "base-huggingface")
        pieces = read_vocabulary(self.needed("vocabulary", "vocabulary"))
        # Its form of GELU is that of the other libraries.
        encoder = bert_keras.BertEncoder(
            len(pieces), **SIZES["base"], activation="gelu_exact"
        )
        tokenizer = bert_keras.WordPieceTokenizer(pieces)
        encoder.save_preset(path, bert_keras.BertPreprocessor(tokenizer, 128))
        return path

    @functools.cache  # noqa: B019
    def mini(self):
        """The packaged model's name, and folders of the same encoder."""
        name = "bert_keras_mini_en"
        folders = {
            form: os.path.join(self.folder, f"{name}-{form}")
            for form in ("huggingface", "served")
        }
        # Its form of GELU is not the peers', and costs about the same.
        encoder = bert_keras.BertEncoder.from_preset(
            name, activation="gelu_exact"
        )
        preprocess = bert_keras.BertPreprocessor.from_preset(name)
        encoder.save_preset(folders["huggingface"], preprocess)
        bert_keras.export_saved_model(encoder, preprocess, folders["served"])
        return {"mini": name, **folders}


def natural_lengths(source, longest, by="documents"):
    """Pieces of 400 real texts, the longer ones cut, special pieces added.

    Args:
        source: what `read_documents` takes; None for the documentation
            installed with Python.
        longest: pieces of an example, at most.
        by: "documents" or "paragraphs": what a text is.
    """
    count = 400  # spread over the source
    documents = read_documents(source or DOCUMENTATION)
    lengths = []
    for document in documents:
        sizes = [len(paragraph) for paragraph in document.paragraphs]
        for size in [sum(sizes)] if by == "documents" else sizes:
            # A piece is four characters of English, within a tenth.
            full, rest = divmod(size // 4, longest - 3)
            lengths += [longest] * full + [rest + 3] * (rest > 0)
        if len(lengths) > 20 * count:
            break
    return lengths[:: max(1, len(lengths) // count)][:count]


def _glue(row):
    return lambda path: GlueTask(row, data_dir=path)


def _squad(pattern):
    found = sorted(glob.glob(pattern))
    if not found:
        raise InputError(f"No file of SQuAD's training texts: {pattern}")
    return SquadTask(SQUAD_1, train=found[0])


# Task -> where its training texts lie under --data, tokens of a row, and what
# reads them.
TASKS = {
    "SST-2": ("glue/SST-2", 128, _glue(SST_2)),
    "MRPC": ("glue/MRPC", 128, _glue(MRPC)),
    "SQuAD": ("squad/train-v1.1*.json", 384, _squad),
}


def write_rows(name, data, init, count, path, seed=0):
    """Encodes `count` rows, drawn at random by the seed, into a JSON file.

    Args:
        name: key of `TASKS`.
        data: folder of the official files.
        init: weights, whose vocabulary is used.

    Returns:
        str, `path`: a dict of "token_ids" and "segment_ids", lists of R rows,
        and "labels", or "start" and "end".
    """
    place, length, make = TASKS[name]
    preprocess = bert_keras.BertPreprocessor.from_preset(
        init, sequence_length=length, pad_to_longest=True
    )
    task, random = make(os.path.join(data, place)), np.random.default_rng(seed)
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
