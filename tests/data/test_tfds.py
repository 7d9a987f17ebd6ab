"""Data sets of TensorFlow Datasets, written by its own builders, offline."""

import csv
import json
import os

import numpy as np
import pytest
import tensorflow_datasets as tfds

import bert_keras
from bert_keras import InputError
from bert_keras.data import tfds_sets
from bert_keras.data.corpus import read_documents
from bert_keras.data.data_sets import column_rows, parse_data_set
from official_tasks.engine import models
from official_tasks.tasks import glue
from official_tasks.tasks.conll import CONLL_2003, WIKI_ANN
from official_tasks.tasks.glue import glue_task
from official_tasks.tasks.squad import SQUAD_1, SQUAD_2, squad_task
from official_tasks.tasks.tagging import tag_task
from tests.support.glue_samples import random_outputs, write_glue
from tests.support.script_flags import parse_flags
from tests.support.tfds_samples import write
from tests.support.toy_words import preprocessor
from tools import extract_features, mine_negatives

WIKIPEDIA = "wikipedia/20230601.en"
PAGES = [
    {
        "title": "Alan Smithee",
        "text": "Alan Smithee is a pseudonym.\n\nIt began in 1968.\n\nUses "
        "in the U.S. before 2000\nThe name was known. Some used it.\n"
        "* Fade-In\n\nReferences\n\nCategory:Film",
    },
    {"title": "Empty", "text": " \nSee also\n\nExternal links"},
    {"title": "Zürich", "text": "Zürich is a city.\nIt lies on a lake."},
]
WIKI_40B = (
    "\n_START_ARTICLE_\nMount Hood\n_START_SECTION_\nGeology\n"
    "_START_PARAGRAPH_\nIt is a volcano._NEWLINE_It last erupted in 1866."
)


class BkReviews(tfds.core.GeneratorBasedBuilder):
    """A data set like `imdb_reviews`, with a test split without labels."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        label = tfds.features.ClassLabel(names=["neg", "pos"])
        features = {"text": tfds.features.Text(), "label": label}
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("text", "label"),
        )

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(12),
            "test": self._generate_examples(3, label=-1),
        }

    def _generate_examples(self, count, label=None):
        for n in range(count):
            known = n % 2 if label is None else label
            yield n, {"text": f"Grün {n}.", "label": known}


class BkPictures(tfds.core.GeneratorBasedBuilder):
    """A data set of pictures with a text."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(2, 2, 3)),
            "about": {"text": tfds.features.Text()},
            "text": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for n in range(3):
            image = np.full((2, 2, 3), n, np.uint8)
            about = {"text": f"About {n}."}
            yield n, {"image": image, "text": f"Text {n}.", "about": about}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder of TFDS's data; no test reaches the network."""
    monkeypatch.setattr(tfds.core.utils.gcs_utils, "_is_gcs_disabled", True)
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setattr(tfds_sets, "_PROBE", "http://127.0.0.1:9/")
    return tmp_path / "tfds"


def parse_glue(row, files):
    """Return the rows that TFDS's own reader finds in official files."""
    builder = tfds.builder(f"glue/{row.name}")
    splits = {}
    for split in ("train", "dev", "test"):
        for part in row.parts.get(split, (split,)):
            name = "test" if part == "diagnostic" else part
            name = name.replace("dev", "validation")
            path = files / row.folder / f"{part}.tsv"
            if row is glue.MRPC:
                raw = {
                    "train": files / "MRPC/msr_paraphrase_train.txt",
                    "dev_ids": files / "MRPC/dev_ids.tsv",
                    "test": files / "MRPC/msr_paraphrase_test.txt",
                }
                splits[name] = builder._generate_examples(None, split, raw)
            elif path.exists():
                splits[name] = builder._generate_examples(path, split)
    return splits


