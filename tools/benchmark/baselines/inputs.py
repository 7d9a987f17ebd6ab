"""Fill in job settings that depend on the machine, such as paths and dtype."""

import dataclasses
import functools
import glob
import json
import os
from itertools import islice

import numpy as np

import bert_keras
from bert_keras.data.corpus import paragraphs, read_documents
from bert_keras.errors import InputError
from bert_keras.json_files import write_json
from bert_keras.modeling.sizes import SIZES
from bert_keras.serving.onnx_litert import export_on_ids
from bert_keras.training.strategy import choose_dtype
from official_tasks.tasks.forms.table import read_rows

# Name -> path in --data. Commands read the first --lines lines of a file.
FILES = {
    f"{task}_{part}": f"{folder}/{part}{ending}"
    for task, folder, ending in (
        ("mrpc", "glue/MRPC", ".tsv"),
        ("sst2", "glue/SST-2", ".tsv"),
        ("stsb", "glue/STS-B", ".tsv"),
        ("wikiann", "wikiann_en", ""),
    )
    for part in ("train", "dev")
}
LABELS = ["negative", "positive"]
MODELS = {
    "classifier": lambda init: bert_keras.BertClassifier.from_preset(
        init, labels=LABELS
    ),
    "tagger": lambda init: bert_keras.BertTagger.from_preset(
        init, labels=["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    ),
    "spans": bert_keras.BertSpanPredictor.from_preset,
    "embedder": bert_keras.BertEmbedder.from_preset,
}
MODELS["long"] = MODELS["classifier"]
BATCHES = (1, 32)  # texts of a request


@dataclasses.dataclass(eq=False)
class Inputs:
    """Machine-dependent settings of benchmark jobs.

    Attributes:
        folder: folder of the input files that this class makes.
        text, data, init, vocabulary: paths of --input and the flags of the same
            name, or None.
        batch: if not 0, the batch size of every job that has one.
        lines: maximum number of lines or questions in an input file.
        lengths: tokens of the random texts of the row "serve".
        texts: FILE:COLUMN of further texts of this row.
    """

    folder: str | os.PathLike
    text: str | None = None
    data: str | None = None
    init: str | None = None
    vocabulary: str | None = None
    batch: int = 0
    lines: int = 20_000
    lengths: tuple[int, ...] = (16, 128, 512)
    texts: tuple[str, ...] = ()

    def fill(self, settings):
        """Return the settings with batch size, dtype and paths filled in."""
        filled = {
            name: value.format_map(self) if isinstance(value, str) else value
            for name, value in settings.items()
        }
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

        "text", "data", "init", "vocabulary": path of --input, --data, --init or
        --vocabulary.
        "here": the folder of this file.
        "new": "{new}" itself, which each turn replaces.
        "base": random weights of base size.
        KEY of `MODELS`: a model of this type with the weights of --init.
        "served_KEY", "half_KEY" or "onnx_KEY": SavedModel in float32 or in
        bfloat16, or ONNX folder, of this model.
        "lines": the first lines of --input.
        "equal_lines": those of which `tokenizers` makes the same ids.
        A key of `FILES`: the first lines of this file.
        "sst2_two": the training rows of two steps.
        "squad_train": SQuAD's training split.
        "squad": the first questions of SQuAD's dev split.
        "questions": the same questions as JSON lines.
        """
        path = os.path.join(self.folder, name)
        kind, _, model = name.rpartition("_")
        if name in ("text", "data", "init", "vocabulary"):
            value = getattr(self, name)
            if value is None:
                flag = {"text": "input"}.get(name, name)
                raise InputError(f"This row needs --{flag}.")
            return value
        if name == "here":
            return os.path.dirname(os.path.abspath(__file__))
        if name == "new":
            return "{new}"
        if name == "squad_train":
            return self._find("squad/train-v1.1*.json")
        if name in FILES:
            with open(self._find(FILES[name]), encoding="utf-8") as file:
                self._write(path, file)
        elif name == "sst2_two":
            with open(self["sst2_train"], encoding="utf-8") as file:
                self._write(path, islice(file, 1 + 2 * 32))  # with a header
        elif name == "lines":
            texts = paragraphs(read_documents(self["text"]))
            self._write(path, (f"{text}\n" for text in texts))
        elif name == "equal_lines":
            self._write(path, self._select_equal())
        elif name in ("squad", "questions"):
            self._write_questions(path, name == "squad")
        elif model in MODELS:
            self._write_model(path, kind, model)
        elif name == "base":
            self._write_base(path)
        return path

    def make_batches(self, turns):
        """Return the cases of the row "serve": title -> arguments of each turn.

        All turns of random texts have the same texts. A file's texts come in
        the order of the file, once.
        """
        preprocess = bert_keras.BertPreprocessor.from_preset(self["init"])
        vocabulary = preprocess.tokenizer.vocabulary
        cases = {
            f"{count} x {tokens} tokens": turns
            * [(make_texts(vocabulary, tokens, count),)]
            for count in BATCHES
            for tokens in self.lengths
        }
        for spec in self.texts:
            path, _, column = spec.rpartition(":")
            texts = [text for _, (text,) in read_rows(path, [column])]
            size = max(BATCHES)
            starts = range(0, len(texts), size)
            cases[os.path.basename(path)] = [
                (texts[start : start + size],) for start in starts
            ]
        return cases

    def _find(self, pattern):
        pattern = os.path.join(self["data"], pattern)
        # If no file matches, return the pattern, to show it in a later error.
        return next(glob.iglob(pattern), pattern)

    def _write(self, path, lines):
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(islice(lines, self.lines))

    def _select_equal(self):
        """Yield the lines of which `tokenizers` makes the same ids."""
        from tokenizers import BertWordPieceTokenizer

        with open(self["lines"], encoding="utf-8") as file:
            lines = file.read().splitlines()
        peer = BertWordPieceTokenizer(self["vocabulary"])
        ours = bert_keras.WordPieceTokenizer(
            self["vocabulary"], max_word_length=100
        )
        rows = peer.encode_batch(lines, add_special_tokens=False)
        for line, row, ids in zip(
            lines, rows, ours(lines).to_list(), strict=True
        ):
            if row.ids == ids:
                yield f"{line}\n"

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
        length = {"spans": 384, "long": max(self.lengths)}.get(name, 128)
        preprocess = bert_keras.BertPreprocessor.from_preset(
            self["init"], sequence_length=length
        )
        model = MODELS[name](self["init"])
        # An untrained head is as fast as a trained head.
        if kind in ("served", "half"):
            bert_keras.export_saved_model(
                model,
                path,
                preprocess,
                weights_dtype="bfloat16" if kind == "half" else "float32",
                allow_untrained=True,
            )
        elif kind == "onnx":
            export_on_ids(model, preprocess, path, "onnx", allow_untrained=True)
        else:
            model.save_preset(path, preprocess)

    def _write_base(self, path):
        tokenizer = bert_keras.WordPieceTokenizer(self["vocabulary"])
        # Other libraries use the exact GELU by default.
        encoder = bert_keras.BertEncoder(
            len(tokenizer.vocabulary), **SIZES["base"], activation="gelu_exact"
        )
        preprocess = bert_keras.BertPreprocessor(tokenizer, 128)
        encoder.save_preset(path, preprocess)


def make_texts(vocabulary, tokens, count):
    """Return `count` random texts that become rows of `tokens` tokens.

    A text has `tokens - 2` words, because [CLS] and [SEP] count too.
    """
    words = [p for p in vocabulary if p.isascii() and p.isalpha()]
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(words, tokens - 2)) for _ in range(count)]
