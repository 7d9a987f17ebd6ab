"""What a pre-training run trains: an objective's model, compiled.

An objective says which model it trains, what of a batch it learns from, by
which losses and figures, and how a guess of its model is shown. The model
begins at random or from anybody's weights.
"""

import keras
import numpy as np
import tensorflow as tf

import bert_keras
from bert_keras.errors import InputError
from bert_keras.interop.presets import open_checkpoint
from bert_keras.modeling.pretrainer import (
    CrossEntropy,
    causal_targets,
    pretraining_losses,
    pretraining_metrics,
)
from bert_keras.modeling.weights import (
    copy_weights,
    mark_new_weights,
    published_weights,
)
from bert_keras.text.extension import UNUSED, Extension, extend_model
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.wordpiece import WordPiece
from official_tasks.pretraining.settings import SIZE_FIELDS, model_sizes

GUESSES = 5  # shown of each masked place
PLACES = 3  # masked places shown of a text


def compiled_model(settings, objective, source, execution):
    """Return the model that a run begins with, compiled for its objective."""
    rows = source.examples_per_row
    if settings.init:
        model = model_of_weights(
            settings, objective, source.vocabulary, source.tokenizer
        )
        model = with_rows_of(model, rows)
    else:
        model = new_model(settings, objective, len(source.vocabulary), rows)
    objective.prepare(model)
    if not settings.init:
        # So that saved weights say which of them were never trained.
        frozen = {weight.path for weight in model.non_trainable_weights}
        weights = published_weights(model).items()
        mark_new_weights(model, [k for k, v in weights if v.path in frozen])
    model.compile(
        make_optimizer(settings, execution),
        objective.losses(),
        weighted_metrics=objective.metrics(),
        steps_per_execution=execution.steps_per_execution,
    )
    return model


def make_optimizer(settings, execution):
    """Return the run's optimizer, without variables of a model yet."""
    schedule = {
        "learning_rate": settings.learning_rate,
        "steps": settings.steps,
        "warmup": settings.warmup,
        "accumulate": execution.accumulation,
    }
    if settings.optimizer == "lamb":
        return bert_keras.lamb(**schedule)
    return bert_keras.adamw(
        **schedule, bias_correction=settings.bias_correction
    )


def new_model(settings, objective, vocabulary_size, examples_per_row=None):
    """Return a model with random weights, not compiled."""
    encoder = bert_keras.BertEncoder(
        vocabulary_size,
        **model_sizes(settings),
        max_sequence_length=max(512, settings.longest),
        dropout=settings.dropout,
        attention_dropout=settings.dropout,
        dtype=settings.dtype,
        **objective.encoder_arguments,
    )
    return objective.build(encoder, examples_per_row)


def model_of_weights(settings, objective, vocabulary, made):
    """Return the model of `settings.init`, grown to `vocabulary`."""
    checkpoint, extension = check_weights(settings, objective, vocabulary, made)
    model = objective.model_class.from_preset(
        checkpoint,
        dropout=settings.dropout,
        attention_dropout=settings.dropout,
        dtype=settings.dtype,
    )
    if extension.replaced:
        model = extend_model(model, extension)
    return model


def check_weights(settings, objective, vocabulary, made):
    """Return the checkpoint of `settings.init`, and its `Extension`.

    No weight is read.

    Args:
        vocabulary: of the data; becomes that of the model.
        made: how the data was made; "lowercase" and "strip_accents".

    Raises:
        InputError: the vocabulary is neither that of the weights nor an
            extension of it; or length, case, accents or direction do not fit.
    """
    checkpoint = open_checkpoint(settings.init)
    tokenizer = BertPreprocessor.from_preset(checkpoint).tokenizer
    extension = extension_between(
        tokenizer.vocabulary, vocabulary, settings.init
    )
    _check_fit(checkpoint, tokenizer, settings, objective, made)
    return checkpoint, extension


