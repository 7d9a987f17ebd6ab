"""Publishing to the Hub and loading from it, with a stand-in for the Hub."""

import json

import httpx
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import HFValidationError

from bert_keras.errors import InputError
from bert_keras.interop.head_table import HEADS
from bert_keras.interop.presets import load_model
from bert_keras.interop.publishing import (
    model_card,
    push_to_hub,
    write_model_and_card,
)
from bert_keras.interop.saving import save_model
from bert_keras.interop.tensors import License
from bert_keras.modeling.embedder import BertEmbedder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_models import BertClassifier
from bert_keras.modeling.weights import mark_new_weights, published_weights
from bert_keras.text.preprocessor import BertPreprocessor
from tests.support import tiny
from tests.support.page_commands import commands, script_of
from tests.support.run_script import call_script
from tools.publish import describe_run


def test_what_is_published_is_loaded_with_equal_weights(hub):
    model, preprocess = tiny.model("BertClassifier"), tiny.preprocessor()
    address = push_to_hub(model, preprocess, "org/toy", private=True)
    assert address == f"https://huggingface.co/org/toy/commit/{hub.commit}"
    assert hub.private is True and not hub.branches
    again = load_model(BertClassifier, "hf://org/toy")
    assert again.labels == ["no", "maybe", "yes"]
    expected = published_weights(model)
    for name, weight in published_weights(again).items():
        np.testing.assert_array_equal(weight.numpy(), expected[name].numpy())
    text = BertPreprocessor.from_preset("hf://org/toy")
    ids = text(["goodly bad"])["token_ids"].numpy().ravel().tolist()
    assert ids[:5] == [2, 5, 7, 6, 3]


def test_no_module_of_an_earlier_model_stays(hub):
    embedder = BertEmbedder(tiny.model("BertEncoder"), normalize=True)
    push_to_hub(embedder, tiny.preprocessor(), "org/toy")
    old = {"modules.json", "config_sentence_transformers.json"}
    assert old <= {p.name for p in hub.folder.rglob("*")}
    assert (hub.folder / "1_Pooling/config.json").is_file()
    (hub.folder / "LICENSE").write_text("kept")
    push_to_hub(tiny.model("BertClassifier"), tiny.preprocessor(), "org/toy")
    left = {p.name for p in hub.folder.rglob("*") if p.is_file()}
    assert not old & left
    assert not (hub.folder / "1_Pooling/config.json").exists()
    assert {"config.json", "vocab.txt", "LICENSE"} <= left


@pytest.mark.parametrize(
    "error",
    [
        HFValidationError("no such name"),
        OSError("401 Client Error\nmore lines"),
        httpx.ConnectError("not reached"),
    ],
)
def test_a_refusal_of_the_hub_is_one_sentence(hub, error):
    hub.refusal = error
    word = str(error).splitlines()[0]
    with pytest.raises(
        InputError, match=f"cannot be published.*{word}.*network.*HF_TO"
    ):
        push_to_hub(tiny.model("BertEncoder"), tiny.preprocessor(), "org/toy")
    assert not hub.folder.exists()


def test_a_name_that_is_none_is_refused(tmp_path):
    model, text = tiny.model("BertEncoder"), tiny.preprocessor()
    with pytest.raises(InputError, match="Expected org/name"):
        write_model_and_card(tmp_path / "out", model, text, "toy")


def test_a_head_that_was_never_trained_is_not_published(tmp_path):
    tiny.model("BertEncoder").save_preset(
        tmp_path / "model", tiny.preprocessor()
    )
    with pytest.warns(UserWarning):
        model = load_model(
            BertClassifier, tmp_path / "model", labels=["a", "b"]
        )
    with pytest.raises(InputError, match="classifier/kernel .* untrained"):
        write_model_and_card(
            tmp_path / "o", model, tiny.preprocessor(), "org/toy"
        )
    assert not (tmp_path / "o").exists()


def test_of_a_pretrainer_the_head_that_learned_is_published(tmp_path):
    start = tiny.model("BertPretrainer")
    with_mlm = {k for k in published_weights(start) if "mlm/" in k}
    pretrainer = load_mlm_alone(start, tmp_path / "mlm")
    write_model_and_card(
        tmp_path / "o", pretrainer, tiny.preprocessor(), "org/toy"
    )
    with pytest.warns(UserWarning, match="nsp/kernel"):
        again = load_model(BertPretrainer, tmp_path / "o")
    expected, found = published_weights(start), published_weights(again)
    for name in with_mlm:
        np.testing.assert_array_equal(
            found[name].numpy(), expected[name].numpy()
        )


