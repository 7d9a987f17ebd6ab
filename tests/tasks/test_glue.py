import os
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as reference

from bert_keras import InputError
from official_tasks.tasks import glue
from official_tasks.tasks.glue import glue_task
from tests.support.glue_samples import random_outputs, write_glue

pytestmark = pytest.mark.fast

REAL = os.environ.get("BERT_KERAS_DATA")
# Published row counts of train, dev and test. None: the file is not in the
# folder that BERT_KERAS_DATA names.
PUBLISHED = {
    "cola": (8551, 1043, 1063),
    "sst2": (67349, 872, 1821),
    "mrpc": (3668, 408, 1725),
    "stsb": (5749, 1500, 1379),
    "qnli": (None, 5463, 5463),
    "rte": (2490, 277, 3000),
    "wnli": (635, 71, 146),
    "ax": (None, None, 1104),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp("glue"))


def task(name, **options):
    row = next(row for row in glue.ROWS if row.name == name)
    return glue_task(row, **options)


@pytest.mark.parametrize("row", glue.ROWS, ids=lambda row: row.name)
def test_every_split_of_every_task_is_read(data, row):
    parts = {"dev": 2, "test": 2} if row is glue.MNLI else {}
    splits = {"train": 24, "dev": 8, "test": 8}
    if row is glue.AX:
        splits = {"test": 8}
    for split, count in splits.items():
        examples = glue_task(row, data_dir=str(data)).read(split)
        assert len(examples) == count * parts.get(split, 1)
        assert {e.part for e in examples} == set(range(parts.get(split, 1)))
        labels = {0, 1} if row.labels else {0.0, 2.5}
        expected = {None} if split == "test" else labels
        assert {e.label for e in examples} == expected
        for example in examples:
            assert "\ufeff" not in example.text and "\t" not in example.text
            assert (example.text_pair is None) == (row.text_pair is None)
            assert glue_task(row).pair == (example.text_pair is not None)


def test_a_task_is_read_from_its_own_folder_too(data):
    inside = task("rte", data_dir=str(data / "RTE")).read("dev")
    assert inside == task("rte", data_dir=str(data)).read("dev")


def test_quotes_and_odd_line_breaks_are_text(tmp_path):
    text = 'an "odd quote and a\x85break\u2028in it'
    (tmp_path / "dev.tsv").write_bytes(
        f"sentence\tlabel\r\n{text}\t1\r\nx\t0".encode()
    )
    examples = task("sst2", data_dir=str(tmp_path)).read("dev")
    assert [e.text for e in examples] == [text, "x"]
    assert [e.label for e in examples] == [1, 0]


def test_mrpc_is_read_in_its_raw_form(tmp_path):
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    rows = [f"{i % 2}\t{i}\t{i + 50}\tone {i}\ttwo {i}" for i in range(10)]
    train = tmp_path / "msr_paraphrase_train.txt"
    train.write_text(header + "\n".join(rows), encoding="utf-8")
    test = tmp_path / "msr_paraphrase_test.txt"
    test.write_text(header + "\n".join(rows[:4]), encoding="utf-8")
    mrpc = task("mrpc", data_dir=str(tmp_path))
    with pytest.raises(InputError, match="dev_ids.tsv"):
        mrpc.read("train")
    ids = "\ufeff#1 ID\t#2 ID\r\n3\t53\r\n7\t57\r\n"  # as Windows saves it
    (tmp_path / "dev_ids.tsv").write_bytes(ids.encode())
    assert [e.text for e in mrpc.read("dev")] == ["one 3", "one 7"]
    assert len(mrpc.read("train")) == 8
    assert len(mrpc.read("test")) == 4


def test_rows_of_qqp_that_are_broken_are_left_out_and_noted(data, tmp_path):
    text = (data / "QQP" / "train.tsv").read_text()
    (tmp_path / "train.tsv").write_text(text + "\n99\tbroken\trow")
    qqp = task("qqp", data_dir=str(tmp_path))
    train = qqp.read("train")
    assert len(train) == 24
    assert "1 row with a wrong number of columns" in train.notes[0]


@pytest.mark.parametrize("name", ["cola", "mrpc", "qqp", "rte", "wnli"])
def test_scores_are_the_official_ones(data, name):
    here = task(name, data_dir=str(data))
    dev = here.read("dev")
    outputs = random_outputs(dev, 2)
    truth, guess = [e.label for e in dev], outputs.argmax(-1)
    expected = {
        "accuracy": reference.accuracy_score,
        "matthews": reference.matthews_corrcoef,
        "f1": reference.f1_score,
    }
    scores = here.score(dev, outputs)
    for metric in here.row.metrics:
        assert scores[metric] == pytest.approx(expected[metric](truth, guess))
    # Half of the rows have class 1. Predicting 1 always: F1 2/3, Matthews 0.
    baseline = {"f1": 2 / 3, "matthews": 0.0, "accuracy": 0.5}
    assert scores["majority_baseline"] == pytest.approx(
        baseline[here.row.paper]
    )


def test_mnli_is_scored_on_both_parts_apart(data):
    mnli = task("mnli", data_dir=str(data))
    dev = mnli.read("dev")
    outputs = np.zeros((16, 3), "float32")
    for row, example in enumerate(dev):
        # All matched rows are right; a quarter of the mismatched rows is wrong.
        wrong = example.part == 1 and row % 4 == 0
        outputs[row, 2 if wrong else example.label] = 1
    scores = mnli.score(dev, outputs)
    assert scores["accuracy"] == 1.0
    assert scores["mismatched_accuracy"] == 0.75
    assert np.sum(scores["confusion"]) == 8


