"""Task examples from files and from Hugging Face data sets."""

import functools
import io
import json

import pytest

from bert_keras import InputError
from official_tasks.tasks import glue
from official_tasks.tasks.base import Example
from official_tasks.tasks.conll import CONLL_2003, NER, TaggedText, TagRow
from official_tasks.tasks.embedding import embed_task
from official_tasks.tasks.glue import glue_task
from official_tasks.tasks.multiple_choice import (
    SWAG,
    ChoiceExample,
    choice_task,
)
from official_tasks.tasks.own_tasks import (
    choices_task,
    classify_task,
    spans_task,
    tags_task,
)
from official_tasks.tasks.retrieval import rank_task
from official_tasks.tasks.spans import Question
from official_tasks.tasks.squad import SQUAD_1, SQUAD_2, squad_task
from official_tasks.tasks.tagging import tag_task
from tests.support.toy_words import preprocessor

pytestmark = pytest.mark.fast

TOY = TagRow("toy", {"train": ("train.txt", "train.csv"), "dev": ("dev.txt",)})


def test_a_file_that_is_named_stands_in_place_of_the_folders(tmp_path):
    for name in ("train.csv", "dev.txt", "own.txt", "more.txt"):
        (tmp_path / name).touch()
    both = f"{tmp_path / 'own.txt'}, {tmp_path / 'more.txt'}"
    task = tag_task(TOY, data_dir=str(tmp_path), dev=both)
    assert [p.name for p in task.source.paths("train")] == ["train.csv"]
    assert [p.name for p in task.source.paths("dev")] == ["own.txt", "more.txt"]
    with pytest.raises(InputError, match="no test file of the task toy: give"):
        task.source.paths("test")
    with pytest.raises(InputError, match=r"expected train\.txt or train\.csv"):
        (tmp_path / "train.csv").unlink()
        task.source.paths("train")
    with pytest.raises(InputError, match=r"give --dev=FILE or a --data_dir"):
        tag_task(TOY).source.paths("dev")
    with pytest.raises(InputError, match=r"dev_matched file.*give --dev=FILE"):
        glue_task(glue.MNLI, train="a.tsv").source.paths("dev_matched")
    with pytest.raises(InputError, match=r"or give --test=FILE"):
        glue_task(glue.AX, data_dir=tmp_path).source.paths("diagnostic")
    with pytest.raises(InputError, match=r"no dev file: give --dev=FILE"):
        tags_task().read("dev")
    with pytest.raises(InputError, match="no such folder"):
        tag_task(TOY, data_dir=str(tmp_path / "absent")).source.paths("dev")
    with pytest.raises(InputError, match=r"absent\.txt: no such file"):
        tag_task(TOY, dev="absent.txt").source.paths("dev")


def squad_rows():
    """Return a question with two answers, and one with none."""
    answered = {
        "id": "1",
        "title": "t",
        "context": "Ada Lovelace lived in Bérn.",
        "question": "Where?",
        "answers": {"text": ["Bérn", "in Bérn"], "answer_start": [22, 19]},
    }
    nothing = {"text": [], "answer_start": []}
    return [answered, {**answered, "id": "2", "answers": nothing}]


def test_every_task_names_the_files_that_a_run_reads(tmp_path):
    names = ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv", "dev.json")
    for name in names:
        (tmp_path / name).write_text("x")
    folder, file = str(tmp_path), str(tmp_path / "dev.json")
    mnli = glue_task(glue.MNLI, data_dir=folder)
    assert [path.name for path in mnli.data_files()] == list(names[:3])
    one = glue_task(glue.MNLI, data_dir=folder, dev=file)
    assert [path.name for path in one.data_files()] == [names[0], names[3]]
    own = tags_task(train=f"{file}, {folder}/train.tsv", test=file)
    assert [path.name for path in own.data_files()] == ["dev.json", "train.tsv"]
    assert not tag_task(NER, data_dir="hf:some/conll").data_files()
    with pytest.raises(InputError, match="give --data_dir=hf:nyu-mll/glue"):
        glue_task(glue.RTE, dev="hf:nyu-mll/glue/rte").read("dev")
    with pytest.raises(InputError, match="give --data_dir=hf:nyu-mll/glue$"):
        glue_task(glue.RTE, dev="hf:nyu-mll/glue:validation").read("dev")
    with pytest.raises(InputError, match="one split.*_dir=hf:some/conll$"):
        tag_task(NER, data_dir="hf:some/conll:train")


