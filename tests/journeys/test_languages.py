"""Vocabulary, pre-training, fine-tuning and export in four languages.

The toy texts are about people in towns. German keeps its case and accents,
Russian and Arabic lose them, Chinese has no spaces.
"""

import json
import re
import shutil
import unicodedata

import numpy as np
import pytest

import bert_keras
from tests.support.run_script import ROOT, call_script
from tests.support.task_samples import read_csv, write_csv

# Language -> vocabulary flags, people, towns, a sentence per class, question.
LANGUAGES = {
    "chinese": (
        "",
        "王小明 李娜 张伟 刘洋 陈静 赵敏".split(),
        "北京 上海 广州 南京 成都 西安".split(),
        {"home": "{}住在{}。", "work": "我们知道{}在{}工作。"},
        "谁？",
    ),
    "arabic": (
        "--strip_accents",
        ["مُحَمَّد علي", "أحمد", "فاطمة حسن", "ليلى", "يوسف", "مريم"],
        ["القاهرة", "بيروت", "دمشق", "بغداد", "الرباط", "تونس"],
        {"home": "يسكن {} في {}.", "work": "هل يعمل {} في مدينة {}؟"},
        "من؟",
    ),
    "russian": (
        "--strip_accents",
        ["Фёдор Королёв", "Анна", "Андрей", "Зоя Майорова", "Юрий", "Пётр"],
        ["Москва", "Бийск", "Омск", "Орёл", "Королёв", "Нижний Новгород"],
        {"home": "{} живёт в городе {}.", "work": "Работает ли {} в {}?"},
        "Кто?",
    ),
    "german": (
        "--nolowercase --nostrip_accents",
        ["Jürgen Groß", "Käthe", "Björn Öhler", "Anna-Lena", "Götz", "Sören"],
        ["Köln", "München", "Görlitz", "Gießen", "Wien", "Bad Tölz"],
        {"home": "{} wohnt in {}.", "work": "Arbeitet {} auch in {}?"},
        "Wer?",
    ),
}
SMALL = "--sequence_length=48 --batch_size=16 --learning_rate=3e-3 --epochs=40"


def rows_of(language):
    """Return rows of (text, class, spans of the person and of the town)."""
    _, people, towns, sentences, _ = LANGUAGES[language]
    rows = []
    for label, sentence in sentences.items():
        for person in people:
            for town in towns:
                before, between, _ = sentence.split("{}")
                text = sentence.format(person, town)
                first = len(before)
                second = first + len(person) + len(between)
                spans = [[first, first + len(person), "PER"]]
                spans.append([second, second + len(town), "LOC"])
                rows.append((text, label, spans))
    return rows


def run(folder, command):
    """Run a script in this process, in `folder`."""
    done = call_script(*command.split(), folder=folder)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module", params=LANGUAGES)
def job(request, tmp_path_factory):
    """Language, its rows, and the folder after all scripts have run."""
    language = request.param
    folder = tmp_path_factory.mktemp(language)
    (folder / "books").mkdir()
    rows = rows_of(language)
    question = LANGUAGES[language][-1]
    for number in range(12):
        lines = [text for text, _, _ in rows[number::12]]
        (folder / f"books/{number}.txt").write_text("\n".join(lines), "utf-8")
    write_csv(folder / "classes.csv", [row[:2] for row in rows])
    spans = [{"text": text, "spans": spans} for text, _, spans in rows]
    lines = [json.dumps(row, ensure_ascii=False) for row in spans]
    (folder / "tags.jsonl").write_text("\n".join(lines), "utf-8")
    answers = [
        (question, text, text[start:end], start)
        for text, _, ((start, end, _), _) in rows
    ]
    header = ("question", "context", "answer", "start")
    write_csv(folder / "answers.csv", answers, header)
    tools = ROOT / "tools"
    run(
        folder,
        f"{tools}/train_vocabulary.py --input=books --output=vocab.txt "
        f"--vocabulary_size=200 --workers=1 {LANGUAGES[language][0]}",
    )
    run(
        folder,
        f"{tools}/create_pretraining_data.py --input=books --output=data "
        "--vocabulary=vocab.txt --held_out_share=0.3 --workers=1",
    )
    run(
        folder,
        "-m official_tasks.pretrain --data=data --output=pretrain --steps=10 "
        "--num_layers=1 --hidden_dim=32 --num_heads=2 --sequence_length=48 "
        "--max_predictions=5 --batch_size=8 --evaluations=1 "
        "--phase_2_steps=0 --evaluation_steps=1",
    )
    for name, flags in (
        ("classes", "--task=classify --train=classes.csv"),
        ("tags", "--task=tags --spans=spans --train=tags.jsonl"),
        ("answers", "--task=spans --train=answers.csv --start=start"),
    ):
        run(
            folder,
            f"-m official_tasks.finetune {flags} --init=pretrain/model "
            f"--output={name} {SMALL}",
        )
    run(
        folder,
        f"{tools}/export.py --model=classes/model,tags/model,answers/model "
        "--long_text=windows --output=served",
    )
    return language, rows, folder