def test_a_named_file_of_the_other_part_is_written_under_its_name(
    data, tmp_path
):
    """The scores need no prefix, because only one part is scored."""
    dev = str(data / "MNLI" / "dev_mismatched.tsv")
    test = str(data / "MNLI" / "test_matched.tsv")
    mnli = task("mnli", dev=dev, test=test)
    for split, name in (("dev", "MNLI-mm.tsv"), ("test", "MNLI-m.tsv")):
        examples = mnli.read(split)
        outputs = random_outputs(examples, 3)
        (tmp_path / split).mkdir()
        mnli.write(examples, outputs, tmp_path / split)
        (path,) = (tmp_path / split).iterdir()
        assert path.name == name
    examples = mnli.read("dev")
    outputs = random_outputs(examples, 3)
    truth = [example.label for example in examples]
    expected = reference.accuracy_score(truth, outputs.argmax(-1))
    scores = mnli.score(examples, outputs)
    assert scores["accuracy"] == pytest.approx(expected)
    assert not any(name.startswith("mismatched") for name in scores)


def test_stsb_is_scored_by_both_correlations(data):
    stsb = task("stsb", data_dir=str(data))
    dev = stsb.read("dev")
    truth = np.array([[e.label] for e in dev], "float32")
    assert stsb.score(dev, 3 * truth - 1)["pearson"] == pytest.approx(1)
    assert stsb.score(dev, -truth)["spearman"] == pytest.approx(-1)
    assert stsb.score(dev, 0 * truth)["pearson"] == 0


@pytest.mark.parametrize("row", glue.ROWS, ids=lambda row: row.name)
def test_submissions_have_the_official_names_headers_and_spellings(
    data, tmp_path, row
):
    here = glue_task(row, data_dir=str(data))
    test = here.read("test")
    outputs = random_outputs(test, len(row.labels or [0])) * 4
    here.write(test, outputs, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(row.submission)
    for name in row.submission:
        lines = (tmp_path / name).read_text().split("\n")
        assert lines[0] == "index\tprediction"
        assert [line.split("\t")[0] for line in lines[1:-1]] == [
            str(i) for i in range(8)
        ]
        labels = {line.split("\t")[1] for line in lines[1:-1]}
        if row.spelled is None:
            assert all(0 <= float(value) <= 5 for value in labels)
        else:
            assert labels <= set(row.spelled)


def test_a_split_without_labels_can_only_be_predicted(data):
    here = task("mnli", data_dir=str(data))
    test = here.read("test")
    outputs = random_outputs(test, 3)
    with pytest.raises(InputError, match="can only be used to predict$"):
        here.score(test, outputs)


def test_a_file_of_one_part_of_mnli_is_scored_on_that_part(data, tmp_path):
    both = task("mnli", data_dir=str(data))
    examples = both.read("dev")
    outputs = random_outputs(examples, 3)
    both.write(examples, outputs, tmp_path)
    path = tmp_path / "MNLI-m.tsv"
    with pytest.raises(InputError, match="one part of mnli.*dev_matched.tsv"):
        both.read_predictions(path, examples)
    folder = data / "MNLI"
    part = task("mnli", dev=str(folder / "dev_matched.tsv"))
    examples = part.read("dev")
    read = part.read_predictions(path, examples)
    first = outputs[: len(examples)]
    np.testing.assert_array_equal(read.argmax(-1), first.argmax(-1))


def test_the_names_of_the_leaderboards_files():
    names = (name for row in glue.ROWS for name in row.submission)
    assert " ".join(names) == (
        "CoLA.tsv SST-2.tsv MRPC.tsv STS-B.tsv QQP.tsv MNLI-m.tsv MNLI-mm.tsv "
        "QNLI.tsv RTE.tsv WNLI.tsv AX.tsv"
    )


@pytest.mark.parametrize("name", ["rte", "stsb"])
def test_a_submission_file_scores_as_the_outputs_it_was_made_of(
    data, tmp_path, name
):
    here = task(name, data_dir=str(data))
    dev = here.read("dev")
    outputs = random_outputs(dev, len(here.labels or [0]))
    here.write(dev, outputs, tmp_path)
    path = tmp_path / here.row.submission[0]
    again = here.read_predictions(path, dev)
    if name == "stsb":
        outputs = outputs.clip(0, 5)
    metric = here.row.paper
    assert here.score(dev, again)[metric] == pytest.approx(
        here.score(dev, outputs)[metric], abs=1e-3
    )
    path.write_text("\n".join(path.read_text().split("\n")[:-2]))
    with pytest.raises(InputError, match="each of 8 rows, got 7; index 7"):
        here.read_predictions(path, dev)
    path.write_text("index\tprediction\n0\n")
    with pytest.raises(InputError, match="line 2: expected 2 columns"):
        here.read_predictions(path, dev)
    # Two dev files have the same indices, so an index names two rows.
    here.write(dev + dev, np.concatenate([outputs, outputs]), tmp_path)
    with pytest.raises(InputError, match="each index once, got 0 again"):
        here.read_predictions(path, dev + dev)
    with pytest.raises(InputError, match="none.tsv: no such file"):
        here.read_predictions(tmp_path / "none.tsv", dev)


@pytest.mark.skipif(not REAL, reason="BERT_KERAS_DATA is not set")
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_official_files_have_the_published_counts(name):
    folder = Path(REAL) / "data" / "glue"
    for split, count in zip(
        ("train", "dev", "test"), PUBLISHED[name], strict=True
    ):
        if count is not None:
            examples = task(name, data_dir=str(folder)).read(split)
            assert len(examples) == count
            assert all(example.text.strip() for example in examples)
