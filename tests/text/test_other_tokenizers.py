"""Texts that other BERT tokenizers encode in a different way than ours.

docs/exactness.md lists the differences.
"""

import pytest
import tensorflow as tf

from bert_keras import BertPreprocessor, WordPieceTokenizer
from bert_keras.text.vocabulary import read_vocabulary
from bert_keras.text.wordpiece import WordPiece
from tests.support.shared_data import shared

TEXTS = {
    "prose": "An hour well-spent, for $5!",
    "accents": "naïve café",
    "NUL": "he\0llo",
    "control": "he\x07llo",
    "format": "he\u00adllo",
    "U+FFFD": "he\ufffdllo",
    "invalid bytes": b"he\xffllo",
    "folding": "straße ſo",
    "final sigma": "ΛΟΓΟΣ",
    "compatibility": "wait… ½ ﬁne",
    "long": "a" * 101,
    "many bytes": "ก" * 60,
    "[MASK]": "a [MASK] b",
    "ideographs": "中文 hello",
    "extension E": "\U0002b820a",
    "kana": "ガ",
    "hangul": "한국어",
    "no-break space": "a\u00a0b",
    "line separator": "a\u2028b",
    "next line": "a\x85b",
    "private use": "a\ue000b",
    "new punctuation": "a\u2e5db",
}
TF_TEXT = {"NUL", "control", "U+FFFD", "invalid bytes", "long", "next line"}
FOLDED = {"folding", "final sigma", "compatibility", "many bytes"}
PEERS = {
    "FastBertTokenizer": (TF_TEXT | FOLDED, TF_TEXT | {"format"}),
    "BertTokenizer": (
        TF_TEXT | FOLDED | {"line separator"},
        TF_TEXT | {"format", "line separator", "no-break space"},
    ),
    "keras-hub": (
        TF_TEXT
        | FOLDED
        | {"accents", "format", "line separator", "no-break space"}
        | {"kana", "hangul"},
        TF_TEXT | {"format", "line separator", "no-break space"},
    ),
    "tokenizers": (
        {"long", "[MASK]", "extension E", "private use", "new punctuation"}
        | {"final sigma"},
        {"long", "[MASK]", "extension E", "private use", "new punctuation"},
    ),
}


def fast_bert_tokenizer(path, pieces, lowercase):
    import tensorflow_text as tf_text

    tokenizer = tf_text.FastBertTokenizer(
        pieces,
        token_out_type=tf.int32,
        lower_case_nfd_strip_accents=lowercase,
    )
    return lambda text: tokenizer.tokenize([text]).to_list()[0]


def bert_tokenizer(path, pieces, lowercase):
    import tensorflow_text as tf_text

    ids = tf.range(len(pieces), dtype=tf.int64)
    known = tf.lookup.KeyValueTensorInitializer(pieces, ids)
    tokenizer = tf_text.BertTokenizer(
        tf.lookup.StaticVocabularyTable(known, 1), lower_case=lowercase
    )
    return lambda text: tokenizer.tokenize([text]).values.values.numpy()


def keras_hub(path, pieces, lowercase):
    keras_hub = pytest.importorskip("keras_hub")
    tokenizer = keras_hub.tokenizers.BertTokenizer(pieces, lowercase=lowercase)
    in_graph = tf.function(tokenizer)  # eagerly, invalid bytes fail
    return lambda text: in_graph(tf.constant(text))


def tokenizers(path, pieces, lowercase):
    import tokenizers

    tokenizer = tokenizers.BertWordPieceTokenizer(path, lowercase=lowercase)

    def ids(text):
        if isinstance(text, bytes):
            text = text.decode("utf-8", "ignore")
        return tokenizer.encode(text, add_special_tokens=False).ids

    return ids


MAKERS = {
    "FastBertTokenizer": fast_bert_tokenizer,
    "BertTokenizer": bert_tokenizer,
    "keras-hub": keras_hub,
    "tokenizers": tokenizers,
}


@pytest.mark.parametrize("case", ["uncased", "cased"])
@pytest.mark.parametrize("peer", PEERS)
def test_others_differ_where_the_docs_say_and_nowhere_else(peer, case):
    path = shared(f"vocab/bert-base-{case}-vocab.txt")
    pieces, lowercase = read_vocabulary(path), case == "uncased"
    reference = WordPiece(pieces, lowercase)
    ids_of = MAKERS[peer](str(path), pieces, lowercase)
    differ = {
        name
        for name, text in TEXTS.items()
        if list(map(int, ids_of(text))) != reference.ids(text)
    }
    assert differ == PEERS[peer][case == "cased"]


def test_pairs_that_are_too_long_are_cut_as_the_docs_say(tmp_path):
    import tokenizers

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    peer = tokenizers.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"))
    peer.enable_truncation(max_length=16)  # the pair keeps 13 tokens
    preprocess = BertPreprocessor(WordPieceTokenizer(pieces), 16)
    pairs = [("a " * 20, "a " * 20), ("a " * 20, "a " * 30)]
    pairs += [("a " * 7, "a " * 30), ("a " * 30, "a " * 20)]
    theirs = [sum(peer.encode(*pair).type_ids) for pair in pairs]
    assert theirs == [8, 8, 8, 7]
    rows = preprocess(tuple(map(list, zip(*pairs, strict=True))))
    ours = tf.reduce_sum(rows["segment_ids"], axis=1)
    assert ours.numpy().tolist() == [7] * 4  # 6 tokens and [SEP]
