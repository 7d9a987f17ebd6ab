"""Weights exchanged with transformers, PEFT and KerasHub, in both directions.

A test is skipped if its library is missing; the extra `peers` installs all.
"""

import os

import numpy as np
import pytest

from bert_keras.interop.convert import sample_inputs
from bert_keras.interop.peft import save_lora
from bert_keras.interop.presets import load_model
from bert_keras.interop.saving import save_model
from bert_keras.modeling.weights import enable_lora
from bert_keras.serving.export import export_saved_model
from bert_keras.serving.load import load_saved_model
from bert_keras.text.preprocessor import BertPreprocessor
from tests.support import tiny
from tests.support.model_samples import fill, fill_weights
from tests.support.tiny import CLASSES

TOLERANCE = 1e-5
# bert_keras class -> (transformers class, {output -> transformers output}).
PAIRS = {
    "BertEncoder": (
        "BertModel",
        {
            "sequence_output": "last_hidden_state",
            "pooled_output": "pooler_output",
        },
    ),
    "BertPretrainer": (
        "BertForPreTraining",
        {"mlm": "prediction_logits", "nsp": "seq_relationship_logits"},
    ),
    "BertCausalModel": ("BertLMHeadModel", {"": "logits"}),
    "BertClassifier": ("BertForSequenceClassification", {"": "logits"}),
    "BertSpanPredictor": (
        "BertForQuestionAnswering",
        {"start": "start_logits", "end": "end_logits"},
    ),
    "BertTagger": ("BertForTokenClassification", {"": "logits"}),
    "BertChooser": ("BertForMultipleChoice", {"": "logits"}),
}


@pytest.fixture
def transformers():
    pytest.importorskip("torch")
    return pytest.importorskip("transformers", minversion="5")


def ours(model, inputs):
    outputs = model(inputs)
    outputs = outputs if isinstance(outputs, dict) else {"": outputs}
    return {name: np.asarray(value) for name, value in outputs.items()}


def theirs(model, inputs, names, positions=None):
    import torch

    def as_torch(name):
        return torch.tensor(inputs[name], dtype=torch.long)

    with torch.no_grad():
        outputs = model.eval()(
            input_ids=as_torch("token_ids"),
            token_type_ids=as_torch("segment_ids"),
            attention_mask=as_torch("padding_mask"),
        )
    found = {mine: outputs[name].numpy() for mine, name in names.items()}
    if positions is not None and "mlm" in found:
        found["mlm"] = np.take_along_axis(
            found["mlm"], positions[..., None], axis=1
        )
    return found


def greatest(first, second, mask=None):
    """Return the largest difference; `mask` leaves out padding vectors."""
    differences = []
    for name in second:
        difference = np.abs(first[name] - second[name])
        if mask is not None and name == "sequence_output":
            difference = difference * mask[..., None]
        differences.append(float(difference.max()))
    return float(np.max(differences))


def compared(mine, other, names):
    inputs = sample_inputs(mine)
    positions = inputs.get("mask_positions")
    return greatest(ours(mine, inputs), theirs(other, inputs, names, positions))


def tiny_model(name, **arguments):
    if name == "BertCausalModel":
        arguments["attention"] = "left_to_right"
    return tiny.model(name, **arguments)


@pytest.mark.parametrize("name", sorted(PAIRS))
@pytest.mark.parametrize("activation", ["gelu_exact", "gelu_tanh"])
def test_transformers_loads_what_is_written(
    tmp_path, transformers, name, activation, check_difference
):
    mine = tiny_model(name, activation=activation)
    kind, names = PAIRS[name]
    save_model(tmp_path / "a", mine, tiny.preprocessor())
    other, keys = getattr(transformers, kind).from_pretrained(
        tmp_path / "a", output_loading_info=True
    )
    pooler = {"bert.pooler.dense.bias", "bert.pooler.dense.weight"}
    # Some of these classes have no pooler and do not load its weights.
    assert not keys["missing_keys"] and keys["unexpected_keys"] <= pooler
    difference = compared(mine, other, names)
    check_difference(f"written {kind}, {activation}", difference)


