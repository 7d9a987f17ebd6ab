r"""Fine-tune with `transformers.Trainer`; print scores and times as JSON.

    python trainer.py --task=mrpc --train=MRPC/train.tsv --dev=MRPC/dev.tsv \
        --init=all-MiniLM-L6-v2 --learning_rate=1e-4 --seed=0

The settings are the defaults of `official_tasks.finetune`, except the learning
rate, which is 1e-4 by default. Batches have 32 rows of up to 128 tokens,
bucketed by length. AdamW has epsilon 1e-6 and weight decay 0.01, except for
biases and norms. The learning rate has 10 % linear warm-up and linear decay.
Gradients are clipped to norm 1. SQuAD has windows of 384 tokens; a window
begins every 128 tokens. The script scores after each epoch and prints the best
score. With --epochs=0 it only scores. It runs on the CPU, and needs
transformers[torch], scikit-learn, SciPy and seqeval.
"""

import argparse
import csv
import json
import resource
import tempfile
import time

import numpy as np
import scipy.stats
import seqeval.metrics
import sklearn.metrics
import transformers
from torch.utils.data import SequentialSampler

from official_tasks.tasks.metrics import token_f1

# Task -> (columns of the texts, column of the label, True if the first line of
# the file is a header, name of the metric).
TABLES = {
    "cola": ((3,), 1, False, "matthews"),
    "sst2": ((0,), 1, True, "accuracy"),
    "mrpc": ((3, 4), 0, True, "f1"),
    "rte": ((1, 2), 3, True, "accuracy"),
    "stsb": ((7, 8), 9, True, "spearman"),
}
METRICS = {
    "accuracy": sklearn.metrics.accuracy_score,
    "f1": sklearn.metrics.f1_score,
    "matthews": sklearn.metrics.matthews_corrcoef,
    "spearman": lambda true, scores: scipy.stats.spearmanr(true, scores)[0],
}
IGNORED = -100  # PyTorch's cross-entropy ignores positions with this label.


def read_table(path, task):
    """Return two lists of a GLUE file: the texts of each row, and labels."""
    text_columns, label_column, header, _ = TABLES[task]
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = rows[1:] if header else rows
    texts = [[row[i].strip() for i in text_columns] for row in rows]
    return texts, [row[label_column] for row in rows]


def read_columns(path):
    """Return a list with a pair (words, tags) for each sentence of a file.

    Each line holds a word, a tab and a tag. An empty line ends a sentence. The
    prefix "en:" of a word is removed.
    """
    with open(path, encoding="utf-8") as file:
        blocks = file.read().split("\n\n")
    sentences = [
        [line.split("\t") for line in block.splitlines() if line.strip()]
        for block in blocks
    ]
    return [
        ([w.removeprefix("en:") for w, _ in s], [t for _, t in s])
        for s in sentences
        if s
    ]


def encode_tags(tokenizer, sentences, names):
    """Return rows of ids and labels. Only a word's first token has a label."""
    rows = []
    for words, tags in sentences:
        row = tokenizer(
            words, is_split_into_words=True, truncation=True, max_length=128
        )
        labels, previous = [], None
        for word in row.word_ids():
            is_first = word is not None and word != previous
            labels.append(names.index(tags[word]) if is_first else IGNORED)
            previous = word
        rows.append({**row, "labels": labels})
    return rows


def read_questions(path):
    """Return a dict for each question of a SQuAD file, with its context."""
    with open(path, encoding="utf-8") as file:
        articles = json.load(file)["data"]
    texts = [text for article in articles for text in article["paragraphs"]]
    return [{**text, **question} for text in texts for question in text["qas"]]


def encode_windows(tokenizer, questions):
    """Return windows (dicts of inputs and targets), and their sources.

    A source is a pair (index of the question, encoding of the window).
    """
    rows, sources = [], []
    for number, question in enumerate(questions):
        windows = tokenizer(
            *(question["question"], question["context"]),
            truncation="only_second",
            max_length=384,
            # `stride` is the number of context tokens that consecutive windows
            # share. A window has 383 tokens before its last [SEP]: [CLS],
            # question, [SEP] and a part of the context. The parts begin 128
            # tokens apart.
            stride=383
            - 128
            - len(tokenizer(question["question"])["input_ids"]),
            return_overflowing_tokens=True,
        )
        answer = question["answers"][0]
        first = answer["answer_start"]
        for i, window in enumerate(windows.encodings):
            start = window.char_to_token(first, 1)
            end = window.char_to_token(first + len(answer["text"]) - 1, 1)
            if start is None or end is None:
                start = end = 0  # [CLS], because part of the answer is outside
            row = {n: windows[n][i] for n in tokenizer.model_input_names}
            rows.append({**row, "start_positions": start, "end_positions": end})
            sources.append((number, window))
    return rows, sources