def test_what_was_written_before_is_replaced_and_nothing_else(tmp_path):
    made = tmp_path / "o", tiny.model("BertEmbedder"), tiny.preprocessor()
    made[1].encoder.license = License("mit", "All may use it.")
    for card in ("first", "second"):
        write_model_and_card(*made, "org/toy", card)
        assert (tmp_path / "o" / "README.md").read_text() == card
        assert (tmp_path / "o" / "LICENSE").read_text() == "All may use it."
    (tmp_path / "o" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="other files .thesis.tex."):
        write_model_and_card(*made, "org/toy")


@pytest.mark.parametrize("pooling", ["max", "pooled"])
def test_how_an_embedder_pools_is_published(tmp_path, pooling):
    """sentence-transformers has no pooling by the pooler's output."""
    model = BertEmbedder(tiny.model("BertEncoder"), pooling)
    write_model_and_card(tmp_path / "o", model, tiny.preprocessor(), "org/toy")
    again = load_model(BertEmbedder, tmp_path / "o")
    assert again.arguments() == model.arguments()
    assert tiny.largest_difference(model(tiny.IDS), again(tiny.IDS)) == 0
    card = (tmp_path / "o" / "README.md").read_text()
    assert ('SentenceTransformer("org/toy")' in card) == (pooling == "max")


def load_mlm_alone(pretrainer, folder):
    """Reload `pretrainer` from a folder without its NSP head and pooler."""
    lacking = ("nsp/", "encoder/pooler/")
    names = [n for n in published_weights(pretrainer) if n.startswith(lacking)]
    save_model(folder, pretrainer, tiny.preprocessor(), names)
    with pytest.warns(UserWarning):
        return load_model(BertPretrainer, folder)


def test_a_license_other_than_that_of_the_first_weights_is_refused():
    model = tiny.model("BertEncoder")
    model.license = License("cc-by-4.0", "The text.")
    with pytest.raises(InputError, match="mit, but .* under cc-by-4.0"):
        model_card(model, "org/toy", license="mit")
    assert "license: cc-by-4.0" in model_card(model, "hf://org/toy")


def test_metrics_without_the_name_of_their_data_are_refused():
    with pytest.raises(InputError, match="Pass dataset"):
        model_card(tiny.model("BertEncoder"), "org/toy", metrics={"f1": 0.5})


def test_a_class_that_the_hub_does_not_know_is_refused():
    class Mine(BertClassifier):
        pass

    with pytest.raises(InputError, match="A Mine cannot be published"):
        model_card(Mine(tiny.encoder(), labels=["a", "b"]), "org/toy")


@pytest.mark.parametrize("kind", sorted(HEADS))
def test_a_card_of_every_model_reads_back(kind):
    directed = {"attention": "left_to_right"}
    arguments = directed if kind == "BertCausalModel" else {}
    text = model_card(
        tiny.model(kind, **arguments),
        "org/toy",
        metrics={"accuracy": 0.91237},
        dataset="reviews",
        license="apache-2.0",
        base_model="org/base",
    )
    card = huggingface_hub.ModelCard(text)
    assert card.data.pipeline_tag == HEADS[kind].task
    assert card.data.license == "apache-2.0"
    assert card.data.base_model == "org/base"
    (result,) = card.data.eval_results
    assert result.metric_type == "accuracy" and result.metric_value == 0.9124
    assert f'{kind}.from_preset("hf://org/toy")' in card.text
    reads_texts = kind not in ("BertPretrainer", "BertChooser")
    assert ("model.predict(preprocess(" in card.text) == reads_texts
    assert f"{HEADS[kind].auto_class}.from_pretrained" in card.text


@pytest.mark.parametrize("option", [{"bilstm_dim": 4}, {"recipe": "last"}])
def test_a_card_names_the_encoder_where_transformers_lacks_the_head(option):
    model = BertClassifier(tiny.encoder(), labels=["a", "b"], **option)
    text = model_card(model, "org/toy")
    assert "import AutoTokenizer, AutoModel\n" in text
    assert "ForSequenceClassification" not in text


def test_a_card_names_the_weights_of_the_hub_that_training_began_from():
    model = tiny.model("BertClassifier")
    for origin, name in (("hf://org/base@abc", "org/base"), ("old/run", None)):
        model.encoder.origin = origin
        card = huggingface_hub.ModelCard(model_card(model, "org/toy"))
        assert card.data.base_model == name


def test_a_card_names_the_class_of_the_folder_without_untrained_heads(
    tmp_path,
):
    model = BertPretrainer(tiny.encoder())
    mark_new_weights(model, ["mlm/dense/kernel", "nsp/kernel"])
    write_model_and_card(tmp_path / "a", model, tiny.preprocessor(), "org/toy")
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert config["architectures"] == ["BertModel"]
    card = (tmp_path / "a/README.md").read_text()
    assert "import AutoTokenizer, AutoModel\n" in card


