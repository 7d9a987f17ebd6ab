import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import uuid

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import files, json_files
from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interop.saving import save_model
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_models import (
    BertChooser,
    BertClassifier,
    BertSpanPredictor,
)
from bert_keras.modeling.weights import enable_lora, lora_layers
from bert_keras.serving import export, verify
from bert_keras.serving.export import export_saved_model
from bert_keras.serving.load import load_saved_model, read_card
from bert_keras.serving.onnx_litert import export_on_ids
from bert_keras.serving.signature import Output, Signature
from bert_keras.serving.signatures import ExportOptions, drop_untrained
from tests.support.model_samples import fill
from tests.support.remote_folder import object_store
from tests.support.served_samples import (
    VOCABULARY,
    encoder,
    preprocessor,
    task_models,
)

pytestmark = pytest.mark.heavy

TEXTS = ["an hour well spent", "bad film!", "good", "\u4eca\u65e5", "i"]


@pytest.fixture(scope="module")
def pretrainer():
    return fill(BertPretrainer(encoder()))


@pytest.fixture(scope="module")
def classifier():
    labels = ["bad", "fine", "\u826f\u3044"]
    model = fill(BertClassifier(encoder(), labels=labels))
    logits = np.array(model(preprocessor()(TEXTS)))
    model.classifier.bias.assign(-logits.mean(0))  # else one label always wins
    return model


@pytest.fixture(scope="module")
def folder(classifier, pretrainer, tmp_path_factory):
    """An export of both models, moved to another folder after it was written.

    `verify` starts a new interpreter here. In other tests it uses a fork.
    """
    models = [classifier, pretrainer]
    made = tmp_path_factory.mktemp("served") / "made"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "subprocess", subprocess)
        export_saved_model(models, made, preprocessor(), verify=True)
    # No file of the export contains a path of this machine.
    package = str(pathlib.Path(files.__file__).parent.parent)
    places = [str(made.parent), os.getcwd(), package, sys.prefix]
    for path in files.walk(made):
        content = pathlib.Path(path).read_bytes()
        assert not [p for p in places if p.encode() in content], path
    return str(made.rename(made.parent / "moved"))


@pytest.fixture(scope="module")
def served(folder):
    return load_saved_model(folder)


LENGTH = Signature(
    "length",
    {"text": "An hour."},
    lambda text: {"length": tf.strings.length(text)},
    {"length": Output("int32", ("B",), "how many bytes")},
)


@pytest.fixture
def asked_for(monkeypatch):
    """List to which each export adds the dict of its models' signatures.

    Only `LENGTH` is exported, because tracing takes most of an export's time.
    """
    found, real = [], export.make_signatures

    def one(*arguments):
        found.append(real(*arguments))
        return {"length": LENGTH}

    monkeypatch.setattr(export, "make_signatures", one)
    return found


@pytest.mark.long
@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("long_text", ["truncate", "windows"])
def test_every_model_is_served_as_it_is(tmp_path, portable, long_text):
    export_saved_model(
        task_models(),
        tmp_path / "out",
        preprocessor(),
        long_text=long_text,
        portable=portable,
        verify=True,
    )


def untrained_model(folder, cls, **arguments):
    """Return a model of `cls` with the weights of an encoder and a new head."""
    fill(encoder()).save_preset(folder / "encoder", preprocessor())
    with pytest.warns(UntrainedWarning):
        return cls.from_preset(folder / "encoder", **arguments)


def test_weights_that_are_not_finite_are_not_exported(tmp_path):
    model = BertClassifier(encoder(), ["bad", "good"])
    bias = next(w for w in model.weights if "classifier/bias" in w.path)
    bias.assign([0.0, np.nan])
    with pytest.raises(InputError, match="classifier/bias has NaN"):
        export_saved_model(model, tmp_path / "out", preprocessor())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verified", [False, True])
def test_a_model_that_answers_nan_is_not_exported(tmp_path, verified):
    model = fill(BertClassifier(encoder(), ["bad", "good"]))
    model.classifier.bias.assign([3e38, 3e38])
    model.classifier.kernel.assign(np.full(model.classifier.kernel.shape, 3e38))
    with pytest.raises(InputError, match="row 0, .*NaN.*`probabilities` of cl"):
        export_saved_model(
            model, tmp_path / "out", preprocessor(), verify=verified
        )
    assert list(tmp_path.iterdir()) == []


