"""The whole job on real text: from documents to a SavedModel that answers.

    python tools/demo.py

In: nothing; the text is the documentation that is installed with Python.
--corpus reads other text: files, a folder, a glob in quotes or a data set, as
tools/train_vocabulary.py. Runs the other scripts one after another and prints
each command. Out, in --output: the output of each script, with a report.html
of each training; and on the terminal the scores next to their baselines. The
same command resumes an interrupted run.

Takes about 6 minutes on two CPU cores with AVX-512, 8 on two with AVX2.
"""

import official_tasks  # noqa: F401  first: it handles Ctrl-C

# isort: split
import os
import shlex
import subprocess
import sys

from absl import flags

from bert_keras import files, json_files
from bert_keras.data.corpus import held_out, read_documents
from bert_keras.interrupts import EXIT_CODE, Stopped
from bert_keras.run_folder import RunFolder
from official_tasks import commands, progress, script
from official_tasks.source_task import write_source_task

HELD_OUT_SHARE = 0.18  # enough sentences to score each library on
TYPED = (
    "Returns the indices of the maximum values along an axis.",
    "The gradient of the loss is applied by the optimizer.",
    "If the file cannot be opened, an OSError is raised.",
    "The layer returns a tensor of the same shape as its input.",
    "Parse a date string in the format used by the calendar.",
)
VOCABULARY = "--size=8000"
# No dropout: the text is not repeated often enough to overfit.
PRETRAIN = """--num_layers=2 --hidden_dim=256 --num_heads=4 --steps=900
--sequence_length=32 --max_predictions=5 --batch_size=64 --phase_2_steps=0
--learning_rate=1e-3 --warmup=0.1 --dropout=0 --bias_correction --evaluations=4
--evaluation_steps=50 --dtype=auto"""
FINETUNE = """--task=custom --sequence_length=32 --batch_size=16 --epochs=5
--seeds=3 --dtype=auto"""
ROWS = {"labels": 1000, "dev_rows": 2000}
# For continuous integration: every stage, little training. A later flag wins.
QUICK = {
    "vocabulary": "--size=3000",
    "pretrain": "--num_layers=1 --hidden_dim=128 --num_heads=2 --steps=60",
    "finetune": "--epochs=1 --seeds=1",
}
QUICK_ROWS = {"labels": 1000, "dev_rows": 600}


def define_flags():
    flags.DEFINE_string("corpus", "documentation:", "Text to learn from.")
    flags.DEFINE_string("output", "runs/demo", "Folder of this run.")
    script.define_seed("Seed of everything random.")
    flags.DEFINE_bool("quick", False, "Every stage, but little training.")


def list_stages(folder, corpus, seed, quick) -> dict:
    """Return name -> (script, name of its output in `folder`, flags)."""
    more = {name: text.split() if quick else [] for name, text in QUICK.items()}
    text = f"--input={corpus}"
    data = [
        f"--vocabulary={folder}/vocab.txt",
        "--norecords",
        f"--held_out_share={HELD_OUT_SHARE}",
    ]
    pretrain = [f"--data={folder}/data", f"--seed={seed}", *PRETRAIN.split()]
    tune = [
        *FINETUNE.split(),
        *more["finetune"],
        f"--train={folder}/task/train.csv",
        f"--dev={folder}/task/dev.csv",
        f"--init={folder}/pretrain/model",
        f"--seed={seed}",
    ]
    models = [f"--model={folder}/{m}/model" for m in ("pretrained", "pretrain")]
    ask = [
        f"--model={folder}/served",
        "--signature=classify",
        f"--input={folder}/typed.txt",
    ]
    return {
        "Vocabulary": (
            "train_vocabulary",
            "vocab.txt",
            [text, VOCABULARY, *more["vocabulary"]],
        ),
        "Examples": ("create_pretraining_data", "data", [text, *data]),
        "Pre-training": (
            "pretrain",
            "pretrain",
            [*pretrain, *more["pretrain"]],
        ),
        "Fine-tuning": ("finetune", "pretrained", tune),
        "From scratch": ("finetune", "scratch", [*tune, "--from_scratch"]),
        "Export": ("export", "served", models),
        "Answers": ("predict", "answers.jsonl", ask),
    }