def _check_fit(checkpoint, tokenizer, settings, objective, made):
    given = [k for k in SIZE_FIELDS if getattr(settings, k) is not None]
    if given:
        raise InputError(
            f"{given[0]} is given together with init, whose weights decide "
            "the sizes. Leave one of the two out."
        )
    for name in ("lowercase", "strip_accents"):
        expected = getattr(tokenizer, name)
        if made[name] != expected:
            raise InputError(
                f"The weights of {settings.init} are of a vocabulary with "
                f"{name}={expected}, and the data was made with "
                f"{name}={made[name]}. Make the data again with "
                f"--{'' if expected else 'no'}{name}."
            )
    longest = checkpoint.encoder["max_sequence_length"]
    if settings.longest > longest:
        raise InputError(
            f"The weights of {settings.init} have {longest} positions, and "
            f"the longest sequence is {settings.longest}. Choose a shorter "
            "sequence_length, or phase_2_steps 0."
        )
    needed = objective.encoder_arguments.get("attention", "bidirectional")
    attention = checkpoint.encoder.get("attention", "bidirectional")
    if attention != needed:
        raise InputError(
            f"The weights of {settings.init} see {attention} and the "
            f"objectives {settings.objectives} need {needed}. Name other "
            "objectives or other weights."
        )


def extension_between(old, new, source):
    """Return the `Extension` that makes the vocabulary `new` of `old`.

    Old pieces keep their lines; new ones take those of `[unusedN]`, or come
    at the end.

    Args:
        old: the pieces of the weights.
        new: the pieces of the data.
        source: the weights, for messages.

    Raises:
        InputError: names the first line that is neither the old one nor
            unused.
    """
    word_piece = WordPiece(old, False)
    replaced = {}
    for line, piece in enumerate(new):
        before = old[line] if line < len(old) else None
        if piece == before:
            continue
        if before is not None and not UNUSED.fullmatch(before):
            raise InputError(_no_extension(line, before, piece, source))
        replaced[line] = word_piece.ids(piece.removeprefix("##"))
    if len(new) < len(old):
        line = len(new)
        raise InputError(_no_extension(line, old[line], None, source))
    return Extension(list(new), replaced)


def _no_extension(line, before, piece, source):
    found = "is missing" if piece is None else f"is {piece!r}"
    return (
        f"The vocabulary of the data is not that of {source} and does not "
        f"extend it: line {line + 1} is {before!r} there and {found} here. "
        "Make the data with the vocabulary of the weights; new pieces may "
        "only take the lines of [unusedN] or come at the end."
    )


def with_rows_of(model, examples_per_row):
    """Return the model for rows of so many examples, with its weights."""
    arguments = model.arguments()
    if arguments.get("examples_per_row", examples_per_row) == examples_per_row:
        return model
    arguments["examples_per_row"] = examples_per_row
    copy = type(model)(model.encoder, **arguments)
    copy_weights(model, copy)
    return copy


class MaskedPieces:
    """Masked pieces and, by default, next sentence: `BertPretrainer`.

    Without next sentence its head and the pooler keep their weights, as no
    output of theirs is learned from.
    """

    model_class = bert_keras.BertPretrainer
    encoder_arguments = {}
    headline = "mlm"

    def __init__(self, next_sentence=True):
        self.next_sentence = next_sentence

    def build(self, encoder, examples_per_row=None):
        """Return the model over an encoder, for rows of this many examples."""
        return bert_keras.BertPretrainer(encoder, examples_per_row)

    def prepare(self, model):
        """Freeze what this objective does not learn."""
        if not self.next_sentence:
            model.nsp.trainable = False
            model.encoder.pooler.trainable = False

    def losses(self):
        losses = pretraining_losses()
        return losses if self.next_sentence else {**losses, "nsp": None}

    def metrics(self):
        metrics = pretraining_metrics()
        metrics["mlm"] = [PieceAccuracy("accuracy"), Perplexity("perplexity")]
        return metrics if self.next_sentence else {**metrics, "nsp": []}

    def element(self, x, y, w):
        """Return what the model gets of a batch of the pipeline."""
        return x, y, w

    def guesses(self, model, batch, vocabulary):
        """Texts of a batch with what the model guesses at their masks.

        Returns:
            list of dict: "text" with [MASK] in it, and "masks", each with
            the "truth" and "guesses", pairs of piece and probability.
        """
        x, y, w = batch
        logits = model(x, training=False)["mlm"].numpy()  # (B, M, V)
        mask = vocabulary.index("[MASK]")
        rows = []
        for row, ids in enumerate(x["token_ids"].numpy()):
            real = np.flatnonzero(w["mlm"].numpy()[row])
            places = x["mask_positions"].numpy()[row]
            shown = [m for m in real if ids[places[m]] == mask][:PLACES]
            truths = y["mlm"].numpy()[row]
            rows.append(
                {
                    "text": _text(ids, vocabulary),
                    "masks": [
                        _guess(logits[row, m], truths[m], vocabulary)
                        for m in shown
                    ],
                }
            )
        return [row for row in rows if row["masks"]]