pytestmark = pytest.mark.long


def test_the_vocabulary_has_the_words_of_the_language(job):
    _, rows, folder = job
    preprocess = bert_keras.BertPreprocessor.from_preset(folder / "tags/model")
    ids = preprocess.tokenizer([text for text, _, _ in rows])
    assert not (ids.flat_values == preprocess.tokenizer.unk_id).numpy().any()


def test_classes_tags_and_answers_are_learned_and_cut_from_the_text(job):
    language, rows, folder = job
    served = bert_keras.load_saved_model(folder / "served")
    texts = [text for text, _, _ in rows]
    found = served.classify(texts)["label"]
    assert np.mean(np.array(found) == [label for _, label, _ in rows]) > 0.8
    tags = served.tag(texts)
    question = LANGUAGES[language][-1]
    answers = served.answer([question] * len(texts), texts)
    right = []
    for row, (text, _, expected) in enumerate(rows):
        spans = [
            [
                int(tags["start"][row][i]),
                int(tags["end"][row][i]),
                tags["type"][row][i],
            ]
            for i in range(int(tags["count"][row]))
        ]
        start, end = answers["start"][row][0], answers["end"][row][0]
        right.append((spans == expected, [start, end] == expected[0][:2]))
        cut = [text[a:b] for a, b, _ in spans]
        assert tags["text"][row][: len(spans)] == cut
        assert answers["answer"][row][0] == text[start:end]
    assert (np.mean(right, axis=0) > 0.8).all()


def test_every_span_is_whole_in_decomposed_text_of_several_lines(job):
    """In decomposed text, offsets count accents as separate characters."""
    language, rows, folder = job
    served = bert_keras.load_saved_model(folder / "served")
    plain = [unicodedata.normalize("NFD", text) for text, _, _ in rows[::7]]
    texts = [*plain, "\r\n\u3000".join(plain)]
    tags = served.tag(texts)
    answers = served.answer([LANGUAGES[language][-1]] * len(texts), texts)
    for holder, name in ((tags, "text"), (answers, "answer")):
        assert sum(holder["count"]) >= len(texts)
        for row, text in enumerate(texts):
            for i in range(int(holder["count"][row])):
                start, end = holder["start"][row][i], holder["end"][row][i]
                before, part, rest = text[:start], text[start:end], text[end:]
                assert holder[name][row][i] == part != ""
                assert not unicodedata.combining(part[0])
                assert not unicodedata.combining(rest[:1] or ".")
                if language != "chinese" and name == "text":  # whole words
                    assert not re.search(r"\w$", before) or part[0] == "-"
                    assert not re.match(r"\w", rest) or part[-1] == "-"


def test_predictions_are_written_as_the_export_answers(job, tmp_path):
    language, rows, folder = job
    folder = shutil.copytree(folder, tmp_path / "job")
    run(
        folder,
        "-m official_tasks.predict --task=spans --split=test "
        "--test=answers.csv --model=answers --output=predicted",
    )
    run(
        folder,
        "-m official_tasks.predict --task=classify --split=test "
        "--test=classes.csv --model=classes --output=predicted_classes",
    )
    written = read_csv(folder / "predicted_classes/predictions.csv")
    assert [row["text"] for row in written] == [text for text, _, _ in rows]
    predicted = json.loads(
        (folder / "predicted/predictions.json").read_text("utf-8")
    )
    served = bert_keras.load_saved_model(folder / "served")
    texts = [text for text, _, _ in rows]
    answers = served.answer([LANGUAGES[language][-1]] * len(texts), texts)
    assert list(predicted.values()) == [row[0] for row in answers["answer"]]
