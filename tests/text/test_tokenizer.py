"""The tokenizer layer's ids equal those of the plain Python reference."""

import importlib.util
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.text.exact import ExactText
from bert_keras.text.fast import MAX_CHARACTER_BYTES, plain_codes
from bert_keras.text.tokenizer import WordPieceTokenizer
from bert_keras.text.unicode_tables import map_code_points
from bert_keras.text.vocabulary import read_vocabulary, write_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS, WordPiece
from tests.support import forks
from tests.support.shared_data import shared
from tests.support.strange_strings import strange_strings

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parent.parent.parent
SMALL = [*SPECIAL_TOKENS, "an", "hour", "##s", "##able", "un", "##aff", "!"]
TOKENIZER = WordPieceTokenizer(SMALL)  # traced once for all tests


def glass_vocabulary(texts, **settings):
    """Return a vocabulary of the texts' characters, so that ids spell words."""
    reference = WordPiece(["[UNK]"], **settings)
    letters = sorted({c for t in texts for w in reference.words(t) for c in w})
    return [*SPECIAL_TOKENS, *letters, *("##" + letter for letter in letters)]


def assert_equals_reference(texts, vocabulary, **settings):
    """Compare the fast path and the exact path with the reference."""
    reference = WordPiece(vocabulary, **settings)
    expected = list(map(reference.ids, texts))
    for portable in (False, True):
        made = WordPieceTokenizer(vocabulary, portable=portable, **settings)
        rows = zip(texts, made(texts).to_list(), expected, strict=True)
        wrong = [text for text, ids, right in rows if ids != right]
        assert not wrong, (portable, wrong[:5])


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
def test_strange_strings_give_the_ids_of_the_reference(
    lowercase, strip_accents
):
    settings = {"lowercase": lowercase, "strip_accents": strip_accents}
    texts = strange_strings(800, seed=4)
    if lowercase == strip_accents:  # as in published models
        texts += [
            form.replace("_", chr(code)).encode("utf-8", "surrogatepass")
            for code in range(0, 0x110000, 401)
            for form in ("_", "a_b", "x_. (_Σ")
        ]
    vocabulary = glass_vocabulary(texts, **settings)
    assert_equals_reference(texts, vocabulary, **settings)


@pytest.mark.parametrize("case", ["cased", "uncased"])
def test_published_vocabularies_give_the_ids_of_the_reference(case):
    vocabulary = read_vocabulary(shared(f"vocab/bert-base-{case}-vocab.txt"))
    texts = strange_strings(600, seed=5)
    languages = sorted(shared("udhr").glob("*.txt"))[::30]
    texts += [path.read_bytes()[:1000] for path in languages]
    assert_equals_reference(texts, vocabulary, lowercase=case == "uncased")