@pytest.mark.parametrize(
    "name", ["BertClassifier", "BertTagger", "BertSpanPredictor", "BertEncoder"]
)
def test_peft_loads_the_adapters_that_are_written(
    tmp_path, transformers, name, check_difference
):
    peft = pytest.importorskip("peft")
    mine = tiny_model(name)
    save_model(tmp_path / "base", mine, tiny.preprocessor())
    enable_lora(mine, 2, ("query", "output", "feed_forward"), alpha=5)
    fill_weights(mine.trainable_weights)
    save_lora(mine, tmp_path / "adapter")
    kind, names = PAIRS[name]
    base = getattr(transformers, kind).from_pretrained(tmp_path / "base")
    other = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    # PEFT 0.21 does not pass token_type_ids to an unmerged QA model.
    other = other.merge_and_unload()
    difference = compared(mine, other, names)
    check_difference(f"PEFT, {kind}", difference)


def test_lora_drops_its_input_in_training_as_peft_does(tmp_path, transformers):
    import torch

    peft = pytest.importorskip("peft")
    rate, count = 0.25, 20_000
    mine = tiny_model("BertClassifier", dropout=0.1)
    save_model(tmp_path / "base", mine, tiny.preprocessor())
    enable_lora(mine, 2, ["query"], alpha=5, dropout=rate)
    fill_weights(mine.trainable_weights)
    save_lora(mine, tmp_path / "adapter")
    kind, _ = PAIRS["BertClassifier"]
    base = getattr(transformers, kind).from_pretrained(tmp_path / "base")
    other = peft.PeftModel.from_pretrained(
        base, tmp_path / "adapter", is_trainable=True
    )
    other = other.base_model.model.bert.encoder.layer[0].attention.self.query
    query = mine.encoder.transformer_layers[0].attention.query
    # Each row is one-hot. LoRA adds row 0 of (scale / (1 - rate)) * (A B), or
    # nothing if dropout removes the 1.
    rows = np.eye(query.kernel.shape[0], dtype="float32")[np.zeros(count, int)]
    plain = other.base_layer(torch.tensor(rows[:1])).detach().numpy()
    torch.manual_seed(0)
    seed = np.array([1, 2], "uint32")
    changes = [
        other.train()(torch.tensor(rows)).detach().numpy() - plain,
        np.array(query(rows, seed=seed)) - plain,
    ]
    kept = [np.abs(change).max(axis=-1) > 1e-4 for change in changes]
    largest = [
        change[mask][0] for change, mask in zip(changes, kept, strict=True)
    ]
    np.testing.assert_allclose(*largest, atol=TOLERANCE)
    expected = rows[0] @ query.lora_kernel_a @ query.lora_kernel_b * 2.5 / 0.75
    np.testing.assert_allclose(largest[0], expected, atol=TOLERANCE)
    for change, mask in zip(changes, kept, strict=True):
        within = 5 * np.sqrt(rate * (1 - rate) / count)
        assert abs(mask.mean() - (1 - rate)) < within
        np.testing.assert_allclose(
            change[mask],
            np.broadcast_to(largest[0], change[mask].shape),
            atol=TOLERANCE,
        )


def test_a_head_that_transformers_lacks_leaves_the_encoder(
    tmp_path, transformers
):
    body = tiny.model("BertEncoder")
    model = CLASSES["BertClassifier"](body, ["a", "b"], bilstm_dim=3)
    save_model(tmp_path / "a", model, tiny.preprocessor())
    other = transformers.AutoModel.from_pretrained(tmp_path / "a")
    names = PAIRS["BertEncoder"][1]
    assert compared(body, other, names) < TOLERANCE
    body = tiny_model("BertEncoder", attention="right_to_left")
    save_model(tmp_path / "b", body, tiny.preprocessor())
    with pytest.raises(ValueError, match="bert_keras"):
        transformers.AutoModel.from_pretrained(tmp_path / "b")


