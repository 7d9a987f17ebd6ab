"""Pre-training by one call: a run folder from data and settings."""

from official_tasks.pretraining_settings import Execution, Settings


def run(data, output, **arguments) -> dict:
    """Pre-trains on `data` and writes the run folder `output`.

    Args:
        data: folder of `create_pretraining_data`.
        output: folder of the run; the same call goes on with it. Data or
            weights to start from that changed since it began are refused.
        **arguments: the fields of `Settings` and of `Execution`.

    Returns:
        Figures on the held-out documents: "mlm_accuracy", "mlm_perplexity",
        "nsp_accuracy" ("lm_accuracy" and "lm_perplexity" of a directional
        model), "mlm_unigram_baseline" and "nsp_majority_baseline" (always
        guessing the commonest piece, the commoner answer), "parameters", and
        "curve", what was logged at each evaluation.
    """
    from bert_keras.modeling.backend import require_tensorflow
    from bert_keras.training.numerics import choose_dtype
    from bert_keras.training.run import RunFolder
    from bert_keras.training.strategy import make_strategy
    from official_tasks.first_files import checked_files, weights_of
    from official_tasks.pretraining_run import pretrain
    from official_tasks.pretraining_source import manifests

    require_tensorflow("Pre-training")
    settings, execution = split(arguments)
    weights = weights_of(settings.init) if settings.init else []
    strategy = make_strategy(execution.distribution, execution.tpu)
    settings = settings._replace(
        dtype=choose_dtype(settings.dtype, strategy.name)
    )
    decided = {"data": str(data), **settings._asdict()}
    with RunFolder(output, decided, writes=strategy.is_chief) as folder:
        first = checked_files([*manifests(data, settings), *weights], folder)
        results = folder.done("pretrain")
        if results is None:
            results = pretrain(
                data, folder, settings, execution, strategy, first
            )
            folder.finish("pretrain", results, outputs=["model"])
        return results


def split(arguments):
    """`Settings` and `Execution` of their fields together."""
    settings = {k: v for k, v in arguments.items() if k in Settings._fields}
    rest = {k: v for k, v in arguments.items() if k not in settings}
    return Settings(**settings), Execution(**rest)
