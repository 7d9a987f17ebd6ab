"""The commands of docs/domain.md, at toy size."""

import json

import pytest
from page_commands import small_commands
from run_script import call_script
from toy_pretraining import documents, save_pretrainer

import bert_keras

# Appended to each command, so that it takes seconds.
SMALLER = {
    "extend_vocabulary": "--words=3 --workers=1",
    "create_pretraining_data": "--held_out_share=0.3 --workers=1",
    "pretrain": "--sequence_length=16 --max_predictions=3 --batch_size=8 "
    "--steps=40 --evaluations=1 --evaluation_steps=3 --learning_rate=1e-2 "
    "--dropout=0",
    "tool": "",
    "finetune": "--epochs=1 --batch_size=8 --sequence_length=16",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder after all commands, and what each printed."""
    folder = tmp_path_factory.mktemp("domain")
    save_pretrainer(folder / "runs" / "base")
    (folder / "reports").mkdir()
    for document in documents():
        text = "\n".join(document.paragraphs)
        text = text.replace("ship", "tinker").replace("goat", "tintin")
        (folder / "reports" / f"{document.name}.txt").write_text(text)
    rows = [f"the old {w} sang,{w}" for w in ("tinker", "tintin") * 12]
    (folder / "yours.csv").write_text("\n".join(["text,label", *rows]))
    printed = {}
    for name, command in small_commands("docs/domain.md", SMALLER):
        finished = call_script(*command, folder=folder)
        assert finished.returncode == 0, finished.stderr[-3000:]
        printed[name] = finished.stdout
    assert list(printed) == list(SMALLER)
    return folder, printed


def test_the_words_of_the_domain_become_pieces(done):
    folder, _ = done
    old = (folder / "runs" / "base" / "vocab.txt").read_text().split()
    new = (folder / "runs" / "extended.txt").read_text().split()
    preprocess = bert_keras.BertPreprocessor.from_preset(
        folder / "runs" / "domain" / "model"
    )
    assert preprocess.tokenizer.vocabulary == new
    assert "tinker" in new and "tinker" not in old


def test_going_on_learns_the_domain(done):
    folder, printed = done
    results = json.loads((folder / "runs/domain/results.json").read_text())
    assert results["mlm_perplexity"] < results["before"]["mlm_perplexity"]
    shown = f"(before the first step: {results['before']['mlm_perplexity']:.4g}"
    assert shown in printed["pretrain"]
