"""Fill in the settings that depend on the machine: texts, weights, files."""

import dataclasses
import functools
import os
from itertools import islice

import bert_keras
from bert_keras.data.corpus import paragraphs, read_documents
from bert_keras.errors import InputError
from bert_keras.modeling.sizes import SIZES
from bert_keras.text.vocabulary import read_vocabulary
from bert_keras.training.strategy import choose_dtype


@dataclasses.dataclass(eq=False)
class Inputs:
    """Settings of jobs that depend on the machine.

    Attributes:
        folder: for the files that jobs need.
        environments: folder of the other libraries' environments.
        text: what `read_documents` takes.
        data: folder of the official files of tasks.
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
