"""LiteRT and ONNX, each in its own runtime; needs the extra of its name."""

import importlib.util

import numpy as np
import pytest
from served_samples import encoder, preprocessor, spread, task_models

from bert_keras import json_files
from bert_keras.errors import InputError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_models import BertClassifier, BertEmbedder
from bert_keras.serving import portable_formats
from bert_keras.serving.export import export_saved_model
from bert_keras.serving.portable_formats import NEEDS, export_on_ids
from bert_keras.serving.quantize import convert_weights


def needs(format):
    missing = [n for n in NEEDS[format] if not importlib.util.find_spec(n)]
    if missing:
        pytest.skip(f"needs the extra `{format}`: {', '.join(missing)}")


MODELS = [
    pytest.param(place, id=name, marks=pytest.mark.long)
    for place, name in enumerate(("class", "span", "tags", "choice", "masks"))
]


@pytest.mark.parametrize("format", NEEDS)
@pytest.mark.parametrize("place", [None, *MODELS])
def test_every_model_answers_in_the_runtime_as_live(tmp_path, place, format):
    """Two layers of exact GELU by default, whose Erfc ONNX cannot have."""
    needs(format)
    exact = BertEncoder(24, 2, 2, 16, 32, 32, activation="gelu_exact")
    model = spread(exact) if place is None else task_models()[place]
    folder = tmp_path / "out"
    difference = export_on_ids(model, preprocessor(), folder, format)
    assert 0 < difference <= 1e-5
    names = {path.name for path in folder.iterdir()}
    assert names == {
        portable_formats.MODEL[format],
        "vocab.txt",
        portable_formats.SETTINGS,
    }
    settings = json_files.read_json(folder / portable_formats.SETTINGS)
    assert settings["ids"]["mask"] == 4
    assert settings["labels"] == list(getattr(model, "labels", None) or [])


@pytest.mark.parametrize("format", NEEDS)
def test_int8_is_a_smaller_file_near_the_live_model(tmp_path, format):
    needs(format)
    model = spread(BertEncoder(2000, 2, 2, 16, 32, 32))
    sizes = []
    for dtype in ("float32", "int8"):
        folder = tmp_path / dtype
        difference = export_on_ids(
            model, preprocessor(), folder, format, dtype=dtype
        )
        sizes.append((folder / portable_formats.MODEL[format]).stat().st_size)
        settings = json_files.read_json(folder / portable_formats.SETTINGS)
        assert settings["dtype"] == dtype
        assert len(list(folder.iterdir())) == 3
    assert 1e-3 < difference < 0.2  # 0.93 in ONNX if int16 overflows
    assert sizes[1] < 0.8 * sizes[0]


POOLED = ("mean", "max", "cls")


@pytest.mark.parametrize("format", NEEDS)
@pytest.mark.parametrize(
    "case", ["large logits", "small", "pretrainer", *POOLED]
)
def test_sound_models_are_not_refused(tmp_path, case, format):
    """Logits of hundreds, one segment and four positions, each pooling."""
    needs(format)
    if case in POOLED:
        model = BertEmbedder(encoder(), case)
    elif case == "small":
        small = BertEncoder(24, 1, 2, 16, 32, 4, num_segments=1)
        model = BertClassifier(small, labels=["bad", "good"])
    elif case == "pretrainer":
        model = BertPretrainer(encoder())
    else:
        model = BertClassifier(encoder(num_layers=2), labels=["bad", "good"])
    model = spread(model)
    if case == "large logits":
        kernel = next(w for w in model.weights if "classifier/kernel" in w.path)
        kernel.assign(np.random.default_rng(0).normal(0, 150, kernel.shape))
    text = preprocessor(4 if case == "small" else 12)
    folder = tmp_path / "exp[1]" / "out"
    assert export_on_ids(model, text, folder, format) <= 1e-5


@pytest.mark.parametrize("apart", [0, 1, np.nan])
def test_a_runtime_is_compared_at_real_tokens(apart):
    model = spread(encoder())

    def runtime(inputs):
        found = {k: np.array(v) for k, v in model(inputs).items()}
        found["sequence_output"][inputs["padding_mask"] == 0] += 3
        found["sequence_output"][:1, 0, 0] += apart
        return found

    found = portable_formats.compare_with_model(runtime, model)
    # By the greatest value of the output, which is below 5.
    assert {0: found < 1e-6, 1: 0.2 < found < 1}.get(apart, found == np.inf)


def test_the_settings_tell_how_the_model_reads_long_texts(tmp_path):
    needs("onnx")
    model = spread(BertClassifier(encoder(), ["a", "b"], long_text="windows"))
    export_on_ids(model, preprocessor(), tmp_path / "out", "onnx")
    path = tmp_path / "out" / portable_formats.SETTINGS
    assert json_files.read_json(path)["long_text"] == "windows"


def test_a_preprocessor_of_another_model_is_refused(tmp_path):
    model = BertEncoder(23, 1, 2, 16, 32, 32)
    with pytest.raises(InputError, match="at most 23"):
        export_on_ids(model, preprocessor(), tmp_path / "out", "onnx")


def test_a_model_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    needs("onnx")
    model = spread(encoder())

    def run(inputs):
        found = {k: np.array(v) for k, v in model(inputs).items()}
        found["sequence_output"][:1, 0, 0] += 1e-4
        return found

    names = ["pooled_output", "sequence_output"]
    monkeypatch.setitem(
        portable_formats.RUNTIMES, "onnx", lambda path: (run, names)
    )
    monkeypatch.setattr(BertEncoder, "export", lambda *_, **settings: None)
    with pytest.raises(InputError, match="differs from the live model"):
        export_on_ids(model, preprocessor(), tmp_path / "out", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_named(tmp_path, monkeypatch):
    model = encoder()
    with pytest.raises(InputError, match="litert, onnx"):
        export_on_ids(model, preprocessor(), tmp_path / "out", "torch")
    with pytest.raises(InputError, match="is there"):
        export_on_ids(model, preprocessor(), tmp_path, "onnx")
    with pytest.raises(InputError, match="format onnx has float32 and int8"):
        export_on_ids(
            model, preprocessor(), tmp_path / "out", "onnx", dtype="bfloat16"
        )
    small = convert_weights(model, "int8")
    for export in (
        lambda: export_on_ids(small, preprocessor(), tmp_path / "out", "onnx"),
        lambda: export_saved_model(small, preprocessor(), tmp_path / "out"),
    ):
        with pytest.raises(InputError, match="weights are int8 already"):
            export()
    assert not (tmp_path / "out").exists()
    monkeypatch.setitem(portable_formats.NEEDS, "onnx", ["no_such_package"])
    with pytest.raises(InputError, match=r"bert_keras\[onnx\]"):
        export_on_ids(model, preprocessor(), tmp_path / "out", "onnx")