def test_official_tasks_are_read_from_hugging_face(tmp_path):
    import datasets

    f = datasets.Features
    text, number = datasets.Value("string"), datasets.Value("int32")
    answers = {
        "text": datasets.List(text),
        "answer_start": datasets.List(number),
    }
    names = ["O", "B-PER", "I-PER"]
    glue_rows = [
        {"sentence1": "a", "sentence2": "b", "label": 1, "idx": 3},
        {"sentence1": "c", "sentence2": "d", "label": -1, "idx": 4},
    ]
    label = datasets.ClassLabel(names=["no", "yes"])
    features = f(sentence1=text, sentence2=text, label=label, idx=number)
    tags = datasets.List(datasets.ClassLabel(names=names))
    for folder, rows, kinds in (
        ("glue/rte", glue_rows, features),
        (
            "squad",
            squad_rows(),
            f(
                **dict.fromkeys(("id", "title", "context", "question"), text),
                answers=answers,
            ),
        ),
        (
            "ner",
            [{"tokens": ["Ada", "lived"], "ner_tags": [1, 0]}],
            f(tokens=datasets.List(text), ner_tags=tags),
        ),
    ):
        (tmp_path / folder).mkdir(parents=True)
        data_set = datasets.Dataset.from_list(rows, features=kinds)
        data_set.to_parquet(tmp_path / folder / "validation.parquet")
    first, second = glue_task(glue.RTE, f"hf:{tmp_path}/glue").read("dev")
    assert first[:4] == ("a", "b", 1, "3") and second.label is None
    squad = squad_task(SQUAD_2, data_dir=f"hf:{tmp_path}/squad")
    question, unanswered = squad.read("dev")
    assert (question.answers, question.start) == (("Bérn", "in Bérn"), 22)
    assert question.context == "Ada Lovelace lived in Bérn."
    assert unanswered.answers == ()
    with pytest.raises(InputError, match=r"\btest\b.*\bvalidation\b"):
        squad.read("test")
    # In JSON, `answers` is a list of dicts; on the Hub, a dict of lists.
    (tmp_path / "json").mkdir()
    (tmp_path / "json/validation.jsonl").write_text(
        json.dumps(
            {
                "id": "1",
                "question": "Where?",
                "context": "in Bern",
                "answers": [{"text": "Bern", "answer_start": 3}],
            }
        )
    )
    squad = squad_task(SQUAD_2, data_dir=f"hf:{tmp_path}/json")
    assert squad.read("dev")[0][3:5] == (("Bern",), 3)
    for task in (
        glue_task(glue.SST_2, f"hf:{tmp_path}/glue/rte"),
        squad_task(SQUAD_2, data_dir=f"hf:{tmp_path}/glue/rte"),
    ):
        with pytest.raises(InputError, match="its columns are 'sentence1'"):
            task.read("dev")
    (text,) = tag_task(CONLL_2003, data_dir=f"hf:{tmp_path}/ner").read("dev")
    assert (text.words, text.labels) == (("Ada", "lived"), ("B-PER", "O"))
    with pytest.raises(InputError, match=r"\btrain\b.*\bvalidation\b"):
        glue_task(glue.RTE, f"hf:{tmp_path}/glue/rte").read("train")


