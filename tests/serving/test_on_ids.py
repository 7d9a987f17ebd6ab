"""LiteRT and ONNX exports in their runtimes; need `litert` and `onnx`."""

import numpy as np
import pytest

from bert_keras import json_files
from bert_keras.errors import InputError
from bert_keras.modeling.embedder import BertEmbedder
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.task_models import BertClassifier
from bert_keras.serving import onnx_litert
from bert_keras.serving.export import export_saved_model
from bert_keras.serving.onnx_litert import NEEDS, export_on_ids
from bert_keras.serving.quantize import convert_weights
from bert_keras.serving.tokens import output_names
from tests.support.model_samples import fill
from tests.support.served_samples import encoder, preprocessor, task_models

MODELS = [
    pytest.param(place, id=name, marks=pytest.mark.long)
    for place, name in enumerate(("class", "span", "tags", "choice", "masks"))
]


@pytest.mark.parametrize("format", NEEDS)
@pytest.mark.parametrize("place", [None, *MODELS])
def test_every_model_answers_in_the_runtime_as_live(tmp_path, place, format):
    """If `place` is None, GELU is exact.

    Keras's exact GELU uses Erfc, which ONNX lacks.
    """
    exact = BertEncoder(24, 2, 2, 16, 32, 32, activation="gelu_exact")
    model = fill(exact) if place is None else task_models()[place]
    folder = tmp_path / "out"
    difference = export_on_ids(model, preprocessor(), folder, format)
    assert 0 < difference <= 1e-5
    names = {path.name for path in folder.iterdir()}
    assert names == {
        onnx_litert.MODEL[format],
        "vocab.txt",
        onnx_litert.SETTINGS,
    }
    settings = json_files.read_json(folder / onnx_litert.SETTINGS)
    assert settings["ids"]["mask"] == 4
    assert settings["labels"] == list(getattr(model, "labels", None) or [])
    assert settings["dtype"] == "float32"
    runtime = onnx_litert.RUNTIMES[format]
    _, names = runtime(str(folder / onnx_litert.MODEL[format]))
    outputs = output_names(model, "bert_keras")
    assert sorted(names) == sorted(outputs) == sorted(settings["outputs"])
    if format == "onnx":
        # OneHot crashes ONNX Runtime before 1.27 on an empty batch.
        import onnx

        graph = onnx.load(folder / onnx_litert.MODEL["onnx"]).graph
        for value in (*graph.input, *graph.output):
            axes = value.type.tensor_type.shape.dim
            assert axes[0].dim_param == "batch"
            assert not any("unk" in axis.dim_param for axis in axes)
        assert "OneHot" not in {node.op_type for node in graph.node}


@pytest.mark.parametrize("format", NEEDS)
def test_int8_is_a_smaller_file_near_the_live_model(tmp_path, format):
    model = fill(BertEncoder(4000, 2, 2, 16, 32, 32))
    folder = tmp_path / "out"
    difference = export_on_ids(
        model, preprocessor(), folder, format, weights_dtype="int8"
    )
    assert 1e-3 < difference < 0.2  # 0.93 in ONNX if int16 sums overflow
    path = folder / onnx_litert.MODEL[format]
    assert path.stat().st_size < 0.8 * 4 * model.count_params()
    settings = json_files.read_json(folder / onnx_litert.SETTINGS)
    assert settings["dtype"] == "int8"
    assert len(list(folder.iterdir())) == 3


def test_int8_with_one_output_is_compared_over_all_rows(tmp_path):
    model = BertClassifier(
        BertEncoder(2000, 2, 2, 16, 32, 128), problem="regression"
    )
    difference = export_on_ids(
        fill(model),
        preprocessor(),
        tmp_path / "out",
        "onnx",
        weights_dtype="int8",
    )
    assert 1e-4 < difference < 0.5