def test_what_transformers_trained_further_is_loaded(tmp_path, transformers):
    save_model(tmp_path / "a", tiny.model("BertClassifier"))
    kind = transformers.BertForSequenceClassification
    other = randomised(kind.from_pretrained(tmp_path / "a"))
    other.save_pretrained(tmp_path / "b")  # keeps "bert_keras" in config.json
    mine = load_model(CLASSES["BertClassifier"], tmp_path / "b")
    assert compared(mine, other, {"": "logits"}) < TOLERANCE


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_what_transformers_wrote_is_loaded(
    tmp_path, transformers, name, check_difference
):
    kind, names = PAIRS[name]
    other = randomised(
        getattr(transformers, kind)(settings(transformers, name))
    )
    other.save_pretrained(tmp_path / "a")
    mine = load_model(CLASSES[name], tmp_path / "a")
    assert mine.load_report.skipped == []
    assert all("pooler" in name for name in mine.load_report.initialised)
    difference = compared(mine, other, names)
    check_difference(f"read {kind}", difference)


@pytest.mark.parametrize(
    ("kind", "output", "name"),
    [
        ("BertForMaskedLM", "mlm", "logits"),
        ("BertForNextSentencePrediction", "nsp", "logits"),
    ],
)
def test_half_a_pretrainer_is_loaded_and_written_back(
    tmp_path, transformers, kind, output, name
):
    other = randomised(getattr(transformers, kind)(settings(transformers)))
    other.save_pretrained(tmp_path / "a")
    mine = load_model(CLASSES["BertPretrainer"], tmp_path / "a")
    assert compared(mine, other, {output: name}) < TOLERANCE
    missing = mine.load_report.initialised
    save_model(tmp_path / "b", mine, without=missing)
    again, keys = getattr(transformers, kind).from_pretrained(
        tmp_path / "b", output_loading_info=True
    )
    assert not keys["missing_keys"] and not keys["unexpected_keys"]
    assert compared(mine, again, {output: name}) < TOLERANCE


def settings(transformers, name=None):
    labels = ["no", "maybe", "yes"]
    if name == "BertSpanPredictor":
        labels = ["start", "end"]
    return transformers.BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
        id2label=dict(enumerate(labels)),
        is_decoder=name == "BertCausalModel",
    )


def randomised(model):
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.3, 0.3)
    return model


def test_a_sharded_folder_is_loaded(tmp_path, transformers):
    other = randomised(transformers.BertModel(settings(transformers)))
    other.save_pretrained(tmp_path / "a", max_shard_size="2KB")
    assert (tmp_path / "a" / "model.safetensors.index.json").exists()
    mine = load_model(CLASSES["BertEncoder"], tmp_path / "a")
    assert compared(mine, other, PAIRS["BertEncoder"][1]) < TOLERANCE


def test_the_ids_of_transformers_tokenizer_are_the_same(tmp_path, transformers):
    mine = tiny.preprocessor()
    save_model(tmp_path / "a", tiny.model("BertEncoder"), mine)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path / "a")
    texts = ["good badly, ", "Good goodly", "bad" * 20, "good [MASK] bad"]
    for text in texts:
        row = np.asarray(mine([text])["token_ids"])[0]
        expected = other(text)["input_ids"]
        assert list(row[: len(expected)]) == expected
    other.save_pretrained(tmp_path / "b")
    config = (tmp_path / "a" / "config.json").read_text()
    (tmp_path / "b" / "config.json").write_text(config)
    tiny.remove_block(tmp_path / "b")
    os.link(
        tmp_path / "a" / "model.safetensors",
        tmp_path / "b" / "model.safetensors",
    )
    again = BertPreprocessor.from_preset(tmp_path / "b", sequence_length=12)
    assert again.tokenizer.vocabulary == tiny.PIECES
    assert again.tokenizer.lowercase is False


@pytest.mark.parametrize("pair", [False, True])
def test_real_weights_equal_transformers(transformers, pair, check_difference):
    data = os.environ.get("BERT_KERAS_DATA")
    if not data:
        pytest.skip("BERT_KERAS_DATA is not set")
    folder = os.path.join(data, "weights", "all-MiniLM-L6-v2")
    mine = load_model(CLASSES["BertEncoder"], folder)
    texts = ["A woman is reading.", "One two three four five six seven."]
    text = BertPreprocessor.from_preset(folder, sequence_length=48)
    inputs = text((texts, texts[::-1]) if pair else texts)
    inputs = {name: np.asarray(value) for name, value in inputs.items()}
    other = transformers.BertModel.from_pretrained(folder)
    difference = greatest(
        ours(mine, inputs),
        theirs(other, inputs, PAIRS["BertEncoder"][1]),
        inputs["padding_mask"],
    )
    check_difference(f"all-MiniLM-L6-v2, pair={pair}", difference)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    expected = tokenizer(
        *((texts, texts[::-1]) if pair else (texts,)),
        padding="max_length",
        max_length=48,
    )
    assert np.array_equal(inputs["token_ids"], expected["input_ids"])


