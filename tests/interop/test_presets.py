"""`from_preset` on folders of this package, and its error messages."""

import json
import logging
import os
import types
import uuid
import warnings

import keras
import numpy as np
import pytest

from bert_keras import files, json_files
from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interop import head_selection
from bert_keras.interop.convert import convert
from bert_keras.interop.opening import open_checkpoint
from bert_keras.interop.saving import save_model
from bert_keras.interop.tensors import WeightsError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_base import TaskModel, encode, symbolic_inputs
from bert_keras.modeling.task_models import (
    BertClassifier,
    BertTagger,
)
from bert_keras.modeling.weights import (
    published_weights,
    untrained_weights,
)
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.tokenizer import WordPieceTokenizer
from tests.support import tiny
from tests.support.model_samples import fill
from tests.support.remote_folder import object_store
from tests.support.tiny import (
    INPUTS,
    PIECES,
    encoder,
    largest_difference,
    preprocessor,
)
from tests.support.tiny import model as toy

pytestmark = pytest.mark.fast

A_Z = "abcdefghijklmnopqrstuvwxyz"


def saved(folder, model):
    save_model(folder, model, preprocessor())
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of a saved encoder. Tests must not change it."""
    return saved(tmp_path_factory.mktemp("encoder") / "a", encoder())


def test_an_encoder_comes_back_with_equal_outputs_and_settings(tmp_path):
    before = encoder(activation="gelu_exact", dropout=0.25)
    after = BertEncoder.from_preset(saved(tmp_path / "a", before))
    assert after.get_config() == before.get_config()
    for name in ("sequence_output", "pooled_output"):
        assert (
            largest_difference(before(INPUTS)[name], after(INPUTS)[name]) == 0
        )


def test_activations_are_saved_where_the_format_has_them(tmp_path):
    before = BertPretrainer(encoder(activation="relu"), mlm_activation="silu")
    after = BertPretrainer.from_preset(saved(tmp_path / "a", before))
    assert after.encoder.activation == "relu"
    assert after.mlm_activation == "silu"
    for name in ("selu", lambda x: x):
        with pytest.raises(InputError, match="activation .*format"):
            saved(tmp_path / "b", encoder(activation=name))
        model = BertPretrainer(encoder(), mlm_activation=name)
        with pytest.raises(InputError, match="activation .*format"):
            saved(tmp_path / "b", model)


def test_positions_beyond_the_table_are_new_weights(folder, tmp_path):
    old = BertEncoder.from_preset(folder)
    table = old.embeddings.position.embeddings.numpy()
    with pytest.warns(UntrainedWarning, match=r"positions from 16 .*position/"):
        model = BertClassifier.from_preset(
            folder,
            labels=["no", "yes"],
            max_sequence_length=40,
            sequence_length=36,
        )
    longer = model.encoder.embeddings.position.embeddings.numpy()
    assert longer.shape == (40, table.shape[1])
    np.testing.assert_array_equal(longer[:16], table)
    assert 0.01 < longer[16:].std() < 0.03  # as BERT's initializer
    assert model.load_report.old_positions == 16
    assert "encoder/embeddings/position/embeddings" in untrained_weights(model)
    assert model.preprocessor.sequence_length == 36
    for name in ("sequence_output", "pooled_output"):
        found = model.encoder(INPUTS)[name], old(INPUTS)[name]
        assert largest_difference(*found) == 0
    again = BertClassifier.from_preset(saved(tmp_path / "a", model))
    assert again.encoder.max_sequence_length == 40
    assert largest_difference(again(INPUTS), model(INPUTS)) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BertEncoder.from_preset(folder, max_sequence_length=16)
    for number in (15, 40.5, "40"):
        with pytest.raises(InputError, match="`max_sequence_length` is"):
            BertEncoder.from_preset(folder, max_sequence_length=number)


@keras.saving.register_keras_serializable("mine")
class OwnNames(TaskModel):
    """A head whose arguments are named as those of other heads."""

    pools = False

    def __init__(
        self,
        encoder,
        classes=1,
        num_labels=1,
        num_classes=1,
        labels=1,
        sequence_length=1,
        name="own",
    ):
        self.classes, self.num_labels = classes, num_labels
        self.num_classes, self.labels = num_classes, labels
        self.sequence_length = sequence_length
        inputs = symbolic_inputs()
        vectors = encode(encoder, inputs)["sequence_output"]
        super().__init__(inputs, vectors, encoder, name)


@pytest.mark.parametrize(
    "name",
    ["classes", "num_labels", "num_classes", "labels", "sequence_length"],
)
def test_own_arguments_of_a_head_come_first(name, folder):
    assert getattr(OwnNames.from_preset(folder, **{name: 7}), name) == 7


def test_a_classifier_from_a_pretrainer_takes_encoder_and_pooler(
    tmp_path, caplog
):
    before = BertPretrainer(encoder())
    folder = saved(tmp_path / "a", before)
    with (
        caplog.at_level(logging.INFO, "bert_keras.interop.presets"),
        pytest.warns(UntrainedWarning, match="of a BertPretrainer"),
    ):
        after = BertClassifier.from_preset(folder, labels=["no", "yes"])
    pooled = [m.encoder(INPUTS)["pooled_output"] for m in (before, after)]
    assert largest_difference(*pooled) == 0
    report = after.load_report
    assert report.initialised == ["classifier/bias", "classifier/kernel"]
    assert "cls.predictions.bias" in report.skipped
    assert len(report.skipped) == 7
    assert len(caplog.messages) == 3
    assert caplog.messages[2] == (
        "Freshly initialised 2: classifier/bias, classifier/kernel"
    )
    kernel = np.asarray(after.classifier.kernel)
    assert 0 < np.abs(kernel).max() <= 0.04


def test_a_head_whose_labels_differ_is_new_but_unnamed_ones_take_any(tmp_path):
    model = BertClassifier(encoder(), labels=["LABEL_0", "LABEL_1"])
    folder = saved(tmp_path / "a", model)
    named = BertClassifier.from_preset(folder, labels=["no", "yes"])
    assert named.labels == ["no", "yes"]
    assert named.load_report.initialised == []
    folder = saved(tmp_path / "a", named)
    with pytest.warns(UntrainedWarning, match="no.*yes.*not.*classifier/ker"):
        more = BertClassifier.from_preset(folder, labels=["a", "b", "c"])
    assert more.classifier.kernel.shape == (8, 3)
    assert "classifier/kernel" in more.load_report.initialised


def test_a_head_on_features_gives_way_to_one_without_them(tmp_path):
    model = BertClassifier(encoder(), ["no", "yes"], recipe="last")
    folder = saved(tmp_path / "a", model)
    with pytest.warns(UntrainedWarning, match="recipe=last, not None"):
        after = BertClassifier.from_preset(folder, recipe=None)
    assert after.recipe is after.pooling is None


@pytest.mark.parametrize(
    ("of", "asked", "labels", "problem"),
    [
        # A regressor or a ranker may start from a classifier, as for STS-B.
        ("single", {"problem": "regression", "labels": None}, None, "regr"),
        ("single", {"problem": "ranking"}, None, "ranking"),
        ("regression", {"labels": ["no", "yes"]}, ["no", "yes"], "single"),
        ("ranking", {"labels": iter(["no", "yes"])}, ["no", "yes"], "single"),
    ],
)
def test_one_score_and_classes_are_heads_of_their_own(
    tmp_path, of, asked, labels, problem
):
    names = ["a", "b", "c"] if of == "single" else None
    model = BertClassifier(encoder(), names, of)
    folder = saved(tmp_path / "a", model)
    with pytest.warns(UntrainedWarning, match="for labels=.*classifier/ker"):
        after = BertClassifier.from_preset(folder, **asked)
    assert after.labels == labels and after.problem.startswith(problem)
    again = BertClassifier.from_preset(folder, problem=of)
    assert again.labels == names and not again.load_report.initialised


@pytest.mark.parametrize("name", ["BertClassifier", "BertTagger"])
def test_a_head_follows_its_labels_into_another_order(tmp_path, name, recwarn):
    before = toy(name)
    folder = saved(tmp_path / "a", before)
    rotated = before.labels[1:] + before.labels[:1]
    after = type(before).from_preset(folder, labels=rotated)
    assert after.load_report.initialised == []
    expected = np.roll(before(INPUTS), -1, axis=-1)
    assert largest_difference(expected, after(INPUTS)) == 0
    assert not recwarn.list


@pytest.mark.parametrize("problem", ["single", "multi", "tags"])
def test_known_labels_keep_their_outputs_beside_new_ones(tmp_path, problem):
    labels, more = ["O", "PER"], ["ORG", "PER", "O", "LOC"]
    cls = BertTagger if problem == "tags" else BertClassifier
    options = {} if problem == "tags" else {"problem": problem}
    if problem == "multi":
        options["thresholds"] = [0.2, 0.3]
    before = fill(cls(encoder(), labels, **options))
    folder = saved(tmp_path / "a", before)
    with pytest.warns(UntrainedWarning, match="new labels LOC, ORG"):
        after = cls.from_preset(folder, labels=more)
    assert after.load_report.new_labels == ["ORG", "LOC"]
    expected, outputs = np.array(before(INPUTS)), np.array(after(INPUTS))
    assert np.array_equal(outputs[..., [2, 1]], expected)
    head = after.tagger if problem == "tags" else after.classifier
    kernel = np.array(head.kernel)[:, [0, 3]]
    assert 0.005 < kernel.std() < 0.05 and not np.array(head.bias)[[0, 3]].any()
    assert getattr(after, "thresholds", None) is None
    name = f"{head.name}/kernel"
    assert name in untrained_weights(after)
    with pytest.warns(UntrainedWarning, match=f"not \\['PER.*{name}"):
        cls.from_preset(folder, labels=["PER", "ORG"])  # one label is gone


def test_many_labels_with_long_names_come_back(tmp_path):
    labels = [f"{index:06} {'x' * 80}" for index in range(60_000)]
    folder = saved(tmp_path / "a", BertClassifier(encoder(), labels))
    size = os.path.getsize(tmp_path / "a" / "config.json")
    assert size > json_files.MAX_JSON_BYTES
    assert open_checkpoint(folder).head_arguments["labels"] == labels


class CountedLabel(str):
    """A text that counts how often it is compared."""

    compared = 0

    __hash__ = str.__hash__

    def __eq__(self, other):
        CountedLabel.compared += 1
        return str.__eq__(self, other)


def test_matching_of_labels_is_linear_in_their_number():
    labels = [CountedLabel(index) for index in range(2000)]
    order = head_selection._match_labels(
        {"labels": labels}, {"labels": labels[::-1]}
    )
    assert order == list(range(2000))[::-1]
    assert CountedLabel.compared < 20_000


def test_thresholds_follow_their_labels(tmp_path):
    model = BertClassifier(
        encoder(), ["a", "b", "c"], "multi", thresholds=[0.1, 0.5, 0.9]
    )
    folder = saved(tmp_path / "a", model)
    after = BertClassifier.from_preset(folder, labels=["c", "b", "a"])
    assert after.thresholds == [0.9, 0.5, 0.1]
    after = BertClassifier.from_preset(folder, problem="single")
    assert after.thresholds is None
    for new in ({"labels": ["x", "y", "z"]}, {"bilstm_dim": 3}):
        with pytest.warns(UntrainedWarning):
            after = BertClassifier.from_preset(folder, **new)
        assert after.thresholds is None


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("BertClassifier", "encoder/pooler/kernel"),
        ("BertClassifier", "classifier/bias"),
        ("BertChooser", "encoder/pooler/bias"),
        ("BertTagger", "tagger/kernel"),
        ("BertSpanPredictor", "span/bias"),
        ("BertPretrainer", "mlm/norm/gamma"),
        ("BertPretrainer", "nsp/bias"),
        ("BertPretrainer", "encoder/pooler/kernel"),
        ("Scorer", "score/kernel"),
    ],
)
def test_a_trained_folder_that_lacks_a_weight_is_refused(tmp_path, name, lost):
    model = Scorer(encoder()) if name == "Scorer" else toy(name)
    folder = str(tmp_path / "a")
    save_model(folder, model, preprocessor(), without=[lost])
    with pytest.raises(WeightsError, match=f"{lost}: .*not complete"):
        type(model).from_preset(folder)
    if "pooler" in lost:  # an encoder gets a random pooler and warns
        with pytest.warns(UntrainedWarning, match="pooler"):
            BertEncoder.from_preset(folder)


def test_a_head_without_a_pooler_needs_none(tmp_path, recwarn):
    pooler = ["encoder/pooler/kernel", "encoder/pooler/bias"]
    save_model(
        tmp_path / "a", toy("BertTagger"), preprocessor(), without=pooler
    )
    model = BertTagger.from_preset(tmp_path / "a")
    assert model.load_report.initialised == sorted(pooler)
    assert not recwarn.list
    # The random pooler still counts as untrained after saving.
    model.save_preset(tmp_path / "b", preprocessor())
    with pytest.warns(UntrainedWarning, match="pooler"):
        BertEncoder.from_preset(tmp_path / "b")


def test_one_of_two_tasks_may_be_missing_and_is_named(tmp_path):
    model = toy("BertPretrainer")
    for task, kept in (("nsp", "mlm"), ("mlm", "nsp")):
        names = [n for n in published_weights(model) if n.startswith(task)]
        save_model(tmp_path / task, model, preprocessor(), without=names)
        with pytest.warns(UntrainedWarning, match=f"{task}/") as caught:
            again = BertPretrainer.from_preset(tmp_path / task)
        assert f"{kept}/" not in str(caught[0].message)
        assert again.load_report.initialised == sorted(names)


def test_a_head_saved_before_it_learnt_is_new_until_it_does(tmp_path, folder):
    with pytest.warns(UntrainedWarning):
        model = BertClassifier.from_preset(folder, labels=["no", "yes"])
    again = saved(tmp_path / "b", model.with_dtype("mixed_bfloat16"))
    with pytest.warns(UntrainedWarning, match="classifier/kernel"):
        same = BertClassifier.from_preset(again)
    assert largest_difference(model(INPUTS), same(INPUTS)) == 0
    assert untrained_weights(same) == ["classifier/kernel"]
    same.classifier.kernel.assign(np.ones((8, 2)))  # stands for training
    assert untrained_weights(same) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BertClassifier.from_preset(saved(tmp_path / "c", same))


def test_a_new_head_on_a_loaded_encoder_is_known_for_new(folder):
    loaded = BertEncoder.from_preset(folder)
    assert untrained_weights(loaded) == []
    model = BertClassifier(loaded, labels=["no", "yes"])
    assert untrained_weights(model) == ["classifier/kernel"]


def test_arguments_of_encoder_and_head_go_where_they_belong(folder):
    with pytest.warns(UntrainedWarning):
        model = BertClassifier.from_preset(
            folder, labels=["a"], dropout=0.5, attention_dropout=0.3
        )
    assert (model.dropout, model.encoder.dropout) == (0.5, 0.1)
    assert model.encoder.attention_dropout == 0.3
    half = BertEncoder.from_preset(folder, dtype="mixed_bfloat16")
    assert half.compute_dtype == "bfloat16"


@pytest.mark.parametrize("name", ["num_layers", "vocabulary_size", "colour"])
def test_an_argument_that_the_weights_decide_is_refused(folder, name):
    with pytest.raises(InputError, match=f"takes no {name}"):
        BertEncoder.from_preset(folder, **{name: 3})


def test_the_preprocessor_comes_back_with_its_settings(folder):
    load = BertPreprocessor.from_preset
    after = load(folder)
    assert after.sequence_length == 12
    assert after.tokenizer.vocabulary == PIECES
    assert after.tokenizer.lowercase is False
    assert after.tokenizer.max_word_length == 50
    assert load(folder, sequence_length=6).sequence_length == 6
    with pytest.raises(InputError, match="17.*16 positions"):
        load(folder, sequence_length=17)
    with pytest.raises(InputError, match="`sequence_length` is '128'"):
        load(folder, sequence_length="128")
    assert load(folder, lowercase=False).tokenizer.lowercase is False
    with pytest.raises(WeightsError, match="lowercase=False"):
        load(folder, lowercase=True)


def test_the_tokenizer_comes_alone_with_its_settings(folder):
    tokenizer = WordPieceTokenizer.from_preset(folder)
    of_preprocessor = BertPreprocessor.from_preset(folder).tokenizer
    for name in ("vocabulary", "lowercase", "max_word_length", "portable"):
        assert getattr(tokenizer, name) == getattr(of_preprocessor, name)
    assert tokenizer.max_word_length == 50
    assert WordPieceTokenizer.from_preset(folder, max_word_length=3)(
        ["good bad"]
    ).to_list() == [[1, 6]]
    with pytest.raises(WeightsError, match="lowercase=False"):
        WordPieceTokenizer.from_preset(folder, lowercase=True)


def test_a_preset_without_its_preprocessor_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"save_preset\(folder, preprocess\)"):
        encoder().save_preset(tmp_path / "a")
    assert not os.listdir(tmp_path)


def test_a_folder_of_ours_is_settled_about_its_case(tmp_path):
    words = [a + b + c for a in "abcdefghij" for b in "ijklmnopqr" for c in A_Z]
    tokenizer = WordPieceTokenizer([*PIECES, *words], lowercase=False)
    text = BertPreprocessor(tokenizer, sequence_length=8)
    model = encoder(vocabulary_size=len(PIECES) + len(words))
    save_model(tmp_path / "a", model, text)
    assert (
        BertPreprocessor.from_preset(tmp_path / "a").tokenizer.lowercase
        is False
    )


def test_saving_replaces_an_older_preset_and_nothing_else(tmp_path):
    folder = saved(tmp_path / "a", encoder())
    saved(folder, BertPretrainer(encoder()))
    assert BertPretrainer.from_preset(folder).load_report.initialised == []
    (tmp_path / "a" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="thesis.tex"):
        saved(folder, encoder())


def test_a_remote_folder_with_other_files_is_left_alone(monkeypatch, tmp_path):
    folder = f"ram://{uuid.uuid4().hex}/models"
    with object_store(monkeypatch):
        saved(folder, encoder())
        saved(folder, BertPretrainer(encoder()))
        (tmp_path / "thesis.tex").write_text("years of work")
        files.upload(str(tmp_path / "thesis.tex"), f"{folder}/thesis.tex")
        with pytest.raises(InputError, match="thesis.tex"):
            saved(folder, encoder())
        assert files.is_file(f"{folder}/thesis.tex")


def test_a_preprocessor_of_another_model_is_not_written(tmp_path):
    save = save_model
    model = encoder(vocabulary_size=7)
    with pytest.raises(InputError, match="8 tokens.*at most 7"):
        save(tmp_path / "a", model, preprocessor())
    with pytest.raises(InputError, match="12 tokens.*at most 11"):
        save(tmp_path / "a", encoder(max_sequence_length=11), preprocessor())
    with pytest.raises(InputError, match="preprocessor is a str"):
        save(tmp_path / "a", model, preprocessor="none")
    packer = types.SimpleNamespace(sequence_length=8)
    with pytest.raises(InputError, match="preprocessor is a SimpleNamespace"):
        save(tmp_path / "a", model, packer)
    assert not os.listdir(tmp_path)


def test_how_many_examples_a_row_had_is_not_stored(tmp_path):
    packed = BertPretrainer(encoder(), examples_per_row=3)
    folder = saved(tmp_path / "a", packed)
    again = BertPretrainer.from_preset(folder, examples_per_row=3)
    assert again.load_report.initialised == []
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["bert_keras"]["arguments"]["examples_per_row"] is None
    assert convert(folder, tmp_path / "b").difference == 0


class Scorer(TaskModel):
    """A model with a head that the package does not know."""

    def __init__(self, encoder, width=3, name="scorer"):
        self.width = width
        self.score = keras.layers.Dense(width, name="score")
        inputs = symbolic_inputs()
        scores = self.score(encode(encoder, inputs)["pooled_output"])
        super().__init__(inputs, scores, encoder, name)

    def arguments(self):
        return {"width": self.width}


def test_a_head_from_outside_the_package_saves_and_reloads(tmp_path, folder):
    with pytest.warns(UntrainedWarning, match="score/kernel"):
        model = Scorer.from_preset(folder, width=2)
    assert model.load_report.initialised == ["score/bias", "score/kernel"]
    model.score.kernel.assign(np.ones((8, 2)))  # stands for training
    again = Scorer.from_preset(saved(tmp_path / "b", model))
    assert again.width == 2
    assert largest_difference(model(INPUTS), again(INPUTS)) == 0
    assert BertEncoder.from_preset(tmp_path / "b").load_report.skipped == [
        "score/bias",
        "score/kernel",
    ]


def test_what_is_neither_a_path_nor_a_name_is_refused(tmp_path):
    with pytest.raises(InputError, match="No supported checkpoint"):
        BertEncoder.from_preset("bert")
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(InputError, match="No supported checkpoint"):
        BertEncoder.from_preset(tmp_path / "notes.txt")
    (tmp_path / "uncased.zip").write_text("packed")
    with pytest.raises(InputError, match="Extract the archive"):
        BertEncoder.from_preset(tmp_path / "uncased.zip")
    with pytest.raises(InputError, match="in the folder"):
        BertEncoder.from_preset(tmp_path)
    with pytest.raises(InputError, match="`revision` is 'main'"):
        BertEncoder.from_preset(tmp_path, revision="main")
    with pytest.raises(InputError, match="Copy the folder here"):
        BertEncoder.from_preset("gs://bucket/run/model")


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        ("bert-keras-mini-en", "mean bert_keras_mini_en[?].*presets[(]"),
        ("bert_keras_mini", "mean bert_keras_mini_en[?]"),
        ("BERT_large_cased", "mean bert-large-cased[?]"),
        ("hf://bert-base-cased", "mean bert-base-cased[?]"),
        ("bert-tiny-uncased", "mean bert_tiny_en_uncased"),
        ("roberta-base", "^((?!mean).)*keras_hub.models.Roberta((?!mean).)*$"),
        ("Deberta_v3", "^((?!mean).)*with transformers((?!mean).)*$"),
        ("all-MiniLM-L6", "mean all-MiniLM-L6-v"),
        ("uncased_L-2_H-128", "mean uncased_L-2_H-128_A-2"),
        ("nothing like it", "like it. Expected"),
        (None, "The preset is None"),
    ],
)
def test_an_unknown_name_gets_the_nearest_known_ones(preset, message):
    with pytest.raises(InputError, match=message):
        BertEncoder.from_preset(preset)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.keras", "keras.models.load_model"),
        ("a.h5", "keras.models.load_model.*load_weights"),
        ("a.weights.h5", "weights only.*load_weights"),
        ("model.safetensors", "folder of this file"),
        ("tf_model.h5", "folder of this file"),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_file_of_keras_is_sent_to_what_loads_it(
    tmp_path, monkeypatch, name, words, exists
):
    monkeypatch.chdir(tmp_path)
    if exists:
        (tmp_path / name).write_bytes(b"")
    for cls in (BertClassifier, BertPreprocessor):
        with pytest.raises(InputError, match=words):
            cls.from_preset(name)


def test_the_folder_of_a_run_stands_for_its_model(tmp_path):
    folder = saved(tmp_path / "seeds" / "run" / "model", encoder())
    run = tmp_path / "seeds" / "run"
    assert BertEncoder.from_preset(run).load_report.source == folder
    assert BertPreprocessor.from_preset(run).sequence_length == 12
    with pytest.raises(InputError, match=f"Did you mean {folder}[?]"):
        BertEncoder.from_preset(tmp_path / "seeds")


def test_classes_are_named_or_counted(tmp_path):
    folder = saved(tmp_path / "a", BertClassifier(encoder(), ["no", "yes"]))
    with pytest.raises(InputError, match="labels is 2. Expected the names"):
        BertClassifier.from_preset(folder, labels=2)
    kept = BertClassifier.from_preset(folder, num_classes=2)
    assert kept.labels == ["no", "yes"] and not kept.load_report.initialised
    counted = BertClassifier.from_preset(folder, num_classes=3)
    assert counted.labels == ["0", "1", "2"] and counted.load_report.initialised
    model = BertClassifier.from_preset(folder, labels=np.array(["no", "yes"]))
    assert model.labels == ["no", "yes"] and not model.load_report.initialised


class WideEncoder(BertEncoder):
    """An encoder with two layers more, which are built in its first call."""

    def __init__(self, width=3, **arguments):
        self.width = width
        super().__init__(**arguments)

    def build(self, input_shape=None):
        self.down = keras.layers.Dense(self.width, "relu", name="down")
        self.up = keras.layers.Dense(self.hidden_dim, name="up")
        super().build(input_shape)

    def call(self, inputs, **options):
        outputs = super().call(inputs, **options)
        x = outputs["sequence_output"]
        outputs["sequence_output"] = x + self.up(self.down(x))
        return outputs


class WideTagger(BertTagger):
    encoder_class = WideEncoder


def test_a_subclass_of_the_encoder_keeps_its_weights(tmp_path):
    model = BertTagger(WideEncoder(width=5, **tiny.SIZES), labels=["O", "PER"])
    model(INPUTS)
    expected = fill(model)(INPUTS)
    folder = saved(tmp_path / "a", model)
    again = WideTagger.from_preset(folder)
    assert (again.encoder.width, again.load_report.initialised) == (5, [])
    assert largest_difference(expected, again(INPUTS)) == 0
    for cls in (BertTagger, BertEncoder):
        with pytest.warns(UserWarning, match="unknown: encoder/down/bias"):
            cls.from_preset(folder)
    with pytest.warns(UntrainedWarning, match="encoder/down/kernel"):
        new = WideTagger.from_preset(saved(tmp_path / "b", toy("BertTagger")))
    assert np.any(new.encoder.down.kernel)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["model_type"] == "bert_keras"  # transformers refuses it