@pytest.mark.parametrize(
    "format", ["onnx", pytest.param("litert", marks=pytest.mark.long)]
)
def test_a_small_model_of_large_logits_is_not_refused(tmp_path, format):
    """The model has logits of hundreds, one segment and four positions."""
    small = BertEncoder(24, 2, 2, 16, 32, 4, num_segments=1)
    model = fill(BertClassifier(small, ["a", "b"], long_text="windows"))
    kernel = next(w for w in model.weights if "classifier/kernel" in w.path)
    kernel.assign(np.random.default_rng(0).normal(0, 150, kernel.shape))
    folder = tmp_path / "exp[1]" / "out"
    assert export_on_ids(model, preprocessor(4), folder, format) <= 1e-5
    settings = json_files.read_json(folder / onnx_litert.SETTINGS)
    assert settings["long_text"] == "windows"


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("max", "cls")]


@pytest.mark.parametrize("format", NEEDS)
@pytest.mark.parametrize("pooling", ["mean", *LONG])
def test_vectors_are_those_of_the_live_embedder(tmp_path, pooling, format):
    model = fill(BertEmbedder(encoder(), pooling))
    folder = tmp_path / "out"
    assert export_on_ids(model, preprocessor(), folder, format) <= 1e-5
    settings = json_files.read_json(folder / onnx_litert.SETTINGS)
    assert settings["outputs"] == {"embedding": "embedding"}


@pytest.mark.parametrize("apart", [0, 1, np.nan])
def test_a_runtime_is_compared_at_real_tokens(apart):
    model = fill(encoder())

    def runtime(inputs):
        found = {k: np.array(v) for k, v in model(inputs).items()}
        found["sequence_output"][inputs["padding_mask"] == 0] += 3
        found["sequence_output"][:1, 0, 0] += apart
        return found

    found = onnx_litert.compare_with_model(runtime, model)
    # `found` is relative to the output's greatest value, which is below 5.
    assert {0: found < 1e-6, 1: 0.2 < found < 1}.get(apart, found == np.inf)


def test_a_preprocessor_of_another_model_is_refused(tmp_path):
    model = BertEncoder(23, 1, 2, 16, 32, 32)
    with pytest.raises(InputError, match="at most 23"):
        export_on_ids(model, preprocessor(), tmp_path / "out", "onnx")


def test_a_model_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    model = fill(encoder())

    def run(inputs):
        found = {k: np.array(v) for k, v in model(inputs).items()}
        found["sequence_output"][:1, 0, 0] += 1e-4
        return found

    names = ["pooled_output", "sequence_output"]
    monkeypatch.setitem(onnx_litert.RUNTIMES, "onnx", lambda path: (run, names))
    monkeypatch.setattr(onnx_litert, "_write", lambda *_: None)
    with pytest.raises(InputError, match="differs from the live model"):
        export_on_ids(model, preprocessor(), tmp_path / "out", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_named(tmp_path, monkeypatch):
    model = encoder()
    with pytest.raises(InputError, match="litert, onnx"):
        export_on_ids(model, preprocessor(), tmp_path / "out", "torch")
    with pytest.raises(InputError, match="already exists"):
        export_on_ids(model, preprocessor(), tmp_path, "onnx")
    with pytest.raises(InputError, match="onnx, expected float32 or int8"):
        export_on_ids(
            model,
            preprocessor(),
            tmp_path / "out",
            "onnx",
            weights_dtype="bfloat16",
        )
    small = convert_weights(model, "int8")
    for export in (
        lambda: export_on_ids(small, preprocessor(), tmp_path / "out", "onnx"),
        lambda: export_saved_model(small, tmp_path / "out", preprocessor()),
    ):
        with pytest.raises(InputError, match="weights are int8 already"):
            export()
    assert not (tmp_path / "out").exists()
    monkeypatch.setitem(onnx_litert.NEEDS, "onnx", ["no_such_package"])
    with pytest.raises(InputError, match=r"\[onnx\]"):
        export_on_ids(model, preprocessor(), tmp_path / "out", "onnx")