def test_tensorflow_text_treats_plain_characters_as_the_reference_does():
    path = ROOT / "tools" / "maintenance" / "make_unicode_tables.py"
    spec = importlib.util.spec_from_file_location("make_tables", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for lowercase in (True, False):
        plain = sorted(plain_codes(lowercase, lowercase))[::9]
        assert tool.plain_among(map(chr, plain), lowercase) == set(plain)


def test_pieces_that_no_word_can_hold_are_never_used():
    texts = ["a.b ab", "a中国b", "中国", "a##b", "##b", "[UNK] a", "ab."]
    texts += ["a\u2028b \u2028 b", "\u2028"]
    pieces = ["a", "b", "##b", "a.b", "##.b", "##.", "中国", "##国", "##"]
    pieces += [".", "中", "国", "\u2028"]
    assert_equals_reference(texts, [*SPECIAL_TOKENS, *pieces])


def test_special_tokens_are_kept_and_words_measured_as_asked():
    texts = [
        *("an [MASK] hour", "an[MASK]hours", "[mask]", "[MASK", "[CLS][SEP]"),
        *("[[MASK]]", "[MASK]\u0301s", "\1\2 an\3", "ΑΣ[SEP]ΑΣ", ""),
    ]
    texts += strange_strings(400, seed=6)
    limit = 100  # characters, not bytes
    texts += [
        f"in {letter * length} the"
        for letter in "aéあ😀"
        for length in (limit // 4, limit // 2, limit - 1, limit, limit + 1)
    ]
    vocabulary = glass_vocabulary(texts)
    settings = {"keep_special_tokens": True, "max_word_length": limit}
    assert_equals_reference(texts, vocabulary, **settings)


def test_strings_of_any_shape_give_the_same_ids():
    assert TOKENIZER("an hour").numpy().tolist() == [5, 6]
    assert TOKENIZER(["an hour", ""]).to_list() == [[5, 6], []]
    matrix = tf.constant([["an", "hour"], ["…", "hours!"]])
    nested = [[[5], [6]], [[1], [6, 7, 11]]]
    assert TOKENIZER(matrix).to_list() == nested
    ragged = tf.ragged.constant([["an"], [], ["hour", "hours"]])
    assert TOKENIZER(ragged).to_list() == [[[5]], [], [[6], [6, 7]]]
    assert TOKENIZER(tf.constant([], tf.string)).to_list() == []


def test_plain_text_does_not_wait_for_the_exact_path(monkeypatch):
    made = []

    def counted(settings):
        made.append(settings)
        return ExactText(settings)

    monkeypatch.setattr("bert_keras.text.tokenizer.ExactText", counted)
    # No other test has these settings, so their graphs are not cached.
    tokenizer = WordPieceTokenizer(SMALL, max_word_length=77)
    plain, other = ["an hour", "", "hours!"], "\u0430n an \x07hour\ufffd"
    ids = tokenizer(plain).to_list()
    assert not made
    assert tokenizer([other, *plain]).to_list()[1:] == ids
    assert len(made) == 1
    reference = WordPiece(SMALL, max_word_length=77)
    assert ids == list(map(reference.ids, plain))
    assert tokenizer(other).numpy().tolist() == reference.ids(other)


def test_eager_function_and_dataset_give_the_same_ids():
    texts = ["An hour", "unaffable hours", "a\0n …", ""]
    eager = TOKENIZER(texts).to_list()
    assert tf.function(TOKENIZER)(tf.constant(texts)).to_list() == eager
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    assert [ids.numpy().tolist() for ids in dataset.map(TOKENIZER)] == eager
    (batch,) = dataset.batch(4).map(TOKENIZER)
    assert batch.to_list() == eager


@pytest.mark.parametrize(
    ("unit", "keep"), [("characters", True), ("bytes", False)]
)
def test_the_slice_at_a_piece_normalises_to_it(unit, keep):
    texts = strange_strings(250, seed=7)
    texts = [text.decode("utf-8", "ignore").encode() for text in texts]
    vocabulary = glass_vocabulary(texts, keep_special_tokens=keep)
    tokenizer = WordPieceTokenizer(vocabulary, keep_special_tokens=keep)
    reference = WordPiece(vocabulary, keep_special_tokens=keep)
    found = tokenizer.tokenize_with_offsets(texts, unit=unit)
    ids, starts, ends = (ragged.to_list() for ragged in found)
    assert ids == tokenizer(texts).to_list()
    for text, *rows in zip(texts, ids, starts, ends, strict=True):
        text = text if unit == "bytes" else text.decode()
        for token_id, start, end in zip(*rows, strict=True):
            piece = vocabulary[token_id].removeprefix("##")
            parts = reference.words(text[start:end])
            if piece in ("σ", "ς"):  # depends on the neighbours
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


@pytest.mark.parametrize("unit", ["characters", "bytes"])
def test_tokens_share_the_characters_that_become_several_letters(unit):
    several = {
        chr(code): letters
        for code in map_code_points(lowercase=True, strip_accents=True)
        if len(letters := "".join(WordPiece(SMALL).words(chr(code)))) > 1
    }
    assert len(several) > 11_172  # the Hangul syllables and others
    texts = [f"a{character}b" for character in several]
    letters = sorted(set("".join(several.values())) - {"a"})
    single = ["a", "##b", *(f"##{letter}" for letter in letters)]
    # With "joined", the neighbours share tokens with the first and last letter.
    joined = sorted(
        {f"a{word[0]}" for word in several.values()}
        | {f"##{word[-1]}b" for word in several.values()}
    )
    for pieces in (single, single + joined):
        vocabulary = [*SPECIAL_TOKENS, *pieces]
        reference = WordPiece(vocabulary)
        tokenizer = WordPieceTokenizer(vocabulary)
        found = tokenizer.tokenize_with_offsets(texts, unit=unit)
        ids, starts, ends = (ragged.to_list() for ragged in found)
        assert ids == list(map(reference.ids, texts))
        for text, word, *row in zip(
            texts, several.values(), ids, starts, ends, strict=True
        ):
            # The index in `text` of each letter's character.
            source, expected = [0, *[1] * len(word), 2], []
            for token_id in row[0]:
                size = len(vocabulary[token_id].removeprefix("##"))
                span = source[0], source[size - 1] + 1
                if unit == "bytes":
                    span = tuple(len(text[:end].encode()) for end in span)
                expected.append(span)
                source = source[size:]
            assert list(zip(*row[1:], strict=True)) == expected, text


def test_detokenize_joins_pieces_and_leaves_the_frame_out():
    padded = tf.constant([[2, 5, 6, 7, 3, 0], [2, 9, 10, 8, 4, 3]])
    expected = [b"an hours", b"unaffable [MASK]"]
    assert TOKENIZER.detokenize(padded).numpy().tolist() == expected
    ragged = tf.RaggedTensor.from_tensor(padded)
    assert TOKENIZER.detokenize(ragged).numpy().tolist() == expected
    assert TOKENIZER.detokenize([5, 6, 7]).numpy() == b"an hours"
    assert TOKENIZER.detokenize([7, 5]).numpy() == b"##s an"
    nested = tf.ragged.constant([[[5], [6, 7]], [[]]])
    assert TOKENIZER.detokenize(nested).to_list() == [[b"an", b"hours"], [b""]]


def test_ids_are_named_and_one_that_is_not_there_fails_in_a_graph_too():
    assert TOKENIZER.token_to_id(TOKENIZER.id_to_token(6)) == 6
    detokenize = tf.function(TOKENIZER.detokenize)
    with pytest.raises(tf.errors.InvalidArgumentError, match="12"):
        detokenize(tf.constant([5, 12]))


def test_halves_of_surrogate_pairs_are_dropped_as_their_bytes_are():
    for form in ("an\ud800 hour", "\udfffan hour\ud83d"):
        raw = form.encode("utf-8", "surrogatepass")
        for strings in ([form], np.array([form]), [raw]):
            assert TOKENIZER(strings).to_list() == [[5, 6]]
        assert TOKENIZER(form).numpy().tolist() == [5, 6]
    ids, starts, _ = TOKENIZER.tokenize_with_offsets("\ud83d an hour")
    assert ids.numpy().tolist() == [5, 6]
    assert starts.numpy().tolist() == [2, 5]


def test_no_character_becomes_longer_than_the_fast_path_expects():
    results = map_code_points(lowercase=True, strip_accents=True).values()
    longest = max(len("".join(map(chr, r)).encode()) for r in results)
    assert longest <= MAX_CHARACTER_BYTES


def test_a_vocabulary_may_be_a_path_but_not_in_a_stored_model(tmp_path):
    path = tmp_path / "vocab.txt"
    write_vocabulary(SMALL, path)
    for given in (path, str(path)):
        assert WordPieceTokenizer(given).get_vocabulary() == SMALL
    config = {**TOKENIZER.get_config(), "vocabulary": str(path)}
    with pytest.raises(InputError):  # `from_config` reads no file
        WordPieceTokenizer.from_config(config)
    TOKENIZER.get_vocabulary().clear()  # a copy
    assert TOKENIZER.get_vocabulary() == SMALL


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
for length in 8, 9:
    tokenizer = WordPieceTokenizer(sys.argv[2].split(), max_word_length=length)
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
    # The SavedModel has only the graph in use, not all of the layer's graphs.
    assert not hasattr(tf.saved_model.load(tmp_path).tokenizer, "_graphs")
    done = forks.run(
        [sys.executable, "-c", LOAD_WITHOUT, tmp_path, " ".join(SMALL)],
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("exact tokenizer takes over") == 1


@pytest.mark.parametrize("portable", [False, True])
def test_a_megabyte_without_a_space_ends_soon(portable):
    """A quadratic search would take hours."""
    pieces, texts = [*SPECIAL_TOKENS, "a", "##b", "."], ["ab" * 500_000]
    texts += ["é…" * 200_000]
    tokenizer = WordPieceTokenizer(pieces, portable=portable)
    expected = list(map(WordPiece(pieces).ids, texts))
    assert tokenizer(texts).to_list() == expected


def test_symbolic_strings_have_the_spec_of_the_ids():
    for shape, texts in (((2,), ["an hour", ""]), ((1, 2), [["an", "!"]])):
        spec = TOKENIZER.compute_output_spec(keras.KerasTensor(shape, "string"))
        ids = TOKENIZER(texts)
        assert (spec.dtype, spec.ragged) == (ids.dtype.name, True)
        assert spec.shape == tuple(ids.shape)