def test_random_weights_are_not_exported(tmp_path, asked_for):
    model = untrained_model(tmp_path, BertClassifier, labels=["bad", "good"])
    out = tmp_path / "out"
    message = "classifier/kernel.*allow_untrained=True"
    with pytest.raises(InputError, match=message):
        export_saved_model(model, out, preprocessor())
    with pytest.raises(InputError, match=message):
        export_on_ids(model, preprocessor(), out, "onnx")
    # Random weights are detected even after the model is saved and loaded.
    model.save_preset(tmp_path / "saved", preprocessor())
    with pytest.warns(UntrainedWarning, match="classifier/kernel"):
        again = BertClassifier.from_preset(tmp_path / "saved")
    with pytest.raises(InputError, match=message):
        export_saved_model(again, out, preprocessor())
    export_saved_model(again, out, preprocessor(), allow_untrained=True)
    assert os.path.exists(out / "signature_card.json")
    fill(model)  # changes weights, as training does
    listed = [("classify", model)]
    assert drop_untrained(listed, ExportOptions()) == listed


def test_a_pretrainer_that_learnt_one_task_answers_that_one(
    tmp_path, asked_for
):
    model = fill(BertPretrainer(encoder()))
    nsp = ["nsp/kernel", "nsp/bias"]
    pooler = ["encoder/pooler/kernel", "encoder/pooler/bias"]
    save_model(tmp_path / "a", model, preprocessor(), without=[*nsp, *pooler])
    with pytest.warns(UntrainedWarning, match="pooler.*nsp"):
        model = BertPretrainer.from_preset(tmp_path / "a")
    with pytest.warns(UntrainedWarning, match="next_sentence.*nsp"):
        export_saved_model(model, tmp_path / "out", preprocessor())
    assert sorted(asked_for[0]) == ["embed", "fill_mask", "tokenize"]
    # An encoder with a random pooler is exported if nothing uses the pooler.
    path = tmp_path / "b"
    save_model(path, fill(encoder()), preprocessor(), without=pooler)
    with pytest.warns(UntrainedWarning, match="pooler"):
        alone = BertEncoder.from_preset(path)
    for one in (model, alone):
        for option in ({"pooling": "pooled"}, {"ids_signature": "bert_keras"}):
            with pytest.raises(InputError, match="encoder/pooler/kernel"):
                export_saved_model(one, path / "c", preprocessor(), **option)
    export_saved_model(alone, tmp_path / "encoder", preprocessor())
    assert list(asked_for[1]) == ["embed", "tokenize"]


def test_an_export_that_differs_is_not_written(
    tmp_path, monkeypatch, asked_for
):
    here, there = ({"length": np.array([x])} for x in (0.5, 0.50002))
    answered = [(LENGTH, {}, here)]
    monkeypatch.setattr(verify, "answer_here", lambda *_: answered)
    monkeypatch.setattr(verify, "answer_in_fresh_process", lambda *_: [there])
    with pytest.raises(InputError, match=r"differs .* by 2e-05"):
        export_saved_model(
            encoder(), tmp_path / "out", preprocessor(), verify=True
        )
    assert os.listdir(tmp_path) == []


def test_each_model_of_an_export_keeps_its_own_settings(tmp_path, asked_for):
    models = [
        BertClassifier(encoder(), ["bad", "good"], long_text="windows"),
        BertClassifier(encoder(), problem="ranking", pair=True),
        encoder(),
    ]
    export_saved_model(models, tmp_path / "own", preprocessor())
    export_saved_model(
        models, tmp_path / "all", preprocessor(), long_text="windows"
    )
    for made in asked_for:
        assert list(made["classify"].inputs) == ["text"]
        assert made["classify"].reads_windows
        assert "truncated" not in made["classify"].outputs
    cuts = ["truncated" in made["embed"].outputs for made in asked_for]
    assert cuts == [True, False]
    assert [m["embed"].reads_windows for m in asked_for] == [False, True]
    options = read_card(tmp_path / "own")["options"]
    assert (options["pair"], options["long_text"]) == (False, None)