def write_raw_mrpc(folder):
    """Replace GLUE's files of MRPC by the original ones."""
    for path in folder.iterdir():
        path.unlink()
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    rows = [f"{i % 2}\t{i}\t{i + 50}\tone {i}\ttwo {i}\n" for i in range(12)]
    for split in ("train", "test"):
        text = "\ufeff" * (split == "train") + header + "".join(rows)
        (folder / f"msr_paraphrase_{split}.txt").write_text(text)
    # GLUE's test file has no labels, and numbers the rows.
    rows = [f"{i}\t{i}\t{i + 50}\tone {i}\ttwo {i}\n" for i in range(12)]
    header = "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    (folder / "test.tsv").write_text(header + "".join(rows))
    (folder / "dev_ids.tsv").write_text("#1 ID\t#2 ID\n3\t53\n4\t54\n8\t58\n")


@pytest.mark.parametrize("row", glue.ROWS, ids=lambda row: row.name)
def test_glue_by_name_equals_the_official_files(row, folder, tmp_path):
    """Rows, ids, encoded rows, scores and the bytes of a submission."""
    files = write_glue(tmp_path / "glue")
    if row is glue.MRPC:
        write_raw_mrpc(files / "MRPC")
    write(f"glue/{row.name}", parse_glue(row, files))
    official, by_name = glue_task(row, data_dir=str(files)), glue_task(row)
    whole = glue_task(row, data_dir="tfds:glue:2.0.0")
    encoder = preprocessor(sequence_length=16)
    for split in ["test"] if row is glue.AX else ["train", "dev", "test"]:
        examples, found = official.read(split), by_name.read(split)
        assert list(examples) == list(found) == list(whole.read(split))
        rows, same = (
            task.encode(examples, encoder) for task in (official, by_name)
        )
        for key, value in rows.inputs.items():
            assert value.to_list() == same.inputs[key].to_list()
        outputs = random_outputs(examples, len(row.labels or "1"))
        if split == "dev":
            scores = official.score(examples, outputs)
            assert json.dumps(scores, default=str) == json.dumps(
                by_name.score(found, outputs), default=str
            )
    texts = []
    for task, rows in ((official, examples), (by_name, found)):
        (tmp_path / str(len(texts))).mkdir()
        task.write(rows, outputs, tmp_path / str(len(texts)))
        texts.append(
            [
                (tmp_path / str(len(texts)) / name).read_bytes()
                for name in row.submission
            ]
        )
    assert texts[0] == texts[1]


@pytest.mark.parametrize("row", [SQUAD_1, SQUAD_2], ids=lambda row: row.name)
def test_squad_by_name_equals_the_official_files(row, folder, tmp_path):
    qas = [
        {
            "id": f"q{n}",
            "question": f"Where {n}?",
            "answers": [{"text": "Bérn", "answer_start": 10}],
        }
        for n in range(4)
    ]
    if row is SQUAD_2:
        qas[2] |= {"answers": [], "plausible_answers": []}
        for qa in qas:
            qa["is_impossible"] = not qa["answers"]
    article = {
        "title": "Ada",
        "paragraphs": [{"context": "She lived Bérn, twice.", "qas": qas}],
    }
    path = tmp_path / "official.json"
    path.write_text(json.dumps({"data": [article]}))
    name = row.tfds.removeprefix("tfds:")
    read = tfds.builder(name)._generate_examples
    write(name, {split: read(path) for split in ("train", "validation")})
    official = squad_task(row, train=str(path), dev=str(path))
    by_name = squad_task(row)
    for split in ("train", "dev"):
        expected = {q.id: q for q in official.read(split)}
        assert {q.id: q for q in by_name.read(split)} == expected
    assert len(expected) == 4