def score_answers(logits, questions, sources):
    """Return the mean F1 of each question's best span of at most 30 tokens."""
    best = {}
    for start, end, (number, window) in zip(*logits, sources, strict=True):
        size = len(window)
        sums = np.add.outer(start[:size], end[:size])
        lengths = np.subtract.outer(range(1, 1 + size), range(size)).T
        in_context = np.equal(window.sequence_ids, 1)
        allowed = np.outer(in_context, in_context) & (lengths > 0)
        sums[~(allowed & (lengths <= 30))] = -np.inf
        i, j = divmod(int(sums.argmax()), size)
        text = questions[number]["context"]
        found = sums[i, j], text[window.offsets[i][0] : window.offsets[j][1]]
        best[number] = max(best.get(number, found), found)
    scores = [
        max(token_f1(best[n][1], a["text"], False) for a in q["answers"])
        for n, q in enumerate(questions)
    ]
    return np.mean(scores)


def prepare(options, tokenizer):
    """Return (training rows, dev rows, model class, labels, metric)."""
    if options.task == "squad1":
        dev = read_questions(options.dev)
        dev_rows, sources = encode_windows(tokenizer, dev)
        train = read_questions(options.train) if options.epochs else []
        return (
            encode_windows(tokenizer, train)[0],
            dev_rows,
            transformers.AutoModelForQuestionAnswering,
            ["start", "end"],
            lambda logits, _: score_answers(logits, dev, sources),
        )
    if options.task == "wikiann":
        train, dev = read_columns(options.train), read_columns(options.dev)
        names = sorted({tag for _, tags in train for tag in tags})

        def score(logits, labels):
            true = [[names[i] for i in row if i != IGNORED] for row in labels]
            predicted = [
                [names[i] for i, label in zip(a, b, strict=True) if label >= 0]
                for a, b in zip(logits.argmax(-1), labels, strict=True)
            ]
            return seqeval.metrics.f1_score(true, predicted)

        model = transformers.AutoModelForTokenClassification
        rows = [encode_tags(tokenizer, x, names) for x in (train, dev)]
        return *rows, model, names, score
    tables = [read_table(p, options.task) for p in (options.train, options.dev)]
    metric = METRICS[TABLES[options.task][-1]]
    regression = options.task == "stsb"
    names = [""] if regression else sorted(set(tables[0][1]))
    rows = []
    for texts, labels in tables:
        encoded = tokenizer(
            *zip(*texts, strict=True), truncation=True, max_length=128
        )
        targets = [float(x) if regression else names.index(x) for x in labels]
        rows.append(
            [
                {**{name: encoded[name][i] for name in encoded}, "labels": y}
                for i, y in enumerate(targets)
            ]
        )

    def score(logits, labels):
        return metric(labels, logits[:, 0] if regression else logits.argmax(-1))

    model = transformers.AutoModelForSequenceClassification
    return *rows, model, names, score


def train(options):
    """Fine-tune; return a dict of the scores, times and memory of the run."""
    begin = time.time()
    transformers.set_seed(options.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.init)
    train, dev, model_class, names, score = prepare(options, tokenizer)
    model = model_class.from_pretrained(options.init, num_labels=len(names))
    padding = transformers.DataCollatorWithPadding
    if options.task == "wikiann":
        padding = transformers.DataCollatorForTokenClassification
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            folder,
            learning_rate=options.learning_rate,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            per_device_eval_batch_size=32,
            weight_decay=0.01,
            adam_epsilon=1e-6,
            warmup_steps=0.1,
            lr_scheduler_type="linear",
            max_grad_norm=1.0,
            train_sampling_strategy="group_by_length",
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=options.dtype == "mixed_bfloat16",
            seed=options.seed,
        )
        trainer = transformers.Trainer(
            model,
            settings,
            train_dataset=train,
            eval_dataset=dev,
            data_collator=padding(tokenizer),
            compute_metrics=lambda answers: {"score": float(score(*answers))},
        )
        # `score_answers` needs the logits in the order of the dev rows. With
        # "group_by_length", Trainer would reorder the dev rows.
        if options.task == "squad1":
            trainer._get_eval_sampler = SequentialSampler
        trainer.train() if options.epochs else trainer.evaluate()
    log = trainer.state.log_history
    scores = [x["eval_score"] for x in log if "eval_score" in x]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "score": max(scores),
        "scores": scores,
        "seconds": time.time() - begin,
        "processor": usage.ru_utime + usage.ru_stime,
        "megabytes": usage.ru_maxrss / 1024,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--task", choices=[*TABLES, "wikiann", "squad1"], required=True
    )
    for name in ("train", "dev", "init"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="float32")
    print(json.dumps(train(parser.parse_args())))


if __name__ == "__main__":
    main()
