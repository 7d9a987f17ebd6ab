"""Named entities: CoNLL-2003, WNUT-17, WikiANN, and any file of columns."""

from pathlib import Path

from bert_keras.errors import InputError
from official_tasks import ner_columns, ner_rows
from official_tasks.layer_recipes import LSTM_DIM, find_recipe
from official_tasks.ner_columns import DOCUMENT, Sentence
from official_tasks.ner_metrics import OUTSIDE, entity_scores
from official_tasks.ner_texts import NER, TaggedText, Tags, joined
from official_tasks.splits import FILE_OPTIONS, Splits, tfds_info, tfds_rows
from official_tasks.task import Defaults, Encoded, Option, Task

CONTEXTS = ("sentence", "document")
AROUND = 12  # words on each side of a mistake that are shown with it
# LSTMs that begin at random want longer steps than a trained encoder.
ON_FEATURES = Defaults(32, 10.0, 1e-3, 128)


class NerTask(Task):
    """A label for each word, from the vector of its first piece.

    The labels are those of the training file, in its own scheme; entities
    are counted as `ner_metrics` says. A text that is longer than a row
    is read in windows that overlap by half, and each word counts where it
    has most context; a word without pieces is read as `[UNK]`.

    Args:
        row: `NerRow`.
        data_dir, train, dev, test: where the files are.
        context: "sentence", or "document": a word sees the sentences of its
            document, as far as a row goes.
        recipe: the feature-based way: the encoder is frozen, and two LSTMs
            read the features of these layers; see `find_recipe`.
        lstm_dim: their width, one way; that of the paper's where None.
    """

    metric = "f1"
    per_token = True
    options = {
        **FILE_OPTIONS,
        "context": Option("sentence", f"One of {', '.join(CONTEXTS)}."),
        "recipe": Option(
            None, "Features of these layers, the encoder frozen: last, ..."
        ),
        "lstm_dim": Option(LSTM_DIM, "Width of the LSTMs on the features."),
    }

    def __init__(
        self,
        row=NER,
        data_dir=None,
        train=None,
        dev=None,
        test=None,
        context="sentence",
        recipe=None,
        lstm_dim=None,
    ):
        if context not in CONTEXTS:
            raise InputError(
                f"context is {context!r}: expected one of {', '.join(CONTEXTS)}"
            )
        if lstm_dim is not None and lstm_dim < 1:
            raise InputError(f"lstm_dim is {lstm_dim}: expected 1 or more")
        if recipe:
            find_recipe(recipe)
            self.defaults = ON_FEATURES
        self.recipe, self.lstm_dim = recipe, lstm_dim
        self.name = row.name
        files = {"train": train, "dev": dev, "test": test}
        self.splits = Splits(row.name, row.names, data_dir, files)
        self.context = context
        self.labels = None
        self.advice = []

    def read(self, split):
        sentences = self._sentences(split)
        if split == "train":
            self._learn_labels(sentences)
        elif split == "dev" and self.labels:
            self._tell_unknown(sentences)
        if self.context == "sentence":
            return [TaggedText(s.words, s.labels, (0,)) for s in sentences]
        return self._documents(split, sentences)

    def _sentences(self, split) -> list[Sentence]:
        name = self.splits.tfds(split)
        if name:
            info = tfds_info(name)
            return ner_columns.from_tfds(name, info, tfds_rows(name, split))
        labelled = None if split == "test" else True
        sentences: list[Sentence] = []
        for path in self.splits.paths(split):
            first = sentences[-1].document + 1 if sentences else 0
            sentences += [
                sentence._replace(document=sentence.document + first)
                for sentence in ner_columns.read_columns(path, labelled)
            ]
        return sentences

    def _learn_labels(self, sentences):
        seen = {label for s in sentences for label in s.labels}
        self.labels = [OUTSIDE, *sorted(seen - {OUTSIDE})]
        if len(self.labels) < 2:
            raise InputError(
                f"The train file of {self.name} has no label but O: expected "
                "entities"
            )
        scheme = ner_columns.scheme_of(sentences)
        self.advice.append(f"the labels follow {scheme}")

    def _tell_unknown(self, sentences):
        unknown = {x for s in sentences for x in s.labels} - {*self.labels}
        if unknown:
            self.advice.append(
                "labels of the dev file that the train file has not, and that "
                f"no prediction can meet: {', '.join(sorted(unknown))}"
            )

    def _documents(self, split, sentences):
        groups: dict[int, list[Sentence]] = {}
        for sentence in sentences:
            groups.setdefault(sentence.document, []).append(sentence)
        if len(groups) == 1:
            raise InputError(
                f"The {split} file of {self.name} tells no documents apart: "
                f"expected lines of {DOCUMENT}; leave --context=document out"
            )
        return [joined(group) for group in groups.values()]

    def data_files(self):
        return self.splits.found("train", "dev")

    def encode(self, examples, preprocess):
        rows = ner_rows.tag_rows(
            [example.words for example in examples],
            [example.labels for example in examples],
            self.labels,
            preprocess,
        )
        return Encoded(
            rows.inputs,
            rows.targets,
            rows.weights,
            rows.example,
            notes={"row": rows.row, "place": rows.place},
        )

    def take_arguments(self, arguments):
        super().take_arguments(arguments)
        self.recipe = self.recipe or arguments.get("recipe")
        self.lstm_dim = self.lstm_dim or arguments.get("lstm_dim")

    def build(self, encoder):
        if self.recipe:
            from official_tasks.feature_tagger import FeatureTagger

            return FeatureTagger(
                encoder, self.labels, self.recipe, self.lstm_dim or LSTM_DIM
            )
        from bert_keras import BertTagger

        return BertTagger(encoder, labels=self.labels)

    def loss(self):
        import keras

        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def decode(self, examples, encoded, outputs):
        labels, sure = ner_rows.best_labels(
            outputs, encoded.notes["row"], encoded.notes["place"], self.labels
        )
        predictions, first = [], 0
        for example in examples:
            own = slice(first, first + len(example.words))
            predictions.append(Tags(labels[own], sure[own]))
            first = own.stop
        return predictions

    def score(self, examples, predictions):
        if any(example.labels is None for example in examples):
            raise InputError(
                f"The file of {self.name} has no labels: expected one for "
                "each word; without, it can only be predicted" + self.to_score
            )
        truth = [s for e in examples for s in e.sentences(e.labels)]
        found = [
            sentence
            for example, tags in zip(examples, predictions, strict=True)
            for sentence in example.sentences(tags.labels)
        ]
        # The commonest label is O, and gives no entity.
        return {**entity_scores(truth, found), "majority_baseline": 0.0}

    def mistakes(self, examples, predictions):
        wrong = [
            {
                "text": _around(example.words, place),
                "word": example.words[place],
                "truth": true,
                "predicted": tag,
                "probability": tags.probabilities[place],
            }
            for example, tags in zip(examples, predictions, strict=True)
            for place, (true, tag) in enumerate(
                zip(example.labels, tags.labels, strict=True)
            )
            if true != tag and tags.probabilities
        ]
        return sorted(wrong, key=lambda shown: -shown["probability"])

    def write(self, examples, predictions, folder):
        """predictions.txt, as conlleval reads it: word, truth, prediction.

        The columns have blanks between, or tabs where a word has a blank;
        without the truth, where it is not known.
        """
        words = (word for example in examples for word in example.words)
        between = "\t" if any(" " in word for word in words) else " "
        with open(
            Path(folder) / "predictions.txt", "w", encoding="utf-8", newline=""
        ) as file:
            for example, tags in zip(examples, predictions, strict=True):
                columns = [example.words, example.labels, tags.labels]
                rows = list(zip(*filter(None, columns), strict=True))
                for sentence in example.sentences(rows):
                    lines = [between.join(row) + "\n" for row in sentence]
                    file.write("".join(lines) + "\n")

    def read_predictions(self, path, examples):
        """The last column of a file with the same words in the first."""
        sentences = ner_columns.read_columns(path)
        wanted = [s for e in examples for s in e.sentences(e.words)]
        if len(sentences) != len(wanted):
            raise InputError(
                f"{path}: expected the {len(wanted)} sentences of the split, "
                f"got {len(sentences)}"
            )
        for number, (own, words) in enumerate(
            zip(sentences, wanted, strict=True), 1
        ):
            if list(own.words) != words:
                raise InputError(
                    f"{path}: expected the words of the split; sentence "
                    f"{number} is {' '.join(own.words)[:60]!r}, not "
                    f"{' '.join(words)[:60]!r}"
                )
        own_labels = iter(sentences)
        return [
            Tags([x for _ in e.starts for x in next(own_labels).labels])
            for e in examples
        ]


def _around(words, place):
    first = max(place - AROUND, 0)
    return " ".join(words[first : place + AROUND + 1])
