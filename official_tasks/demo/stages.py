"""The seven stages of the demo, from documents to a SavedModel that answers.

A stage is a function of the run and of the results of the stages before it. It
calls what the scripts call and returns its figures, with one "line" of them for
the terminal; its docstring is printed as its heading.
"""

import functools
import itertools
import os
import re
import statistics
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import bert_keras
from bert_keras import files
from bert_keras.data.corpus import (
    corpus_hash,
    held_out,
    paragraphs,
    read_documents,
)
from bert_keras.data.pretraining_data import create_pretraining_data
from bert_keras.data.sampling import SamplingRules
from bert_keras.run_folder import RunFolder
from bert_keras.serving.verify import (
    answer_in_fresh_process,
    greatest_difference,
)
from bert_keras.text.learning import learn_vocabulary
from bert_keras.text.vocabulary import read_vocabulary, write_vocabulary
from official_tasks import progress
from official_tasks.demo.source_task import write_source_task
from official_tasks.engine import finetuning, processes
from official_tasks.pretraining import runner
from official_tasks.tasks.custom import CustomTask

# What the SavedModel is asked to classify, in a process of TensorFlow alone.
TYPED = (
    "Returns the indices of the maximum values along an axis.",
    "The gradient of the loss is applied by the optimizer.",
    "If the file cannot be opened, an OSError is raised.",
    "The layer returns a tensor of the same shape as its input.",
    "Parse a date string in the format used by the calendar.",
)
SIDES = "pretrained", "scratch"
SENTENCES = 12  # shown in the report
PACKAGED = "bert_keras_mini_en"  # its guesses are shown too
WORD = re.compile(r"(?<!\S)[a-z]{2,}(?![\w-])")

HELD_OUT_SHARE = 0.18  # enough sentences to score each library on


class Settings(NamedTuple):
    """What decides the demo's size; see `FULL` and `QUICK`."""

    vocabulary_size: int
    sequence_length: int
    max_predictions: int
    num_layers: int
    hidden_dim: int
    batch_size: int
    steps: int
    learning_rate: float
    labels: int
    dev_rows: int
    epochs: float
    rates: tuple[float, ...]
    seeds: int


class Demo(NamedTuple):
    """One run: where it lies and what decides it."""

    folder: RunFolder
    corpus: str
    seed: int
    settings: Settings
    dtype: str

    def documents(self, side=None):
        """The corpus, read once; `side` is "train", "held_out" or None."""
        everything = _read(self.corpus)
        if side is None:
            return everything
        wanted = side == "held_out"
        return [
            document
            for document in everything
            if held_out(document, HELD_OUT_SHARE) == wanted
        ]


@functools.cache
def _read(corpus):
    documents = []
    with progress.bar("Reading") as update:
        for document in read_documents(corpus):
            documents.append(document)
            if len(documents) % 50 == 0:
                update(len(documents))
        update(len(documents), len(documents))
    return documents


def corpus_stage(demo, results):
    """Documents of real English, some of them held out by a hash."""
    documents = demo.documents()
    characters = sum(map(len, paragraphs(documents)))
    kept = len(demo.documents("held_out"))
    return {
        "documents": len(documents),
        "characters": characters,
        "corpus_hash": corpus_hash(documents),
        "line": f"{len(documents):,} documents, {characters / 1e6:.1f} million "
        f"characters; {kept:,} documents held out",
    }


def vocabulary_stage(demo, results):
    """WordPieces learned from the training documents."""
    texts = paragraphs(demo.documents("train"))
    with progress.bar("Learning pieces") as update:
        tokens = learn_vocabulary(
            texts, demo.settings.vocabulary_size, progress=update
        )
    write_vocabulary(tokens, demo.folder.file("vocab.txt"))
    words = [token for token in tokens if len(token) > 9]
    return {
        "pieces": len(tokens),
        "line": f"{len(tokens):,} pieces, such as {', '.join(words[:4])}",
    }


def examples_stage(demo, results):
    """Sentence pairs and masks by the paper's sampling rules."""
    settings = demo.settings
    tokenizer = bert_keras.WordPieceTokenizer(
        read_vocabulary(demo.folder.file("vocab.txt"))
    )
    with progress.stages("Examples") as update:
        manifests = create_pretraining_data(
            demo.documents(),
            tokenizer,
            demo.folder.file("data"),
            SamplingRules(settings.sequence_length, settings.max_predictions),
            seed=demo.seed,
            held_out_share=HELD_OUT_SHARE,
            progress=update,
        )
    totals = {
        name: sum(manifest[name] for manifest in manifests.values())
        for name in ("sentences", "tokens")
    }
    examples = {
        side: sum(shard["examples"] for shard in manifest["shards"])
        for side, manifest in manifests.items()
    }
    return {
        **totals,
        "examples": examples,
        "line": f"{totals['sentences']:,} sentences, {totals['tokens']:,} "
        f"tokens; {examples['train']:,} examples an epoch, "
        f"{examples['held_out']:,} held out",
    }