class OneDirection:
    """The next piece, or the one before, at every place: `BertCausalModel`.

    Nothing is masked (the paper, section 5.1).
    """

    model_class = bert_keras.BertCausalModel
    headline = "lm"

    def __init__(self, attention):
        self.attention = attention
        self.encoder_arguments = {"attention": attention}

    def build(self, encoder, examples_per_row=None):
        """Return the model over an encoder; packed rows need no other one."""
        return bert_keras.BertCausalModel(encoder)

    def prepare(self, model):
        """Do nothing: all weights learn."""

    def losses(self):
        return CrossEntropy()

    def metrics(self):
        return [PieceAccuracy("lm_accuracy"), Perplexity("lm_perplexity")]

    def element(self, x, y, w):
        """Return the batch before it was masked, and its neighbours."""
        x = {k: v for k, v in x.items() if k != "mask_positions"} | {
            "token_ids": _unmasked(x, y["mlm"], w["mlm"])
        }
        ids, weights = causal_targets(x, self.attention)
        # Rows that only fill the last batch up have no real prediction.
        is_real = tf.reduce_max(w["mlm"], axis=1, keepdims=True)  # (B, 1)
        return x, ids, weights * is_real

    def guesses(self, model, batch, vocabulary):
        """As of `MaskedPieces`; the text ends, or begins, at the guess."""
        x, y, w = batch
        logits = model(x, training=False).numpy()  # (B, T, V)
        rows = []
        for row, ids in enumerate(x["token_ids"].numpy()):
            real = np.flatnonzero(w.numpy()[row])
            if not len(real):
                continue
            place = int(real[len(real) // 2])
            if self.attention == "left_to_right":
                text = f"{_text(ids[: place + 1], vocabulary)} [MASK]"
            else:
                text = f"[MASK] {_text(ids[place:], vocabulary)}"
            truth = y.numpy()[row, place]
            mask = _guess(logits[row, place], truth, vocabulary)
            rows.append({"text": text, "masks": [mask]})
        return rows


OBJECTIVES = {
    "mlm+nsp": MaskedPieces(),
    "mlm": MaskedPieces(next_sentence=False),
    "left_to_right": OneDirection("left_to_right"),
    "right_to_left": OneDirection("right_to_left"),
}


def _unmasked(x, ids, weights):
    """Return the token ids with the true one at each place to predict."""
    # A place that fills the row up (weight 0) adds nothing to its token.
    change = ids - tf.gather(x["token_ids"], x["mask_positions"], batch_dims=1)
    change *= tf.cast(weights > 0, ids.dtype)
    rows = tf.repeat(tf.range(tf.shape(ids)[0]), tf.shape(ids)[1])
    where = tf.stack([rows, tf.reshape(x["mask_positions"], [-1])], axis=1)
    return tf.tensor_scatter_nd_add(
        x["token_ids"], where, tf.reshape(change, [-1])
    )


def _text(ids, vocabulary):
    pieces = [vocabulary[token_id] for token_id in ids]
    pieces = [piece for piece in pieces if piece not in ("[PAD]", "[CLS]")]
    return " ".join(pieces).replace(" ##", "")


def _guess(logits, truth, vocabulary):
    shifted = np.exp(logits - logits.max())
    probabilities = shifted / shifted.sum()
    best = np.argsort(-probabilities)[:GUESSES]
    return {
        "truth": vocabulary[truth],
        "guesses": [[vocabulary[i], float(probabilities[i])] for i in best],
    }


# Figures of guessed pieces, at a fraction of the cost of Keras's own. A step of
# a small model spends much of its time on logits over all pieces: Keras's
# accuracy looks for negative zeros in them first, and its cross-entropy
# computes a gradient too.


class PieceAccuracy(keras.metrics.Mean):
    """Share of places where the true piece has the highest logit; of equal
    ones the first counts, as in Keras's `SparseCategoricalAccuracy`."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        hit = tf.equal(
            tf.argmax(y_pred, -1, tf.int32), tf.cast(y_true, "int32")
        )
        return super().update_state(tf.cast(hit, self.dtype), sample_weight)


class Perplexity(keras.metrics.Mean):
    """e to the mean cross-entropy: among how many pieces it still wavers."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = tf.cast(y_true, "int32")
        true = tf.gather(y_pred, y_true, axis=-1, batch_dims=len(y_true.shape))
        entropy = tf.reduce_logsumexp(y_pred, -1) - true
        return super().update_state(entropy, sample_weight)

    def result(self):
        return keras.ops.exp(super().result())
