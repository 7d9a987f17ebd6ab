r"""Fine-tune with `transformers.Trainer` and print its score as JSON.

    python trainer.py --task=mrpc --train=MRPC/train.tsv --dev=MRPC/dev.tsv \
        --init=all-MiniLM-L6-v2 --learning_rate=1e-4 --seed=0

The settings are the defaults of `official_tasks.finetune`: batches of 32,
bucketed by length, AdamW with decoupled decay of 0.01 except on biases and
norms, epsilon 1e-6, 10 % linear warm-up, linear decay, gradients clipped to 1,
128 tokens. It scores after each epoch and prints the best score. Needs
transformers, scikit-learn, SciPy and seqeval, and nothing of this package.
"""

import argparse
import csv
import json
import resource
import tempfile
import time

import scipy.stats
import seqeval.metrics
import sklearn.metrics
import transformers

# Task -> columns of the texts, column of the label, True if the first line is a
# header, name of the metric.
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
IGNORED = -100  # PyTorch's cross-entropy leaves these positions out.


def read_table(path, task):
    """Return (texts of each row, labels as strings) of a file of GLUE."""
    text_columns, label_column, header, _ = TABLES[task]
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = rows[1:] if header else rows
    texts = [[row[i].strip() for i in text_columns] for row in rows]
    return texts, [row[label_column] for row in rows]


def read_columns(path):
    """Return (words, tags) of each sentence: a word, a tab and a tag a line."""
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
    """Return encoded rows; the first token of each word has its tag."""
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


def prepare(options, tokenizer):
    """Return (training rows, dev rows, model class, labels, metric)."""
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
    """Return a dict of the scores, seconds and memory of a run."""
    begin = time.time()
    transformers.set_seed(options.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.init)
    train, dev, model_class, names, score = prepare(options, tokenizer)
    model = model_class.from_pretrained(options.init, num_labels=len(names))
    collator = transformers.DataCollatorWithPadding
    if options.task == "wikiann":
        collator = transformers.DataCollatorForTokenClassification
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
            data_collator=collator(tokenizer),
            compute_metrics=lambda answers: {"score": float(score(*answers))},
        )
        trainer.train()
    scores = [
        entry["eval_score"]
        for entry in trainer.state.log_history
        if "eval_score" in entry
    ]
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
    parser.add_argument("--task", choices=[*TABLES, "wikiann"], required=True)
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
