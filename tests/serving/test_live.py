"""Each signature against what the live model says, both in this process."""

import numpy as np
import pytest
import tensorflow as tf
from live_answers import CHECKS
from served_samples import (
    VOCABULARY,
    encoder,
    preprocessor,
    spread,
    task_models,
)

from bert_keras.modeling.classifier import BertClassifier
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.serving.embedding import RECIPES
from bert_keras.serving.graph import Rows
from bert_keras.serving.ids import ids
from bert_keras.serving.load import as_tensor
from bert_keras.serving.signatures import signatures_of
from bert_keras.serving.verify import HARD_TEXTS, requested

OPTIONS = {
    "pair": False,
    "top_k": 3,
    "pooling": "mean",
    "normalize": False,
    "features": None,
    "long_text": "truncate",
}
TEXTS = [*HARD_TEXTS[:-1], "an hour well spent, i would gladly. " * 9]
TEXTS = [t.encode() if isinstance(t, str) else t for t in TEXTS]


def asked(model, **options):
    """(compare, answer) of each signature; compare takes an answer."""
    options = OPTIONS | options
    for signature in signatures_of(model, Rows(preprocessor()), options):
        request = requested(signature.inputs, TEXTS)
        answer = signature.function(*map(as_tensor, request.values()))
        answer = {key: plain(value) for key, value in answer.items()}
        check = CHECKS[type(model)][signature.name]

        def compare(answer, check=check, request=request):
            inputs = request.values()
            return check(model, preprocessor(), options, answer, *inputs)

        yield compare, answer


def greatest_difference(model, **options):
    found = asked(model, **options)
    return max(compare(answer) for compare, answer in found)


def plain(tensor):
    array = tensor.numpy()
    return array.astype("S") if array.dtype == object else array


@pytest.mark.parametrize("model", task_models(), ids=lambda m: m.name)
def test_every_task_model_is_served_as_it_is(model):
    assert greatest_difference(model) <= 1e-5


@pytest.mark.parametrize("long_text", ["truncate", "windows"])
@pytest.mark.parametrize(
    "model", [*task_models(), spread(encoder())], ids=lambda m: m.name
)
def test_no_rows_get_no_answers(model, long_text):
    rows = Rows(preprocessor())
    options = OPTIONS | {"long_text": long_text}
    for signature in (
        *signatures_of(model, rows, options),
        ids(model, rows, "ours"),
    ):
        answers = signature.traced()
        for columns in (0, 3):
            asked = [
                tf.zeros([0, *[columns] * (spec.shape.rank - 1)], spec.dtype)
                for spec in signature.specs()
            ]
            found = answers(*asked)
            assert set(found) == set(signature.outputs)
            assert {len(value) for value in found.values()} == {0}


def test_rows_beyond_the_pieces_fill_no_mask():
    pieces = len(VOCABULARY)  # a model's number of rows is often rounded up
    model = spread(BertPretrainer(BertEncoder(pieces + 9, 1, 2, 16, 32, 32)))
    (bias,) = (w for w in model.weights if w.path.endswith("mlm/bias"))
    bias.assign(np.where(np.arange(pieces + 9) < pieces, 0.0, 50.0))
    assert greatest_difference(model) <= 1e-5
    assert greatest_difference(model, top_k=pieces) <= 1e-5


def test_taggers_and_embeddings_read_windows():
    _, _, tagger, _, _ = task_models()
    assert greatest_difference(tagger, long_text="windows") <= 1e-5
    model = spread(encoder())
    assert greatest_difference(model, long_text="windows") <= 1e-5


@pytest.mark.parametrize(
    ("pooling", "normalize"),
    [("mean", True), ("max", False), ("cls", True), ("pooled", False)],
)
def test_embeddings_are_pooled_as_asked(pooling, normalize):
    model = spread(encoder())
    options = {"pooling": pooling, "normalize": normalize}
    assert greatest_difference(model, **options) <= 1e-5


@pytest.mark.parametrize("recipe", RECIPES)
def test_features_of_the_tokens_follow_the_recipe(recipe):
    model = spread(encoder(num_layers=5))
    assert greatest_difference(model, features=recipe) <= 1e-5


def test_features_stand_beside_their_pieces():
    model = spread(encoder())
    options = OPTIONS | {"features": "last"}
    (signature,) = signatures_of(model, Rows(preprocessor()), options)
    answer = signature.function(tf.constant(["Good,  film", "", "bad " * 50]))
    answer = {key: value.numpy() for key, value in answer.items()}
    assert set(answer) == set(signature.outputs)
    assert answer["count"].tolist() == [3, 0, 10]
    assert answer["pieces"][0, :4].tolist() == [b"good", b",", b"film", b""]
    assert answer["start"][0, :4].tolist() == [0, 4, 7, -1]
    assert answer["truncated"].tolist() == [False, False, True]
    assert answer["features"].shape == (3, 10, 16)
    assert not answer["features"][1].any()
    inputs = preprocessor()(["good, film"])
    vectors = np.array(model(inputs)["sequence_output"])[0, 1:4]
    np.testing.assert_allclose(answer["features"][0, :3], vectors, atol=1e-5)


@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("single", list("abc")),
        ("multi", list("abcdefghijkl")),
        ("regression", None),
        ("regression", ["a", "b"]),
    ],
)
@pytest.mark.parametrize("way", ["pair", "windows"])
def test_classifiers_of_every_kind_are_served(problem, labels, way):
    model = spread(BertClassifier(encoder(), labels=labels, problem=problem))
    options = {"pair": True} if way == "pair" else {"long_text": "windows"}
    assert greatest_difference(model, **options) <= 1e-5


def test_several_labels_are_named_likeliest_first():
    labels = list("abcdefghijkl")
    model = spread(BertClassifier(encoder(), labels=labels, problem="multi"))
    (signature,) = signatures_of(model, Rows(preprocessor()), OPTIONS)
    answer = signature.function(tf.constant(["bad", "an hour", "good film"]))
    answer = {key: value.numpy() for key, value in answer.items()}
    assert len(set(answer["count"])) > 1
    for row, count in enumerate(answer["count"]):
        values = answer["probabilities"][row]
        likely = [i for i in np.argsort(-values) if values[i] >= 0.5]
        names = [name.decode() for name in answer["label"][row]]
        assert names[:count] == [labels[i] for i in likely]
        assert set(names[count:]) <= {""}
        assert answer["label_index"][row, :count].tolist() == likely
        assert set(answer["label_index"][row, count:]) <= {-1}


NUMBERS = {"probabilities", "probability", "score", "embedding", "null_score"}
WORDS = {"answer", "text", "type"}


def test_the_checks_see_every_changed_output():
    seen = []
    for model in task_models():
        for compare, answer in asked(model):
            for name in answer.keys() & (NUMBERS | WORDS | {"count"}):
                value = answer[name].copy()
                if name in WORDS:
                    value[0, 0] = b"x"
                else:
                    value = value + np.float32(1 if name == "count" else 3e-4)
                assert compare(answer | {name: value}) > 2e-4, name
                seen.append(name)
    assert set(seen) == NUMBERS | WORDS | {"count"}