def pretraining_stage(demo, results):
    """Masked pieces and next sentence, together."""
    settings = demo.settings
    figures = runner.run(
        demo.folder.file("data"),
        demo.folder.file("pretrain"),
        num_layers=settings.num_layers,
        hidden_dim=settings.hidden_dim,
        num_heads=settings.hidden_dim // 64,
        sequence_length=settings.sequence_length,
        max_predictions=settings.max_predictions,
        batch_size=settings.batch_size,
        steps=settings.steps,
        phase_2_steps=0,
        learning_rate=settings.learning_rate,
        warmup=0.1,
        dropout=0.0,  # no text is seen often enough to be learned by heart
        bias_correction=True,
        evaluations=4,
        evaluation_steps=50,
        seed=demo.seed,
        dtype=demo.dtype,
    )
    return {
        **figures,
        "line": f"held out: {figures['mlm_accuracy']:.1%} of masked pieces "
        f"(the commonest alone: {figures['mlm_unigram_baseline']:.1%}), "
        f"{figures['nsp_accuracy']:.1%} of next sentences",
    }


def finetuning_stage(demo, results):
    """Which source says this sentence? From the pre-trained encoder and from
    random weights, each with the best of the same learning rates."""
    settings, folder = demo.settings, demo.folder
    os.makedirs(folder.file("task"), exist_ok=True)
    task_figures = write_source_task(
        demo.documents("train"),
        demo.documents("held_out"),
        folder.file("task"),
        settings.labels,
        settings.dev_rows,
        demo.seed,
    )
    task = CustomTask(
        folder.file("task/train.csv"), folder.file("task/dev.csv")
    )
    scores = best_of_rates(demo, task)
    pretrained, scratch = scores["pretrained"], scores["scratch"]
    return {
        **task_figures,
        **scores,
        "line": f"{len(task.labels)} classes: {share(pretrained)} "
        f"pre-trained, {share(scratch)} from scratch, "
        f"{scratch['majority_baseline']:.1%} the largest class",
    }


def best_of_rates(demo, task) -> dict:
    """Fine-tunes with each learning rate, and with more seeds at the best.

    The rate and, in each run, the epoch are those that score best on dev. As
    many runs as there are cores go on at once.

    Args:
        task: a `Task`.

    Returns:
        side -> the results of the first seed at the best rate, and "rate",
        "accuracies" (of its seeds), their mean "accuracy", their "deviation"
        and "model", where in the run folder the first seed's weights lie.
    """
    settings, folder = demo.settings, demo.folder
    seeds = range(demo.seed, demo.seed + settings.seeds)
    results = {}
    total = len(SIDES) * (len(settings.rates) + settings.seeds - 1)
    jobs = min(os.cpu_count() or 1, total)

    def run_folder(side, rate, seed):
        return f"finetune/{side}/rate-{rate:g}_seed-{seed}"

    def begin(side, rate, seed):
        run = functools.partial(
            finetuning.run,
            task,
            folder.file("pretrain/model"),
            folder.file(run_folder(side, rate, seed)),
            from_scratch=side == "scratch",
            epochs=settings.epochs,
            batch_size=16,
            learning_rate=rate,
            sequence_length=settings.sequence_length,
            seed=seed,
            dtype=demo.dtype,
        )
        return start(processes.in_a_process, run, jobs=jobs, quiet=True)

    def tune(choices):
        runs = {choice: begin(*choice) for choice in choices}
        for choice, run in runs.items():
            results[choice] = run.result()
            update(len(results))

    with (
        processes.workers(jobs) as start,
        progress.bar("Fine-tuning", total) as update,
    ):
        tune(
            (side, rate, demo.seed) for side in SIDES for rate in settings.rates
        )
        best = {
            side: max(
                settings.rates,
                key=lambda rate: results[side, rate, demo.seed]["accuracy"],
            )
            for side in SIDES
        }
        tune((side, best[side], seed) for side in SIDES for seed in seeds[1:])
    scores = {}
    for side, rate in best.items():
        accuracies = [results[side, rate, seed]["accuracy"] for seed in seeds]
        several = len(accuracies) > 1
        scores[side] = {
            **results[side, rate, demo.seed],
            "rate": rate,
            "accuracies": accuracies,
            "accuracy": statistics.mean(accuracies),
            "deviation": statistics.stdev(accuracies) if several else None,
            "model": run_folder(side, rate, demo.seed) + "/model",
        }
    return scores