def test_choices_are_read_from_a_data_set(tmp_path):
    import datasets

    names = [SWAG.prompt, SWAG.lead, *SWAG.choices]
    for split, label in (("train", 3), ("validation", 9), ("test", -1)):
        row = {name: name for name in names} | {"label": label}
        data_set = datasets.Dataset.from_list([row])
        data_set.to_parquet(tmp_path / f"{split}.parquet")
    task = choice_task(SWAG, data_dir=f"hf:{tmp_path}")
    (example,) = task.read("train")
    assert example.choices[2] == "sent2 ending2"
    assert example.label == 3
    assert task.read("test")[0].label is None
    with pytest.raises(InputError, match="row 1: .* got '9'"):
        task.read("dev")


def test_a_data_set_to_train_on_gives_labels_and_unanswered_questions(tmp_path):
    import datasets

    span = {"question": "Who?", "context": "Ada ran.", "answer": "Ada"}
    spans = [span, {**span, "answer": ""}]
    tags = [{"words": ["Ada", "ran"], "tags": ["B-PER", "O"]}]
    for name, rows in (("spans", spans), ("tags", tags)):
        (tmp_path / name).mkdir()
        data_set = datasets.Dataset.from_list(rows)
        for split in ("train", "validation"):
            data_set.to_parquet(tmp_path / name / f"{split}.parquet")
    name = f"hf:{tmp_path}/tags"
    assert tags_task(train=name, dev=name).labels == ["O", "B-PER"]
    assert tags_task(dev=name).labels is None
    name = f"hf:{tmp_path}/spans"
    answers = [("Ada",), ()]
    task = spans_task(train=name, dev=name)
    assert [question.answers for question in task.read("train")] == answers
    assert [q.answers for q in spans_task(dev=name).read("dev")] == answers
    # A trained model states `may_be_none`, so train and dev are not loaded.
    task = spans_task(train="hf:/no/such", dev="hf:/no/such", test=name)
    task.take_arguments({"may_be_none": False})
    assert not task.may_be_none


def test_tags_of_a_data_set_are_names_or_numbers_that_have_names(tmp_path):
    import datasets

    for name, tags in (("names", ["B-PER", "O"]), ("numbers", [1, 0])):
        (tmp_path / name).mkdir()
        rows = [{"tokens": ["Ada", "lived"], "ner_tags": tags}]
        data_set = datasets.Dataset.from_list(rows)
        data_set.to_parquet(tmp_path / name / "validation.parquet")
    (text,) = tag_task(NER, data_dir=f"hf:{tmp_path}/names").read("dev")
    assert text.labels == ("B-PER", "O")
    with pytest.raises(InputError, match="row 1: expected labels .* got '1'"):
        tag_task(NER, data_dir=f"hf:{tmp_path}/numbers").read("dev")


@pytest.mark.parametrize(
    ("make_task", "row", "make", "fields"),
    [
        (tag_task, CONLL_2003, TaggedText, [["Ada", "ran"], ["B-PER", "O"]]),
        (squad_task, SQUAD_1, Question, ["7", "Who?", "Ada ran.", ["Ada"], 0]),
        (choice_task, SWAG, ChoiceExample, ["p", ["a", "b", "c", "d"], 2]),
        (glue_task, glue.RTE, Example, ["Ada ran.", "She ran.", 1]),
    ],
)
def test_a_new_format_is_one_function_and_one_row(
    tmp_path, make_task, row, make, fields
):
    def read(row, path, split, notes, *part):
        notes.append(f"read {split}")
        return [make(*fields) for fields in json.loads(path.read_text())]

    mine = row._replace(name="mine", read=read)
    (tmp_path / "a.json").write_text(json.dumps([fields, fields]))
    task = make_task(mine, train=str(tmp_path / "a.json"))
    train = task.read("train")
    first, second = train
    assert first == second == make(*fields)
    assert "read train" in train.notes
    encoded = task.encode([first], preprocessor(16))
    assert encoded.targets is not None


