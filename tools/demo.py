"""Runs all stages on real text, from documents to a SavedModel.

    bert-keras demo

In: nothing; the text is the documentation installed with Python and with this
package's dependencies. For each stage, this script prints a command and runs
it. A model is pre-trained; then taggers learn from few labelled sentences,
starting from random weights, from this model and from the packaged model. Out:
--output has the files of each stage, with a report.html for each training. The
script prints scores, and the answer of the served tagger to a sentence. The
same command resumes an interrupted run.

Takes about 3 minutes on two CPU cores.
"""

import official_tasks  # noqa: F401  import first, because it handles Ctrl-C

# isort: split
import dataclasses
import json
import os
import shlex
import shutil
import sys

import numpy as np

from bert_keras import files, json_files
from bert_keras.data.corpus import held_out
from official_tasks import cli, progress
from official_tasks.documentation import read_documentation
from official_tasks.loading import LEVEL
from official_tasks.options import option

HELD_OUT_SHARE = 0.1
LENGTHS = range(30, 101)  # lengths of the task's sentences, in characters
TRAIN_ROWS, DEV_ROWS = 500, 1000
TYPED = "Raises ValueError if x has no dtype and name is None."
# F1 of three seeds of fine-tuning on an AMD EPYC: from random weights 0.275 to
# 0.282, from these 0.459 to 0.503, from bert_keras_mini_en 0.636 to 0.657.
# No dropout, because the text is not repeated often enough to overfit.
PRETRAIN = """--num_layers=2 --hidden_dim=128 --num_heads=2 --steps=2000
--sequence_length=32 --max_predictions=5 --batch_size=64 --phase_2_steps=0
--learning_rate=2e-3 --warmup=0.1 --dropout=0 --bias_correction --evaluations=4
--evaluation_steps=20 --dtype=auto"""
FINETUNE = """--task=tags --text=text --spans=spans --sequence_length=32
--batch_size=16 --epochs=5 --evaluations=2 --learning_rate=1e-3 --dtype=auto"""
SPREAD = 0.05  # F1 differs by less than this between three seeds
HELPFUL = 0.19  # with 17% of the masked tokens right, there is no gain
# Folder of a fine-tuning run -> the weights that it starts from.
STARTS = {
    "random": "random weights",
    "pretrained": "weights pre-trained above",
    "packaged": "bert_keras_mini_en, pre-trained for hours",
}
# Flags of --quick, for continuous integration: each stage trains only a little.
# In a command, these flags come last and override the same flags before them.
QUICK = {
    "train_vocabulary": "--vocabulary_size=3000",
    "pretrain": "--num_layers=1 --steps=60",
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
        f"{FINETUNE} --train={folder}/task/train.jsonl "
        f"--dev={folder}/task/dev.jsonl"
    )
    own = f"--init={folder}/pretrain/model"
    return [
        (
            "train_vocabulary",
            f"--input={folder}/documents.txt --vocabulary_size=4000 "
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
        (
            "finetune",
            f"{tune} {own} --from_scratch --output={folder}/random",
            None,
        ),
        ("finetune", f"{tune} {own} --output={folder}/pretrained", None),
        (
            "finetune",
            f"{tune} --init=bert_keras_mini_en --output={folder}/packaged",
            None,
        ),
        (
            "export",
            f"--model={folder}/packaged/model --output={folder}/served",
            "served/saved_model.pb",
        ),
        (
            "predict",
            f"--model={folder}/served --input={folder}/typed.txt "
            f"--output={folder}/answers.jsonl",
            None,
        ),
    ]


def main(values):
    folder = os.path.relpath(values.output)
    os.makedirs(folder, exist_ok=True)
    # `cli.start` sets 1 by default. With 3, TensorFlow also hides its errors
    # about oneDNN, which are harmless; errors that matter are exceptions.
    if os.environ.get(LEVEL) == "1":
        os.environ[LEVEL] = "3"
    write_inputs(folder)
    modules = cli.find_commands()
    for name, words, last in list_stages(shlex.quote(folder)):
        if last and files.exists(os.path.join(folder, last)):
            continue
        words = shlex.split(words)
        words += QUICK.get(name, "").split() if values.quick else []
        command = f"bert-keras {name} {shlex.join(words)}"
        progress.console.print(command, soft_wrap=True)
        module, _ = modules[name]
        cli.run_module([module, *words])
    program = "bert-keras"
    if not shutil.which(program):  # `make demo` installs it in .venv
        program = os.path.join(os.path.dirname(sys.executable), program)
        program = shlex.quote(os.path.relpath(program))
    lines = [
        *list_scores(folder, values.quick),
        *_list_answer(folder),
        *_list_next(program, shlex.quote(folder)),
    ]
    progress.console.print("\n".join(lines), soft_wrap=True)


def write_inputs(folder):
    """Write documents.txt, typed.txt, task/train.jsonl and task/dev.jsonl.

    The task is to find the code names in a sentence. The documentation has them
    in backquotes, which the sentences lack. Pre-training holds out the
    documents of dev.jsonl. The last stage reads typed.txt.
    """
    written = f"{folder}/documents.txt", f"{folder}/typed.txt"
    if all(map(os.path.exists, written)):
        return
    modules = list(read_documentation())
    _write_lines(  # a sentence a line, and an empty line after each document
        f"{folder}/documents.txt",
        (line for text, _ in modules for line in (*text.paragraphs, "")),
    )
    rows = {"train": [], "dev": []}
    for document, names in modules:
        is_dev = held_out(document, HELD_OUT_SHARE)
        rows["dev" if is_dev else "train"] += [
            {"text": text, "spans": [[*name, "code"] for name in found]}
            for text, found in zip(document.paragraphs, names, strict=True)
            if found and len(text) in LENGTHS
        ]
    generator = np.random.default_rng(0)
    os.makedirs(f"{folder}/task", exist_ok=True)
    for file, count in (("train", TRAIN_ROWS), ("dev", DEV_ROWS)):
        order = generator.permutation(len(rows[file]))[:count]
        _write_lines(
            f"{folder}/task/{file}.jsonl",
            (json.dumps(rows[file][index]) for index in order),
        )
    _write_lines(f"{folder}/typed.txt", [TYPED])


def _write_lines(path, lines):
    with (
        files.atomic_output(path) as unfinished,
        open(unfinished, "w", encoding="utf-8") as file,
    ):
        file.writelines(f"{line}\n" for line in lines)


def list_scores(folder, quick):
    """Return lines that compare the scores with baselines and each other."""
    mlm = json_files.read_json(f"{folder}/pretrain/results.json")
    scores = {
        name: json_files.read_json(f"{folder}/{name}/results.json")["f1"]
        for name in STARTS
    }
    random, own, packaged = scores.values()
    if quick:
        verdict = (
            "This says nothing about pre-training: --quick ends each training "
            "before it has learned the task."
        )
    elif min(own - random, packaged - own) > SPREAD:
        verdict = (
            "Pre-training on text without labels helps; a larger model and "
            "more text help more."
        )
    else:
        verdict = (
            "Each start should be better than the one above by more than the "
            f"{SPREAD:.0%} by which seeds differ. Here it is not. Pre-training "
            f"helps this task from {HELPFUL:.0%} of the masked tokens right "
            "on; with fewer, raise --steps of PRETRAIN in tools/demo.py."
        )
    return [
        "",
        f"Pre-training: {mlm['mlm_accuracy']:.1%} of the masked tokens right "
        f"(always the most frequent token: {mlm['mlm_unigram_baseline']:.1%}), "
        f"{mlm['nsp_accuracy']:.1%} of the next sentences (more frequent "
        f"class: {mlm['nsp_majority_baseline']:.1%}).",
        f"Fine-tuning finds code names in sentences. F1 in {DEV_ROWS:,} new "
        f"sentences after {TRAIN_ROWS:,} labelled ones, starting from",
        *(
            f"  {start + ':':43}{scores[name]:6.1%}"
            for name, start in STARTS.items()
        ),
        verdict,
    ]


def _list_answer(folder):
    with files.open_file(f"{folder}/answers.jsonl", "r") as file:
        row = json_files.parse_json(file.readline())
    names = ", ".join(row["answer"]["text"]) or "no code names"
    return ["", f"The served tagger reads: {row['inputs']['text']}", names]


def _list_next(program, folder):
    return [
        "",
        "Made, with a report.html next to each model:",
        f"{folder}/pretrain/model: BERT from this text, to fine-tune",
        f"{folder}/packaged/model: a tagger that finds code names",
        f"{folder}/served: this tagger as a SavedModel that takes text",
        "",
        "Next: let it read a sentence of yours; then fine-tune on a CSV file "
        "with the columns text and label:",
        f'echo "Returns None if name is empty." | {program} predict '
        f"--model={folder}/served",
        f"{program} finetune --train=yours.csv --init=bert_keras_mini_en "
        "--output=runs/yours",
        f"{program} export --model=runs/yours/model --output=runs/served",
    ]


if __name__ == "__main__":
    cli.start(main, Options)