def share(score):
    """A score of `best_of_rates` in percent, with its deviation."""
    if score["deviation"] is None:
        return f"{score['accuracy']:.1%}"
    return f"{score['accuracy']:.1%} ± {100 * score['deviation']:.1f}"


def export_stage(demo, results):
    """One SavedModel that takes raw strings."""
    models, preprocess = _models(demo, results)
    served = demo.folder.file("served")
    bert_keras.export_saved_model(models, preprocess, served)
    size = files.folder_size(served)
    return {"line": f"{served} ({size / 1e6:.0f} MB)"}


def _models(demo, results):
    preset = demo.folder.file(results["Fine-tuning"]["pretrained"]["model"])
    classifier = bert_keras.BertClassifier.from_preset(preset)
    pretrainer = bert_keras.BertPretrainer.from_preset(
        demo.folder.file("pretrain/model")
    )
    preprocess = bert_keras.BertPreprocessor.from_preset(preset)
    return [classifier, pretrainer], preprocess


def proof_stage(demo, results):
    """A fresh process that imports only tensorflow and tensorflow_text."""
    served = demo.folder.file("served")
    difference = greatest_difference(served, *_models(demo, results))
    rows = CustomTask(
        demo.folder.file("task/train.csv"), demo.folder.file("task/dev.csv")
    ).read("dev")
    texts = [row.text for row in rows]
    return {
        "export_max_difference": difference,
        **_ask(served, texts, demo.seed),
        "line": f"agrees with the live model to {difference:.1e}",
    }


def _ask(served, texts, seed) -> dict:
    """The export's labels of typed sentences and guesses of masked words.

    Some of the held-out `texts` are masked, by the seed.

    Returns:
        dict of "answers", each with "text", "label" and "probability", and
        "guesses", each with "text" (with [MASK] in it) and "masks", which
        have the "truth", "guesses" and those of the packaged model,
        "packaged", both pairs of piece and probability.
    """
    generator = np.random.default_rng(seed)
    tried = (
        _mask_words(texts[index], generator)
        for index in generator.permutation(len(texts))
    )
    masked = list(itertools.islice(filter(None, tried), SENTENCES))
    labels, pieces = answer_in_fresh_process(
        served,
        [
            ("classify", {"text": list(TYPED)}),
            ("fill_mask", {"text": [text for text, _ in masked]}),
        ],
    )
    packaged = _packaged_answer([text for text, _ in masked])
    return {
        "answers": [
            {
                "text": text,
                "label": labels["label"][row].decode(),
                "probability": float(labels["probabilities"][row].max()),
            }
            for row, text in enumerate(TYPED)
        ],
        "guesses": [
            {
                "text": text,
                "masks": [
                    {
                        "truth": truth,
                        "guesses": _guesses(pieces, row, mask),
                        "packaged": _guesses(packaged, row, mask),
                    }
                    for mask, truth in enumerate(truths)
                ],
            }
            for row, (text, truths) in enumerate(masked)
        ],
    }


def _packaged_answer(texts) -> dict:
    """What `fill_mask` answers from the model that the package brings."""
    from bert_keras.serving.graph import Rows
    from bert_keras.serving.pieces import fill_mask

    rows = Rows(bert_keras.BertPreprocessor.from_preset(PACKAGED))
    model = bert_keras.BertPretrainer.from_preset(PACKAGED)
    answer = fill_mask(model, rows).function(tf.constant(texts))
    return {name: value.numpy() for name, value in answer.items()}


def _guesses(answer, row, mask):
    guessed = zip(
        answer["pieces"][row, mask],
        answer["probabilities"][row, mask],
        strict=True,
    )
    return [(piece.decode(), float(share)) for piece, share in guessed]


def _mask_words(text, generator):
    """The text with one word in eight masked, and these; None if too short."""
    words = list(WORD.finditer(text))
    if len(words) < 6 or len(text) > 160:
        return None
    count = max(1, len(words) // 8)
    drawn = sorted(generator.permutation(len(words))[:count])
    pieces, end = [], 0
    for index in drawn:
        word = words[index]
        pieces += [text[end : word.start()], "[MASK]"]
        end = word.end()
    return "".join([*pieces, text[end:]]), [words[i].group() for i in drawn]


STAGES = {
    "Corpus": corpus_stage,
    "Vocabulary": vocabulary_stage,
    "Examples": examples_stage,
    "Pre-training": pretraining_stage,
    "Fine-tuning": finetuning_stage,
    "Export": export_stage,
    "Proof": proof_stage,
}
