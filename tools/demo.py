"""Runs all stages on real text, from documents to a SavedModel.

    bert-keras demo

In: nothing; the text is the documentation installed with Python and with this
package's dependencies. For each stage, this script prints a command and runs
it. Out: --output has the files of each stage, with a report.html for each
training. The script prints scores and baselines. The same command resumes an
interrupted run.

Takes about 5 minutes on two CPU cores with AVX-512.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import collections
import dataclasses
import os
import shlex
import shutil
import sys

import numpy as np

from bert_keras import files, json_files
from bert_keras.data.corpus import held_out
from bert_keras.data.sentences import document_sentences
from official_tasks import commands, progress, script
from official_tasks.documentation import read_documentation
from official_tasks.options import option
from official_tasks.tasks.forms.delimited import write_csv

# Large, because dev.csv needs enough held-out sentences of each library.
HELD_OUT_SHARE = 0.18
CLASSES = 8  # the libraries with the most held-out sentences
LENGTHS = range(30, 301)  # lengths of the task's sentences, in characters
TYPED = (
    "Returns the indices of the maximum values along an axis.",
    "The gradient of the loss is applied by the optimizer.",
    "If the file cannot be opened, an OSError is raised.",
    "The layer returns a tensor of the same shape as its input.",
    "Parse a date string in the format used by the calendar.",
)
# No dropout, because the text is not repeated often enough to overfit.
PRETRAIN = """--num_layers=2 --hidden_dim=256 --num_heads=4 --steps=900
--sequence_length=32 --max_predictions=5 --batch_size=64 --phase_2_steps=0
--learning_rate=1e-3 --warmup=0.1 --dropout=0 --bias_correction --evaluations=4
--evaluation_steps=50 --dtype=auto"""
FINETUNE = """--task=classify --sequence_length=32 --batch_size=32 --epochs=3
--learning_rate=3e-4 --dtype=auto"""
TRAIN_ROWS, DEV_ROWS = 8000, 2000
# Flags of --quick, for continuous integration: each stage trains only a little.
# In a command, these flags come last and override the same flags before them.
QUICK = {
    "train_vocabulary": "--vocabulary_size=3000",
    "pretrain": "--num_layers=1 --hidden_dim=128 --num_heads=2 --steps=60",
    "finetune": "--epochs=0.2",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this script."""

    output: str = option("runs/demo", "Folder of this run.")
    quick: bool = option(False, "Run every stage, but train little.")


def list_stages(folder):
    """Return a list with (script, flags, last file) for each stage.

    If the last file that the script writes exists, the stage is finished. The
    file is None for a script that itself skips finished work.
    """
    tune = (
        f"{FINETUNE} --train={folder}/task/train.csv "
        f"--dev={folder}/task/dev.csv --init={folder}/pretrain/model"
    )
    return [
        (
            "train_vocabulary",
            f"--input={folder}/documents.txt --vocabulary_size=8000 "
            f"--output={folder}/vocab.txt",
            "vocab.txt",
        ),
        (
            "create_pretraining_data",
            f"--input={folder}/documents.txt --layout=sentences "
            f"--vocabulary={folder}/vocab.txt --output={folder}/data "
            f"--held_out_share={HELD_OUT_SHARE}",
            None,
        ),
        (
            "pretrain",
            f"{PRETRAIN} --data={folder}/data --output={folder}/pretrain",
            None,
        ),
        ("finetune", f"{tune} --output={folder}/pretrained", None),
        ("finetune", f"{tune} --output={folder}/scratch --from_scratch", None),
        (
            "export",
            f"--model={folder}/pretrained/model,{folder}/pretrain/model "
            f"--output={folder}/served",
            "served/saved_model.pb",
        ),
        (
            "predict",
            f"--model={folder}/served --signature=classify "
            f"--input={folder}/typed.txt --output={folder}/answers.jsonl",
            None,
        ),
    ]


