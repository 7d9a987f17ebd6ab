"""What batches of like length save on SST-2, beside rows of 128.

    python tools/benchmark/length_buckets.py --data_dir=glue/SST-2 \
        --init=all-MiniLM-L6-v2 --steps=40

In: SST-2's official files and weights. Out, printed: the slots of an epoch of
both kinds of batches (counted, over all training rows), the processor time of
so many training steps of both, and with --rows and --seeds the accuracy on
dev after an epoch on that many rows.
"""

import time

from absl import flags

from official_tasks import script


def define_flags():
    flags.DEFINE_string("data_dir", None, "Folder of SST-2's files.")
    flags.DEFINE_string("init", None, "Weights to start from.")
    flags.DEFINE_integer("steps", 40, "Training steps that are timed.", 1)
    flags.DEFINE_integer("rows", 0, "Training rows for the accuracy.")
    flags.DEFINE_integer("seeds", 3, "Runs of each kind for the accuracy.", 1)
    flags.DEFINE_float("learning_rate", 5e-5, "Of these runs.")
    flags.DEFINE_string("output", None, "Folder for those runs.")
    script.applies_only(
        "with --rows", lambda v: v.rows, "seeds", "learning_rate", "output"
    )
    flags.mark_flags_as_required(["data_dir", "init"])


KINDS = {"like length": None, "rows of 128": 128}


def count_slots(encoded, length) -> int:
    """The slots, tokens and padding, of one epoch's batches."""
    from official_tasks.engine.batches import training_batches

    steps = -(-encoded.targets.size // 32)
    batches = training_batches(encoded, 32, 0, steps, length=length)
    return sum(
        x["token_ids"].shape[0] * x["token_ids"].shape[1] for x, _, _ in batches
    )


def time_steps(task, encoded, init, length, steps) -> float:
    """Processor seconds of a training step, after five to warm up."""
    import bert_keras
    from official_tasks.engine.batches import training_batches
    from official_tasks.engine.models import load_model

    model = load_model(task, init)
    total = steps + 5
    model.compile(
        bert_keras.adamw(5e-5, steps=total), task.loss(), jit_compile=False
    )
    batches = iter(training_batches(encoded, 32, 0, total, length=length))
    for _ in range(5):
        model.train_on_batch(*next(batches))
    began = time.process_time()
    for batch in batches:
        model.train_on_batch(*batch)
    return (time.process_time() - began) / steps


def train(task, values, kind, seed) -> float:
    """The accuracy on dev after an epoch."""
    from official_tasks.engine import finetuning

    name = f"{kind.replace(' ', '-')}-{seed}"
    results = finetuning.run(
        task,
        values.init,
        f"{values.output}/{name}",
        epochs=1.0,
        learning_rate=values.learning_rate,
        seed=seed,
        pad_to_longest=KINDS[kind] is None,
        settings={"rows": values.rows},
    )
    return results["accuracy"]


def main(values):
    import bert_keras
    from bert_keras.errors import InputError
    from official_tasks.progress import console
    from official_tasks.tasks.glue import SST_2, GlueTask

    if values.rows and values.output is None:
        raise InputError(
            f"--rows={values.rows} trains runs, and --output is missing: give "
            "a folder for them"
        )
    task = GlueTask(SST_2, data_dir=values.data_dir)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        values.init, sequence_length=128, pad_to_longest=True
    )
    encoded = task.encode(task.read("train"), preprocess)
    for kind, length in KINDS.items():
        slots = count_slots(encoded, length)
        seconds = time_steps(task, encoded, values.init, length, values.steps)
        console.print(
            f"{kind}: {slots:,} slots an epoch, {seconds:.3f} s a step"
        )
    if not values.rows:
        return
    read = task.read
    task.read = lambda split: (
        read(split)[: values.rows] if split == "train" else read(split)
    )
    for seed in range(values.seeds):
        scores = {kind: train(task, values, kind, seed) for kind in KINDS}
        console.print(f"accuracy, seed {seed}: {scores}")


if __name__ == "__main__":
    script.start(main, define_flags)