def test_options_that_all_models_agree_on_are_in_the_card(tmp_path):
    ranker = BertClassifier(encoder(), problem="ranking", pair=True)
    export_saved_model(ranker, tmp_path / "a", preprocessor(), verify=False)
    options = read_card(tmp_path / "a")["options"]
    assert (options["pair"], options["long_text"]) == (True, "truncate")


@pytest.mark.parametrize("name", ["exp[1]", "a*b?", "x" * 250, b"caf\xe9"])
def test_any_name_of_a_folder_is_exported_to_and_loaded(
    tmp_path, asked_for, name
):
    folder = os.path.join(tmp_path, os.fsdecode(name), "served")
    export_saved_model(encoder(), folder, preprocessor(), verify=True)
    answer = load_saved_model(folder).length(["bad"])
    assert answer["length"].tolist() == [3]
    assert os.listdir(os.path.dirname(folder)) == ["served"]


def test_truncated_begins_one_token_beyond_what_fits(served):
    answer = served.classify(["bad " * 10, "bad " * 11])
    assert answer["truncated"].tolist() == [False, True]


def test_an_export_holds_no_gradients(folder):
    """Names of custom gradients took a sixth of the loading time. TensorFlow
    also warned that the gradients themselves are not saved."""
    graph = (pathlib.Path(folder) / "saved_model.pb").read_bytes()
    assert b"internal_grad_fn" not in graph
    assert b"_gradient_op_type" not in graph


def test_masks_beyond_the_row_are_not_answered(served):
    answer = served.fill_mask(["bad " * 9 + "[MASK] [MASK]"])
    assert answer["count"].tolist() == [1]
    assert answer["truncated"].tolist() == [True]


def test_a_bfloat16_model_is_served_in_float32_as_its_home_pools(
    tmp_path, asked_for
):
    model = fill(encoder("mixed_bfloat16"))
    model.sentence_embedding = {"pooling": "cls", "normalize": True}
    export_saved_model(model, tmp_path / "out", preprocessor())
    embed = asked_for[0]["embed"].trace()
    exact = model.with_dtype("float32")(preprocessor(4)(["good film"]))
    vector = np.array(exact["sequence_output"])[0, 0]
    np.testing.assert_allclose(
        embed(tf.constant(["good film", "bad " * 8]))["embedding"][0],
        vector / np.linalg.norm(vector),
        atol=1e-5,
    )


def test_the_card_shows_a_request_that_gets_its_answer(folder, served):
    card = json_files.read_json(os.path.join(folder, "signature_card.json"))
    assert card["default"] == "classify"
    for name, entry in card["signatures"].items():
        answer = getattr(served, name)(**entry["request"])
        assert set(answer) == set(entry["outputs"]) == set(entry["answer"])
    shown = card["signatures"]["classify"]
    assert (
        shown["answer"]["label"] == served.classify(**shown["request"])["label"]
    )
    for name, entry in card["files"].items():
        path = os.path.join(folder, name)
        assert entry == {
            "bytes": os.path.getsize(path),
            "sha256": files.sha256(path),
        }
    assert card["versions"]["bert_keras"]


def test_the_card_asks_for_what_the_graph_needs_alone(
    toy_export, served, monkeypatch
):
    """TensorFlow may be installed under another name, e.g. tensorflow-cpu."""

    def from_name(name):
        raise importlib.metadata.PackageNotFoundError(name)

    # `importlib.metadata.version` calls `from_name`.
    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", from_name)
    for card in (read_card(toy_export), export._describe_needs({})):
        assert card["needs"] == ["tensorflow"]
        assert card["versions"]["tensorflow"] == tf.__version__
    assert served.card["needs"] == ["tensorflow", "tensorflow_text"]


@pytest.mark.parametrize(
    ("operations", "package"),
    [
        (["FastBertNormalize"], ["tensorflow_text"]),
        (["Lemmatize", "TFText>RoundRobinTrim"], ["tensorflow_text"]),
        (["Lemmatize"], []),
    ],
)
def test_only_its_own_operations_need_tensorflow_text(operations, package):
    import tensorflow_text  # noqa: F401

    found = export._describe_needs(dict.fromkeys(operations, 1))
    assert found["needs"] == ["tensorflow", *package]
    assert list(found["operations_outside_core"]) == operations


