"""What rows ask for by name and only the driver can find: text, weights."""

import functools
import glob
import json
import os

from bert_keras.errors import InputError


class Inputs:
    """Fills in the settings of contenders.

    Args:
        folder: where what is made for them goes.
        environments: folder of the peers' environments.
        text: what `read_documents` takes; the installed documentation where
            None.
        data: folder of the official files of tasks; see `encoded.py`.
        init: weights to fine-tune.
        vocabulary: file of word pieces.
    """

    def __init__(
        self,
        folder,
        environments=None,
        text=None,
        data=None,
        init=None,
        vocabulary=None,
    ):
        self.folder, self.environments = str(folder), environments
        self.text, self.data = text, data
        self.init, self.vocabulary = init, vocabulary

    def fill(self, settings):
        """The settings with, in the place of names, what they stand for."""
        found = {}
        if "lengths" in settings:
            found["lengths"] = self.lengths(settings)
        if "task" in settings:
            found["file"] = self.rows(settings["task"], settings["rows"])
            found["init"] = self.init
        if "text" in settings:
            found["text"] = self.needed("text", "input")
            found["vocabulary"] = self.needed("vocabulary", "vocabulary")
        if "base" in settings:
            found["base"] = self.base()
        return {**settings, **found}

    def lengths(self, settings):
        """Of documents installed beside Python, or of paragraphs of text."""
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
        from official_tasks.tools.benchmark.contenders.encoded import write_rows

        data, init = self.needed("data", "data"), self.needed("init", "init")
        path = os.path.join(self.folder, f"{task}.json")
        return write_rows(task, data, init, count, path)

    @functools.cache  # noqa: B019
    def base(self):
        """Folder of random weights of base size, in Hugging Face's format."""
        import bert_keras
        from bert_keras.interop.convert import convert
        from bert_keras.modeling.sizes import SIZES
        from bert_keras.text.vocabulary import read_vocabulary

        own = os.path.join(self.folder, "base")
        pieces = read_vocabulary(self.needed("vocabulary", "vocabulary"))
        encoder = bert_keras.BertEncoder(len(pieces), **SIZES["base"])
        tokenizer = bert_keras.WordPieceTokenizer(pieces)
        encoder.save_preset(own, bert_keras.BertPreprocessor(tokenizer, 128))
        path = os.path.join(self.folder, "base-huggingface")
        convert(own, path, "huggingface", accept_difference=True)
        return path

    @functools.cache  # noqa: B019
    def contexts(self, count=320):
        """File of contexts of SQuAD's dev set, one a line as JSON."""
        data = self.needed("data", "data")
        found = sorted(glob.glob(os.path.join(data, "squad/dev-v1.1*.json")))
        if not found:
            raise InputError(f"No dev-v1.1*.json in {data}/squad.")
        with open(found[0], encoding="utf-8") as file:
            articles = json.load(file)["data"]
        texts = [p["context"] for a in articles for p in a["paragraphs"]]
        path = os.path.join(self.folder, "contexts.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for text in texts[:: max(1, len(texts) // count)][:count]:
                file.write(json.dumps({"context": text}) + "\n")
        return path

    @functools.cache  # noqa: B019
    def classifier(self):
        """Folder of a classifier on the weights, its head at random."""
        import bert_keras

        init = self.needed("init", "init")
        path = os.path.join(self.folder, "classifier")
        encoder = bert_keras.BertEncoder.from_preset(init)
        model = bert_keras.BertClassifier(encoder, labels=["no", "yes"])
        model.save_preset(path, bert_keras.BertPreprocessor.from_preset(init))
        return path


def natural_lengths(source, longest, by="documents", count=400):
    """Pieces of real texts, the longer ones cut, special pieces added.

    Args:
        source: what `read_documents` takes; None for the documentation
            installed beside Python.
        longest: pieces of an example, at most.
        by: "documents" or "paragraphs": what a text is.
        count: examples, spread over the source.
    """
    from bert_keras.data.corpus import DOCUMENTATION, read_documents

    documents = read_documents(source or DOCUMENTATION)
    lengths = []
    for document in documents:
        sizes = [len(paragraph) for paragraph in document.paragraphs]
        for size in [sum(sizes)] if by == "documents" else sizes:
            # A piece is four characters of English, within a tenth.
            whole, rest = divmod(size // 4, longest - 3)
            lengths += [longest] * whole + [rest + 3] * (rest > 0)
        if len(lengths) > 20 * count:
            break
    return lengths[:: max(1, len(lengths) // count)][:count]
