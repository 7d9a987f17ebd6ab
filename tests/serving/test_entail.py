"""`entail`: zero-shot labels by a model of entailment."""

import json

import numpy as np
import pytest
from run_script import call_script
from served_samples import encoder, preprocessor, spread
from serving_process import predict, server

from bert_keras import (
    BertClassifier,
    InputError,
    export_saved_model,
    load_saved_model,
)

NLI = ["contradiction", "neutral", "entailment"]
HYPOTHESIS = "I would, {}!"
TEXTS = ["an hour well spent", "bad film", "", "good"]
CANDIDATES = [["good", "bad"], ["gladly"], ["film", "hour", "was"], []]


def entailment_model(labels=NLI, **arguments):
    return spread(BertClassifier(encoder(), labels=labels, **arguments))


def answer_as_transformers(model, text, candidates, entailment_id):
    """Both scores of `ZeroShotClassificationPipeline.postprocess`."""
    hypotheses = [HYPOTHESIS.format(candidate) for candidate in candidates]
    pairs = [text] * len(hypotheses), hypotheses
    logits = np.array(model(preprocessor()(pairs)), "float64")
    contradiction_id = -1 if entailment_id == 0 else 0
    both = np.exp(logits[:, [contradiction_id, entailment_id]])
    entailed = np.exp(logits[:, entailment_id])
    return entailed / entailed.sum(), both[:, 1] / both.sum(axis=-1)


@pytest.fixture(scope="module")
def model():
    return entailment_model(pair=True)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("entail") / "served"
    return export_saved_model(
        model, preprocessor(), path, hypothesis=HYPOTHESIS, verify=True
    )


@pytest.fixture(scope="module")
def expected(model):
    return [
        answer_as_transformers(model, text, candidates, 2)
        for text, candidates in zip(TEXTS[:3], CANDIDATES[:3], strict=True)
    ]


def test_candidates_get_the_scores_of_transformers(folder, expected):
    served = load_saved_model(folder)
    answer = served.entail(TEXTS, CANDIDATES)
    for row, (scores, alone) in enumerate(expected):
        count = len(scores)
        found = answer["probabilities"][row]
        np.testing.assert_allclose(found[:count], scores, atol=1e-5)
        assert not found[count:].any()
        found = answer["entailment"][row]
        np.testing.assert_allclose(found[:count], alone, atol=1e-5)
        assert not found[count:].any()
        assert answer["label"][row] == CANDIDATES[row][scores.argmax()]
    assert answer["label"][3] == ""
    assert not answer["probabilities"][3].any()
    assert served.card["default"] == "classify"


@pytest.mark.parametrize(
    ("labels", "entailment_id"),
    [
        (["entailment", "neutral", "contradiction"], 0),
        (["Entailment", "not_entailment"], 0),
        (["not_entailment", "entailment"], 1),
    ],
)
def test_the_label_for_entailment_is_known_by_its_name(
    labels, entailment_id, tmp_path
):
    model = entailment_model(labels, pair=True)
    folder = export_saved_model(
        model, preprocessor(), tmp_path / "a", hypothesis=HYPOTHESIS
    )
    answer = load_saved_model(folder).entail(TEXTS[:1], CANDIDATES[:1])
    scores, alone = answer_as_transformers(
        model, TEXTS[0], CANDIDATES[0], entailment_id
    )
    np.testing.assert_allclose(answer["probabilities"][0], scores, atol=1e-5)
    np.testing.assert_allclose(answer["entailment"][0], alone, atol=1e-5)


def test_the_server_and_predict_answer_it_too(folder, expected, tmp_path):
    rows = [
        {"text": text, "candidates": candidates}
        for text, candidates in zip(TEXTS[:3], CANDIDATES[:3], strict=True)
    ]
    with server(folder) as (port, _):
        content = {"signature_name": "entail", "instances": rows}
        status, answer = predict(port, content)
    assert status == 200
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "texts.jsonl").write_text(lines)
    done = call_script(
        *("-m", "official_tasks.predict", f"--model={folder}"),
        *("--signature=entail", "--input=texts.jsonl", "--output=a.jsonl"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "a.jsonl").read_text().splitlines()
    for row, (scores, _) in enumerate(expected):
        for found in (
            answer["predictions"][row],
            json.loads(written[row])["answer"],
        ):
            values = found["probabilities"][: len(scores)]
            np.testing.assert_allclose(values, scores, atol=1e-5)


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
            model, preprocessor(), tmp_path / "a", hypothesis=hypothesis
        )


def test_a_model_without_such_a_label_has_no_entail(toy_served):
    with pytest.raises(AttributeError, match="no signature 'entail'"):
        toy_served.entail  # noqa: B018