def test_tags_by_name_equal_the_files(folder, tmp_path):
    text = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nBérn NNP B-NP B-LOC\n\n"
    (tmp_path / "train.txt").write_text("-DOCSTART- -X- O O\n\n" + text)
    (tmp_path / "train").write_text("en:Rick\tB-PER\nen:Sanchez\tI-PER\n\n")
    for row, file in ((CONLL_2003, "train.txt"), (WIKI_ANN, "train")):
        name = row.tfds.removeprefix("tfds:")
        builder = tfds.builder(name)
        write(name, {"train": builder._generate_examples(tmp_path / file)})
        expected = tag_task(row, data_dir=str(tmp_path)).read("train")
        found = tag_task(row).read("train")
        assert sorted((t.words, t.labels) for t in found) == sorted(
            (t.words, t.labels) for t in expected
        )


def test_a_builder_is_prepared_once_and_its_classes_have_names(folder):
    rows = dict(column_rows("tfds:bk_reviews", ["text", "label"]))
    assert len(rows) == 12
    assert {tuple(r) for r in rows.values()} == {
        (f"Grün {n}.", ("neg", "pos")[n % 2]) for n in range(12)
    }
    assert (folder / "bk_reviews/1.0.0/dataset_info.json").is_file()
    slices = [
        [row for _, row in column_rows(f"tfds:bk_reviews:1.0.0#{s}", ["text"])]
        for s in ("train[:25%]", "train[25%:]", "train")
    ]
    assert slices[0] + slices[1] == slices[2] and len(slices[0]) == 3
    # An unpublished label is -1.
    both = column_rows("tfds:bk_reviews", ["label"], split="test+train[:1]")
    assert [label for _, (label,) in both][:3] == [None] * 3
    prepared = f"tfds:{folder}/bk_reviews/1.0.0"
    assert dict(column_rows(prepared, ["text", "label"])) == rows


def test_the_catalogue_gives_the_columns_that_tasks_read(folder, monkeypatch):
    monkeypatch.setattr(tfds_sets, "_check_network", lambda: None)
    splits = dict.fromkeys(("train", "validation", "test"))
    monkeypatch.setattr(tfds.core.DatasetInfo, "splits", splits)
    with tfds.testing.mock_data(num_examples=3):
        for row in glue.ROWS:
            split = "test" if row is glue.AX else "train"
            examples = glue_task(row).read(split)
            assert len(examples) == 3 and isinstance(examples[0].text, str)
        rows = list(column_rows("tfds:imdb_reviews", ["text", "label"]))
        assert {label for _, (_, label) in rows} <= {"neg", "pos"}


def test_wikipedia_gives_an_article_a_document(folder):
    write(WIKIPEDIA, {"train": enumerate(PAGES)})
    found = list(read_documents(f"tfds:{WIKIPEDIA}"))
    assert sorted(d.paragraphs for d in found) == [
        [
            "Alan Smithee is a pseudonym.",
            "It began in 1968.",
            "The name was known. Some used it.",
        ],
        ["Zürich is a city.", "It lies on a lake."],
    ]
    parts = [
        [d.paragraphs for d in read_documents(f"tfds:{WIKIPEDIA}#train[{s}]")]
        for s in (":1", "1:")
    ]
    assert parts[0] + parts[1] == [d.paragraphs for d in found]


def test_wiki40b_gives_its_paragraphs_alone(folder):
    row = {"wikidata_id": "Q1", "version_id": "1", "text": WIKI_40B}
    write("wiki40b/en", {"validation": [(0, row)]})
    (found,) = read_documents("tfds:wiki40b/en#validation")
    assert found.paragraphs == ["It is a volcano.", "It last erupted in 1866."]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("tfds:", "expected tfds:NAME"),
        ("tfds:glue/mrpc:train", "NAME[/CONFIG][:VERSION][#SPLIT]"),
        ("tfds:huggingface:glue", "names no data set"),
        ("tfds:nonsense_set", "no such data set"),
        ("tfds:glue/nonsense", "BuilderConfig nonsense not found"),
        ("tfds:glue:9.9.9", "cannot be loaded at version 9.9.9"),
        ("tfds:bk_reviews#other", "no other split; it has train, test"),
        ("tfds:bk_reviews#train[:x]", "Error parsing split"),
        ("tfds:glue/mrpc", "there is no network. Give a folder"),
    ],
)
def test_a_data_set_that_cannot_be_read_is_named(folder, source, words):
    with pytest.raises(InputError) as caught:
        list(column_rows(source, ["text"]))
    assert words in str(caught.value)


