"""The commands of each page run in order, on toy data.

tests/journeys/test_scripts.py runs the README's commands. A page whose commands
cannot be made fast by flags has its own test file.
"""

import contextlib
import json
import shutil
from typing import NamedTuple

import pytest
from baselines import rows

import bert_keras
from bert_keras.data.batches import check_source
from bert_keras.text.vocabulary import read_vocabulary, write_vocabulary
from tests.support import numpy_bert, tiny
from tests.support.data_samples import corpus, toy_tokenizer
from tests.support.foreign_formats import (
    GOOGLE_CONFIG,
    write_google,
    write_json,
    write_model_garden,
)
from tests.support.glue_samples import write_glue
from tests.support.model_samples import fill, numpy_weights
from tests.support.page_commands import commands, python_of, script_of
from tests.support.run_script import ROOT, call_script
from tests.support.served_samples import encoder, preprocessor
from tests.support.task_samples import (
    save_toy_model,
    sentences,
    write_csv,
    write_reviews,
)
from tests.support.tfds_samples import write
from tests.support.toy_pretraining import documents, save_pretrainer
from tests.support.weight_names import CLASSIFIER


def prepare_data(folder):
    (folder / "books").mkdir()
    for number, document in enumerate(corpus(40)):
        path = folder / "books" / f"{number}.txt"
        path.write_text("\n".join(document.paragraphs), encoding="utf-8")
    (folder / "runs").mkdir()
    for name in ("runs/vocab.txt", "uncased-vocab.txt"):
        write_vocabulary(toy_tokenizer().vocabulary, folder / name)


def check_data(folder, _):
    for name in ("data", "packed", "beam"):
        written = folder / "runs" / name
        check_source(str(written / "tokens" / "train"))
        assert (written / "train").exists() == (name != "beam")
        if name != "beam":
            check_source(str(written / "train"))
            text = (written / "train" / "manifest.json").read_text()
            assert json.loads(text)["rules"]["packed"] == (name == "packed")


def prepare_benchmarks(folder):
    prepare_data(folder)
    prepare_tasks(folder)
    shutil.rmtree(folder / "toy")
    save_toy_model(folder / "toy", positions=384)  # squad1's sequence length
    for name in ("squad", "wikiann_en"):
        (folder / "DATA" / name).mkdir()
    tagged = "en:the\tO\nen:cat\tB-PER\nen:sat\tO\n\n" * 8
    answered = squad_questions()
    paragraphs = answered["data"][0]["paragraphs"]
    answered["data"][0]["paragraphs"] = paragraphs[1::2]  # with answers
    for part in ("train", "dev"):
        (folder / "DATA" / "wikiann_en" / part).write_text(tagged)
        path = folder / "DATA" / "squad" / f"{part}-v1.1.json"
        path.write_text(json.dumps(answered))
    (folder / "dev.tsv").write_text("sentence\tlabel\na b\t0\n")
    shutil.copy(folder / "glue/SST-2/train.tsv", folder / "first_1000.tsv")
    (folder / "squad.jsonl").write_text('{"context": "a b"}\n')


def check_benchmarks(folder, _):
    def read_rows(name):
        return json.loads((folder / "runs" / name).read_text())["rows"]

    assert {"small", "base"} <= {*read_rows("step.json")}
    served = read_rows("serving.json")["serve"]
    assert {"1 x 16 tokens", "dev.tsv", "squad.jsonl"} <= {*served}
    assert {*read_rows("text.json")} == {"tokenize", "records"}


def prepare_domain(folder):
    save_pretrainer(folder / "runs" / "base")
    (folder / "reports").mkdir()
    for document in documents():
        text = "\n".join(document.paragraphs)
        text = text.replace("ship", "tinker").replace("goat", "tintin")
        (folder / "reports" / f"{document.name}.txt").write_text(text)
    lines = [f"the old {w} sang,{w}" for w in ("tinker", "tintin") * 12]
    (folder / "yours.csv").write_text("\n".join(["text,label", *lines]))


