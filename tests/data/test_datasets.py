"""Corpora of TensorFlow Datasets, from files in that library's own format."""

import os

import pytest
import tensorflow  # noqa: F401  starts a process when h5py is loaded

from bert_keras.data import corpus
from bert_keras.data.corpus import read_documents
from bert_keras.errors import InputError

tfds = pytest.importorskip(
    "tensorflow_datasets", reason="needs pip install 'bert_keras[tfds]'"
)

WIKIPEDIA = "wikipedia/20230601.en"
PAGES = [
    {
        "title": "Alan Smithee",
        "text": "Alan Smithee is a pseudonym.\n\nIt began in 1968.\n\nUses "
        "in the U.S. before 2000\nThe name was known. Some used it for\n"
        " Death of a Gunfighter (1969).\n* Fade-In\n| year | film.\n"
        "“Is it true?”\n\nReferences\n\nCategory:Film",
    },
    {"title": "Empty", "text": " \nSee also\n\nExternal links"},
    {"title": "Zürich", "text": "Zürich is a city.\nIt lies on a lake."},
]
# As wiki40b marks its structure.
ARTICLE = """
_START_ARTICLE_
Mount Hood
_START_SECTION_
Geology
_START_PARAGRAPH_
Mount Hood is a volcano._NEWLINE_It last erupted in 1866."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where TFDS looks for data, and what keeps it off the network."""
    monkeypatch.setattr(tfds.core.utils.gcs_utils, "_is_gcs_disabled", True)
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    return tmp_path


def write(name, folder, rows, split="train"):
    """Writes rows as the data set `name`, two a shard."""
    builder = tfds.builder(name, data_dir=str(folder))
    os.makedirs(builder.data_dir)
    writer = tfds.core.SequentialWriter(builder.info, 2)
    writer.initialize_splits([split])
    writer.add_examples({split: rows})
    writer.close_all()


def test_wikipedia_gives_an_article_a_document(folder):
    write(WIKIPEDIA, folder, PAGES)
    found = list(read_documents(f"tfds:{WIKIPEDIA}"))
    assert [d.paragraphs for d in found] == [
        [
            "Alan Smithee is a pseudonym.",
            "It began in 1968.",
            "The name was known. Some used it for",
            "“Is it true?”",
        ],
        ["Zürich is a city.", "It lies on a lake."],
    ]
    assert {d.group for d in found} == {WIKIPEDIA}
    assert len({d.name for d in found}) == 2
    half = list(read_documents(f"tfds:{WIKIPEDIA}:train[2:]"))
    assert [d.paragraphs for d in half] == [found[1].paragraphs]
    titles = read_documents(f"tfds:{WIKIPEDIA}", text_field="title")
    assert [d.paragraphs[0] for d in titles] == [p["title"] for p in PAGES]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("東京は日本の首都である。", True),
        ("東京の歴史", False),
        ("दिल्ली भारत की राजधानी है।", True),
        ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย" * 6, True),
        ("ประวัติศาสตร์", False),
        ("1968 – 1970", False),
        ("St. Louis", False),
        (" An item of a list.", False),
        (" It was rebuilt. The picture shows it.", True),
        ("* A film. Another.", False),
    ],
)
def test_a_passage_is_recognised_in_any_script(line, kept):
    assert corpus._is_passage(line) == kept


def test_wiki40b_gives_its_paragraphs_alone(folder):
    row = {"wikidata_id": "Q1", "version_id": "1", "text": ARTICLE}
    write("wiki40b/en", folder, [row], "validation")
    (found,) = read_documents("tfds:wiki40b/en:validation")
    assert found.paragraphs == [
        "Mount Hood is a volcano.",
        "It last erupted in 1866.",
    ]


def test_a_data_set_or_split_that_is_none_is_named(folder):
    write(WIKIPEDIA, folder, PAGES)
    with pytest.raises(InputError, match="'tfds:' names no data set"):
        list(read_documents("tfds:"))
    with pytest.raises(InputError, match="tfds:no_such_set: TFDS has no such"):
        list(read_documents("tfds:no_such_set"))
    with pytest.raises(
        InputError, match="has no no_such_split split, but train"
    ):
        list(read_documents(f"tfds:{WIKIPEDIA}:no_such_split"))
    with pytest.raises(InputError, match="no column 'body': .*'title', 'text'"):
        list(read_documents(f"tfds:{WIKIPEDIA}", text_field="body"))