def test_a_damaged_file_of_a_data_set_is_named(folder):
    list(column_rows("tfds:bk_reviews", ["text"]))
    (path,) = folder.glob("bk_reviews/1.0.0/*train*")
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="tfds:bk_reviews cannot be read"):
        list(column_rows("tfds:bk_reviews", ["text"]))


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json"])
def test_damaged_metadata_of_a_data_set_are_named(folder, file):
    list(column_rows("tfds:bk_reviews", ["text"]))
    prepared = folder / "bk_reviews/1.0.0"
    (prepared / file).write_text("{")
    with pytest.raises(InputError, match="JSON file in its folder is damaged"):
        list(column_rows(f"tfds:{prepared}", ["text"]))


class BkRetrieval(tfds.core.GeneratorBasedBuilder):
    """A data set in BEIR's layout: a configuration for each file."""

    VERSION = tfds.core.Version("1.0.0")
    ROWS = {
        "corpus": [
            ("p1", "Ulm", "It is."),
            ("p2", "", "It was."),
            ("p3", "", "Z"),
        ],
        "queries": [("q1", "", "Is it?"), ("q2", "", "Was it?")],
        "qrels": [("q1", "p1", "1"), ("q2", "p2", "1"), ("q1", "p9", "1")],
    }
    COLUMNS = {"qrels": ("query-id", "corpus-id", "score")}
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in ROWS]

    def _names(self):
        names = ("_id", "title", "text")
        return self.COLUMNS.get(self.builder_config.name, names)

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {name: tfds.features.Text() for name in self._names()}
            ),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for n, row in enumerate(self.ROWS[self.builder_config.name]):
            yield n, dict(zip(self._names(), row, strict=True))


def test_negatives_are_mined_from_data_sets(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "load_trained", lambda *_: (None, None))
    seen = {}

    def embed(model, preprocess, texts, kind):
        seen[kind] = texts
        return np.eye(3, dtype="float32")[: len(texts)]

    monkeypatch.setattr(mine_negatives, "embed", embed)
    name = "tfds:bk_retrieval/"
    words = [
        *(f"--train={name}qrels", f"--queries={name}queries#train"),
        *(f"--passages={name}corpus", "--id=_id", "--text=query-id"),
        *("--text_pair=corpus-id", "--model=none"),
        f"--output={tmp_path / 'mined.csv'}",
    ]
    mine_negatives.main(parse_flags(mine_negatives.Options, words))
    assert set(seen["query"]) == {"Is it?", "Was it?"}
    assert set(seen["document"]) == {"Ulm It is.", "It was.", "Z"}
    with open(tmp_path / "mined.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {(row["text"], row["text_pair"]) for row in rows} == {
        ("Is it?", "Ulm It is."),
        ("Was it?", "It was."),
    }
    assert len(rows) == 4  # each text with the two other passages


def test_features_are_those_of_a_data_sets_texts_and_words(folder, tmp_path):
    found = list(extract_features.read_words("tfds:bk_reviews", False))
    rows = column_rows("tfds:bk_reviews", ["text"])
    assert found == [text.split() for _, (text,) in rows] and len(found) == 12
    titles = extract_features.read_words(
        "tfds:bk_retrieval/corpus", False, "title"
    )
    assert sorted(titles) == [[], [], ["Ulm"]]
    (tmp_path / "train.txt").write_text("EU NNP B-NP B-ORG\nate VBZ B-VP O\n")
    read = tfds.builder("conll2003")._generate_examples
    write("conll2003", {"train": read(tmp_path / "train.txt")})
    found = extract_features.read_words("tfds:conll2003", True)
    assert list(found) == [["EU", "ate"]]
    row = {"sentence": "It is.", "label": 1, "idx": 5}
    write("glue/cola", {"train": [(0, row)]})
    for source, columns, text, words in (
        ("tfds:glue/cola", False, "idx", "or a list of words"),
        ("tfds:bk_reviews", True, None, "no column 'tokens'"),
        ("tfds:conll2003#dev", True, None, "no dev split"),
        ("texts.txt", False, "title", "--text=title only applies"),
    ):
        with pytest.raises(InputError) as caught:
            list(extract_features.read_words(source, columns, text))
        assert words in str(caught.value)


