"""Tests of loading heads, averaging outputs, and listing a model's files."""

import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_keras import (
    BertClassifier,
    BertEncoder,
    BertPreprocessor,
    InputError,
)
from bert_keras.run_folder import RunFolder
from official_tasks.engine.models import list_model_files, load_model
from official_tasks.engine.scoring import _add_columns, average_outputs
from official_tasks.evaluate import evaluate
from official_tasks.tasks.own_tasks import classify_task
from tests.support import tiny
from tests.support.foreign_formats import write_google, write_keras_hub
from tests.support.model_samples import fill
from tests.support.run_script import call_script
from tests.support.task_samples import (
    read_csv,
    save_toy_model,
    sentences,
    write_csv,
)


@pytest.fixture(scope="module")
def trained(place, task, tmp_path_factory):
    """The folder of a run whose model has random weights."""
    run = tmp_path_factory.mktemp("trained")
    preprocess = BertPreprocessor.from_preset(place / "init")
    model = fill(load_model(task, place / "init"))
    model.save_preset(run / "model", preprocess)
    return run


def other_labels(folder):
    rows = [(text, "xy"[y]) for text, y in sentences(20)]
    return classify_task(write_csv(folder / "other.csv", rows))


def test_the_head_of_another_run_is_taken_where_labels_are_the_same(
    task, trained, tmp_path, capsys
):
    stored = BertClassifier.from_preset(trained / "model")
    kept = load_model(task, trained)
    assert "note: new" not in capsys.readouterr().out
    np.testing.assert_array_equal(
        kept.classifier.kernel, stored.classifier.kernel
    )
    new = load_model(other_labels(tmp_path), trained)
    said = "note: new weights, random before training: classifier/kernel\n"
    assert capsys.readouterr().out == said
    assert not np.allclose(new.classifier.kernel, stored.classifier.kernel)
    np.testing.assert_array_equal(
        new.encoder.pooler.kernel, stored.encoder.pooler.kernel
    )


def test_tensors_with_unknown_names_are_noted_beside_a_new_head(
    place, task, tmp_path, capsys
):
    folder = shutil.copytree(place / "init", tmp_path / "init")
    tiny.remove_block(folder)
    path = folder / "model.safetensors"
    extra = {"other_head.weight": np.ones((2, 3), "float32")}
    save_file({**load_file(path), **extra}, path)
    load_model(task, folder)
    assert "unknown: other_head.weight\n" in capsys.readouterr().out


def test_a_class_more_keeps_the_outputs_of_the_known_ones(
    trained, tmp_path, capsys
):
    rows = [
        (text, ["good", "bad", "none"][index % 3])
        for index, (text, _) in enumerate(sentences(30))
    ]
    task = classify_task(write_csv(tmp_path / "more.csv", rows))
    model = load_model(task, trained)
    assert "new labels: none\n" in capsys.readouterr().out
    stored = BertClassifier.from_preset(trained / "model")
    columns = [model.labels.index(label) for label in stored.labels]
    assert len(model.labels) == 3
    np.testing.assert_array_equal(
        np.array(model.classifier.kernel)[:, columns], stored.classifier.kernel
    )


def test_an_ensemble_is_the_mean_of_its_models(
    place, task, trained, tmp_path, eagerly
):
    preprocess = BertPreprocessor.from_preset(trained / "model")
    load_model(task, place / "init").save_preset(tmp_path / "b", preprocess)
    models = [trained, tmp_path / "b"]
    dev = task.read("dev")
    alone = [average_outputs(task, [model], dev)[1] for model in models]
    both = average_outputs(task, models, dev)[1]
    np.testing.assert_allclose(both, np.mean(alone, axis=0), rtol=1e-6)
    # Without a training file, the labels come from the model.
    scores = evaluate(classify_task(dev=str(place / "dev.csv")), [trained])
    assert scores["accuracy"] == task.score(dev, alone[0])["accuracy"]
    assert set(scores["classes"]) == {"bad", "good"}


