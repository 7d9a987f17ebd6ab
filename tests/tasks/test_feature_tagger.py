"""Task models on the features of a frozen encoder."""

import numpy as np
import pytest
import tensorflow as tf
from sklearn.linear_model import LogisticRegression, Ridge

from bert_keras import (
    BertClassifier,
    BertEncoder,
    BertPreprocessor,
    InputError,
    export_saved_model,
    load_saved_model,
)
from bert_keras.modeling.heads import LayerMix
from bert_keras.modeling.weights import split_trainable
from official_tasks.engine import finetuning
from official_tasks.evaluate import evaluate
from official_tasks.tasks.feature_tagger import FeatureTagger
from official_tasks.tasks.own_tasks import (
    choices_task,
    classify_task,
    regress_task,
)
from official_tasks.tasks.retrieval import rank_task
from official_tasks.tasks.tagging import tag_task
from tests.support.feature_samples import TEXTS, encoder, save_encoder, states
from tests.support.numpy_bert import softmax
from tests.support.task_samples import (
    WORDS,
    save_toy_model,
    sentences,
    write_csv,
    write_reviews,
)


def ner_file(path):
    sentences = [
        "Ada B-PER\nlived O\nin O\nBern B-LOC\n",
        "and O\nLondon B-LOC\n",
    ]
    path.write_text("\n".join(sentences * 6))
    return str(path)


def test_the_tagger_learns_on_features_and_the_encoder_does_not(tmp_path):
    model = save_encoder(tmp_path / "model")
    data = ner_file(tmp_path / "train.conll")
    task = tag_task(
        train=data, dev=data, recipe="weighted_sum_last_four", lstm_dim=8
    )
    assert task.defaults.learning_rate == 1e-3
    output = tmp_path / "run"
    results = finetuning.run(
        task,
        model,
        output,
        epochs=12,
        batch_size=4,
        learning_rate=0.03,
        sequence_length=8,
        pad_to_longest=False,  # one shape, traced once
    )
    assert results["f1"] > 0.5
    assert set(results["classes"]) == {"LOC", "PER"}
    trained = BertEncoder.from_preset(str(output / "model"))
    for before, after in zip(encoder().weights, trained.weights, strict=True):
        np.testing.assert_array_equal(before, after)
    # The saved model has the same score after it is loaded.
    fresh = tag_task(dev=data)  # recipe and `lstm_dim` come from the model
    assert evaluate(fresh, [str(output)])["f1"] == results["f1"]
    # Options that differ from the model's are refused.
    for other, message in (
        ({"recipe": "weighted_sum_all"}, "recipe weighted_sum_last_four; .*"),
        ({"lstm_dim": 4}, "lstm_dim 8; the task ner has 4"),
    ):
        with pytest.raises(InputError, match=f"has the {message}"):
            evaluate(tag_task(dev=data, **other), [str(output)])