def main(values):
    folder = os.path.relpath(values.output)
    os.makedirs(folder, exist_ok=True)
    write_inputs(folder)
    modules = commands.find_commands()
    for name, words, last in list_stages(shlex.quote(folder)):
        if last and files.exists(os.path.join(folder, last)):
            continue
        words = shlex.split(words)
        words += QUICK.get(name, "").split() if values.quick else []
        command = f"bert-keras {name} {shlex.join(words)}"
        progress.console.print(command, soft_wrap=True)
        module, _ = modules[name]
        script.run_module([module, *words])
    program = "bert-keras"
    if not shutil.which(program):  # `make demo` installs it in .venv
        program = os.path.join(os.path.dirname(sys.executable), program)
        program = shlex.quote(os.path.relpath(program))
    quoted = shlex.quote(folder)
    lines = [
        *_list_scores(folder),
        f"Reports: {folder}/pretrain/report.html, "
        f"{folder}/pretrained/report.html",
        "With your data, a CSV file with the columns text and label:",
        "",
        f"{program} finetune --task=classify --train=yours.csv "
        f"--init={quoted}/pretrain/model --output=runs/yours",
        f"{program} export --model=runs/yours/model --output=runs/served",
    ]
    progress.console.print("\n".join(lines), soft_wrap=True)


def write_inputs(folder):
    """Write documents.txt, typed.txt, task/train.csv and task/dev.csv.

    The task is to predict the library whose documentation contains a sentence.
    Pre-training holds out the documents of dev.csv. The last stage classifies
    the sentences of typed.txt.
    """
    written = f"{folder}/documents.txt", f"{folder}/typed.txt"
    if all(map(os.path.exists, written)):
        return
    documents = list(read_documentation())
    _write_lines(  # a sentence a line, and an empty line after each document
        f"{folder}/documents.txt",
        (line for _, text in documents for line in (*text.paragraphs, "")),
    )
    sides = {side: collections.defaultdict(dict) for side in (False, True)}
    for library, document in documents:
        sentences = sides[held_out(document, HELD_OUT_SHARE)][library]
        for sentence in document_sentences(document):
            if len(sentence) in LENGTHS:
                sentences[sentence] = None  # each sentence once
    by_size = sorted(sides[True], key=lambda name: -len(sides[True][name]))
    generator = np.random.default_rng(0)
    os.makedirs(f"{folder}/task", exist_ok=True)
    for file, count in (("train", TRAIN_ROWS), ("dev", DEV_ROWS)):
        rows = [("text", "label")]
        for name in by_size[:CLASSES]:
            sentences = [*sides[file == "dev"][name]]
            order = generator.permutation(len(sentences))[: count // CLASSES]
            rows += [(sentences[index], name) for index in order]
        write_csv(f"{folder}/task/{file}.csv", rows)
    _write_lines(f"{folder}/typed.txt", TYPED)


def _write_lines(path, lines):
    with (
        files.atomic_output(path) as unfinished,
        open(unfinished, "w", encoding="utf-8") as file,
    ):
        file.writelines(f"{line}\n" for line in lines)


def _list_scores(folder):
    mlm = json_files.read_json(f"{folder}/pretrain/results.json")
    tuned, scratch = (
        json_files.read_json(f"{folder}/{name}/results.json")
        for name in ("pretrained", "scratch")
    )
    with files.open_file(f"{folder}/answers.jsonl", "r") as file:
        answers = list(map(json_files.parse_json, file))
    return [
        f"masked tokens: {mlm['mlm_accuracy']:.1%} right; most frequent token "
        f"as baseline: {mlm['mlm_unigram_baseline']:.1%}",
        f"next sentences: {mlm['nsp_accuracy']:.1%} right; more frequent class "
        f"as baseline: {mlm['nsp_majority_baseline']:.1%}",
        f"libraries of {tuned['dev_rows']:,} sentences: "
        f"{tuned['accuracy']:.1%} right; without pre-training: "
        f"{scratch['accuracy']:.1%}; largest class as baseline: "
        f"{tuned['majority_baseline']:.1%}",
        *(
            f"{row['inputs']['text']} -> {row['answer']['label']}"
            for row in answers
        ),
    ]


if __name__ == "__main__":
    script.start(main, Options)
