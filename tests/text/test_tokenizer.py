"""The ids in a graph are the law's, by every road and in every form."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from strange_strings import strange_strings

from bert_keras.errors import InputError
from bert_keras.text.fast import LONGEST_CHARACTER, plain_codes
from bert_keras.text.tables import results_of
from bert_keras.text.tokenizer import WordPieceTokenizer
from bert_keras.text.vocabulary import read_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS, WordPiece

ROOT = Path(__file__).parent.parent.parent
SMALL = [*SPECIAL_TOKENS, "an", "hour", "##s", "##able", "un", "##aff", "!"]


def glass_vocabulary(texts, **settings):
    """Each character a piece, so that the ids tell all of each word."""
    words = (
        w for t in texts for w in WordPiece(["[UNK]"], **settings).words(t)
    )
    letters = sorted({letter for word in words for letter in word})
    return [*SPECIAL_TOKENS, *letters, *("##" + letter for letter in letters)]


def assert_as_the_law(texts, vocabulary, portable=False, **settings):
    tokenizer = WordPieceTokenizer(vocabulary, portable=portable, **settings)
    law = WordPiece(vocabulary, **settings)
    for text, ids in zip(texts, tokenizer(texts).to_list(), strict=True):
        assert ids == law.ids(text), text


def shared(name):
    """A file of the shared data; skips where there is none."""
    folder = os.environ.get("BERT_KERAS_DATA")
    if not folder:
        pytest.skip("BERT_KERAS_DATA names no folder with real vocabularies")
    return Path(folder) / "data" / name


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
def test_strange_strings_give_the_ids_of_the_law(
    lowercase, strip_accents, portable
):
    settings = {"lowercase": lowercase, "strip_accents": strip_accents}
    texts = strange_strings(1200, seed=4)
    vocabulary = glass_vocabulary(texts, **settings)
    assert_as_the_law(texts, vocabulary, portable, **settings)


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("cased", [False, True])
def test_code_points_give_the_ids_of_the_law(cased, portable):
    texts = [
        form.replace("_", chr(code)).encode("utf-8", "surrogatepass")
        for code in range(0, 0x110000, 211)
        for form in ("_", "a_b", "x_. (_Σ")
    ]
    settings = {"lowercase": not cased}
    vocabulary = glass_vocabulary(texts, **settings)
    assert_as_the_law(texts, vocabulary, portable, **settings)


@pytest.mark.parametrize("case", ["cased", "uncased"])
def test_published_vocabularies_give_the_ids_of_the_law(case):
    vocabulary = read_vocabulary(shared(f"vocab/bert-base-{case}-vocab.txt"))
    texts = strange_strings(1500, seed=5)
    languages = sorted(shared("udhr").glob("*.txt"))[::20]
    texts += [path.read_bytes()[:1500] for path in languages]
    for portable in (False, True):
        assert_as_the_law(
            texts, vocabulary, portable, lowercase=case == "uncased"
        )


def test_tensorflow_text_treats_plain_characters_as_the_law_does(monkeypatch):
    path = ROOT / "tools" / "maintenance" / "make_plain_characters.py"
    monkeypatch.syspath_prepend(path.parent)
    spec = importlib.util.spec_from_file_location("make_plain", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for lowercase in (True, False):
        plain = sorted(plain_codes(lowercase, lowercase))[::9]
        assert tool.agreeing(map(chr, plain), lowercase) == set(plain)


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("limit", [100, 200])
def test_over_long_words_are_measured_in_characters(limit, portable):
    texts = [
        f"in {letter * length} the"
        for letter in "aéあ😀"
        for length in (limit // 4, limit // 2, limit - 1, limit, limit + 1)
    ]
    vocabulary = glass_vocabulary(texts)
    assert_as_the_law(texts, vocabulary, portable, max_word_length=limit)


@pytest.mark.parametrize("portable", [False, True])
def test_pieces_that_no_word_can_hold_are_never_used(portable):
    pieces = ["a", "b", "##b", "a.b", "##.b", "##.", "中国", "##国", "##", "."]
    texts = ["a.b ab", "a中国b", "中国", "a##b", "##b", "[UNK] a", "ab."]
    vocabulary = [*SPECIAL_TOKENS, *pieces, "中", "国"]
    assert_as_the_law(texts, vocabulary, portable)


@pytest.mark.parametrize("portable", [False, True])
def test_a_line_separator_for_a_piece_is_never_used(portable):
    texts = ["a\u2028b \u2028 b", "\u2028"]
    vocabulary = [*SPECIAL_TOKENS, "\u2028", "a", "b", "##b"]
    assert_as_the_law(texts, vocabulary, portable)


@pytest.mark.parametrize("portable", [False, True])
def test_special_tokens_in_the_text_are_tokens_on_request(portable):
    texts = [
        *("an [MASK] hour", "an[MASK]hours", "[mask]", "[MASK", "[CLS][SEP]"),
        *("[[MASK]]", "[MASK]\u0301s", "\1\2 an\3", "ΑΣ[SEP]ΑΣ", ""),
    ]
    vocabulary = [*SMALL, "[", "]", "ας"]
    settings = {"keep_special_tokens": True}
    assert_as_the_law(texts, vocabulary, portable, **settings)
    texts = strange_strings(1000, seed=6)
    vocabulary = glass_vocabulary(texts)
    assert_as_the_law(texts, vocabulary, portable, **settings)


def test_strings_of_any_shape_give_the_same_ids():
    tokenizer = WordPieceTokenizer(SMALL)
    assert tokenizer("an hour").numpy().tolist() == [5, 6]
    assert tokenizer(["an hour", ""]).to_list() == [[5, 6], []]
    matrix = tf.constant([["an", "hour"], ["…", "hours!"]])
    nested = [[[5], [6]], [[1], [6, 7, 11]]]
    assert tokenizer(matrix).to_list() == nested
    ragged = tf.ragged.constant([["an"], [], ["hour", "hours"]])
    assert tokenizer(ragged).to_list() == [[[5]], [], [[6], [6, 7]]]
    assert tokenizer(tf.constant([], tf.string)).to_list() == []


def test_eager_function_and_dataset_give_the_same_ids():
    tokenizer = WordPieceTokenizer(SMALL)
    texts = ["An hour", "unaffable hours", "a\0n …", ""]
    eager = tokenizer(texts).to_list()
    assert tf.function(tokenizer)(tf.constant(texts)).to_list() == eager
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    assert [ids.numpy().tolist() for ids in dataset.map(tokenizer)] == eager
    (batch,) = dataset.batch(4).map(tokenizer)
    assert batch.to_list() == eager


@pytest.mark.parametrize(
    ("unit", "keep"),
    [("characters", False), ("characters", True), ("bytes", False)],
)
def test_the_slice_at_a_piece_normalises_to_it(unit, keep):
    texts = strange_strings(400, seed=7)
    texts = [text.decode("utf-8", "ignore").encode() for text in texts]
    vocabulary = glass_vocabulary(texts, keep_special_tokens=keep)
    tokenizer = WordPieceTokenizer(vocabulary, keep_special_tokens=keep)
    law = WordPiece(vocabulary, keep_special_tokens=keep)
    found = tokenizer.tokenize_with_offsets(texts, unit=unit)
    ids, starts, ends = (ragged.to_list() for ragged in found)
    assert ids == tokenizer(texts).to_list()
    for text, *rows in zip(texts, ids, starts, ends, strict=True):
        text = text if unit == "bytes" else text.decode()
        for token_id, start, end in zip(*rows, strict=True):
            piece = vocabulary[token_id].removeprefix("##")
            parts = law.words(text[start:end])
            if piece in ("σ", "ς"):  # which one, its neighbours decide
                parts = [part.replace("σ", piece) for part in parts]
            assert piece in "".join(parts) or piece == "[UNK]"


def test_offsets_take_in_accents_and_whole_unknown_words():
    tokenizer = WordPieceTokenizer([*SMALL, "cafe", "##z"])
    text = "A\u0300n cafe\u0301s\0, \u00ad<hour>"
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    slices = [text[a:b] for a, b in zip(starts, ends, strict=True)]
    assert ids.numpy().tolist() == [5, 12, 7, 1, 1, 6, 1]
    assert slices == ["A\u0300n", "cafe\u0301", "s", ",", "<", "hour", ">"]
    _, starts, ends = tokenizer.tokenize_with_offsets("é qqq an", "bytes")
    assert starts.numpy().tolist() == [0, 3, 7]
    assert ends.numpy().tolist() == [2, 6, 9]


def test_detokenize_joins_pieces_and_leaves_the_frame_out():
    tokenizer = WordPieceTokenizer(SMALL)
    padded = tf.constant([[2, 5, 6, 7, 3, 0], [2, 9, 10, 8, 4, 3]])
    expected = [b"an hours", b"unaffable [MASK]"]
    assert tokenizer.detokenize(padded).numpy().tolist() == expected
    ragged = tf.RaggedTensor.from_tensor(padded)
    assert tokenizer.detokenize(ragged).numpy().tolist() == expected
    assert tokenizer.detokenize([5, 6, 7]).numpy() == b"an hours"
    assert tokenizer.detokenize([7, 5]).numpy() == b"##s an"
    nested = tf.ragged.constant([[[5], [6, 7]], [[]]])
    assert tokenizer.detokenize(nested).to_list() == [[b"an", b"hours"], [b""]]


def test_an_id_or_a_piece_that_is_not_there_is_named():
    tokenizer = WordPieceTokenizer(SMALL)
    assert tokenizer.token_to_id(tokenizer.id_to_token(6)) == 6
    with pytest.raises(InputError, match="id 12"):
        tokenizer.id_to_token(12)
    with pytest.raises(InputError, match="'hours'"):
        tokenizer.token_to_id("hours")
    with pytest.raises(InputError, match=r"0 to 11.*\[-1, 12\]"):
        tokenizer.detokenize([5, -1, 12])
    with pytest.raises(InputError, match=r"float32 of shape \(0,\)"):
        tokenizer.detokenize([])
    with pytest.raises(InputError, match=r"int32 of shape \(\)\. Expected"):
        tokenizer.detokenize(5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="12"):
        tf.function(tokenizer.detokenize)(tf.constant([5, 12]))


def test_halves_of_surrogate_pairs_are_dropped_as_their_bytes_are():
    tokenizer = WordPieceTokenizer(SMALL)
    for form in ("an\ud800 hour", "\udfffan hour\ud83d"):
        strings = [form, [form.encode("utf-8", "surrogatepass")]]
        ids, (same,) = (tokenizer(x) for x in strings)
        assert ids.numpy().tolist() == same.numpy().tolist() == [5, 6]


def test_what_cannot_be_used_is_refused():
    with pytest.raises(InputError, match=r"\[MASK\]"):
        WordPieceTokenizer(SMALL[:4])
    with pytest.raises(InputError, match="tensorflow-text cannot use"):
        WordPieceTokenizer([*SPECIAL_TOKENS, "a.b"])
    with pytest.raises(InputError, match="'vocab.txt'; expected a list"):
        WordPieceTokenizer("vocab.txt")
    with pytest.raises(InputError, match="max_word_length is 0"):
        WordPieceTokenizer(SMALL, max_word_length=0)
    with pytest.raises(InputError, match="No line .* piece of a word"):
        WordPieceTokenizer(SPECIAL_TOKENS)
    tokenizer = WordPieceTokenizer(SMALL)
    with pytest.raises(InputError, match="unit is 'words'"):
        tokenizer.tokenize_with_offsets("an", unit="words")
    with tf.Graph().as_default(), pytest.raises(InputError, match="rank"):
        tokenizer(tf.compat.v1.placeholder(tf.string))


def test_no_character_becomes_longer_than_the_fast_road_expects():
    results = results_of(lowercase=True, strip_accents=True).values()
    longest = max(len("".join(map(chr, r)).encode()) for r in results)
    assert longest <= LONGEST_CHARACTER


def test_a_functional_model_holds_its_tokenizer(tmp_path):
    strings = keras.Input((), dtype="string")
    settings = {"max_word_length": 9, "keep_special_tokens": True}
    tokenizer = WordPieceTokenizer(SMALL, strip_accents=False, **settings)
    model = keras.Model(strings, tokenizer(strings))
    texts = tf.constant(["An hour", "[MASK] é"])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again(texts).to_list() == model(texts).to_list()
    assert again.layers[-1].get_config() == tokenizer.get_config()


LOAD_WITHOUT = """
import sys
sys.modules["tensorflow_text"] = None
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
ids = loaded.serve(tf.constant(["An hour", "a\\0n … hours"]))
assert ids["ids"].numpy().tolist() == [[5, 6, 0], [5, 1, 6]], ids
from bert_keras import WordPieceTokenizer
tokenizer = WordPieceTokenizer(sys.argv[2].split())
assert tokenizer(["An hour"]).to_list() == [[5, 6]]
"""


def test_the_portable_one_loads_without_tensorflow_text(tmp_path):
    module = tf.Module()
    module.tokenizer = WordPieceTokenizer(SMALL, portable=True)
    module.serve = tf.function(
        lambda strings: {"ids": module.tokenizer(strings).to_tensor()[:, :3]},
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, tmp_path)
    assert not any((tmp_path / "assets").iterdir())
    subprocess.run(
        [sys.executable, "-c", LOAD_WITHOUT, tmp_path, " ".join(SMALL)],
        check=True,
        cwd=ROOT,
    )


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("text", ["ab" * 500_000, "é…" * 200_000, "." * 10**6])
def test_time_is_linear_where_nothing_parts_words(text, portable):
    tokenizer = WordPieceTokenizer(
        [*SPECIAL_TOKENS, "a", "##b", "."], portable=portable
    )
    tokenizer([text[:1000]])
    start = time.process_time()
    tokenizer([text])
    assert time.process_time() - start < 1.5