@pytest.fixture
def keras_hub():
    return pytest.importorskip("keras_hub")


def hub_inputs(model):
    inputs = sample_inputs(model)
    return {k: v for k, v in inputs.items() if k != "mask_positions"}


def hub_backbone(keras_hub):
    sizes = {**tiny.SIZES, "num_layers": 11, "dropout": 0.25}
    backbone = keras_hub.models.BertBackbone(**sizes)
    return fill(backbone)


def test_what_keras_hub_wrote_is_loaded(tmp_path, keras_hub, check_difference):
    other = hub_backbone(keras_hub)
    classifier = keras_hub.models.BertTextClassifier(
        other,
        num_classes=3,
        preprocessor=keras_hub.models.BertTextClassifierPreprocessor(
            keras_hub.models.BertTokenizer(tiny.PIECES, lowercase=True),
            sequence_length=14,
        ),
    )
    classifier.save_to_preset(str(tmp_path / "a"))
    mine = load_model(CLASSES["BertClassifier"], tmp_path / "a")
    assert mine.load_report.initialised == []
    assert all(n.startswith("optimizer/") for n in mine.load_report.skipped)
    assert mine.encoder.dropout == 0.25
    difference = greatest(
        ours(mine, hub_inputs(mine)), ours(classifier, hub_inputs(mine))
    )
    check_difference("read BertTextClassifier", difference)
    text = BertPreprocessor.from_preset(tmp_path / "a")
    assert text.sequence_length == 14 and text.tokenizer.lowercase


def test_a_keras_hub_preset_in_bfloat16_is_loaded(tmp_path, keras_hub):
    other = keras_hub.models.BertBackbone(**tiny.SIZES, dtype="bfloat16")
    other.save_to_preset(str(tmp_path / "a"))
    mine = load_model(CLASSES["BertEncoder"], tmp_path / "a")
    assert mine.load_report.initialised == mine.load_report.skipped == []
    table = other.token_embedding.embeddings.value
    assert np.array_equal(
        mine.embeddings.token.embeddings.numpy(), np.asarray(table, "float32")
    )


def test_a_text_embedder_of_keras_hub_is_served_as_it_embeds(
    tmp_path, keras_hub, check_difference
):
    embedder = keras_hub.models.BertTextEmbedder(
        hub_backbone(keras_hub),
        keras_hub.models.BertTextEmbedderPreprocessor(
            keras_hub.models.BertTokenizer(tiny.PIECES), sequence_length=10
        ),
    )
    embedder.save_to_preset(str(tmp_path / "a"))
    text = BertPreprocessor.from_preset(tmp_path / "a")
    assert text.sequence_length == 10
    mine = load_model(CLASSES["BertEncoder"], tmp_path / "a")
    export_saved_model(mine, tmp_path / "served", text)
    texts = ["good bad", "badly good bad"]
    found = load_saved_model(tmp_path / "served").embed(texts)["embedding"]
    difference = np.abs(found - embedder.predict(texts, verbose=0)).max()
    check_difference("read BertTextEmbedder", difference)


def test_the_masked_lm_of_keras_hub_keeps_its_own_head(
    tmp_path, keras_hub, check_difference
):
    # KerasHub's head always has exact GELU and an epsilon of 1e-5.
    masked = keras_hub.models.BertMaskedLM(hub_backbone(keras_hub))
    masked.save_to_preset(str(tmp_path / "a"))
    mine = load_model(CLASSES["BertPretrainer"], tmp_path / "a")
    assert sorted(mine.load_report.initialised) == ["nsp/bias", "nsp/kernel"]
    inputs = sample_inputs(mine)
    expected = np.asarray(masked(inputs))
    difference = np.abs(np.asarray(mine(inputs)["mlm"]) - expected).max()
    check_difference("read BertMaskedLM", difference)