def test_a_card_names_the_encoder_where_the_masked_lm_head_differs():
    model = BertPretrainer(tiny.encoder(), mlm_activation="gelu_exact")
    text = model_card(model, "org/toy")
    assert "import AutoTokenizer, AutoModel\n" in text


@pytest.mark.parametrize(
    "option", [{"pooler_activation": "relu"}, {"attention": "right_to_left"}]
)
def test_a_card_leaves_out_libraries_that_refuse_the_folder(tmp_path, option):
    encoder = tiny.encoder(**option)
    models = [BertClassifier(encoder, ["a", "b"]), BertEmbedder(encoder)]
    for number, model in enumerate(models):
        folder = tmp_path / str(number)
        write_model_and_card(folder, model, tiny.preprocessor(), "org/toy")
        config = json.loads((folder / "config.json").read_text())
        assert config["model_type"] == "bert_keras"
        card = (folder / "README.md").read_text()
        assert "from_preset" in card and "ransformer" not in card
        assert "`pip install '.[hub]'` in a clone of bert_keras" in card


def commands_of(page, script):
    """Return the commands of a page that run `script`."""
    found = [c for c in commands(page) if c[0].endswith(script)]
    return [[*script_of(words), *words[1:]] for words in found]


def test_a_card_has_the_metrics_and_settings_of_the_best_run(tmp_path):
    best = {"accuracy": 0.75, "temperature": 1.5, "nsp_majority_baseline": 0.5}
    best |= {"rows": 9, "dev_rows": 4, "cut": 0.0}
    several = {**best, "mean": 0.7, "deviation": 0.1, "best_run": "rate-2"}
    for folder, results, settings in (
        (tmp_path, several, {"plan": "two rates"}),
        (tmp_path / "runs/rate-2", best, {"task": "sst2", "seed": 7}),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps(results))
        run = json.dumps({"settings": settings})
        (folder / "run.json").write_text(run)
    described = describe_run(str(tmp_path), None)
    assert described["metrics"] == {"accuracy": 0.75}
    sections = dict(described["sections"])
    assert "| seed | 7 |" in sections["Settings"]
    assert "| nsp_majority_baseline | 0.5 |" in sections["Results"]
    assert "mean" not in sections["Results"]
    for folder in (tmp_path, tmp_path / "runs/rate-2"):
        assert describe_run(f"{folder}/model", None) == described


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"task": "sst2"}, "sst2"),
        ({"task": "classify", "train": "/me/a.csv, b.csv"}, "a.csv, b.csv"),
        ({"task": "classify", "train": "/me/reviews/"}, "reviews"),
        ({"task": "tags", "train": "hf:x/y:train"}, "hf:x/y:train"),
        ({}, "held-out documents"),
    ],
)
def test_a_card_names_the_data_of_a_run(tmp_path, settings, name):
    results = {"accuracy": 0.5, "rows": 9, "dev_rows": 4, "cut": 0.0}
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings}))
    described = describe_run(str(tmp_path), None)
    assert described["dataset"] == name
    data = dict(described["sections"])["Data"]
    assert data.startswith(f"{name}: 9 training rows")


def test_the_script_writes_the_card_of_a_run(hub, tmp_path):
    run = tmp_path / "run"
    tiny.model("BertClassifier").save_preset(run / "model", tiny.preprocessor())
    results = {
        "accuracy": 0.75,
        "majority_baseline": 0.5,
        "rows": 1200,
        "dev_rows": 40,
        "cut": 0.125,
        "notes": ["few rows"],
    }
    (run / "results.json").write_text(json.dumps(results))
    settings = {"task": "sst-2", "init": "/home/me/weights", "seed": 7}
    settings |= {"train": "/home/me/train.csv", "epochs": 3.0}
    (run / "run.json").write_text(json.dumps({"settings": settings}))
    read_first, publish = commands_of("docs/publishing.md", "publish.py")
    given = (f"--model={run}", "--repo_id=org/toy", "--license=mit")
    given += ("--limits=English only.",)
    written = call_script(
        *read_first, *given, f"--output={tmp_path / 'card'}", folder=tmp_path
    )
    assert written.returncode == 0, written.stderr
    assert not hub.folder.exists()
    card = (tmp_path / "card" / "README.md").read_text()
    assert "license: mit" in card and "| accuracy | 0.75 |" in card
    assert "1,200 training rows" in card and "12.5% of" in card
    assert "English only.\n- few rows" in card and "| seed | 7 |" in card
    assert "| epochs | 3 |" in card
    assert "/home/me" not in card and "majority" not in card
    assert "| best constant prediction | 0.5 |" in card
    branch = "--revision=v2"  # is made if the Hub lacks it
    published = call_script(*publish, *given, branch, folder=tmp_path)
    assert hub.branches == ["v2"]
    assert published.stdout.strip().endswith(hub.commit)
    assert (hub.folder / "README.md").read_text() == card
