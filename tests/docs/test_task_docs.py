"""The commands of tasks, finetuning, own_data, features and embedding.md."""

import re

import numpy as np
import pytest
import tensorflow as tf
from glue_samples import write_glue
from page_commands import commands, script_of
from run_script import ROOT, call_script
from task_samples import save_toy_model, sentences, write_csv, write_reviews

PAGES = ("tasks", "finetuning", "own_data", "features", "embedding")
COMMANDS = [words for page in PAGES for words in commands(f"docs/{page}.md")]
# What makes a command small, by a word of it.
SMALLER = {
    "--task=mrpc": [],
    "--task=sst2": ["--epochs=1"],
    "--task=glue": ["--nogrid", "--epochs=1"],
    "--task=custom": [],
    "tools/extract_features.py": ["--recipe=last"],
    "--task=embedding": ["--epochs=1"],
    "--task=ranking": ["--epochs=1"],
    "tools/export.py": [],
    "tools/convert_checkpoint.py": [],
    "--task=conll2003": ["--lstm_dim=4"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    save_toy_model(folder / "toy", num_layers=6)  # as many as are named
    write_glue(folder / "glue")
    (folder / "DATA").mkdir()
    (folder / "DATA" / "glue").symlink_to(folder / "glue")
    for name, seed in (("reviews", 0), ("other", 1)):
        write_reviews(folder / f"{name}.csv", 60, seed)
        text = (folder / f"{name}.csv").read_text()
        (folder / f"{name}.csv").write_text("review,stars" + text[10:])
    texts = [text for text, _ in sentences(41)]
    rows = list(zip(texts[:20], texts[20:40], texts[21:], strict=True))
    header = ("text", "text_pair", "wrong")
    write_csv(folder / "triplets.csv", rows, header)
    write_csv(folder / "partners.csv", [row[:2] for row in rows], header[:2])
    rows = [(text,) for text, _ in sentences(9)]
    write_csv(folder / "new.csv", rows, header=("review",))
    (folder / "texts.txt").write_text("a good film\nthe cat sat\n")
    columns = "cat B-PER\nsat O\n\nthe O\ndog B-ORG\nran O\n\n" * 4
    names = {
        "conll2003": ("train.txt", "valid.txt"),
        "wnut17": ("wnut17train.conll", "emerging.dev.conll"),
        ".": ("train", "dev"),
    }
    for place, files in names.items():
        (folder / place).mkdir(exist_ok=True)
        for name in files:
            (folder / place / name).write_text(columns)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_runs(folder, command):
    toy = f"--init={folder / 'toy'}"
    small = [toy if word.startswith("--init=") else word for word in command]
    real = "--model=all-MiniLM-L6-v2"
    small = [f"--model={folder / 'toy'}" if w == real else w for w in small]
    if small[0].endswith("extract_features.py"):
        small = [w for w in small if not w.startswith("--model=")]
        small.append(f"--model={folder / 'toy'}")
    (more,) = (more for word, more in SMALLER.items() if word in command)
    if script_of(command)[-1] in ("official_tasks.evaluate", PREDICT):
        more = []
    done = call_script(
        *script_of(command),
        *small[len(script_of(command)) :],
        *more,
        folder=folder,
    )
    assert done.returncode == 0, done.stderr[-2000:]


PREDICT = "official_tasks.predict"


def test_the_python_of_tasks_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    names = {}
    for code in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
        exec(code, names)
    assert names["tags"].shape == (6,)
    tokenizer = names["preprocess"].tokenizer
    piece = int(names["pairs"]["token_ids"][0, names["first"]])
    assert tokenizer.id_to_token(piece) == "anna"
    strings = tf.constant(["An hour well spent.", ""])
    np.testing.assert_allclose(
        names["served"].serve(strings),
        names["model"](strings),
        atol=1e-5,
    )
