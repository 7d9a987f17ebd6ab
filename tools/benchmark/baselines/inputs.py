"""Fill in job settings that depend on the machine, such as paths and dtype."""

import dataclasses
import functools
import glob
import json
import os
from itertools import islice

import bert_keras
from bert_keras.data.corpus import paragraphs, read_documents
from bert_keras.errors import InputError
from bert_keras.json_files import write_json
from bert_keras.modeling.sizes import SIZES
from bert_keras.serving.onnx_litert import export_on_ids
from bert_keras.training.strategy import choose_dtype

# Name -> path in --data. Commands read the first --lines lines of a file.
FILES = {
    f"{task}_{part}": f"{folder}/{part}{ending}"
    for task, folder, ending in (
        ("mrpc", "glue/MRPC", ".tsv"),
        ("sst2", "glue/SST-2", ".tsv"),
        ("wikiann", "wikiann_en", ""),
    )
    for part in ("train", "dev")
}
MODELS = {
    "classifier": lambda init: bert_keras.BertClassifier.from_preset(
        init, labels=["negative", "positive"]
    ),
    "tagger": lambda init: bert_keras.BertTagger.from_preset(
        init, labels=["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    ),
    "spans": bert_keras.BertSpanPredictor.from_preset,
    "embedder": bert_keras.BertEmbedder.from_preset,
}


@dataclasses.dataclass(eq=False)
class Inputs:
    """Machine-dependent settings of benchmark jobs.

    `folder` holds the input files that this class makes. `text`, `data`, `init`
    and `vocabulary` are the paths of --input, --data, --init and --vocabulary.
    If `batch` is not 0, it replaces the batch size of every job that has one.
    `lines` is the maximum number of lines or questions in an input file.
    """

    folder: str | os.PathLike
    text: str | None = None
    data: str | None = None
    init: str | None = None
    vocabulary: str | None = None
    batch: int = 0
    lines: int = 20_000

    def fill(self, settings):
        """Return the settings with batch size, dtype and paths filled in."""
        filled = dict(settings)
        if "batch" in settings:
            filled["batch"] = self.batch or settings["batch"]
        if "dtype" in settings:
            filled["dtype"] = choose_dtype(settings["dtype"])
        if "words" in settings:
            filled["words"] = [w.format_map(self) for w in settings["words"]]
        return filled

    @functools.cache  # noqa: B019 - the object is needed until the script ends
    def __getitem__(self, name):
        """Return the path of a file or folder; make it at the first call.

        "text", "data", "init": path of --input, --data or --init.
        "here": the folder of this file.
        "base": random weights of base size.
        KEY of `MODELS`: a model of this type with the weights of --init.
        "served_KEY" or "onnx_KEY": SavedModel or ONNX folder of this model.
        "lines": the first lines of --input.
        A key of `FILES`: the first lines of this file.
        "squad_train": SQuAD's training split.
        "squad": the first questions of SQuAD's dev split.
        "questions": the same questions as JSON lines.
        "output": a path to which a job may write.
        """
        path = os.path.join(self.folder, name)
        kind, _, model = name.rpartition("_")
        if name in ("init", "data"):
            return self.require(name, name)
        if name == "text":
            return self.require("text", "input")
        if name == "here":
            return os.path.dirname(os.path.abspath(__file__))
        if name == "squad_train":
            return self._find("squad/train-v1.1*.json")
        if name in FILES:
            with open(self._find(FILES[name]), encoding="utf-8") as file:
                self._write(path, file)
        elif name == "lines":
            texts = paragraphs(read_documents(self["text"]))
            self._write(path, (f"{text}\n" for text in texts))
        elif name in ("squad", "questions"):
            self._write_questions(path, name == "squad")
        elif model in MODELS:
            self._write_model(path, kind, model)
        elif name == "base":
            self._write_base(path)
        return path

    def _find(self, pattern):
        pattern = os.path.join(self["data"], pattern)
        # If no file matches, return the pattern, to show it in a later error.
        return next(glob.iglob(pattern), pattern)

    def _write(self, path, lines):
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(islice(lines, self.lines))

    def _write_questions(self, path, official):
        dev = self._find("squad/dev-v1.1*.json")
        with open(dev, encoding="utf-8") as file:
            articles = json.load(file)["data"]
        texts = [p for article in articles for p in article["paragraphs"]]
        rows = [(p["context"], qa) for p in texts for qa in p["qas"]]
        rows = rows[: self.lines]
        if official:
            texts = [{"context": context, "qas": [qa]} for context, qa in rows]
            write_json({"data": [{"title": "", "paragraphs": texts}]}, path)
        else:
            rows = ({"question": q["question"], "context": c} for c, q in rows)
            self._write(path, (json.dumps(row) + "\n" for row in rows))

    def _write_model(self, path, kind, name):
        preprocess = bert_keras.BertPreprocessor.from_preset(
            self["init"], sequence_length=384 if name == "spans" else 128
        )
        model = MODELS[name](self["init"])
        # An untrained head is as fast as a trained head.
        if kind == "served":
            bert_keras.export_saved_model(
                model, path, preprocess, allow_untrained=True
            )
        elif kind == "onnx":
            export_on_ids(model, preprocess, path, "onnx", allow_untrained=True)
        else:
            model.save_preset(path, preprocess)

    def _write_base(self, path):
        vocabulary = self.require("vocabulary", "vocabulary")
        tokenizer = bert_keras.WordPieceTokenizer(vocabulary)
        # Other libraries use the exact GELU by default.
        encoder = bert_keras.BertEncoder(
            len(tokenizer.vocabulary), **SIZES["base"], activation="gelu_exact"
        )
        preprocess = bert_keras.BertPreprocessor(tokenizer, 128)
        encoder.save_preset(path, preprocess)

    def require(self, name, flag):
        value = getattr(self, name)
        if value is None:
            raise InputError(f"This row needs --{flag}.")
        return value