def test_predictions_of_a_run_keep_columns_of_the_table(
    place, trained, tmp_path, eagerly
):
    settings = {"task": "classify", "text": "body", "sequence_length": 16}
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings}))
    shutil.copytree(trained / "model", tmp_path / "model")
    rows = [("so", "7", "good", "x"), ("it, is", "8", "bad", "y")]
    header = ("body", "id", "label", "score")
    test = write_csv(tmp_path / "test.csv", rows, header)
    command = ["-m", "official_tasks.predict", f"--model={tmp_path}"]
    command += [f"--test={test}"]
    kept = "--keep=id,label,score"
    done = call_script(
        *command, kept, f"--output={tmp_path}/out", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    written = read_csv(tmp_path / "out" / "predictions.csv")
    assert [[*row.values()][:4] for row in written] == [
        ["7", "good", "x", "so"],
        ["8", "bad", "y", "it, is"],
    ]
    names = "id label score text predicted predicted_score".split()
    assert [*written[0]] == names
    assert {row["predicted"] for row in written} <= {"bad", "good"}
    for flags, word in (
        ([kept, f"--output={tmp_path}/x.csv"], "Name a folder"),
        (["--keep=none", f"--output={tmp_path}/y"], "no column 'none'"),
        (["--keep=id", "--split=dev", f"--output={tmp_path}/y"], "--keep only"),
    ):
        done = call_script(*command, *flags, folder=tmp_path)
        assert done.returncode == 2 and word in done.stderr
    assert not (tmp_path / "x.csv").exists()
    with pytest.raises(InputError, match="Name a folder"):
        evaluate(classify_task(test=test), [trained], output="scores.jsonl")


def test_rows_of_another_number_take_no_columns(tmp_path):
    (tmp_path / "predictions.csv").write_text("text,rank\na,1\na,2\n")
    with pytest.raises(InputError, match="one row of predictions for each"):
        _add_columns(tmp_path, ["id"], [["7"]])


def test_an_output_that_is_not_finite_is_named_with_its_row(
    place, task, tmp_path, eagerly
):
    preprocess = BertPreprocessor.from_preset(place / "init")
    model = fill(load_model(task, place / "init"))
    kernel = np.full(model.classifier.kernel.shape, 3e38)  # finite in float32
    model.classifier.kernel.assign(kernel)
    model.save_preset(tmp_path / "model", preprocess)
    with pytest.raises(InputError, match="answers row 1, '.+', with NaN or"):
        evaluate(task, [tmp_path / "model"])


def test_a_model_of_other_labels_or_of_another_kind_is_refused(
    place, trained, tmp_path
):
    with pytest.raises(InputError, match="labels bad, good, got 'x'"):
        evaluate(other_labels(tmp_path), [trained])
    with pytest.raises(InputError, match="is a BertEncoder; the task classify"):
        evaluate(other_labels(tmp_path), [place / "init"])


@pytest.mark.parametrize("format", ["google", "keras_hub", "own"])
def test_a_change_of_any_file_of_a_model_is_noticed(tmp_path, format):
    init = tmp_path / "init"
    if format == "google":
        write_google(init)
    elif format == "own":
        save_toy_model(init)
    else:
        own = save_toy_model(tmp_path / "own")
        model = BertClassifier(BertEncoder.from_preset(own), ["a", "b"])
        write_keras_hub(str(init), model, BertPreprocessor.from_preset(own))
    read = sorted(str(path) for path in init.rglob("*") if path.is_file())
    assert list_model_files(init) == read
    for number, path in enumerate(read):
        run = tmp_path / str(number)
        RunFolder(run, {}, list_model_files(init)).close()
        with open(path, "ab") as file:
            file.write(b" ")
        with pytest.raises(InputError, match=f"{path} changed since"):
            RunFolder(run, {}, list_model_files(init))


@pytest.mark.parametrize(
    ("init", "names"),
    [
        (
            "",
            [
                "model-00002-of-00002.safetensors",
                "model-00001-of-00002.safetensors",
            ],
        ),
        ("", ["ckpt-1.index", "ckpt-1.data-00000-of-00001", "checkpoint"]),
        ("bert_[1].ckpt", ["bert_[1].ckpt.index", "bert_[1].ckpt.data-0-of-1"]),
        ("", ["variables/variables.index", "variables/variables.data-0-of-1"]),
        ("", ["modules.json", "0_Transformer/model.safetensors"]),
    ],
)
def test_the_files_of_each_format_are_listed_and_no_others(
    tmp_path, init, names
):
    names = [*names, "vocab.txt"]
    for name in (*names, "notes.txt", "tuned/model/model.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    files = list_model_files(os.path.join(tmp_path, init))
    assert sorted(files) == sorted(str(tmp_path / name) for name in names)