def check_domain(folder, printed):
    old = (folder / "runs" / "base" / "vocab.txt").read_text().split()
    new = (folder / "runs/extended/vocab.txt").read_text().split()
    preprocess = bert_keras.BertPreprocessor.from_preset(
        folder / "runs" / "domain" / "model"
    )
    assert preprocess.tokenizer.vocabulary == new
    assert "tinker" in new and "tinker" not in old
    results = json.loads((folder / "runs/domain/results.json").read_text())
    assert results["mlm_perplexity"] < results["before"]["mlm_perplexity"]
    shown = f"(before the first step: {results['before']['mlm_perplexity']:.4g}"
    assert shown in "\n".join(printed)


def prepare_tasks(folder):
    save_toy_model(folder / "toy", num_layers=4)  # for concat_last_four
    write_glue(folder / "glue")
    (folder / "DATA").mkdir()
    (folder / "DATA" / "glue").symlink_to(folder / "glue")
    for name, seed in (("reviews", 0), ("other", 1)):
        write_reviews(folder / f"{name}.csv", 60, seed)
        text = (folder / f"{name}.csv").read_text()
        (folder / f"{name}.csv").write_text("review,stars" + text[10:])
    texts = [text for text, _ in sentences(41)]
    triplets = list(zip(texts[:20], texts[20:40], texts[21:], strict=True))
    header = ("text", "text_pair", "wrong")
    write_csv(folder / "triplets.csv", triplets, header)
    write_csv(folder / "partners.csv", [x[:2] for x in triplets], header[:2])
    lines = [(text, i) for i, (text, _) in enumerate(sentences(9))]
    write_csv(folder / "new.csv", lines, header=("review", "id"))
    (folder / "texts.txt").write_text("a good film\nthe cat sat\n")
    asked = {"text": "the cat sat", "candidates": ["cat", "dog"]}
    (folder / "candidates.jsonl").write_text(json.dumps(asked))
    (folder / "squad").mkdir()
    for name in ("train-v2.0.json", "dev-v2.0.json"):
        (folder / "squad" / name).write_text(json.dumps(squad_questions()))
    tagged = [("the cat sat", "O B-PER O"), ("a dog ran", "O B-ORG O")] * 6
    write_csv(folder / "tagged.csv", tagged, ("words", "tags"))
    spans = [{"start": 4, "end": 7, "label": "PER"}]
    lines = [{"text": f"the cat sat {n}", "spans": spans} for n in range(12)]
    text = "\n".join(map(json.dumps, lines))
    (folder / "annotated.jsonl").write_text(text)
    answers = [("who sat?", f"the cat {n} sat", f"cat {n}") for n in range(12)]
    header = ("question", "context", "answer")
    write_csv(folder / "answers.csv", answers, header)
    columns = "cat B-PER\nsat O\n\nthe O\ndog B-ORG\nran O\n\n" * 4
    (folder / "conll2003").mkdir()
    for name in ("train.txt", "dev.txt", "conll2003/train.txt"):
        (folder / name).write_text(columns)
    (folder / "conll2003" / "valid.txt").write_text(columns)


def prepare_data_sets(folder):
    prepare_data(folder)
    save_toy_model(folder / "toy")
    texts = [text for text, _ in sentences(24)]
    news = [{"title": "", "description": text} for text in texts]
    news = [row | {"label": n % 4} for n, row in enumerate(news)]
    pairs = [{"sentence1": text, "sentence2": text} for text in texts]
    pairs = [row | {"label": n % 2, "idx": n} for n, row in enumerate(pairs)]
    books = ["\n".join(document.paragraphs) for document in corpus(20)]
    pages = [{"title": "", "text": text} for text in books]
    for name, lines, splits in (
        ("ag_news_subset", news, ("train", "test")),
        ("glue/mrpc", pairs, ("train", "validation")),
        ("wikipedia/20230601.en", pages, ("train",)),
    ):
        write(name, {split: enumerate(lines) for split in splits})


def check_data_sets(folder, _):
    model = folder / "runs/news/model"
    labels = bert_keras.BertClassifier.from_preset(model).labels
    assert labels == ["Business", "Sci/Tech", "Sports", "World"]
    check_source(str(folder / "runs/wikipedia/tokens/train"))
    names = {"bert_keras": bert_keras}
    exec(python_of("data_sets")[0], names)
    assert len(list(names["train"].unbatch())) == 24