def test_a_name_is_parsed():
    assert parse_data_set("tfds:a/b:1.0.0#train[:1%]") == (
        "tfds",
        "a/b:1.0.0",
        "train[:1%]",
    )
    assert parse_data_set("tfds:a/b", "dev").split == "dev"
    assert parse_data_set("hf:a/b:test") == ("hf", "a/b", "test")


def test_elements_of_tfds_load_become_inputs_of_fit(folder):
    texts = [(f"the old {n}", f"a goat {n}", n % 2) for n in range(6)]
    rows = [
        {"sentence1": a, "sentence2": b, "label": y, "idx": n}
        for n, (a, b, y) in enumerate(texts)
    ]
    write("glue/mrpc", {"train": enumerate(rows)})
    data = tfds.load("glue/mrpc", split="train")
    plain = bert_keras.BertPreprocessor(preprocessor().tokenizer, 16)
    keys = {"text_keys": ("sentence1", "sentence2"), "label_key": "label"}
    named = type(plain)(plain.tokenizer, 16, **keys)
    named = type(plain).from_config(named.get_config())
    elements = list(data.batch(6).as_numpy_iterator())[0]
    pairs = (elements["sentence1"], elements["sentence2"])
    expected, labels = plain(pairs), elements["label"].tolist()
    assert sorted(labels) == [0, 0, 0, 1, 1, 1]
    for dataset in (data.batch(6).map(named), data.map(named).batch(6)):
        ((found, y),) = dataset
        assert y.numpy().tolist() == labels
        for key, value in expected.items():
            assert (found[key].numpy() == value.numpy()).all()
    with pytest.raises(
        InputError, match=r"text_keys=\('sentence1', 'sentence2'"
    ):
        data.map(plain)
    wrong = type(plain)(plain.tokenizer, 16, text_keys="sentence")
    with pytest.raises(InputError, match="a dict without 'sentence'.*'idx'"):
        data.batch(6).map(wrong)
    with pytest.raises(InputError, match="label_key is 'label', but text_keys"):
        type(plain)(plain.tokenizer, 16, label_key="label")


def test_supervised_elements_need_no_names(folder):
    list(column_rows("tfds:bk_reviews", ["text"]))  # prepares it
    data = tfds.load("bk_reviews", split="train", as_supervised=True)
    plain = bert_keras.BertPreprocessor(preprocessor().tokenizer, 8)
    for dataset in (data.batch(12).map(plain), data.map(plain).batch(12)):
        ((found, y),) = dataset
        assert found["token_ids"].shape == (12, 8)
        assert sorted(y.numpy().tolist()) == [0] * 6 + [1] * 6


@pytest.mark.skipif(
    os.environ.get("BERT_KERAS_ONLINE") != "1",
    reason="BERT_KERAS_ONLINE is not 1",
)
def test_a_data_set_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    assert len(glue_task(glue.RTE).read("dev")) == 277


def test_columns_that_nobody_reads_are_not_decoded(folder, monkeypatch):
    source = "tfds:bk_pictures"
    images = [image[0][0] for _, (image,) in column_rows(source, ["image"])]
    assert sorted(images) == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]
    decode = "decode_example"
    monkeypatch.setattr(tfds.features.Image, decode, lambda *_: pytest.fail())
    rows = [row for _, row in column_rows(source, ["text", "about"])]
    assert sorted(rows, key=lambda row: row[0]) == [
        [f"Text {n}.", {"text": f"About {n}."}] for n in range(3)
    ]
