"""The latency table's sums, and one worker that is really asked."""

import numpy as np
import pytest
import tensorflow as tf
from served_samples import VOCABULARY, preprocessor, tokenizer

from bert_keras.errors import InputError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.task_models import BertSpanPredictor
from bert_keras.serving.load import load_saved_model
from bert_keras.serving.portable_formats import NEEDS
from official_tasks.tasks.base import Encoded
from official_tasks.tasks.squad import Answer
from official_tasks.tasks.tagging import Tags
from tools.benchmark import int8
from tools.benchmark.serving import (
    natural,
    row,
    texts,
    throughput,
    timed,
    workers,
)


def test_texts_have_as_many_tokens_as_they_should():
    made = texts(VOCABULARY, 16, 5)
    assert len(set(made)) == 5
    lengths = tokenizer()(made).row_lengths().numpy()
    assert (lengths == 14).all()  # and [CLS] and [SEP]


def test_systems_are_asked_in_turns_and_must_agree():
    asked = []

    def asker(name, seconds, first):
        def ask(texts):
            asked.append(name)
            return [seconds, 2 * seconds], first

        return ask

    ours = asker("savedmodel", 0.01, [0.25, 0.75])
    theirs = asker("onnxruntime", 0.03, [0.2501, 0.7499])
    batches = [["a"]] * 4
    seconds = timed({"savedmodel": ours, "onnxruntime": theirs}, batches)
    turn = ["savedmodel", "onnxruntime"]
    assert asked[-4:] == turn + turn[::-1]
    found = row(seconds, 1, 16)
    assert found["savedmodel"] == [10.0, 10.0, 10.0, 20.0, 1.0]
    assert found["onnxruntime"] == [30.0, 30.0, 30.0, 60.0, 3.0]
    wrong = asker("onnxruntime", 0.03, [0.26, 0.74])
    with pytest.raises(InputError, match="onnxruntime answers otherwise"):
        timed({"savedmodel": ours, "onnxruntime": wrong}, [["a"]])


def test_natural_texts_come_in_the_order_of_their_file(tmp_path):
    path = tmp_path / "dev.tsv"
    rows = [f"text {i}\t{i % 2}" for i in range(70)]
    path.write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    batches = natural(f"{path}:sentence")
    assert list(map(len, batches)) == [32, 32, 6]
    assert batches[1][0] == "text 32"
    seconds = {
        "savedmodel": [(9.0, 0.5), (9.0, 0.25), (9.0, 0.25)],
        "onnxruntime": [(1.0, 1.0)] * 3,
    }
    found = throughput(seconds, batches, f"{path}:sentence")
    assert found == {
        "texts": "dev.tsv:sentence",
        "rows": 70,
        "savedmodel": [70.0, 1.0],
        "onnxruntime": [23.33, 3.0],
    }


def test_a_worker_answers_what_the_export_answers(classifier_export):
    with workers({"savedmodel": classifier_export}, {}, threads=1) as askers:
        seconds, first = askers["savedmodel"](["an hour", "bad film"])
    served = load_saved_model(classifier_export)
    expected = served.classify(["an hour", "bad film"])["probabilities"][0]
    assert first == pytest.approx(expected.tolist(), abs=1e-6)
    assert len(seconds) == 2
    assert 0 < seconds[0] < 60


class Parity:
    """A task whose class is whether a row's length is odd."""

    per_token, metric = False, "accuracy"

    def decode(self, examples, encoded, outputs):
        return outputs

    def score(self, examples, predictions):
        classes = predictions.argmax(axis=-1)
        return {"accuracy": np.mean(classes == np.array(examples) % 2)}


def test_formats_are_scored_by_their_task_in_the_order_of_its_examples():
    lengths = np.random.default_rng(0).integers(1, 9, 70)
    rows = tf.ragged.constant([[7] * n for n in lengths], dtype=tf.int32)
    encoded = Encoded({"token_ids": rows})
    asked = []

    def call(inputs):
        asked.append(inputs["token_ids"].shape)
        odd = tf.math.count_nonzero(inputs["token_ids"], axis=1) % 2 == 1
        return tf.cast(tf.stack([~odd, odd], axis=1), tf.float32)

    score, classes = int8.predicted(Parity(), list(lengths), encoded, call, 0)
    assert score == 1.0 and classes == list(lengths % 2)
    assert [rows for rows, _ in asked] == [32, 32, 6]
    assert asked[0][1] < asked[-1][1] == 8  # batches of like length

    def wrong(inputs):
        return 1 - call(inputs)

    assert int8.predicted(Parity(), list(lengths), encoded, wrong, 0)[0] == 0


def test_what_is_said_of_an_example():
    assert int8._answer(Answer("an hour", 0.5)) == "an hour"
    assert int8._answer(Tags(["O", "B-PER"], [0.9, 0.8])) == ["O", "B-PER"]
    assert int8._answer(np.array([0.1, 0.9])) == 1
    assert int8._answer(np.float32(2.5)) == 2.5


def test_formats_are_timed_in_turns():
    asked = []
    found = {
        name: (1, lambda x, name=name: asked.append((name, x))) for name in "ab"
    }
    times = int8.seconds(found, 5, 2)
    assert asked == [("a", 5), ("b", 5)] * 3 and times.keys() == {"a", "b"}
    assert all(0 <= spent < 1 for spent in times.values())


def test_every_format_gives_the_outputs_of_the_model(tmp_path):
    for package in sum(NEEDS.values(), []):
        pytest.importorskip(package)
    encoder = BertEncoder(len(VOCABULARY), 1, 2, 64, 128, 128)
    model = BertSpanPredictor(encoder)
    inputs = int8.full_rows(len(VOCABULARY))
    expected = model(inputs)
    found = int8.systems(model, preprocessor(), str(tmp_path), None)
    assert list(found) == [
        "SavedModel, float32",
        "SavedModel, int8",
        "litert, int8",
        "onnx, float32",
        "onnx, int8",
    ]
    sizes = {name: size for name, (size, _) in found.items()}
    assert sizes["onnx, int8"] < 0.6 * sizes["onnx, float32"]
    for name, (_, call) in found.items():
        outputs = call(inputs)
        assert outputs.keys() == {"start", "end"}
        for key, value in outputs.items():
            apart = np.abs(value - expected[key]).max()
            most = 0.3 * np.std(expected[key]) if "int8" in name else 1e-5
            assert apart < most, (name, key)