def squad_questions():
    """Return four questions in SQuAD's format, two without an answer."""
    paragraphs = []
    for number in range(4):
        answers = [{"text": "cat", "answer_start": 4}] if number % 2 else []
        question = {"id": str(number), "question": f"who sat {number}?"}
        question |= {"answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": "the cat sat", "qas": [question]})
    return {"data": [{"title": "cats", "paragraphs": paragraphs}]}


def prepare_pretraining(folder):
    prepare_data(folder)
    (folder / "new.txt").write_text("The ship sailed home.\n" * 3)
    for name, length in (("data", 16), ("books", 16)):
        words = ["--input=books", "--vocabulary=runs/vocab.txt", "--workers=1"]
        words += [f"--output=runs/{name}", f"--sequence_length={length}"]
        done = call_script(
            ROOT / "tools/create_pretraining_data.py",
            *words,
            *("--held_out_share=0.2", "--records"),
            folder=folder,
        )
        assert done.returncode == 0, done.stderr[-2000:]


def prepare_own_model(folder):
    """Write sixteen books to train on and eight that are held out."""
    for number, document in enumerate(documents()):
        side = "train" if number % 3 else "held_out"
        path = folder / "clean" / side / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"Of book {number}: {line}" for line in document.paragraphs]
        path.write_text("\n".join(lines), encoding="utf-8")


def check_own_model(folder, _):
    tokens = folder / "runs/mini_data/tokens"
    counts = {
        name: json.loads((tokens / name / "store.json").read_text())
        for name in ("train", "held_out")
    }
    assert counts["train"]["documents"] == 16
    assert counts["held_out"]["documents"] == 8
    names = "mini_short mini mini_long mini_512 mini_longer mini_longer_512"
    first, *later = (
        json.loads((folder / f"runs/{name}/results.json").read_text())
        for name in names.split()
    )
    for results in later:
        assert results["parameters"] == first["parameters"]
        assert results["before"] is not None
    packed = json.loads((folder / "packed/config.json").read_text())
    assert packed["num_hidden_layers"] == 1


def prepare_serving(folder):
    model = fill(bert_keras.BertClassifier(encoder(), labels=["bad", "good"]))
    model.save_preset(folder / "runs" / "yours" / "model", preprocessor())
    (folder / "texts.txt").write_text("an hour well spent\nbad film\n")
    (folder / "dev.csv").write_text("text,label\nan hour,good\nbad,bad\n")


def check_serving(folder, printed):
    assert "fill_mask" in printed[0]
    assert "has the signatures classify" in " ".join(printed[1].split())
    assert len((folder / "answers.jsonl").read_text().splitlines()) == 2
    assert "'accuracy': [" in " ".join("".join(printed).split())
    with contextlib.chdir(folder):
        exec(python_of("serving")[0], {})


TEXTS = ["good", "badly", ""]


def prepare_migrating(folder):
    """Write three models, and answers of `hugging` that NumPy computed."""
    write_google(folder / "old", CLASSIFIER)
    model = fill(tiny.model("BertClassifier", activation="gelu_exact"))
    inputs = {k: x.numpy() for k, x in tiny.preprocessor()(TEXTS).items()}
    weights, config = numpy_weights(model), model.encoder.get_config()
    pooled = numpy_bert.encode(weights, config, inputs)["pooled_output"]
    logits = numpy_bert.dense(weights, "classifier", pooled)
    mean = logits.mean(axis=0)
    model.classifier.bias.assign_sub(mean)  # else one label always wins
    model.save_preset(folder / "hugging", tiny.preprocessor())
    with open(folder / "recorded.jsonl", "w") as file:
        for text, row in zip(TEXTS, logits - mean, strict=True):
            answer = {"label": model.labels[row.argmax()]}
            record = {"inputs": {"text": text}, "answer": answer}
            file.write(json.dumps(record) + "\n")
    write_model_garden(folder / "garden")
    write_json(folder / "garden", "bert_config.json", GOOGLE_CONFIG)