ENTITIES = [[0, 3, "PER"]]
CHOICES = ["prompt,choice0,choice1,label", "Zoë,ran.,sat.,1"]
SQUAD = ['{"data": [{"paragraphs": [{"context": "Zoë ran.", "qas": [', "]}]}]}"]
SQUAD[1:1] = [
    '{"id": "1", "question": "Who?",',
    '"answers": [{"text": "Zoë"}]}',
]
# File name -> the function that makes its task, and lines of the file.
FILES = {
    "classify.csv": (
        classify_task,
        ["text,label", "Zoë ran.,yes", "She sat.,no"],
    ),
    "classify.tsv": (classify_task, ["text\tlabel", "Zoë ran.\tyes", "a\tno"]),
    "classify.jsonl": (
        classify_task,
        ['{"text": "Zoë", "label": "a"}', '{"text": "", "label": "b"}'],
    ),
    "spans.csv": (
        spans_task,
        ["context,question,answer", "Zoë ran.,Who?,Zoë"],
    ),
    "tags.csv": (tags_task, ["words,tags", "Zoë ran,B-PER O"]),
    "entities.jsonl": (
        functools.partial(tags_task, spans="spans"),
        [json.dumps({"text": "Zoë ran.", "spans": ENTITIES})],
    ),
    "choices.csv": (choices_task, CHOICES),
    "pairs.csv": (embed_task, ["text,text_pair", "Zoë?,ran."]),
    "ranking.csv": (
        functools.partial(rank_task, label="label"),
        ["label,text,text_pair", "1,Zoë?,ran.", "0,Zoë?,sat."],
    ),
    "ner.txt": (functools.partial(tag_task, NER), ["Zoë B-PER", "ran O", ""]),
    "rte.tsv": (
        functools.partial(glue_task, glue.RTE),
        ["sentence1\tsentence2\tlabel", "Zoë\tran.\tentailment"],
    ),
    "cola.tsv": (
        functools.partial(glue_task, glue.COLA),
        ["x\t1\t\tZoë ran.", "x\t0\t*\tZoë sat."],
    ),
    "squad.json": (functools.partial(squad_task, SQUAD_1), SQUAD),
    "swag.csv": (
        functools.partial(choice_task, SWAG),
        [
            "sent1,sent2,ending0,ending1,ending2,ending3,label",
            "Zoë,a,b,c,d,e,2",
        ],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_line_ends_and_a_byte_order_mark_change_no_example(name, tmp_path):
    make, lines = FILES[name]
    found = []
    for start, end in (("", "\n"), ("\ufeff", "\r\n"), ("\ufeff", "\n")):
        path = tmp_path / name
        path.write_bytes((start + end.join([*lines, ""])).encode())
        found.append(list(make(train=str(path), dev=str(path)).read("train")))
    assert "Zoë" in str(found[0][0])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", FILES)
def test_a_run_reads_each_file_once(name, tmp_path, monkeypatch):
    make, lines = FILES[name]
    (tmp_path / "dev").mkdir()
    paths = [str(tmp_path / name), str(tmp_path / "dev" / name)]
    opened: list = []

    class Noted(io.FileIO):
        def __init__(self, path, *arguments, **options):
            opened.append(str(path))
            super().__init__(path, *arguments, **options)

    def count(splits):
        task = make(train=paths[0], dev=paths[1])
        opened.clear()
        for split in splits:
            task.read(split)
        assert task.metrics and (task.labels is None or task.labels)
        return [opened.count(path) for path in paths]

    for path in paths:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join([*lines, ""]))
    monkeypatch.setattr(io, "FileIO", Noted)
    train, _ = count(["train"])
    both = count(["train", "dev"])
    assert both[0] == train > 0 and both[1] > 0


def test_an_empty_path_and_a_pattern_are_refused_with_a_fix(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\na,x\n")
    pattern = str(tmp_path / "*.csv")
    for make in (classify_task, functools.partial(tag_task, NER)):
        with pytest.raises(InputError, match="a.csv, has an empty path. Exp"):
            make(train=f"{path},").read("train")
        with pytest.raises(InputError, match="no such file, and patterns are"):
            make(train=pattern).read("train")
    path = path.rename(tmp_path / "a[1].csv")
    assert classify_task(dev=str(path)).source.paths("dev") == [path]