def test_the_default_signature_is_the_first_models_own(served):
    default = served.loaded.signatures["serving_default"]
    assert "probabilities" in default.structured_outputs
    text = default.structured_input_signature[1]["text"]
    assert text.shape.as_list() == [None]


def test_the_same_export_may_be_there_already(
    folder, classifier, pretrainer, monkeypatch
):
    models = [classifier, pretrainer]
    before = os.stat(folder).st_mtime_ns
    export_saved_model(models, folder, preprocessor())
    assert os.stat(folder).st_mtime_ns == before
    with pytest.raises(InputError, match="another export: of another model, "):
        export_saved_model(models, folder, preprocessor(9))
    with pytest.raises(InputError, match="`portable` was False and is now Tru"):
        export_saved_model(models, folder, preprocessor(), portable=True)
    monkeypatch.setattr(export.bert_keras, "__version__", "9.9")
    words = (
        r"export: bert_keras 0\S+ wrote it, and this is bert_keras 9\.9\. Na"
    )
    with pytest.raises(InputError, match=words):
        export_saved_model(models, folder, preprocessor())


def test_models_that_differ_in_loras_alpha_have_other_fingerprints():
    model = BertClassifier(encoder(), labels=["bad", "good"])
    enable_lora(model, 2, alpha=4)
    found = set()
    for alpha in (4, 8, 8):
        for layer in lora_layers(model):
            layer.lora_alpha = alpha
        options = ExportOptions()
        found.add(export.compute_fingerprint([model], preprocessor(), options))
    assert len(found) == 2


def test_a_damaged_export_is_not_taken_for_whole(
    tmp_path, folder, classifier, pretrainer
):
    models, copy = [classifier, pretrainer], tmp_path / "out"
    shutil.copytree(folder, copy)
    data = copy / "variables" / "variables.data-00000-of-00001"
    whole = data.read_bytes()
    data.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    with pytest.raises(InputError, match="data-00000-of-00001 is damaged"):
        export_saved_model(models, copy, preprocessor())


def test_an_export_that_is_there_is_verified_when_asked(
    folder, classifier, pretrainer, monkeypatch, asked_for
):
    monkeypatch.setattr(verify, "answer_here", lambda *arguments: [])
    monkeypatch.setattr(
        verify, "measure_difference", lambda *arguments: float("nan")
    )
    models = [classifier, pretrainer]
    with pytest.raises(InputError, match="differs from .* to a new folder"):
        export_saved_model(models, folder, preprocessor(), verify=True)


def test_of_two_exports_to_a_new_folder_the_first_wins(
    tmp_path, classifier, monkeypatch
):
    out = tmp_path / "out"
    make_card = export._make_card

    def make_card_late(*arguments):
        out.mkdir()
        (out / "saved_model.pb").write_text("of the other command")
        return make_card(*arguments)

    monkeypatch.setattr(export, "_make_card", make_card_late)
    with pytest.raises(InputError, match="Another command wrote"):
        export_saved_model(classifier, out, preprocessor())
    assert (out / "saved_model.pb").read_text() == "of the other command"


def test_something_else_in_the_folder_is_left_alone(tmp_path, classifier):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="is not empty"):
        export_saved_model(classifier, tmp_path, preprocessor())
    with pytest.raises(InputError, match="thesis.txt exists and is a file"):
        export_saved_model(classifier, tmp_path / "thesis.txt", preprocessor())
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_an_export_may_be_remote(tmp_path, classifier, monkeypatch, asked_for):
    monkeypatch.chdir(tmp_path)
    folder = f"ram://{uuid.uuid4().hex}/served"
    with object_store(monkeypatch) as changes:
        for _ in range(2):  # the second call finds the export
            assert export_saved_model(classifier, folder, preprocessor()) == (
                folder
            )
            assert changes[-1] == ("copy", f"{folder}/signature_card.json")
        count = len(changes)
        answer = load_saved_model(folder).length(["bad"])
        assert answer["length"].tolist() == [3]
        with pytest.raises(InputError, match="another export"):
            export_saved_model(classifier, folder, preprocessor(9))
        with pytest.raises(InputError, match="already exists"):
            export_on_ids(classifier, preprocessor(), folder, "onnx")
        assert len(changes) == count
    assert os.listdir(tmp_path) == []


