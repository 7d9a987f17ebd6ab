"""Reading, writing, learning and extending vocabularies."""

import codecs
import collections
import itertools
import pickle
import random
import tarfile

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.interop.tensors import License
from bert_keras.modeling.weights import enable_lora
from bert_keras.text.extension import (
    domain_words,
    extend_model,
    extend_vocabulary,
)
from bert_keras.text.learning import count_words, learn_vocabulary
from bert_keras.text.vocabulary import (
    read_pieces,
    read_vocabulary,
    write_vocabulary,
)
from bert_keras.text.wordpiece import SPECIAL_TOKENS, WordPiece
from tests.support.model_samples import make_model
from tests.support.shared_data import shared

pytestmark = pytest.mark.fast

SPECIAL = list(SPECIAL_TOKENS)


def text(words=3000):
    """Return lines of made-up words with Zipf's frequencies."""
    drawn = random.Random(0)
    syllables = [a + b for a in "bdfglmnprst" for b in "aeiou"]
    known = [
        "".join(drawn.choices(syllables, k=drawn.randint(1, 4)))
        for _ in range(400)
    ]
    weights = [1 / rank for rank in range(1, 401)]
    picked = drawn.choices(known, weights, k=words)
    return [" ".join(picked[i : i + 20]) + "." for i in range(0, words, 20)]


def test_a_vocabulary_is_read_as_it_was_written(tmp_path):
    pieces = [*SPECIAL, "é", "##中", "\u2028"]
    write_vocabulary(pieces, tmp_path / "vocab.txt")
    assert read_vocabulary(tmp_path / "vocab.txt") == pieces
    windows = codecs.BOM_UTF8 + "\r\n".join(pieces).encode()
    (tmp_path / "windows.txt").write_bytes(windows)
    assert read_vocabulary(tmp_path / "windows.txt") == pieces


def test_an_unsound_file_can_still_be_read_to_be_examined(tmp_path):
    (tmp_path / "vocab.txt").write_text("a\na\n")
    assert read_pieces(tmp_path / "vocab.txt") == ["a", "a"]


def test_nothing_is_written_of_a_bad_vocabulary(tmp_path):
    with pytest.raises(InputError):
        write_vocabulary(["a", "a"], tmp_path / "vocab.txt")
    assert not any(tmp_path.iterdir())


def learned_slowly(words, size, min_count):
    """Learn by pair merging, counting all pairs again for each merge."""
    cut = {w: [w[0], *("##" + c for c in w[1:])] for w in words}
    pieces = [*SPECIAL, *sorted({s for parts in cut.values() for s in parts})]
    cut = {w: parts for w, parts in cut.items() if set(parts) <= set(pieces)}
    while len(pieces) < size:
        pairs = collections.Counter()
        for word, parts in cut.items():
            for pair in zip(parts, parts[1:], strict=False):
                pairs[pair] += words[word]
        rank = {piece: number for number, piece in enumerate(pieces)}
        best = min(
            pairs, key=lambda p: (-pairs[p], rank[p[0]], rank[p[1]]), default=0
        )
        if not best or pairs[best] < min_count:
            break
        merged = best[0] + best[1][2:]
        if merged not in rank:
            pieces.append(merged)
        for parts in cut.values():
            place = 0
            while place < len(parts) - 1:
                if (parts[place], parts[place + 1]) == best:
                    parts[place : place + 2] = [merged]
                place += 1
    return pieces


def repetitive_text():
    """Return words in which pairs of tokens repeat, overlap and touch."""
    drawn = random.Random(0)
    return ["".join(drawn.choices("ab", k=i % 14 + 1)) for i in range(900)]


@pytest.mark.parametrize("lines", [text(), repetitive_text()])
def test_learning_equals_counting_again_for_each_merge(lines):
    expected = learned_slowly(count_words(lines), 160, 2)
    assert learn_vocabulary(lines, 160) == expected
    assert expected[:5] == SPECIAL and len(expected) == 160


