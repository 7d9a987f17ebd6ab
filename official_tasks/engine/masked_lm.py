"""Computes masked-LM loss and perplexity of given weights on given texts."""

import itertools
import math
import warnings

import tensorflow as tf

import bert_keras
from bert_keras.data.sampling import SamplingRules
from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interop.opening import open_checkpoint
from bert_keras.modeling import weights
from bert_keras.modeling.pretrainer import (
    pretraining_losses,
    pretraining_metrics,
)
from bert_keras.text.masking import (
    MASK_RATE,
    MaskingVocabulary,
    generator,
    mask_rows,
)
from official_tasks import progress
from official_tasks.tasks.encoding import windowed_rows

TEXTS_AT_ONCE = 1024


def score_masked_lm(
    preset, texts, sequence_length=128, batch_size=32, seed=0
) -> dict:
    """Return loss, perplexity and accuracy of a model on masked texts.

    Texts are cut into rows without overlap, and masked once by the rules of
    pre-training. The masks depend only on texts, vocabulary, `sequence_length`
    and `seed`. So models with the same vocabulary get the same masks.

    Args:
        preset: weights with a trained masked-LM head, in any format.
        texts: iterable of str.
        sequence_length: maximum number of tokens of a row.
        batch_size: rows of a batch.
        seed: seed of the masks.

    Returns:
        dict with "loss" (mean cross-entropy of a masked token, in nats),
        "perplexity" (exp(loss)), "accuracy", "masked" (number of masked tokens)
        and "rows" (number of rows).

    Raises:
        InputError: the head is not trained, no text has a token, or a loss is
            not finite.
    """
    checkpoint = open_checkpoint(preset)  # model and vocabulary of one save
    model = _load_pretrainer(checkpoint)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        checkpoint, sequence_length=sequence_length
    )
    losses, metrics = pretraining_losses(), pretraining_metrics()
    model.compile(
        loss={"mlm": losses["mlm"]}, weighted_metrics={"mlm": metrics["mlm"]}
    )
    loss = hits = count = rows = 0
    with progress.bar("Rows with masks") as update:
        for masked in masked_rows(preprocess, texts, seed):
            for first in range(0, len(masked["token_ids"]), batch_size):
                batch = {
                    name: values[first : first + batch_size]
                    for name, values in masked.items()
                }
                width = int(batch["padding_mask"].sum(1).max())
                for name in ("token_ids", "segment_ids", "padding_mask"):
                    batch[name] = batch[name][:, :width]
                ids, real = batch.pop("mask_ids"), batch.pop("mask_weights")
                means = model.test_on_batch(
                    batch, {"mlm": ids}, {"mlm": real}, return_dict=True
                )
                if not math.isfinite(means["loss"]):
                    raise InputError(
                        f"The model {preset} answers one of the rows "
                        f"{rows + 1} to {rows + len(ids)} with NaN or infinity."
                        " Use earlier weights, or train again with a lower "
                        "learning rate."
                    )
                loss += float(means["loss"]) * real.sum()
                hits += round(means["mlm_accuracy"] * real.sum())
                count += int(real.sum())
                rows += len(ids)
                update(rows)
    if not rows:
        raise InputError("Expected at least one text with a token, got none.")
    return {
        "loss": float(loss / count),
        "perplexity": math.exp(loss / count),
        "accuracy": hits / count,
        "masked": count,
        "rows": rows,
    }


def _load_pretrainer(checkpoint):
    """Load a model; raise `InputError` if its masked-LM head is untrained."""
    with warnings.catch_warnings():
        # The next-sentence head may be untrained, because it is not used here.
        warnings.simplefilter("ignore", UntrainedWarning)
        model = bert_keras.BertPretrainer.from_preset(checkpoint)
    new = [
        name
        for name in weights.untrained_weights(model)
        if "nsp/" not in name and "pooler/" not in name
    ]
    if new:
        raise InputError(
            f"{checkpoint.source} has no trained masked-LM head: "
            f"{', '.join(new)} would be random. Name pre-trained weights that "
            "include this head."
        )
    return model


def masked_rows(preprocess, texts, seed):
    """Yield dicts from `mask_rows`, each with the rows of some texts."""
    length = preprocess.sequence_length
    most = max(1, round(MASK_RATE * length))
    rules = SamplingRules(sequence_length=length, max_predictions=most)
    vocabulary = MaskingVocabulary(preprocess.tokenizer.vocabulary)
    texts = iter(texts)
    for number in itertools.count():
        some = list(itertools.islice(texts, TEXTS_AT_ONCE))
        if not some:
            return
        ids = preprocess.tokenizer(tf.constant(some))
        ids = tf.ragged.boolean_mask(ids, ids.row_lengths() > 0)
        if not ids.nrows():
            continue
        room = preprocess.packer.room(1)
        rows = windowed_rows(preprocess, ids, stride=room).inputs
        # Pad to one width, because masks also depend on the number of columns.
        rows = {
            name: values.to_tensor(
                preprocess.packer.pad_id if name == "token_ids" else 0,
                (None, length),
            ).numpy()
            for name, values in rows.items()
        }
        yield mask_rows(rows, rules, vocabulary, generator(seed, number))