def segmentless(cls, **arguments):
    one = BertEncoder(len(VOCABULARY), 1, 2, 16, 32, 32, num_segments=1)
    return cls(one, **arguments)


CLASSES = {"labels": ["bad", "good"]}
MODELS = {
    "classes": lambda: BertClassifier(encoder(), **CLASSES),
    "spans": lambda: BertSpanPredictor(encoder()),
    "choices": lambda: BertChooser(encoder()),
    "masks": lambda: BertPretrainer(encoder()),
    "encoder": encoder,
    "twice": lambda: [MODELS["classes"]()] * 2,
    "text": lambda: "model",
    "none": list,
    "few pieces": lambda: BertEncoder(9, 1, 2, 4, 8, 32),
    "more rows than pieces": lambda: BertPretrainer(
        BertEncoder(len(VOCABULARY) + 9, 1, 2, 16, 32, 32)
    ),
    "one segment": lambda: segmentless(BertClassifier, **CLASSES),
    "one segment, spans": lambda: segmentless(BertSpanPredictor),
    "one segment, choices": lambda: segmentless(BertChooser),
    "one segment, masks": lambda: segmentless(BertPretrainer),
}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("twice", {}, "Two models have"),
        ("text", {}, "A str cannot be exported"),
        ("none", {}, "A list cannot be exported"),
        ("few pieces", {}, "tokens in the vocabulary"),
        ("spans", {"top_k": 0}, "`top_k` is 0"),
        ("spans", {"top_k": 91}, "number from 1 to 90"),
        ("spans", {"top_k": "5"}, "`top_k` is '5'"),
        ("spans", {"top_k": 2.5}, "`top_k` is 2.5"),
        (
            "more rows than pieces",
            {"top_k": len(VOCABULARY) + 1},
            f"number from 1 to {len(VOCABULARY)}[.]",
        ),
        ("choices", {"pair": True}, "`pair` is an option of classify"),
        ("choices", {"long_text": "cut"}, "`long_text` is 'cut'"),
        ("choices", {"long_text": "windows"}, "`long_text` is an option of"),
        ("choices", {"top_k": 5}, "`top_k` is an option of"),
        ("spans", {"features": "last"}, "`features` is an option of embed"),
        ("spans", {"pooling": "mean"}, "`pooling` is an option of embed"),
        ("spans", {"normalize": True}, "`normalize` is an option of embed"),
        ("spans", {"truncate_dim": 4}, "`truncate_dim` is an option of embed"),
        ("masks", {"truncate_dim": 17}, "`truncate_dim` is 17.* 1 to 16"),
        ("masks", {"features": "sum_last_four"}, "the encoder has 1 layers"),
        ("classes", {"pair": True, "long_text": "windows"}, "pair of texts"),
        ("encoder", {"pooling": "median"}, "median"),
        ("encoder", {"features": "first"}, "concat_last_four"),
        ("encoder", {"features": "weighted_sum:0,1"}, "Pass 'sum:0,1'"),
        (
            "encoder",
            {"features": "last", "long_text": "windows"},
            "windows give no features of tokens",
        ),
        ("encoder", {"ids_signature": "keras"}, "bert_keras, original, transf"),
        ("one segment", {"pair": True}, "num_segments=1"),
        ("one segment, spans", {}, "num_segments=1"),
        ("one segment, choices", {}, "num_segments=1"),
        ("one segment, masks", {}, "num_segments=1"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path, model, options, message):
    models = MODELS[model]()
    with pytest.raises(InputError, match=message):
        export_saved_model(models, tmp_path / "o", preprocessor(), **options)
    assert os.listdir(tmp_path) == []


def test_a_preprocessor_of_another_length_or_class_is_refused(
    tmp_path, classifier
):
    for text, word in (
        (preprocessor(64), "tokens per row"),
        (preprocessor().tokenizer, "preprocessor is a WordPieceToken"),
    ):
        with pytest.raises(InputError, match=word):
            export_saved_model(classifier, tmp_path / "o", text)