def check_migrating(folder, printed):
    # The length of the temporary path changes where lines break.
    old, hugging, compared, garden = (" ".join(x.split()) for x in printed)
    assert "has the signatures classify, ids, tokenize" in old
    assert "has the signatures classify, ids, tokenize" in hugging
    assert "'equal': 1.0" in compared
    assert "has the signatures embed, ids, tokenize" in garden
    for name, ids in (("old", "input_ids"), ("garden", "input_word_ids")):
        card = bert_keras.load_saved_model(folder / f"served_{name}").card
        assert ids in card["signatures"]["ids"]["inputs"]


def prepare_tokenizer(folder):
    lines = ["The ship sailed.", "A goat, a hill!", "The ship came home."]
    texts = {
        "books": "\n".join(lines * 4),
        "reports": "myositis myositis heals",
    }
    for name, text in texts.items():
        (folder / name).mkdir()
        (folder / name / "1.txt").write_text(text, encoding="utf-8")


def check_tokenizer(folder, _):
    learned = read_vocabulary(folder / "runs" / "vocab.txt")
    assert "ship" in learned
    extended = read_vocabulary(folder / "runs" / "extended.txt")
    assert extended[: len(learned)] == learned
    assert "myositis" in extended
    names = {}
    with contextlib.chdir(folder):
        for block in python_of("tokenizer"):
            exec(block, names)
    (batch,) = names["dataset"]
    assert batch.to_list() == names["tokenizer"](["An hour.", "Two."]).to_list()
    assert "<" in names["slices"] and ">" in names["slices"]
    assert names["larger"].vocabulary_size == len(names["extension"].vocabulary)


class Page(NamedTuple):
    """Toy data and flags with which the commands of a page take seconds.

    Attributes:
        prepare: function that fills an empty folder.
        smaller: part of a command -> words to append to the command.
        replaced: beginning of a word -> the word that takes its place.
        check: function of the folder and a list of the commands' output.
        before: part of a command -> index of the page's Python block that
            runs before the command.
        folder: folder of the page.
    """

    prepare: object = lambda folder: None
    smaller: dict = {}
    replaced: dict = {}
    check: object = lambda folder, printed: None
    before: dict = {}
    folder: str = "docs"


