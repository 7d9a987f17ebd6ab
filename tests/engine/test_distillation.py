"""The teacher's loss against NumPy, and runs that learn from a teacher."""

import keras
import numpy as np
import pytest
from task_samples import PIECES, QUICK, save_toy_model, write_csv

from bert_keras import BertPreprocessor, InputError
from bert_keras.text.tokenizer import WordPieceTokenizer
from official_tasks.engine import finetuning
from official_tasks.engine.batches import training_batches
from official_tasks.engine.distillation import (
    DistillationLoss,
    distillation_loss,
    taught,
)
from official_tasks.engine.models import load_model, load_trained
from official_tasks.tasks.custom import CustomTags, CustomTask


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("shape", [(5,), (2, 3)])
@pytest.mark.parametrize(("t", "share"), [(1.0, 1.0), (4.0, 0.7), (2.0, 0.0)])
def test_the_loss_is_hintons(shape, t, share):
    random = np.random.default_rng(0)
    teacher, student = 3 * random.normal(size=(2, *shape, 4))
    labels = random.integers(0, 4, shape)
    p, q = softmax(teacher / t), softmax(student / t)
    divergence = (p * np.log(p / q)).sum(-1)
    picked = np.take_along_axis(softmax(student), labels[..., None], -1)[..., 0]
    expected = share * t * t * divergence - (1 - share) * np.log(picked)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss = DistillationLoss(cross_entropy, t, share)
    y_true = np.concatenate([labels[..., None], teacher], -1)
    found = loss.call(y_true.astype("f4"), student.astype("f4"))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    weights = random.random(shape)
    mean = (weights * expected).sum() / expected.size
    found = loss(y_true.astype("f4"), student.astype("f4"), weights)
    assert float(found) == pytest.approx(mean, rel=1e-4, abs=1e-5)


def test_a_student_comes_to_answer_as_its_teacher(place, task, whole, tmp_path):
    teacher = place / "whole"
    results = finetuning.run(
        task,
        place / "init",
        tmp_path / "student",
        teacher=str(teacher),
        temperature=3.0,
        teacher_weight=1.0,
        epochs=3,
        **QUICK,
    )
    assert results["curve"][-1]["loss"] < 0.5 * results["curve"][0]["loss"]
    models = [
        load_trained(task, run) for run in (teacher, tmp_path / "student")
    ]
    texts = [example.text for example in task.read("dev")]
    theirs, ours = (softmax(np.array(m(p(texts)))) for m, p in models)
    assert np.abs(theirs - ours).mean() < 0.15
    with pytest.raises(InputError, match="temperature was 3.0 and is now not"):
        finetuning.run(
            task,
            place / "init",
            tmp_path / "student",
            teacher=str(teacher),
            teacher_weight=1.0,
            epochs=3,
            **QUICK,
        )


def test_tokens_are_taught_each_by_its_own_logits(tmp_path):
    rows = [("cat sat ran", "B-PER O O"), ("the dog", "O B-PER")] * 6
    path = write_csv(tmp_path / "tags.csv", rows, header=("words", "tags"))
    tags = CustomTags(train=str(path), dev=str(path))
    init = save_toy_model(tmp_path / "init")
    examples = tags.read("train")
    load_model(tags, init).save_preset(
        tmp_path / "teacher", BertPreprocessor.from_preset(init)
    )
    model, preprocess = load_trained(tags, tmp_path / "teacher")
    encoded = tags.encode(examples, preprocess)
    rows = taught(tags, tmp_path / "teacher", examples, encoded)
    for length in (None, 9):
        batches = training_batches(rows, 4, 0, 1, length=length)
        inputs, targets, _ = next(iter(batches))
        assert targets.shape[1] == inputs["token_ids"].shape[1]
        real = inputs["padding_mask"].numpy() == 1
        logits = np.array(model(inputs))
        np.testing.assert_allclose(
            targets[..., 1:][real], logits[real], atol=1e-5
        )
    np.testing.assert_array_equal(
        rows.targets.flat_values[:, 0], encoded.targets.flat_values
    )
    other = BertPreprocessor(
        WordPieceTokenizer([*PIECES[:5], *PIECES[:4:-1]]), 24, True
    )
    with pytest.raises(InputError, match="reads other tokens"):
        taught(
            tags, tmp_path / "teacher", examples, tags.encode(examples, other)
        )


def test_teachers_that_do_not_fit_are_refused(place, task, whole, tmp_path):
    rows = [("a good film", "x"), ("a bad film", "y")] * 4
    path = str(write_csv(tmp_path / "rows.csv", rows))
    other = CustomTask(path, path)
    with pytest.raises(InputError, match="labels .*good.* has .*x.*y"):
        finetuning.run(
            other,
            place / "init",
            tmp_path / "run",
            teacher=str(place / "whole"),
        )
    with pytest.raises(InputError, match="is a BertEncoder; the task"):
        finetuning.run(
            task, place / "init", tmp_path / "run", teacher=str(place / "init")
        )
    numbers = [("a good film", 1.5), ("a bad film", 2.5)] * 4
    path = str(write_csv(tmp_path / "numbers.csv", numbers))
    regression = CustomTask(path, path, problem="regression")
    with pytest.raises(InputError, match="cannot learn from a teacher"):
        distillation_loss(regression, 2.0, 0.5)
