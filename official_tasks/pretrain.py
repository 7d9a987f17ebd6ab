"""Pre-trains BERT on both objectives, masked pieces and next sentence.

    python -m official_tasks.pretrain --data=runs/data --output=runs/pretrain \
        --num_layers=2 --hidden_dim=256 --num_heads=4 --steps=1000

In: a folder that tools/create_pretraining_data.py wrote. Pairs and masks are
drawn anew in each epoch; --records takes the examples that were drawn once
and written as TFRecords. Out, in --output: model/ (weights and vocabulary, to
start fine-tuning from), results.json with the accuracies on the held-out
documents, metrics.jsonl and TensorBoard logs of the curves. The same command
goes on with a run that was broken off.

Takes about 3 minutes for 1,000 steps of 64 sequences of 48 pieces with 2
layers of 256 on two CPU cores in bfloat16.
"""

from absl import flags

from bert_keras.files import write_json
from official_tasks import script
from official_tasks.pretraining_source import PretrainingSource
from official_tasks.train import train


def define_flags():
    flags.DEFINE_string("data", None, "Folder of pre-training data.")
    flags.DEFINE_bool("records", False, "Use its records: fixed examples.")
    flags.DEFINE_string("output", None, "Folder of this run.")
    flags.DEFINE_integer("num_layers", 12, "Layers.", lower_bound=1)
    flags.DEFINE_integer("hidden_dim", 768, "Width.", lower_bound=1)
    flags.DEFINE_integer("num_heads", 12, "Attention heads.", lower_bound=1)
    flags.DEFINE_float("dropout", 0.1, "Of layers and of attention.")
    flags.DEFINE_integer("sequence_length", 128, "Pieces of an example.")
    flags.DEFINE_integer("max_predictions", 20, "Masked pieces, at most.")
    flags.DEFINE_integer("batch_size", 256, "Sequences a step.", lower_bound=1)
    flags.DEFINE_integer("steps", 1_000_000, "Steps.", lower_bound=1)
    flags.DEFINE_integer("evaluations", 10, "On held-out documents, evenly.")
    flags.DEFINE_integer("evaluation_steps", 100, "Batches of each, at most.")
    flags.DEFINE_float("learning_rate", 1e-4, "At its peak.")
    flags.DEFINE_float("warmup", 0.01, "Share of the steps that warm up.")
    flags.DEFINE_bool(
        "bias_correction", False, "Adam's; better for runs of few steps."
    )
    flags.DEFINE_integer("save_every", 1000, "Steps between checkpoints.")
    flags.DEFINE_integer("seed", 0, "Of weights, order and dropout.")
    flags.DEFINE_enum(
        "dtype",
        "float32",
        ("float32", "mixed_bfloat16", "mixed_float16"),
        "Keras dtype policy of the computation.",
    )
    flags.mark_flags_as_required(["data", "output"])


def run(
    data,
    output,
    *,
    records=False,
    num_layers=12,
    hidden_dim=768,
    num_heads=12,
    dropout=0.1,
    sequence_length=128,
    max_predictions=20,
    batch_size=256,
    steps=1_000_000,
    evaluations=10,
    evaluation_steps=100,
    learning_rate=1e-4,
    warmup=0.01,
    bias_correction=False,
    save_every=1000,
    seed=0,
    dtype="float32",
) -> dict:
    """Pre-trains on `data` and writes the run folder `output`.

    Returns:
        Figures on the held-out documents: "mlm_accuracy", "nsp_accuracy",
        "mlm_unigram_baseline" (always guessing the commonest piece),
        "parameters", and "curve", what was logged at each evaluation.
    """
    arguments = {
        "records": records,
        "num_layers": num_layers,
        "hidden_dim": hidden_dim,
        "num_heads": num_heads,
        "dropout": dropout,
        "sequence_length": sequence_length,
        "max_predictions": max_predictions,
        "batch_size": batch_size,
        "steps": steps,
        "evaluations": evaluations,
        "evaluation_steps": evaluation_steps,
        "learning_rate": learning_rate,
        "warmup": warmup,
        "bias_correction": bias_correction,
        "seed": seed,
        "dtype": dtype,
    }
    from bert_keras.training.run import RunFolder

    with RunFolder(output, {"data": str(data), **arguments}) as folder:
        results = folder.done("pretrain")
        if results is None:
            results = _pretrain(data, folder, save_every, **arguments)
            folder.finish("pretrain", results, outputs=["model"])
        return results


def _pretrain(data, folder, save_every, *, records, **arguments):
    import keras

    from bert_keras.data.laws import Laws

    laws = Laws(arguments["sequence_length"], arguments["max_predictions"])
    source = PretrainingSource(
        data,
        records,
        laws,
        arguments["batch_size"],
        arguments["evaluation_steps"],
        arguments["seed"],
    )
    keras.utils.set_random_seed(arguments["seed"])
    model = _compiled_model(source.vocabulary, arguments)
    steps = arguments["steps"]
    curve = train(
        folder,
        model,
        source.batches,
        steps=steps,
        steps_per_epoch=max(1, steps // arguments["evaluations"]),
        validation=source.held_out,
        title="Pre-training",
        save_every=save_every,
        tokens_per_step=arguments["batch_size"] * laws.sequence_length,
    )
    with folder.output("model") as path:
        model.save_preset(path, source.preprocessor())
    results = {
        "mlm_accuracy": curve[-1]["val_mlm_accuracy"],
        "nsp_accuracy": curve[-1]["val_nsp_accuracy"],
        "mlm_unigram_baseline": source.unigram_baseline(),
        "parameters": model.count_params(),
        "curve": curve,
    }
    with folder.output("results.json") as path:
        write_json(results, path)
    return results


def _compiled_model(vocabulary, arguments):
    import bert_keras
    from bert_keras.modeling.pretrainer import (
        pretraining_losses,
        pretraining_metrics,
    )

    encoder = bert_keras.BertEncoder(
        len(vocabulary),
        arguments["num_layers"],
        arguments["num_heads"],
        arguments["hidden_dim"],
        4 * arguments["hidden_dim"],
        max_sequence_length=max(512, arguments["sequence_length"]),
        dropout=arguments["dropout"],
        attention_dropout=arguments["dropout"],
        dtype=arguments["dtype"],
    )
    model = bert_keras.BertPretrainer(encoder)
    model.compile(
        bert_keras.adamw(
            arguments["learning_rate"],
            steps=arguments["steps"],
            warmup=arguments["warmup"],
            bias_correction=arguments["bias_correction"],
        ),
        pretraining_losses(),
        weighted_metrics=pretraining_metrics(),
    )
    return model


def main(values):
    run(
        values.data,
        values.output,
        records=values.records,
        num_layers=values.num_layers,
        hidden_dim=values.hidden_dim,
        num_heads=values.num_heads,
        dropout=values.dropout,
        sequence_length=values.sequence_length,
        max_predictions=values.max_predictions,
        batch_size=values.batch_size,
        steps=values.steps,
        evaluations=values.evaluations,
        evaluation_steps=values.evaluation_steps,
        learning_rate=values.learning_rate,
        warmup=values.warmup,
        bias_correction=values.bias_correction,
        save_every=values.save_every,
        seed=values.seed,
        dtype=values.dtype,
    )


if __name__ == "__main__":
    script.start(main, define_flags)
