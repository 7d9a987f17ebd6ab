"""Fine-tunes BERT on a task and scores it.

    python -m official_tasks.finetune --task=custom --train=reviews.csv \
        --text=review --label=stars --init=runs/pretrain/model \
        --output=runs/reviews

In: rows with a text (or a pair of texts) and a label; a model folder to start
from. Out, in --output: model/ (weights, vocabulary and label names, ready for
tools/export.py), results.json with all scores, predictions.csv, TensorBoard
logs. Without --dev a tenth of each class is held out. The same command goes
on with a run that was broken off.

Takes about a minute for 1,000 rows and 3 epochs of a small model on two CPU
cores, and about 40 minutes for BERT base.
"""

import json

from absl import flags

from bert_keras.files import write_json
from official_tasks import script
from official_tasks.train import train

TASKS = ("custom",)


def define_flags():
    flags.DEFINE_enum("task", "custom", TASKS, "What to learn.")
    flags.DEFINE_string("train", None, "CSV, TSV or JSONL file (.gz too).")
    flags.DEFINE_string("dev", None, "The like to score on; else a tenth.")
    flags.DEFINE_string("text", "text", "Column of the text.")
    flags.DEFINE_string("text_pair", None, "Column of the second text.")
    flags.DEFINE_string("label", "label", "Column of the label.")
    flags.DEFINE_string("init", None, "Model folder to start from.")
    flags.DEFINE_bool("from_scratch", False, "Random weights, as a baseline.")
    flags.DEFINE_string("output", None, "Folder of this run.")
    flags.DEFINE_float("epochs", 3.0, "Passes over the training rows.")
    flags.DEFINE_integer("batch_size", 32, "Rows a step.", lower_bound=1)
    flags.DEFINE_float("learning_rate", 5e-5, "At its peak.")
    flags.DEFINE_integer("sequence_length", 128, "Pieces of a text at most.")
    flags.DEFINE_integer("seed", 0, "Of order, dropout and new weights.")
    flags.DEFINE_enum(
        "dtype",
        "float32",
        ("float32", "mixed_bfloat16", "mixed_float16"),
        "Keras dtype policy of the computation.",
    )
    flags.mark_flags_as_required(["train", "init", "output"])


def run(
    task,
    init,
    output,
    *,
    from_scratch=False,
    epochs=3.0,
    batch_size=32,
    learning_rate=5e-5,
    sequence_length=128,
    seed=0,
    dtype="float32",
    settings=None,
) -> dict:
    """Fine-tunes on `task`, scores it, and writes the run folder `output`.

    Args:
        task: a `Task`.
        init: model folder to start from.
        output: the run's folder; a broken run goes on, a finished one is
            not trained again.
        from_scratch: keep the sizes and the vocabulary of `init` only.
        settings: further settings that tell this run from another, such as
            the files that the task reads.

    Returns:
        The scores of the task on its dev split, with "loss" and "curve",
        the metric after each epoch.
    """
    arguments = {
        "init": str(init),
        "from_scratch": from_scratch,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "sequence_length": sequence_length,
        "seed": seed,
        "dtype": dtype,
    }
    from bert_keras.training.run import RunFolder

    with RunFolder(output, {**arguments, **(settings or {})}) as folder:
        results = folder.done("finetune")
        if results is None:
            results = _finetune(task, folder, **arguments)
            folder.finish("finetune", results, outputs=["model"])
        return results


def _finetune(
    task,
    folder,
    *,
    init,
    from_scratch,
    epochs,
    batch_size,
    learning_rate,
    sequence_length,
    seed,
    dtype,
):
    import keras

    import bert_keras
    from bert_keras.data.order import in_order, shuffled

    keras.utils.set_random_seed(seed)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        init, sequence_length=sequence_length, pad_to_longest=True
    )
    model = task.build(_encoder(init, from_scratch, dtype))
    rows, dev = task.read("train"), task.read("dev")
    steps = max(1, round(epochs * len(rows) / batch_size))
    model.compile(
        # Few labels learn more surely with it: see `adamw`.
        bert_keras.adamw(learning_rate, steps=steps, bias_correction=True),
        task.loss(),
        metrics=["accuracy"],
    )
    dev_batches = _batches(dev, preprocess, in_order(len(dev), 128))
    curve = train(
        folder,
        model,
        lambda step: _batches(
            rows, preprocess, shuffled(len(rows), batch_size, seed, step)
        ),
        steps=steps,
        steps_per_epoch=min(steps, -(-len(rows) // batch_size)),
        validation=dev_batches,
        title=f"Fine-tuning {task.name}",
        save_every=1000,
    )
    outputs = model.predict(dev_batches.map(lambda x, y: x), verbose=0)
    task.write(dev, outputs, folder.path)
    with folder.output("model") as path:
        model.save_preset(path, preprocess)
    results = {
        **task.score(dev, outputs),
        "rows": len(rows),
        "dev_rows": len(dev),
        "curve": curve,
    }
    with folder.output("results.json") as path:
        write_json(results, path)
    return results


def _encoder(init, from_scratch, dtype):
    import bert_keras

    encoder = bert_keras.BertEncoder.from_preset(init, dtype=dtype)
    return (
        encoder.from_config(encoder.get_config()) if from_scratch else encoder
    )


def _batches(examples, preprocess, indices):
    """Batches of (inputs, labels) of the examples at `indices` (B,)."""
    import tensorflow as tf

    texts = tf.constant([example.text for example in examples])
    labels = tf.constant([example.label for example in examples])
    pairs = None
    if examples[0].text_pair is not None:
        pairs = tf.constant([example.text_pair for example in examples])

    def batch(rows):
        first = tf.gather(texts, rows)
        x = first if pairs is None else (first, tf.gather(pairs, rows))
        return preprocess(x, tf.gather(labels, rows))

    return indices.map(batch, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def main(values):
    from official_tasks import progress
    from official_tasks.custom import CustomTask

    columns = {
        name: getattr(values, name)
        for name in ("train", "dev", "text", "text_pair", "label")
    }
    task = CustomTask(**columns, seed=values.seed)
    for line in task.advice[:20]:
        progress.console.print(f"note: {line}")
    results = run(
        task,
        values.init,
        values.output,
        from_scratch=values.from_scratch,
        epochs=values.epochs,
        batch_size=values.batch_size,
        learning_rate=values.learning_rate,
        sequence_length=values.sequence_length,
        seed=values.seed,
        dtype=values.dtype,
        settings=columns,
    )
    shown = ("accuracy", "macro_f1", "majority_baseline", "rows", "dev_rows")
    progress.console.print(json.dumps({key: results[key] for key in shown}))


if __name__ == "__main__":
    script.start(main, define_flags)