TWO_PHASES = (
    "--phase_2_sequence_length=24 --phase_2_max_predictions=4 "
    "--phase_2_batch_size=4"
)
TOY = {
    "--init=": "--init=toy",
    "--model=bert_keras_mini_en": "--model=toy",
}
TASKS = Page(
    prepare_tasks,
    {
        "finetune --task=sst2": "--epochs=1",
        "finetune --task=rte": "--epochs=1",
        "finetune --task=glue": "--learning_rate=1e-3 --epochs=1",
        "finetune --task=embed": "--epochs=1",
        "finetune --task=rank": "--epochs=1",
        "--matryoshka=": "--matryoshka=16,8",
        "--truncate_dim=": "--truncate_dim=8",
        "mine_negatives": "--range_min=0",
        "finetune --task=squad2": "--epochs=1 --sequence_length=64",
        "--task=spans": "--sequence_length=64",
        "conll2003 --recipe=concat_last_four": "--lstm_dim=4",
        "sst2 --data_dir=glue --recipe": "--epochs=1",
        "extract_features": "--recipe=last",
    },
    TOY,
)
PAGES = {
    "data": Page(
        prepare_data,
        {
            "create_pretraining_data": "--held_out_share=0.2",
            "vocab.txt --output=runs/data": "--workers=1",
            "--records": "--workers=1",
            "--packed": "--workers=1",
        },
        check=check_data,
    ),
    "data_sets": Page(
        prepare_data_sets,
        {
            "finetune": "--epochs=1",
            "create_pretraining_data": "--held_out_share=0.2 --workers=1",
        },
        TOY,
        check_data_sets,
    ),
    "domain": Page(
        prepare_domain,
        {
            "extend_vocabulary": "--num_words=3 --workers=1",
            "create_pretraining_data": "--held_out_share=0.3 --workers=1",
            "pretrain ": "--sequence_length=16 --max_predictions=3 "
            "--batch_size=8 --steps=40 --evaluations=1 --evaluation_steps=3 "
            "--learning_rate=1e-2 --dropout=0",
            "finetune": "--epochs=1 --batch_size=8 --sequence_length=16",
        },
        check=check_domain,
    ),
    "paper": Page(smaller={"reproduce": "--dry_run"}),
    "pretraining": Page(
        prepare_pretraining,
        {
            "create_pretraining_data": "--held_out_share=0.2 --workers=1 "
            "--sequence_length=24 --max_predictions=4",
            "pretrain ": "--sequence_length=16 --max_predictions=3 "
            "--batch_size=4 --steps=10 --num_layers=1 --hidden_dim=8 "
            "--num_heads=1 --evaluations=1 --evaluation_steps=2 "
            "--dtype=float32",
            # A run without a second phase refuses options of that phase.
            "pretrain --data=runs/data --output=runs/base": TWO_PHASES,
            "pretrain --data=runs/data --records": TWO_PHASES,
        },
    ),
    "finetuning": TASKS,
    "ner": TASKS,
    "question_answering": TASKS,
    "gpu": TASKS,
    "devices": TASKS,
    "own_data": TASKS,
    "features": TASKS,
    "embedding": TASKS,
    "serving": Page(prepare_serving, check=check_serving),
    "migrating": Page(prepare_migrating, check=check_migrating),
    "mini_en": Page(
        prepare_own_model,
        {
            "train_vocabulary": "--workers=1",
            "create_pretraining_data": "--workers=1",
            "pretrain ": "--sequence_length=16 --max_predictions=3 "
            "--batch_size=4 --steps=4 --phase_2_steps=2 "
            "--phase_2_sequence_length=24 --phase_2_max_predictions=4 "
            "--phase_2_batch_size=4 --evaluations=2 --evaluation_steps=2 "
            "--dtype=float32",
            "--size=mini": "--num_layers=1 --hidden_dim=8 --num_heads=1",
            "pack_preset": "--output=packed --batches=2",
        },
        check=check_own_model,
        before={"--init=runs/mini_tiled": 0},
        folder="tools/maintenance",
    ),
    "tokenizer": Page(
        prepare_tokenizer,
        {
            "train_vocabulary": "--vocabulary_size=120 --workers=1",
            "extend_vocabulary": "--num_words=3 --workers=1",
        },
        check=check_tokenizer,
    ),
    "benchmarks": Page(
        prepare_benchmarks,
        {
            "steps.py": "--turns=1 --lengths=16",
        },
        {"--init=": "--init=toy"},
        check_benchmarks,
    ),
}
QUICK = {"data", "data_sets", "domain", "paper", "tokenizer"}


@pytest.fixture
def small_rows(monkeypatch):
    """The benchmark rows at toy size, for this package only."""
    settings = {"size": "tiny", "batch": 1, "length": 16, "warm": 0}
    settings["predictions"] = 2
    for name, row in rows.ROWS.items():
        job = row.jobs[rows.THIS]
        if job.function == "step":
            job = job._replace(settings=job.settings | settings)
        small = row._replace(jobs={rows.THIS: job})
        monkeypatch.setitem(rows.ROWS, name, small)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.release if name in QUICK else pytest.mark.long,
        )
        for name in PAGES
    ],
)
def test_the_commands_of_a_page_run(name, tmp_path, small_rows, monkeypatch):
    page = PAGES[name]
    folder = str(tmp_path / "tfds")
    monkeypatch.setattr("tensorflow_datasets.core.constants.DATA_DIR", folder)
    page.prepare(tmp_path)
    printed = []
    for command in commands(f"{page.folder}/{name}.md"):
        text = " ".join(command)
        if command[:2] == ["-m", "pytest"] or command[0] == "-c":
            continue
        if command[0] == "tools/serve.py":  # it does not end
            continue
        for part, number in page.before.items():
            if part in text:
                with contextlib.chdir(tmp_path):
                    exec(python_of(name, page.folder)[number], {})
        script = script_of(command)
        words = command[len(script) :]
        for old, new in page.replaced.items():
            words = [new if w.startswith(old) else w for w in words]
        for part, more in page.smaller.items():
            words += more.split() if part in text else []
        done = call_script(*script, *words, folder=tmp_path)
        assert done.returncode == 0, (text, done.stderr[-3000:])
        printed.append(done.stdout)
    assert printed
    page.check(tmp_path, printed)