@pytest.mark.long
def test_a_classifier_learns_on_features_and_its_export_answers(tmp_path):
    model = save_toy_model(tmp_path / "model", num_layers=2)
    train = str(write_reviews(tmp_path / "train.csv", 80))
    dev = str(write_reviews(tmp_path / "dev.csv", 40, seed=1))
    way = {"recipe": "weighted_sum_all", "pooling": "mean"}
    task = classify_task(train, dev, **way)
    output = tmp_path / "run"
    results = finetuning.run(
        task,
        model,
        output,
        epochs=8,
        batch_size=8,
        learning_rate=0.1,
        sequence_length=16,
        pad_to_longest=False,  # one shape, traced once
    )
    assert results["accuracy"] > 0.75  # 0.5 by chance
    before = BertEncoder.from_preset(str(model))
    trained = BertClassifier.from_preset(str(output / "model"))
    assert {n: trained.arguments()[n] for n in way} == way
    for one, other in zip(before.weights, trained.encoder.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    again = evaluate(classify_task(dev=dev), [str(output)])
    assert again["accuracy"] == results["accuracy"]
    # Another recipe or pooling would give wrong answers.
    for other in ({"recipe": "last"}, {"pooling": "cls"}):
        with pytest.raises(InputError, match=f"has the {next(iter(other))}"):
            evaluate(classify_task(dev=dev, **other), [str(output)])
    preprocess = BertPreprocessor.from_preset(str(output / "model"))
    texts = [text for text, _ in sentences(9, seed=2)]
    folder = export_saved_model(trained, tmp_path / "served", preprocess)
    served = load_saved_model(folder).classify(texts)["probabilities"]
    expected = softmax(np.array(trained(preprocess(texts))))
    np.testing.assert_allclose(served, expected, atol=1e-5)


def make_ranking(files, **way):
    return rank_task(negative="wrong", **files, **way)


def make_regression(files, **way):
    return regress_task(**files, text_pair="text_pair", **way)


# Problem -> function that makes its task, header of its table, function that
# makes a row from a bad review, a good review and the row's index.
PROBLEMS = {
    "ranking": (
        make_ranking,
        ("text", "text_pair", "wrong"),
        lambda bad, good, i: (f"a good film {WORDS[i % 9]}", good, bad),
    ),
    "regression": (
        make_regression,
        ("text", "text_pair", "label"),
        lambda bad, good, i: (bad, good, len(bad) - len(good)),
    ),
    "choices": (
        lambda files, **way: choices_task(**files, **way),
        ("prompt", "choice0", "choice1", "label"),
        lambda bad, good, i: (
            f"film {WORDS[i % 9]}",
            *((bad, good) if i % 2 else (good, bad)),
            i % 2,
        ),
    ),
}


def write_problem(problem, path):
    """Write a problem's table; return its task function and the path."""
    make, header, row = PROBLEMS[problem]
    texts = [text for text, _ in sentences(80)]  # bad, good, bad, ...
    pairs = zip(texts[::2], texts[1::2], strict=True)
    rows = [row(*pair, number) for number, pair in enumerate(pairs)]
    return make, write_csv(path, rows, header)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_dense_layer_of_each_problem_learns_as_scikit_learns(
    tmp_path, problem
):
    make, file = write_problem(problem, tmp_path / "train.csv")
    task = make({"train": file}, recipe="concat:0,-1", pooling="mean")
    folder = save_toy_model(tmp_path / "model")
    encoder = BertEncoder.from_preset(folder)
    model = task.build(encoder)
    encoded = task.encode(
        task.read("train"), BertPreprocessor.from_preset(folder)
    )
    inputs = {name: x.to_tensor() for name, x in encoded.inputs.items()}
    rows = {n: np.reshape(x, (-1, x.shape[-1])) for n, x in inputs.items()}
    states = encoder(rows, hidden_states=True)["hidden_states"]
    states = np.concatenate([states[0], states[-1]], axis=-1)  # (R, T, 2 D)
    mask = rows["padding_mask"].astype(bool)
    features = np.stack(
        [x[m].mean(0) for x, m in zip(states, mask, strict=True)]
    )
    truth = np.ravel(encoded.targets)
    if problem == "regression":
        other, factor = Ridge(alpha=1.0), 2.0  # |y - Xw|^2 + |w|^2
        other.fit(features, truth)
    elif problem == "ranking":
        other, factor = LogisticRegression(tol=1e-10), 1.0
        other.fit(features, truth)
    else:  # the softmax over two scores is the sigmoid of their difference
        other = LogisticRegression(tol=1e-10, fit_intercept=False)
        factor = 1.0
        other.fit(features[1::2] - features[::2], truth)
    kernel, bias = split_trainable(model)[0]
    kernel.assign(other.coef_.reshape(-1, 1))
    bias.assign(np.ravel(other.intercept_))
    with tf.GradientTape() as tape:
        loss = task.loss()(encoded.targets, model(inputs))
    # At scikit-learn's optimum the gradients of loss and penalty cancel.
    kernel_gradient, bias_gradient = tape.gradient(loss, [kernel, bias])
    expected = -factor * other.coef_.reshape(-1, 1) / len(truth)
    np.testing.assert_allclose(kernel_gradient, expected, atol=1e-4)
    np.testing.assert_allclose(bias_gradient, 0, atol=1e-4)
    assert np.abs(expected).max() > 1e-2


@pytest.mark.parametrize(
    "problem",
    ["choices", "ranking", "regression"],
)
@pytest.mark.long
def test_a_model_of_each_problem_on_features_is_kept_and_exported(
    tmp_path, problem
):
    make, file = write_problem(problem, tmp_path / "train.csv")
    files = {"train": file, "dev": file}
    model = save_toy_model(tmp_path / "model")
    small = {"epochs": 1, "batch_size": 8, "sequence_length": 16}
    task = make(files, recipe="sum:0,1")
    run = tmp_path / "run"
    results = finetuning.run(task, model, run, **small)
    fresh = make({"dev": file})  # the recipe comes from the model
    metric = task.metrics[0].name
    assert evaluate(fresh, [str(run)])[metric] == results[metric]
    with pytest.raises(InputError, match="recipe"):
        evaluate(make({"dev": file}, recipe="last"), [str(run)])
    trained = type(task.build(encoder())).from_preset(str(run / "model"))
    assert (trained.recipe, trained.pooling) == ("sum:0,1", "mean")
    preprocess = BertPreprocessor.from_preset(str(run / "model"))
    export_saved_model(trained, tmp_path / "served", preprocess, verify=True)
    with pytest.raises(InputError, match="with a recipe"):
        finetuning.run(
            make(files, pooling="cls"), model, tmp_path / "x", **small
        )


def test_the_weights_of_a_sum_are_learned_and_equal_at_first():
    layers = [np.float32(state[None]) for state in states(TEXTS[0])]
    mix = LayerMix("weighted_sum_last_four", 5)
    np.testing.assert_allclose(
        mix(layers), np.mean(layers[2:], axis=0), rtol=1e-5
    )
    shares = np.array([0.1, 0.2, 0.3, 0.4], "float32")
    mix.mix.assign(np.log(shares))
    mix.scale.assign(2.0)
    expected = 2 * np.tensordot(shares, np.stack(layers[2:]), 1)
    np.testing.assert_allclose(mix(layers), expected, rtol=1e-5)
    copy = LayerMix.from_config(mix.get_config())
    copy(layers)
    copy.set_weights(mix.get_weights())
    np.testing.assert_array_equal(copy(layers), mix(layers))
    both = LayerMix("concat:0,-1", 5)
    expected = np.concatenate([layers[0], layers[5]], axis=-1)
    np.testing.assert_array_equal(both(layers), expected)
    assert not both.weights
    half = LayerMix("weighted_sum_all", 5, dtype="mixed_bfloat16")
    assert half(layers).dtype == "bfloat16"


def test_padding_changes_nothing_to_the_tagger_and_only_its_head_learns():
    body = BertEncoder.from_config(encoder().get_config())
    tagger = FeatureTagger(body, ["O", "PER"], "weighted_sum_all", lstm_dim=4)
    weights = split_trainable(tagger)[0]
    names = {weight.path.split("/")[0] for weight in weights}
    assert names == {"features", "bilstm_0", "bilstm_1", "tagger"}
    short = {"token_ids": np.array([[2, 5, 6, 3]])}
    long = {
        "token_ids": np.array([[2, 5, 6, 3, 0, 0]]),
        "padding_mask": np.array([[1, 1, 1, 1, 0, 0]]),
    }
    np.testing.assert_allclose(tagger(long)[:, :4], tagger(short), atol=1e-5)
    # Keras would weight the loss by a mask on the output.
    assert getattr(tagger(long), "_keras_mask", None) is None
