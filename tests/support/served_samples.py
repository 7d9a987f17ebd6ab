"""Toy models and their preprocessor, for serving tests."""

import functools

from bert_keras.modeling import modes
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_models import (
    BertChooser,
    BertClassifier,
    BertSpanPredictor,
    BertTagger,
)
from bert_keras.serving.load import as_tensor
from bert_keras.serving.signatures import (
    ExportOptions,
    list_signatures,
    make_signatures,
    resolve_options,
)
from bert_keras.serving.texts import copy_for_serving
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.tokenizer import WordPieceTokenizer
from tests.support.model_samples import fill

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["an", "hour", "well", "spent", "i", "would", "gladly", "another"]
VOCABULARY = [*SPECIAL, *WORDS, "film", "was", "bad", "good"]
VOCABULARY += ["##ly", "##s", ".", ",", "!", "\u4eca", "\u65e5"]


@functools.cache
def tokenizer():
    return WordPieceTokenizer(VOCABULARY)


@functools.cache
def preprocessor(sequence_length=12):
    return BertPreprocessor(tokenizer(), sequence_length=sequence_length)


def encoder(dtype=None, num_layers=1):
    return BertEncoder(len(VOCABULARY), num_layers, 2, 16, 32, 32, dtype=dtype)


def task_models():
    """Return five task models, which one export can hold together."""
    tags = ["B-FILM", "I-FILM", "O", "B-HOUR", "E-HOUR"]
    return [
        fill(BertClassifier(encoder(), labels=["bad", "fine", "good"])),
        fill(BertSpanPredictor(encoder())),
        fill(BertTagger(encoder(), labels=tags)),
        fill(BertChooser(encoder())),
        fill(BertPretrainer(encoder())),
    ]


def live_signatures(model, preprocess, **options):
    """Return name -> signature, in the order of an export of the model."""
    options = ExportOptions(**options)
    options = resolve_options([model], preprocess, options)
    return own_signatures(model, preprocess, options)


def own_signatures(model, preprocess, options):
    """Return name -> signature, without `tokenize`."""
    named = list_signatures([model], preprocess, options)
    named = [(name, model) for name, _ in named if name != "tokenize"]
    return make_signatures(named, copy_for_serving(preprocess), options)


def live_answer(model, preprocess, *texts):
    """Return the answer of the first signature, without an export."""
    signature = next(iter(live_signatures(model, preprocess).values()))
    arithmetic = modes.use(
        skip_padding=signature.skips_padding, gradients=False
    )
    with arithmetic:
        found = signature.function(*map(as_tensor, texts, signature.specs()))
    return {name: value.numpy() for name, value in found.items()}
