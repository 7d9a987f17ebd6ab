"""The signature `entail`: zero-shot classification by entailment."""

import functools

import numpy as np
import pytest

from bert_keras import BertClassifier, InputError, export_saved_model
from bert_keras.serving.classification import entail
from bert_keras.serving.load import as_tensor
from bert_keras.serving.texts import copy_for_serving
from tests.support.model_samples import fill
from tests.support.served_samples import encoder, live_signatures, preprocessor

NLI = ["contradiction", "neutral", "entailment"]
HYPOTHESIS = "I would, {}!"
TEXTS = ["an hour well spent", "bad film", "", "good"]
CANDIDATES = [["good", "bad"], ["gladly"], ["film", "hour", "was"], []]


def entailment_model(labels=NLI, **arguments):
    return fill(BertClassifier(encoder(), labels=labels, **arguments))


@functools.cache
def rows():
    return copy_for_serving(preprocessor())


def answer(signature, function, texts, candidates):
    tensors = map(as_tensor, (texts, candidates), signature.specs())
    return {name: x.numpy() for name, x in function(*tensors).items()}


def answer_as_transformers(model, text, candidates, entailment_id):
    """Return single- and multi-label scores, as transformers' pipeline does."""
    hypotheses = [HYPOTHESIS.format(candidate) for candidate in candidates]
    pairs = [text] * len(hypotheses), hypotheses
    logits = np.array(model(preprocessor()(pairs)), "float64")
    contradiction_id = -1 if entailment_id == 0 else 0
    both = np.exp(logits[:, [contradiction_id, entailment_id]])
    entailed = np.exp(logits[:, entailment_id])
    return entailed / entailed.sum(), both[:, 1] / both.sum(axis=-1)


def test_candidates_get_the_scores_of_transformers():
    """The scores come from the traced graph, as in an export."""
    model = entailment_model(pair=True)
    made = live_signatures(model, preprocessor(), hypothesis=HYPOTHESIS)
    assert list(made) == ["classify", "entail"]
    found = answer(made["entail"], made["entail"].trace(), TEXTS, CANDIDATES)
    for row, candidates in enumerate(CANDIDATES[:3]):
        count = len(candidates)
        scores, alone = answer_as_transformers(model, TEXTS[row], candidates, 2)
        expected = {"probabilities": scores, "entailment": alone}
        for name, right in expected.items():
            values = found[name][row]
            np.testing.assert_allclose(values[:count], right, atol=1e-5)
            assert not values[count:].any()
        assert found["label"][row].decode() == candidates[scores.argmax()]
    assert found["label"][3] == b""
    assert not found["probabilities"][3].any()


@pytest.mark.parametrize(
    ("labels", "entailment_id"),
    [
        (["entailment", "neutral", "contradiction"], 0),
        (["Entailment", "not_entailment"], 0),
        (["not_entailment", "entailment"], 1),
    ],
)
def test_the_label_for_entailment_is_known_by_its_name(labels, entailment_id):
    model = entailment_model(labels, pair=True)
    signature = entail(model, rows(), HYPOTHESIS)
    found = answer(signature, signature.function, TEXTS[:1], CANDIDATES[:1])
    scores, alone = answer_as_transformers(
        model, TEXTS[0], CANDIDATES[0], entailment_id
    )
    np.testing.assert_allclose(found["probabilities"][0], scores, atol=1e-5)
    np.testing.assert_allclose(found["entailment"][0], alone, atol=1e-5)


@pytest.mark.parametrize(
    ("labels", "pair", "hypothesis", "message"),
    [
        (["bad", "good"], True, HYPOTHESIS, "begins with"),
        (["entailment", "neutral"], True, HYPOTHESIS, "begins with"),
        (NLI, False, HYPOTHESIS, "pair=True"),
        (NLI, True, "It is good.", "Expected a text with {}"),
        (NLI, True, "{} and {}", "Expected a text with {}"),
    ],
)
def test_what_cannot_entail_is_refused(
    labels, pair, hypothesis, message, tmp_path
):
    model = entailment_model(labels, pair=pair)
    with pytest.raises(InputError, match=message):
        export_saved_model(
            model, tmp_path / "a", preprocessor(), hypothesis=hypothesis
        )


@pytest.mark.parametrize(
    ("labels", "pair"), [(["bad", "good"], True), (NLI, False)]
)
def test_a_model_without_such_a_label_or_pairs_has_no_entail(labels, pair):
    model = entailment_model(labels, pair=pair)
    assert list(live_signatures(model, preprocessor())) == ["classify"]