def test_no_piece_is_learned_that_no_vocabulary_may_have(tmp_path):
    lines = [*text(), *["─" * 90] * 5]  # a line of dashes is one word
    pieces = learn_vocabulary(lines, 2000)
    write_vocabulary(pieces, tmp_path / "vocab.txt")
    assert 100 < max(len(piece.encode()) for piece in pieces) <= 256
    found = domain_words([*SPECIAL, "##─", "─"], ["─" * 90, "─" * 80], 2)
    assert found == ["─" * 80]


def test_learning_does_not_depend_on_order_or_workers():
    lines = text()

    def elsewhere(function, items):
        function = pickle.loads(pickle.dumps(function))
        return reversed([function(item) for item in items])

    once = learn_vocabulary(lines, 120)
    assert learn_vocabulary(reversed(lines), 120) == once
    assert learn_vocabulary(lines, 120, in_order=elsewhere) == once


def test_rare_pairs_are_not_learned():
    lines = ["ab ab ab cd"]
    assert learn_vocabulary(lines, 50, min_count=3) == [
        *(*SPECIAL, "##b", "a", "ab")
    ]
    assert "cd" in learn_vocabulary(lines, 50, min_count=1)


def test_learning_follows_the_case_and_keeps_places_free():
    lines = ["Été été"] * 3
    assert "été" in learn_vocabulary(lines, 50, lowercase=False)
    assert "ete" in learn_vocabulary(lines, 50)
    assert "été" in learn_vocabulary(lines, 50, strip_accents=False)
    free = ["[unused0]", "[unused1]", "[unused2]"]
    pieces = learn_vocabulary(lines, 50, unused=3)
    assert pieces[:8] == ["[PAD]", *free, *SPECIAL[1:]]
    many = learn_vocabulary(lines, 2000, unused=994)
    assert many[100:106] == [*SPECIAL[1:], "[unused99]", "[unused100]"]
    assert many[998] == "[unused993]" and not many[999].startswith("[")


def test_progress_goes_up_to_what_was_asked():
    steps = []
    learn_vocabulary(text(), 400, progress=lambda *step: steps.append(step))
    assert steps == sorted(steps) and steps[-1][1] == 400


def test_words_are_counted_as_the_reference_has_them():
    lines = ["It's 5\tA\u00a0b…Σας", "É it\nİ a\0b \x07 中文" + "x" * 201]
    expected = collections.Counter(
        word
        for line in lines
        for word in WordPiece(["[UNK]"]).words(line)
        if len(word) <= 200
    )
    assert count_words(lines) == expected


def test_memory_is_bounded_by_giving_up_the_rarest_words():
    lines = ["often " * 50 + f"rare{i} rarer{i}" for i in range(40)]
    counts = count_words(lines, most=60)
    assert counts["often"] == 2000 and len(counts) <= 60
    counts = count_words((f"rare{i}" for i in range(100)), most=60)
    assert len(counts) == 30


def test_extending_fills_free_places_and_then_appends():
    old = [*SPECIAL, "[unused0]", "una", "##ff", "##able", "able"]
    extension = extend_vocabulary(old, ["unaff", "ableff"])
    assert extension.vocabulary == [
        *(*SPECIAL, "unaff", "una", "##ff", "##able", "able", "ableff")
    ]
    assert extension.replaced == {5: [6, 7], 10: [9, 7]}
    reference = WordPiece(extension.vocabulary)
    assert reference.pieces("unaffable able") == ["unaff", "##able", "able"]


def test_words_that_cost_most_pieces_are_found_in_a_domain():
    old = [*SPECIAL, "a", "##b", "##c"]
    texts = ["A abc abc abc ab ab ab ab ab xyz xyz", "acb acb"]
    # As one token, "abc" would save 6 tokens, "ab" 5, "acb" 4, and "xyz" 2.
    words = domain_words(old, texts, 3)
    assert words == ["abc", "ab", "acb"]
    assert domain_words(old, texts, 9) == [*words, "xyz"]
    assert domain_words(old, texts, 9, lowercase=False) == [*words, "xyz", "A"]
    extended = extend_vocabulary(old, words).vocabulary
    assert domain_words(extended, texts, 9) == ["xyz"]


