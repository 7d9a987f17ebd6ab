"""Each signature compared with the live model, both in this process."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_models import BertClassifier
from bert_keras.serving.load import as_tensor
from bert_keras.serving.signatures import ExportOptions
from bert_keras.serving.verify import HARD_TEXTS, make_request
from tests.support.live_answers import CHECKS
from tests.support.model_samples import fill
from tests.support.served_samples import (
    VOCABULARY,
    encoder,
    live_signatures,
    own_signatures,
    preprocessor,
    task_models,
)

OPTIONS = {
    "pair": False,
    "top_k": 3,
    "pooling": "mean",
    "normalize": False,
    "truncate_dim": None,
    "features": None,
    "hypothesis": None,
    "long_text": "truncate",
}
TEXTS = [*HARD_TEXTS[:-1], "an hour well spent, i would gladly. " * 9]
TEXTS = [t.encode() if isinstance(t, str) else t for t in TEXTS]


def signatures(model, **options):
    options = ExportOptions(**OPTIONS | options)
    return own_signatures(model, preprocessor(), options).values()


def asked(model, **options):
    """Yield (compare, answer) for each signature.

    `compare` is a function of an answer; it returns the difference.
    """
    options = OPTIONS | options
    for signature in signatures(model, **options):
        request = make_request(signature.inputs, TEXTS)
        tensors = map(as_tensor, request.values(), signature.specs())
        answer = signature.function(*tensors)
        answer = {key: plain(value) for key, value in answer.items()}
        check = CHECKS[type(model)][signature.name]

        def compare(answer, check=check, request=request):
            inputs = request.values()
            return check(model, preprocessor(), options, answer, *inputs)

        yield compare, answer


def greatest_difference(model, **options):
    """Return the greatest difference from the live model, of all signatures."""
    return max(compare(answer) for compare, answer in asked(model, **options))


def plain(tensor):
    array = tensor.numpy()
    return array.astype("S") if array.dtype == object else array


KINDS = ("classifier", "span predictor", "tagger", "chooser", "pre-trainer")


@pytest.fixture(scope="module")
def models():
    return dict(zip(KINDS, task_models(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_task_model_is_served_as_it_is(models, kind):
    assert greatest_difference(models[kind]) <= 1e-5


def test_a_ranking_model_scores_each_passage_of_a_query():
    model = fill(BertClassifier(encoder(), problem="ranking", pair=True))
    assert greatest_difference(model) <= 1e-5
    (signature,) = signatures(model)
    found = signature.function(
        tf.constant(["an hour", "a film"]),
        tf.constant([["good", "", "bad"], ["", "", ""]]),
    )
    assert found["order"].numpy()[0, 2] == 1  # empty, so it is last
    assert found["score"].numpy()[1].tolist() == [0, 0, 0]
    with pytest.raises(
        InputError, match="`long_text` is an option of .* has rank"
    ):
        live_signatures(model, preprocessor(), long_text="windows")


def test_no_texts_of_windows_get_no_answers(models):
    (signature,) = signatures(models["classifier"], long_text="windows")
    found = signature.trace()(tf.zeros([0], tf.string))
    assert set(found) == set(signature.outputs)
    assert {len(value) for value in found.values()} == {0}


def test_rows_beyond_the_pieces_fill_no_mask():
    pieces = len(VOCABULARY)  # embeddings often have more rows than this
    model = fill(BertPretrainer(BertEncoder(pieces + 9, 1, 2, 16, 32, 32)))
    (bias,) = (w for w in model.weights if w.path.endswith("mlm/bias"))
    bias.assign(np.where(np.arange(pieces + 9) < pieces, 0.0, 50.0))
    assert greatest_difference(model, top_k=pieces) <= 1e-5


def test_taggers_read_windows(models):
    options = {"long_text": "windows"}
    assert greatest_difference(models["tagger"], **options) <= 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "pooled"},
        {"pooling": "max", "normalize": True},
        {"long_text": "windows"},
        {"long_text": "windows", "normalize": True},
        {"features": "concat_last_four"},
    ],
    ids=str,
)
def test_embeddings_and_features_are_as_asked(options):
    model = fill(encoder(num_layers=5 if "features" in options else 1))
    assert greatest_difference(model, **options) <= 1e-5


def test_features_come_with_their_pieces():
    model = fill(encoder())
    (signature,) = signatures(model, features="last")
    texts = ["Good,  film", "", "bad " * 50, "\u4ecafilm"]
    answer = signature.function(tf.constant(texts))
    answer = {key: value.numpy() for key, value in answer.items()}
    assert set(answer) == set(signature.outputs)
    assert answer["count"].tolist() == [3, 0, 10, 2]
    assert answer["start"][3, :3].tolist() == [0, 1, -1]  # in characters
    assert answer["pieces"][0, :4].tolist() == [b"good", b",", b"film", b""]
    assert answer["start"][0, :4].tolist() == [0, 4, 7, -1]
    assert answer["truncated"].tolist() == [False, False, True, False]
    assert answer["features"].shape == (4, 10, 16)
    assert not answer["features"][1].any()


@pytest.mark.parametrize(
    ("problem", "labels", "options"),
    [
        ("single", list("abc"), {"long_text": "windows"}),
        ("multi", list("abcdefghijkl"), {"long_text": "windows"}),
        ("regression", None, {"pair": True}),
        ("regression", ["a", "b"], {"long_text": "windows"}),
    ],
)
def test_classifiers_of_every_kind_are_served(problem, labels, options):
    model = fill(BertClassifier(encoder(), labels=labels, problem=problem))
    assert greatest_difference(model, **options) <= 1e-5


@pytest.mark.parametrize("thresholds", [None, [0.9, 0.2, 0.5]])
def test_the_label_is_the_name_of_the_greatest_probability(models, thresholds):
    model = fill(models["classifier"].with_dtype("float32"), seed=5)
    model.thresholds = thresholds
    (signature,) = signatures(model)
    logits = np.array(model(preprocessor()(TEXTS)))
    model.classifier.bias.assign(-logits.mean(0))  # else one label always wins
    answer = signature.function(tf.constant(TEXTS))
    best = np.array(model(preprocessor()(TEXTS))).argmax(-1)
    assert len(set(best)) == 3
    assert answer["label_index"].numpy().tolist() == best.tolist()
    names = [name.decode() for name in answer["label"].numpy()]
    assert names == [model.labels[index] for index in best]
    if thresholds:
        top = answer["probabilities"].numpy().max(-1)
        unsure = top < np.array(thresholds, "float32")[best]
        assert answer["unsure"].numpy().tolist() == unsure.tolist()


def test_several_labels_are_named_likeliest_first():
    labels = list("abcdefghijkl")
    model = fill(BertClassifier(encoder(), labels=labels, problem="multi"))
    (signature,) = signatures(model)
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