def main(values):
    settings = {
        "corpus": values.corpus,
        "seed": values.seed,
        "quick": values.quick,
    }
    is_folder = os.path.isdir(values.corpus)
    inputs = (files.walk if is_folder else files.find)(values.corpus)
    with RunFolder(values.output, settings, inputs) as folder:
        _write_task(folder, values)
        stages = list_stages(values.output, **settings)
        for number, (name, stage) in enumerate(stages.items(), 1):
            progress.console.print(f"{number}. {name}")
            _run_once(folder, name, *stage)
    lines = [
        *_list_scores(values.output),
        f"Reports: {values.output}/pretrain/report.html, "
        f"{values.output}/pretrained/report.html",
        f"With your data:\n\n{_next_commands(values.output)}\n",
    ]
    progress.console.print("\n".join(lines), soft_wrap=True)


def _list_scores(folder):
    """Return a line for each score, with its baseline, and each answer."""
    mlm = json_files.read_json(f"{folder}/pretrain/results.json")
    tuned, scratch = (
        json_files.read_json(f"{folder}/{name}/results.json")
        for name in ("pretrained", "scratch")
    )
    accuracies = [
        run.get("mean") or run["accuracy"] for run in (tuned, scratch)
    ]
    with files.open_file(f"{folder}/answers.jsonl", "r") as file:
        answers = list(map(json_files.parse_json, file))
    return [
        f"masked tokens: {mlm['mlm_accuracy']:.1%} right; always the most "
        f"frequent one: {mlm['mlm_unigram_baseline']:.1%}",
        f"next sentences: {mlm['nsp_accuracy']:.1%} right; always the more "
        f"frequent answer: {mlm['nsp_majority_baseline']:.1%}",
        f"sources of {tuned['dev_rows']:,} sentences: {accuracies[0]:.1%} "
        f"right; from random weights: {accuracies[1]:.1%}; always the largest "
        f"class: {tuned['majority_baseline']:.1%}",
        *(
            f"{row['inputs']['text']} -> {row['answer']['label']}"
            for row in answers
        ),
    ]


def _write_task(folder, values):
    """Write the rows to fine-tune on: train and held-out documents apart."""
    if folder.read_results("task") is not None:
        return
    sides: dict = {False: [], True: []}
    for document in read_documents(values.corpus):
        sides[held_out(document, HELD_OUT_SHARE)].append(document)
    with folder.output("task") as path:
        os.makedirs(path)
        rows = QUICK_ROWS if values.quick else ROWS
        write_source_task(
            sides[False], sides[True], path, **rows, seed=values.seed
        )
    with folder.output("typed.txt") as path, open(path, "w") as file:
        file.write("\n".join(TYPED) + "\n")
    folder.finish("task", {}, ["task", "typed.txt"])


def _run_once(folder, name, command, output, words):
    """Run a script unless the stage is done."""
    if folder.read_results(name) is None:
        path = os.path.relpath(folder.file(output))
        _run(command, [*words, f"--output={path}"])
        folder.finish(name, {}, [output])


def _run(command, words):
    """Run a script in a separate process; end with its exit code if not 0."""
    progress.console.print(
        f"bert-keras {command} {shlex.join(words)}", soft_wrap=True
    )
    module, _ = commands.find_commands()[command]
    process = subprocess.Popen([sys.executable, "-m", module, *words])
    try:
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code == EXIT_CODE:
        raise Stopped
    if code:
        sys.exit(code)


def _next_commands(folder):
    """Return two commands for the user's data, for this Python.

    No shell may have activated its environment.
    """
    python = os.path.relpath(sys.executable)
    if python.startswith(os.pardir):
        python = sys.executable
    init = os.path.relpath(os.path.join(folder, "pretrain", "model"))
    tune = "--task=custom --train=yours.csv --text=text --label=label"
    tune = [*tune.split(), f"--init={init}", "--output=runs/yours"]
    export = ["--model=runs/yours/model", "--output=runs/yours/served"]
    return "\n".join(
        shlex.join([python, "-m", f"official_tasks.{module}", *words])
        for module, words in (("finetune", tune), ("tools.export", export))
    )


if __name__ == "__main__":
    script.start(main, define_flags)