def test_an_extended_model_says_the_same_of_old_text(random):
    old = [*SPECIAL, "[unused0]", "una", "##ff", "##able", "able"]
    model = make_model("pretrainer", vocabulary_size=len(old))
    model.set_weights([random.normal(size=w.shape) for w in model.weights])
    extension = extend_vocabulary(old, ["unaff", "ableff"])
    extended = extend_model(model, extension)
    inputs = {
        "token_ids": tf.constant([[2, 6, 7, 8, 4, 3]]),
        "mask_positions": tf.constant([[4]]),
    }
    before, after = model(inputs), extended(inputs)
    np.testing.assert_array_equal(before["nsp"], after["nsp"])
    kept = [0, 1, 2, 3, 4, 6, 7, 8, 9]
    np.testing.assert_allclose(
        tf.gather(before["mlm"], kept, axis=-1),
        tf.gather(after["mlm"], kept, axis=-1),
        rtol=1e-6,
    )
    table = model.encoder.embeddings.token.get_weights()[0]
    grown = extended.encoder.embeddings.token.get_weights()[0]
    assert grown.shape == (11, 8)
    np.testing.assert_allclose(grown[5], table[[6, 7]].mean(0), rtol=1e-6)
    np.testing.assert_allclose(grown[10], table[[9, 7]].mean(0), rtol=1e-6)
    only_encoder = extend_model(model.encoder, extension)
    assert only_encoder.embeddings.token.get_weights()[0].shape == (11, 8)


def test_copies_keep_what_belongs_to_the_weights():
    old = [*SPECIAL, "[unused0]", "una", "##ff", "##able"]
    model = make_model("pretrainer", vocabulary_size=len(old)).encoder
    model.license = License("mit", "All may use it.")
    model.sentence_embedding = {"pooling": "mean", "normalize": True}
    enable_lora(model, rank=2)
    for weight in model.trainable_weights:
        weight.assign(np.full(weight.shape, 0.1))
    extension = extend_vocabulary(old, ["unaff"])
    inputs = {"token_ids": tf.constant([[2, 6, 7, 8, 4, 3]])}
    for copy in (extend_model(model, extension), model.with_dtype("float32")):
        assert copy.license == model.license
        assert dict(copy.sentence_embedding) == dict(model.sentence_embedding)
        np.testing.assert_allclose(
            model(inputs)["pooled_output"],
            copy(inputs)["pooled_output"],
            atol=1e-6,
        )


def measure_fit(pieces, texts):
    """Return the tokens per word and the fraction of unknown words."""
    wordpiece, counts = WordPiece(pieces, True), count_words(texts)
    cover = {word: wordpiece.cover(word) for word in counts}
    total = sum(counts.values())
    unknown = sum(n for word, n in counts.items() if cover[word] == ["[UNK]"])
    made = sum(n * len(cover[word]) for word, n in counts.items())
    return made / total, unknown / total


def corpus_texts(files):
    """Return training and held-out lines of the corpus's first files."""
    learned, held_out = [], []
    with tarfile.open(shared("corpus.tar.xz")) as archive:
        members = (member for member in archive if member.isfile())
        for number, member in enumerate(itertools.islice(members, files)):
            lines = archive.extractfile(member).read().decode().split("\n")
            (held_out if number % 20 == 7 else learned).extend(lines)
    return learned, held_out


@pytest.mark.parametrize(
    ("files", "size"),
    [(8, 4_000), pytest.param(None, 30_000, marks=pytest.mark.long)],
)
def test_on_real_text_pieces_are_as_few_as_those_of_tokenizers(files, size):
    import tokenizers

    learned, held_out = corpus_texts(files)
    peer = tokenizers.BertWordPieceTokenizer()
    peer.train_from_iterator(learned, vocab_size=size, show_progress=False)
    ours = measure_fit(learn_vocabulary(learned, size), held_out)
    theirs = measure_fit(list(peer.get_vocab()), held_out)
    print(f"{size} tokens: bert_keras {ours}, tokenizers {theirs}")
    assert ours[0] <= 1.02 * theirs[0]
    assert ours[1] < 0.0001
