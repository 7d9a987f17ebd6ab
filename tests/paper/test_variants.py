"""Directional models by NumPy on their encoders, and variants of a task."""

import json

import keras
import numpy as np
import pytest
from toy_pretraining import PIECES, reviews

import bert_keras
from bert_keras import BertEncoder, BertPreprocessor, InputError
from bert_keras.text.tokenizer import WordPieceTokenizer
from official_tasks.paper.variants import DirectionalModel, vary
from official_tasks.tasks.custom import CustomTask
from official_tasks.tasks.squad import SQUAD_1, SquadTask

IDS = np.array([[2, 7, 8, 9, 3], [2, 10, 3, 0, 0]], "int32")
INPUTS = {"token_ids": IDS, "padding_mask": (IDS > 0).astype("int32")}


def encoder(attention="left_to_right", seed=0):
    keras.utils.set_random_seed(seed)
    return BertEncoder(
        len(PIECES),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=32,
        dropout=0.0,
        attention_dropout=0.0,
        attention=attention,
    )


def preprocessor():
    return BertPreprocessor(WordPieceTokenizer(PIECES), 16)


def test_a_pair_reads_both_encoders_vectors_and_the_ends_that_saw_all():
    model = DirectionalModel(encoder(), labels=["no", "yes"], paired=True)
    model.second.set_weights(encoder("right_to_left", seed=1).get_weights())
    ahead = model.encoder(INPUTS)["sequence_output"].numpy()
    back = model.second(INPUTS)["sequence_output"].numpy()
    last = np.stack([ahead[0, 4], ahead[1, 2]])
    features = np.concatenate([last, back[:, 0]], axis=-1)
    kernel, bias = model.classifier.get_weights()
    expected = features @ kernel + bias
    np.testing.assert_allclose(model(INPUTS), expected, atol=1e-6)
    assert model.second.attention == "right_to_left"


def test_tokens_of_a_pair_depend_on_both_sides_and_alone_on_one():
    pair = DirectionalModel(encoder(), "tagger", ["O", "X"], paired=True)
    alone = bert_keras.BertTagger(encoder(), ["O", "X"])
    changed = IDS.copy()
    changed[0, 3] = 12  # to the right of place 2
    for model, differs in ((pair, True), (alone, False)):
        before, after = model(IDS).numpy(), model(changed).numpy()
        assert np.allclose(before[0, 2], after[0, 2]) != differs


@pytest.mark.parametrize(
    "arguments",
    [
        {"labels": ["no", "yes"]},
        {"labels": ["no", "yes"], "paired": True},
        {"head": "tagger", "labels": ["O", "X"], "paired": True},
        {"head": "span", "paired": True},
    ],
)
def test_a_directional_model_survives_a_folder_and_a_keras_file(
    arguments, tmp_path
):
    model = DirectionalModel(encoder(), **arguments)
    expected = keras.tree.flatten(model(INPUTS))
    model.save_preset(tmp_path / "own", preprocessor())
    model.save(tmp_path / "model.keras")
    for read in (
        type(model).from_preset(tmp_path / "own"),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        outputs = keras.tree.flatten(read(INPUTS))
        for output, before in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(output, before, atol=1e-6)
    poolers = [w.path for w in model.trainable_weights if "pooler" in w.path]
    assert not poolers


def test_another_direction_is_refused():
    with pytest.raises(InputError, match="sees bidirectional"):
        DirectionalModel(encoder("bidirectional"), labels=["O", "X"])
    with pytest.raises(InputError, match="head is 'chooser'. Expected one of"):
        DirectionalModel(encoder(), "chooser")
    with pytest.raises(InputError, match="labels"):
        DirectionalModel(encoder(), "tagger")


def test_a_variant_sees_fewer_rows_the_same_each_time(tmp_path):
    task = CustomTask(**reviews(tmp_path))
    varied = vary(task, {"train": 10, "dev": 5})
    first, again = varied.read("train"), varied.read("train")
    assert len(first) == 10
    assert first == again
    assert set(first) <= set(task.read("train"))
    assert len(varied.read("dev")) == 5
    assert len(task.read("train")) == 40


def test_a_question_sees_the_sentence_of_its_answer_alone(tmp_path):
    context = "Ada was born in 1815. She met Mr. Babbage in London.  He built."
    places = {"1815": 16, "Babbage in London": 34, "1815. She": 16, "xy": 3}
    asked = [
        {
            "id": answer,
            "question": "Which?",
            "answers": [{"text": answer, "answer_start": start}],
        }
        for answer, start in places.items()
    ]
    articles = [{"paragraphs": [{"context": context, "qas": asked}]}]
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": articles}))
    task = SquadTask(SQUAD_1, dev=str(path))
    seen = vary(task, sentence=True).read("dev")
    assert [(q.context, q.start) for q in seen] == [
        ("Ada was born in 1815.", 16),
        ("She met Mr. Babbage in London.", 12),
        ("Ada was born in 1815. She met Mr. Babbage in London.", 16),
        (context, 3),  # nobody knows where that answer stands
    ]
    assert [q.answers for q in seen] == [(answer,) for answer in places]
    assert vary(task).read("dev") == task.read("dev")


def test_a_variant_puts_its_part_between_encoder_and_head(tmp_path):
    back = encoder("right_to_left", seed=1)
    back.save_preset(tmp_path / "back", preprocessor())
    task = CustomTask(**reviews(tmp_path))
    lstm = vary(task, bilstm_dim=4).build(encoder())
    assert (type(lstm), lstm.bilstm_dim) == (bert_keras.BertClassifier, 4)
    both_ways = vary(task).build(encoder("bidirectional"))
    assert type(both_ways) is bert_keras.BertClassifier
    alone = vary(task).build(encoder())
    assert (type(alone), alone.paired) == (DirectionalModel, False)
    pair = vary(task, second=tmp_path / "back").build(encoder())
    np.testing.assert_array_equal(
        pair.second(INPUTS)["sequence_output"], back(INPUTS)["sequence_output"]
    )
    encoder().save_preset(tmp_path / "ahead", preprocessor())
    with pytest.raises(InputError, match="trained right to left"):
        vary(task, second=tmp_path / "ahead").build(encoder())
