"""Wrong arguments and files that `bert_keras.text` refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras import TokenMasker, align_words
from bert_keras.errors import InputError
from bert_keras.text.extension import extend_vocabulary
from bert_keras.text.learning import learn_vocabulary
from bert_keras.text.packing import SegmentPacker
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.tokenizer import WordPieceTokenizer
from bert_keras.text.vocabulary import check_vocabulary, read_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS
from tests.support import tiny

pytestmark = pytest.mark.fast

PIECES = [*SPECIAL_TOKENS, "an", "hour", "##s", "well"]
TOKENIZER = WordPieceTokenizer(PIECES)
RAGGED_FLOATS = tf.ragged.constant([[5.0]])
IDS = tf.ragged.constant([[10, 11, 12], [13]])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (b"[PAD]\n[UNK]\na\n\nb\n", "Line 4 .* is ''"),
        (b"[PAD]\n[UNK]\na\nb\na\n", "Line 5 .* repeats 'a' of line 3"),
        (b"[PAD]\n[UNK]\ncaf\xe9\n", "Line 3 .* not UTF-8 .*0xe9"),
        (b"[PAD]\n[UNK]\n[CLS]\na\n", r"\[SEP\] or \[MASK\]"),
        (b"[PAD]\na b\n", "Line 2 .* 'a b'"),
        (b"", r"\[PAD\]"),
        (b"a\0b\n", "Line 1 .*NUL.* which matches no text"),
        (b"a" * 257 + b"\n", r"Line 1 .*aaa\.\.\.; .*at most 256 bytes"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n##\n", "special tokens only"),
        (b"\xef\xbb\xbf[PAD]\n\n", "Line 2 "),
        (None, "vocab.txt cannot be read"),
    ],
)
def test_files_that_are_no_vocabulary(tmp_path, lines, message):
    if lines is not None:
        (tmp_path / "vocab.txt").write_bytes(lines)
    with pytest.raises(InputError, match=message):
        read_vocabulary(tmp_path / "vocab.txt")


def packer(sequence_length=8):
    return SegmentPacker(sequence_length, cls_id=2, sep_id=3)


def tokenizer(**arguments):
    return WordPieceTokenizer(**{"vocabulary": PIECES, **arguments})


def masker(**arguments):
    return TokenMasker(**{"vocabulary": PIECES, **arguments})


WORDS = [["good", "badly"], ["bad"]]
MASKED = np.ma.array(["good", "bad"], mask=[False, True])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_vocabulary([*SPECIAL_TOKENS, 7]), "is 7"),
        (lambda: check_vocabulary([*SPECIAL_TOKENS, "\ud800"]), "surrogate"),
        (lambda: masker(mask_selection_rate=0.2), "Use mask_rate"),
        (lambda: TokenMasker(vocabulary_size=9), "Use vocabulary"),
        (lambda: masker()([[5]], seed=1.5), "seed is"),
        (lambda: masker()([[5]], seed=-1), "negative"),
        (lambda: learn_vocabulary([" \n"], 100), "no word"),
        (lambda: learn_vocabulary(["a"], 5), "special"),
        (lambda: learn_vocabulary(["several words"], 10, min_count=1), "100%"),
        (lambda: learn_vocabulary("some words", 100), "one string"),
        (lambda: learn_vocabulary(["a", None], 9), "Text 1 is None"),
        (lambda: learn_vocabulary(MASKED, 9), "Text 1 is None"),
        (lambda: learn_vocabulary(["a"], 100, min_count=0), "`min_count` is 0"),
        (lambda: packer(2), "at least 3"),
        (lambda: packer(4)((IDS, IDS)), "at least 5"),
        (lambda: packer(16.5), "16.5; expected a whole number"),
        (lambda: packer()(tf.ragged.constant([[5, -4]])), "number -4"),
        (lambda: packer()(tf.ragged.constant([[5.5]])), "of float32.*ragged"),
        (lambda: packer()(tf.ragged.constant([[2**32]])), "number 4294967296"),
        (lambda: packer()(tf.constant([[5, 6]])), "EagerTensor. .*ragged"),
        (lambda: packer()([[5, 6], [7]]), "segment is list. .*ragged"),
        (lambda: packer()([tf.constant([5])] * 2), r"tf\.ragged\.stack"),
        (lambda: tokenizer(vocabulary=PIECES[:4]), r"\[MASK\]"),
        (
            lambda: tokenizer(vocabulary=[*SPECIAL_TOKENS, "a.b"]),
            "text cannot use",
        ),
        (lambda: tokenizer(vocabulary="no.txt"), "no.txt cannot be read"),
        (lambda: tokenizer(vocabulary=SPECIAL_TOKENS), "special tokens only"),
        (lambda: tokenizer(max_word_length=0), "max_word_length is 0"),
        (lambda: TOKENIZER.id_to_token(12), "id 12"),
        (lambda: TOKENIZER.id_to_token(5.0), r"id 5\.0"),
        (lambda: TOKENIZER.token_to_id("hours"), "'hours'"),
        (lambda: TOKENIZER.detokenize([5.5]), "ids to detokenize are float32"),
        (lambda: TOKENIZER.detokenize(RAGGED_FLOATS), "detokenize are float32"),
        (lambda: TOKENIZER.detokenize([5 + 2**32]), r"\[4294967301\]"),
        (lambda: TOKENIZER.detokenize([5, -1, 9]), r"0 to 8.*\[-1, 9\]"),
        (lambda: TOKENIZER.detokenize([]), r"float32 of shape \(0,\)"),
        (lambda: TOKENIZER.detokenize(5), r"int32 of shape \(\)\. Expected"),
        (lambda: TOKENIZER.tokenize_with_offsets("a", "words"), "'words'"),
        (lambda: masker(mask_rate=1.5), "mask_rate"),
        (lambda: masker(mask_mix=(80, 10, 20)), "mask_mix"),
        (lambda: masker(mask_mix=(110, -10, 0)), "mask_mix"),
        (lambda: masker(max_predictions=0), "max_predictions"),
        (lambda: masker(vocabulary="vocab.txt"), "list of tokens"),
        (lambda: masker()([[5, 9]], (0, 1)), "number 9. .* from 0 to 8"),
        (lambda: masker()([[5, 6.5]], (0, 1)), r"token_ids .* number 6\.5"),
        (lambda: masker()([5 + 2**32], (0, 1)), "number 4294967301"),
        (lambda: masker()(tf.ragged.constant([[[5]]])), "RaggedTensor .*shape"),
        (lambda: align_words(tiny.preprocessor(), []), "no words"),
        (lambda: align_words(tiny.preprocessor(), ["good"]), "list of words"),
        (lambda: align_words(tiny.preprocessor(), [["a", 7]]), "1 is 7, not a"),
        (lambda: align_words(tiny.preprocessor(), [MASKED]), "1 is None, not"),
        (lambda: align_words(tiny.preprocessor(), [None]), "list of words"),
        (lambda: tiny.preprocessor().each(("a", "b")), "single strings"),
        (
            lambda: align_words(tiny.preprocessor(), WORDS, [[1], [3]]),
            "one label for each word",
        ),
        (
            lambda: align_words(tiny.preprocessor(), [["bad"]], [[1.5]]),
            r"labels contains the number 1\.5",
        ),
        (lambda: BertPreprocessor(TOKENIZER, "128"), "length` is '128'"),
        (lambda: BertPreprocessor(TOKENIZER, 2), "length` is 2"),
        (lambda: BertPreprocessor("bert-base-uncased"), "WordPieceTokenizer"),
        *(
            (lambda word=word: extend_vocabulary(PIECES, [word]), "be added")
            for word in ("hour", "a-b", "", "two words", "##able")
        ),
    ],
)
def test_arguments_that_cannot_be(call, message):
    with pytest.raises(InputError, match=message):
        call()


class Column(list):
    """A list with the method `to_numpy` of a pandas or polars column."""

    def to_numpy(self):
        return np.array(self, object)


class Masked(Column):
    """A column whose array has all values masked."""

    def to_numpy(self):
        return np.ma.array(self, mask=True)


SYMBOLIC = keras.KerasTensor((), dtype="string")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], "Text 1 is None, not a string"),
        (["a", float("nan")], "Text 1 is nan, not a string"),
        (Column(["a", float("nan")]), "Text 1 is nan, .*fillna"),
        ([1], "Text 0 is 1, not a string"),
        (np.array([1, 2]), "ndarray of int64. Expected one string"),
        (tf.constant([1]), "int32.*Expected one string"),
        (None, "The texts are None. Expected one string"),
        ({"text": ["a"]}, r"text_keys=\('text',\)"),
        (["a", ["b"]], "strings and lists of strings together"),
        ((["a"], ["b", "c"]), "sizes: 1 texts and 2 texts"),
        ((["a", "b"], "c"), "sizes: 2 texts and one text"),
        ((["a"], None), "The texts are None"),
        (MASKED, "Text 1 is None, not a string"),
        (np.ma.array([["a", "b"]], mask=[[True, False]]), "Text 0 is None"),
        (Masked(["a"]), "Text 0 is None"),
        (["a", np.ma.masked], "Text 1 is masked"),
        ([MASKED], "Text 1 is masked"),
        ([tf.constant("a"), None], "Text 1 is None"),
        ([tf.constant(1)], "int32.*not a string"),
        ([tf.constant("a"), tf.constant(["a"])], "strings and lists of"),
        ([("an", "hour"), ("one",)], "lists of different lengths"),
        ([SYMBOLIC], r"Keras tensors of shape \(\)\. Expected \(B,\)"),
        ((), "an empty tuple"),
        ([("an", "hour"), ("one", "two")], r"shape \(2, 2\). .*\(B,\)"),
        (np.array([["an"], ["hour"]]), r"shape \(2, 1\). .*\(B,\)"),
    ],
)
def test_what_is_no_text(texts, message):
    with pytest.raises(InputError, match=message):
        BertPreprocessor(TOKENIZER, 8)(texts)


def test_strings_of_unknown_rank():
    with tf.Graph().as_default(), pytest.raises(InputError, match="rank"):
        TOKENIZER(tf.compat.v1.placeholder(tf.string))


def test_a_preprocessor_is_a_layer_and_the_others_work_in_a_data_set():
    texts = keras.Input((), dtype="string")
    model = keras.Sequential([texts, BertPreprocessor(TOKENIZER, 8)])
    assert model(tf.constant(["an hour"]))["token_ids"].shape == (1, 8)
    rows = tf.data.Dataset.from_tensors([[2, 5, 3]])
    mapped = rows.map(lambda x: masker()(x, (0, 1))["token_ids"])
    assert mapped.element_spec.shape == (1, 3)
    texts = rows.map(TOKENIZER.detokenize)
    assert list(texts.as_numpy_iterator())[0].tolist() == [b"an"]
