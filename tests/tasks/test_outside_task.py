"""A task outside the package, with a head of its own, by file and by hand."""

import json

import numpy as np
import pytest
from run_script import ROOT
from task_samples import save_toy_model, sentences

from official_tasks.engine import finetuning
from official_tasks.engine.models import Predictor, load_model
from official_tasks.tasks.registry import task_class

TASK = '''
import json

import keras
import numpy as np

from bert_keras.modeling.heads import LogitsHead
from bert_keras.modeling.task_model import TaskModel, encode, symbolic_inputs
from official_tasks.tasks.encoding import encode_texts
from official_tasks.tasks.base import Encoded, Example, Option, Task


class DeepClassifier(TaskModel):
    """Two classes from the first token's vector, by a hidden layer."""

    pools = False

    def __init__(self, encoder, name="deep_classifier"):
        self.hidden = keras.layers.Dense(64, "tanh", name="hidden")
        self.head = LogitsHead(2, 0.1, name="head")
        inputs = symbolic_inputs()
        vectors = encode(encoder, inputs)["sequence_output"]  # (B, T, D)
        logits = self.head(self.hidden(vectors[:, 0]))
        super().__init__(inputs, logits, encoder, name)


class Reviews(Task):
    """Is the review good? From two files of JSON, lists of [text, label]."""

    name = "reviews"
    labels = ["bad", "good"]
    metric = "accuracy"
    options = {
        "data_dir": Option(None, "Folder of train.json and dev.json."),
        "rows": Option(1000, "Training rows at most."),
    }

    def __init__(self, data_dir, rows=1000):
        self.data_dir, self.rows = data_dir, rows

    def read(self, split):
        with open(f"{self.data_dir}/{split}.json") as file:
            rows = json.load(file)
        return [Example(text, None, label) for text, label in rows[: self.rows]]

    def encode(self, examples, preprocess):
        inputs, cut = encode_texts(preprocess, [e.text for e in examples])
        labels = np.array([e.label for e in examples], np.int32)
        return Encoded(inputs, labels, cut=cut)

    def build(self, encoder):
        return DeepClassifier(encoder)

    def loss(self):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def score(self, examples, predictions):
        right = [p.argmax() == e.label for p, e in zip(predictions, examples)]
        return {"accuracy": float(np.mean(right))}

    def write(self, examples, predictions, folder):
        with open(f"{folder}/answers.json", "w") as file:
            json.dump([int(row.argmax()) for row in predictions], file)
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the task's file, its data and a toy model."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "my_task.py").write_text(TASK)
    for split, count in (("train", 120), ("dev", 40)):
        rows = sentences(count, seed=count)
        (folder / f"{split}.json").write_text(json.dumps(rows))
    save_toy_model(folder / "init")
    return folder


@pytest.fixture(scope="module")
def task(place):
    return task_class(str(place / "my_task.py"))(data_dir=str(place))


@pytest.fixture(scope="module")
def results(place, task):
    return finetuning.run(
        task,
        place / "init",
        place / "run",
        epochs=12,
        batch_size=8,
        learning_rate=5e-3,
    )


def test_contributing_shows_this_very_task():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert TASK.strip() in text


def test_it_learns_and_its_predictions_are_written(place, results):
    assert results["accuracy"] > 0.9
    assert len(results["curve"]) == 12
    written = json.loads((place / "run" / "results.json").read_text())
    assert written["accuracy"] == results["accuracy"]
    answers = place / "run" / "predictions" / "answers.json"
    assert len(json.loads(answers.read_text())) == 40


def test_the_model_reloads_with_its_head(place, task, results):
    from bert_keras import BertPreprocessor

    model = load_model(task, place / "run")
    preprocess = BertPreprocessor.from_preset(place / "run" / "model")
    dev = task.read("dev")
    predictions = Predictor(model)(task.encode(dev, preprocess))
    assert task.score(dev, predictions)["accuracy"] == results["accuracy"]


def test_the_best_weights_are_those_of_the_best_epoch(results):
    best = max(line["val_accuracy"] for line in results["curve"])
    assert results["accuracy"] == best
    first = next(
        line for line in results["curve"] if line["val_accuracy"] == best
    )
    assert results["best_step"] == first["step"]
    assert np.isfinite([line["loss"] for line in results["curve"]]).all()
