"""The latency table's sums, and one worker that is really asked."""

import pytest
from served_samples import VOCABULARY, tokenizer

from bert_keras.errors import InputError
from bert_keras.serving.load import load_saved_model
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
