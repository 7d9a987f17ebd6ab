"""Outputs of the serving signatures on stubs with known logits."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.serving.classification import choose, classify
from bert_keras.serving.pretraining import MASKS_AT_ONCE, _likeliest
from bert_keras.serving.spans import (
    MAX_ANSWERS,
    _read_scheme,
    answer,
    cut_out,
    tag,
)
from bert_keras.serving.texts import copy_for_serving
from bert_keras.serving.tokens import tokenize
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.tokenizer import WordPieceTokenizer
from bert_keras.text.windows import best_context, in_chunks, windows
from official_tasks.tasks.metrics import entities
from tests.support.live_answers import best_windows
from tests.support.live_answers import windows as plain_windows

pytestmark = pytest.mark.fast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["ada", "love", "##lace", "met", "in", "new", "york", "caf\u00e9", "."]
VOCABULARY = [*SPECIAL, *WORDS, *"abcdefghij"]


@functools.cache
def tokenizer():
    return WordPieceTokenizer(VOCABULARY, strip_accents=False)


def rows(sequence_length=16):
    return copy_for_serving(
        BertPreprocessor(tokenizer(), sequence_length=sequence_length)
    )


@dataclasses.dataclass
class ByPiece:
    """Stub model: `table` maps a token to its logits; other logits are 0."""

    table: dict
    labels: list = None
    problem: str = "single"
    thresholds: None = None
    rows_seen: list = dataclasses.field(default_factory=list)

    def __call__(self, inputs, training=False):
        width = len(next(iter(self.table.values())))
        table = np.zeros((len(VOCABULARY), width), "float32")
        for piece, logits in self.table.items():
            table[VOCABULARY.index(piece)] = logits
        tf.numpy_function(
            self.rows_seen.append, [tf.shape(inputs["token_ids"])], []
        )
        return tf.gather(table, inputs["token_ids"])


def called(signature, *texts):
    """Return the signature's outputs; padded outputs are cut to `count`."""
    if not hasattr(signature.function, "get_concrete_function"):
        signature.function = tf.function(
            signature.function,
            input_signature=signature.specs(),
            autograph=False,
        )
    outputs = signature.function(*[tf.constant(t) for t in texts])
    assert set(outputs) == set(signature.outputs)
    values = {key: value.numpy() for key, value in outputs.items()}
    for key in [k for k, o in signature.outputs.items() if o.padded]:
        pairs = zip(values[key], values["count"], strict=True)
        values[key] = [row[:count].tolist() for row, count in pairs]
    return values


TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "E-LOC", "X-DAY"]
LETTERS = dict(zip(TAGS, "abcdefg", strict=True))  # a word for each label


@functools.cache
def tagger(sequence_length=16, long_text="truncate"):
    """Return the signature `tag` of a stub that labels by token."""
    pieces = {letter: label for label, letter in LETTERS.items()}
    pieces |= {"met": "O", "love": "B-PER", "caf\u00e9": "B-LOC"}
    logits = {
        piece: 9.0 * np.eye(len(TAGS))[TAGS.index(label)]
        for piece, label in pieces.items()
    }
    return tag(ByPiece(logits, labels=TAGS), rows(sequence_length), long_text)


def test_entities_follow_the_labels_of_their_words():
    """Types equal those of `entities`; an unknown prefix stays in the type."""
    expected = {
        "B-PER I-PER": "bc PER",
        "B-PER B-PER": "b PER, b PER",
        "I-PER I-PER": "cc PER",  # I- after O begins an entity
        "B-PER I-LOC": "b PER, e LOC",
        "B-LOC E-LOC": "df LOC",
        "E-LOC I-LOC": "f LOC, e LOC",
        "O B-LOC": "d LOC",
        "X-DAY X-DAY": "gg X-DAY",
        "O O": "",
    }
    words = ["  ".join(LETTERS[x] for x in row.split()) for row in expected]
    found = called(tagger(), [f"met {pair} met" for pair in words])
    for row, (labels, wanted) in enumerate(expected.items()):
        texts = [t.decode().replace(" ", "") for t in found["text"][row]]
        kinds = [kind.decode() for kind in found["type"][row]]
        pairs = zip(texts, kinds, strict=True)
        assert ", ".join(map(" ".join, pairs)) == wanted
        assert [entity.type for entity in entities(labels.split())] == kinds


def test_an_entity_is_whole_words_cut_from_the_text_in_characters():
    text = "Met  Lovelace\u3000in\u00a0Caf\u00e9. met CAF\u00c9"
    found = called(tagger(), ["met", text])
    assert found["count"].tolist() == [0, 3]
    cut = [t.decode() for t in found["text"][1]]
    assert cut == ["Lovelace", "Caf\u00e9", "CAF\u00c9"]
    spans = zip(found["start"][1], found["end"][1], strict=True)
    assert [text[a:b] for a, b in spans] == cut
    expected = np.exp(9) / (np.exp(9) + len(TAGS) - 1)
    np.testing.assert_allclose(found["score"][1], expected, rtol=1e-5)


def test_tags_of_a_long_text_are_cut_or_read_in_windows():
    text = ["met " * 40 + "love", "love"]
    cut = called(tagger(), text)
    assert cut["count"].tolist() == [0, 1]
    assert cut["truncated"].tolist() == [True, False]
    assert tagger(8, "windows").reads_windows and not tagger().reads_windows
    whole = called(tagger(8, "windows"), text)
    assert whole["count"].tolist() == [1, 1]
    assert whole["start"][0] == [160]


class Spans:
    """Stub span predictor: `set` sets the logits of tokens, 0 at first."""

    may_be_none = False

    def __init__(self):
        width = len(VOCABULARY), 2
        self.table = tf.Variable(tf.zeros(width))

    def set(self, start, end):
        table = np.zeros(self.table.shape, "float32")
        for side, logits in enumerate((start, end)):
            for piece, logit in logits.items():
                table[VOCABULARY.index(piece), side] = logit
        self.table.assign(table)

    def __call__(self, inputs, training=False):
        logits = tf.gather(self.table, inputs["token_ids"])
        return {"start": logits[..., 0], "end": logits[..., 1]}


@functools.cache
def spans():
    """Return a `Spans` model and its signature `answer`, traced once."""
    model = Spans()
    return model, answer(model, rows(64), top_k=MAX_ANSWERS)


def test_labels_have_the_number_of_their_type():
    random = np.random.default_rng(0)
    names = [f"T{n}" for n in random.permutation(3000)]
    types, index, begins, ends = _read_scheme(
        ["O", *(f"{prefix}-{name}" for name in names for prefix in "BI")]
    )
    assert types == sorted(names)
    numbers = np.repeat(np.searchsorted(types, names), 2)
    assert index.numpy().tolist() == [-1, *numbers]
    assert begins.numpy().tolist() == [False, *[True, False] * 3000]


def answered(start, end, questions, contexts):
    model, signature = spans()
    model.set(start, end)
    return called(signature, questions, contexts)


def test_an_answer_is_cut_from_the_context_and_never_from_the_question():
    context = "In New  caf\u00e9 \u2014 New York."
    found = answered(
        {"ada": 5.0, "new": 4.0},
        {"york": 3.0, "[CLS]": 1.5},
        ["ada new york", "met"],
        [context, ""],
    )
    assert found["answer"][0][0].decode() == "New  caf\u00e9 \u2014 New York"
    assert found["answer"][0][1].decode() == "New York"
    assert found["score"][0][:3] == [7.0, 7.0, 4.0]
    start, end = found["start"][0][1], found["end"][0][1]
    assert context[start:end] == "New York"
    assert found["count"].tolist() == [28, 0]  # 7 tokens have 28 spans
    np.testing.assert_allclose(found["null_score"], [1.5, 1.5])


def test_an_answer_stands_unless_no_answer_leads_by_the_threshold():
    model = Spans()
    model.may_be_none, model.null_threshold = True, 1.0
    model.set({"ada": 5.0, "b": 3.0, "c": 2.5, "[CLS]": 4.0}, {})
    contexts = ["ada", "b", "c", "love", ""]
    signature = answer(model, rows(64), top_k=1)
    found = called(signature, ["met"] * 5, contexts)
    np.testing.assert_allclose(found["null_score"], [4.0] * 5)
    # The null score leads by -1, 1, 1.5 and 4; "" has no span.
    assert found["has_answer"].tolist() == [True, True, False, False, False]


def test_the_shortest_row_has_as_many_answers_as_may_be_asked_for():
    assert answered({}, {}, [""], [""])["count"].tolist() == [0]


def test_an_answer_has_thirty_tokens_at_most_and_does_not_run_backwards():
    contexts = ["b a " + "d " * between + "c" for between in (28, 29)]
    logits = {"a": 5.0}, {"b": 5.0, "c": 1.0}
    found = answered(*logits, ["met", "met"], contexts)["answer"]
    assert found[0][0].decode().split() == ["a", *["d"] * 28, "c"]
    assert found[1][0] == b"b"


def test_an_answer_is_found_wherever_it_stands_in_a_long_context():
    places = [(3, 1), (150, 0), (150, 150), (700, 333)]
    contexts = [
        "met " * before + "new york" + " met" * (words - before)
        for words, before in places
    ]
    questions = ["ada met"] * len(places)
    found = answered({"new": 5.0}, {"york": 5.0}, questions, contexts)
    for row, (_, before) in enumerate(places):
        assert found["answer"][row][0] == b"new york"
        assert found["start"][row][0] == 4 * before
        assert found["score"][row][0] == 10.0
    assert found["count"].tolist()[1:] == [MAX_ANSWERS] * 3


def test_the_best_choice_wins_and_an_empty_one_never_does():
    class Chooser(ByPiece):
        def __call__(self, inputs, training=False):
            assert inputs["token_ids"].shape.rank == 3
            return tf.reduce_sum(super().__call__(inputs)[..., 0], axis=-1)

    model = Chooser({"ada": [-2.0], "love": [1.0]})
    found = called(
        choose(model, rows()),
        ["met", "met", "met"],
        [["in", "love", "ada"], ["ada", "", ""], ["", "", ""]],
    )
    assert found["choice"].tolist() == [1, 0, -1]
    scores = np.exp([0.0, 1.0, -2.0])
    np.testing.assert_allclose(
        found["probabilities"],
        [scores / scores.sum(), [1, 0, 0], [0, 0, 0]],
        atol=1e-6,
    )
    assert found["truncated"].tolist() == [False] * 3
    lists = [["in", "love " * 20], ["in", "love"]]
    found = called(choose(model, rows()), ["met", "met"], lists)
    assert found["truncated"].tolist() == [True, False]


class OfRow(ByPiece):
    """Stub classifier: the sum of the logits of a row's tokens."""

    output_shape = (None, 2)

    def __call__(self, inputs, training=False):
        real = tf.cast(inputs["padding_mask"], tf.float32)[..., tf.newaxis]
        return tf.reduce_sum(super().__call__(inputs) * real, axis=1)


def test_a_very_long_text_goes_through_the_model_some_rows_at_a_time():
    model = OfRow({"met": [0.1, 0.0]}, ["a", "b"])
    called(classify(model, rows(10), long_text="windows"), ["met " * 3000])
    assert len(model.rows_seen) > 10
    assert max(shape[0] for shape in model.rows_seen) <= 32


def test_a_batch_costs_its_longest_text():
    model = OfRow({"met": [0.1, 0.0]}, ["a", "b"])
    called(classify(model, rows(512)), ["met met", "met " * 7])
    assert [shape.tolist() for shape in model.rows_seen] == [[2, 9]]


@pytest.mark.parametrize("problem", ["single", "multi"])
def test_probabilities_have_the_order_of_the_labels_that_are_stated(problem):
    model = OfRow({"met": [-9.0, 9.0]}, ["no", "yes"], problem)
    signature = classify(model, rows())
    found = called(signature, ["met"])
    best = int(np.argmax(found["probabilities"][0]))
    assert signature.labels[best] == "yes"
    assert np.ravel(found["label"][0]).tolist() == [b"yes"]


@pytest.mark.parametrize(
    ("room", "stride", "lengths"),
    [
        *(
            (room, min(stride, room), [0, 1, 5, 8, 23])
            for room in (1, 4, 7)
            for stride in (1, 3, 4)
        ),
        (376, 128, [377, 480, 504]),  # at 377, the term 0.01 * length decides
    ],
)
def test_windows_and_best_contexts_are_those_of_plain_python(
    room, stride, lengths
):
    texts = tf.ragged.range(lengths) + 100
    cut = windows(texts, room, stride)
    counts = best_context(cut)
    for number, length in enumerate(lengths):
        mine = np.flatnonzero(cut.text == number)
        expected = plain_windows(length, room, stride)
        begins = cut.start.numpy()[mine].tolist()
        assert begins == [begin for begin, _ in expected]
        best = best_windows(expected, length)
        for window, index in enumerate(mine):
            begin, end = expected[window]
            pieces = range(100 + begin, 100 + end)
            assert cut.ids[index].numpy().tolist() == list(pieces)
            wanted = [best[place] == window for place in range(begin, end)]
            assert counts[index].numpy().tolist() == wanted


def test_chunks_give_what_one_pass_gives():
    for count in (0, 32, 33):
        values = tf.range(count)
        (found,) = in_chunks(
            lambda begin, end, values=values: [values[begin:end] * 2],
            tf.size(values, tf.int64),
            [tf.TensorSpec([None], tf.int32)],
        )
        assert found.numpy().tolist() == [2 * x for x in range(count)]


class FewAtOnce:
    """Random masked-LM head; `most` is the largest vector count of a call."""

    def __init__(self, width, vocabulary_size):
        draw = np.random.default_rng(0)
        self.table = draw.normal(size=(width, vocabulary_size))
        self.table = self.table.astype("float32")
        self.most = 0

    def __call__(self, vectors):
        self.most = max(self.most, vectors.shape[1])
        assert vectors.shape[1]  # the real head fails on an empty array
        return vectors @ self.table


@pytest.mark.parametrize("count", [0, 256, 257])
def test_pieces_of_masks_are_found_some_masks_at_a_time(count):
    draw = np.random.default_rng(1)
    vectors = tf.constant(draw.normal(size=(count, 8)), tf.float32)
    head = FewAtOnce(8, 40)
    values, pieces = _likeliest(head, vectors, 30, 3)
    logits = vectors @ head.table[:, :30]
    expected = tf.math.top_k(tf.nn.softmax(logits), 3)
    np.testing.assert_allclose(values, expected.values, atol=1e-6)
    np.testing.assert_array_equal(pieces, expected.indices)
    assert head.most <= MASKS_AT_ONCE + 1


def test_a_long_list_of_choices_costs_what_it_holds():
    """The model skips the empty choices that pad shorter lists."""
    model = ByChoice()
    function = choose(model, rows()).function
    many = ["a"] * 100 + ["b"]
    few = ["a", "b"] + [""] * 99
    none = [""] * 101
    no_list = function(tf.constant(["ada"]), tf.zeros([1, 0], tf.string))
    assert no_list["probabilities"].shape == (1, 1)
    model.seen.clear()
    found = function(tf.constant(["ada"] * 3), tf.constant([many, few, none]))
    assert found["choice"].numpy().tolist() == [100, 1, -1]
    np.testing.assert_allclose(found["probabilities"][1, 2:], 0.0)
    np.testing.assert_allclose(found["probabilities"][2], 0.0)
    assert sum(model.seen) == 103
    assert max(model.seen) == 32


class ByChoice:
    """Stub chooser: the score of a choice is its greatest token id."""

    def __init__(self):
        self.seen = []

    def __call__(self, inputs, training=False):
        ids = inputs["token_ids"]  # (n, 1, T)
        self.seen.append(ids.shape[0])
        return tf.cast(tf.reduce_max(ids, axis=-1), tf.float32)


def test_parts_are_cut_by_bytes_and_placed_in_characters():
    texts = ["caf\u00e9 \U0001f469 \u4eca\u65e5", "", "plain"]
    spans = [[(0, 4), (5, 6), (7, 9)], [(0, 0)], [(2, 5)]]
    encoded = [text.encode() for text in texts]

    def offset(text, characters):
        return len(text[:characters].encode())

    first, after = (
        tf.ragged.constant(
            [
                [offset(text, span[side]) for span in row]
                for text, row in zip(texts, spans, strict=True)
            ]
        ).to_tensor(7)
        for side in (0, 1)
    )
    is_real = tf.sequence_mask([len(row) for row in spans])
    parts, start, end = cut_out(tf.constant(encoded), first, after, is_real)
    for row, (text, wanted) in enumerate(zip(texts, spans, strict=True)):
        for place in range(3):
            found = start[row, place], end[row, place]
            if place >= len(wanted):
                assert (*found, parts[row, place]) == (-1, -1, b"")
                continue
            assert found == wanted[place]
            begin, stop = wanted[place]
            assert parts[row, place].numpy().decode() == text[begin:stop]


INVALID = [
    b"\xff\xfe love \xe4\xbb caf\xc3\xa9",
    b"caf\xc3\xa9 \x80\x80 love\xf0\x9f",
    b"\xc3 love\xed\xa0\x80 in caf\xc3\xa9 \xf5",
    b"",
]


@functools.cache
def tokens():
    return tokenize(rows())


def test_offsets_in_invalid_utf_8_are_those_of_tokenize():
    found = called(tokens(), INVALID)
    tags = called(tagger(), INVALID)
    love = {"love": 5.0}
    spanned = answered(love, love, ["met"] * 4, INVALID)
    for row in range(3):
        spans = {
            piece.decode(): span
            for piece, *span in zip(
                found["pieces"][row],
                found["start"][row],
                found["end"][row],
                strict=True,
            )
        }
        expected = sorted([spans["love"], spans["caf\u00e9"]])
        cut = zip(tags["start"][row], tags["end"][row], strict=True)
        assert list(map(list, cut)) == expected
        assert [spanned["start"][row][0], spanned["end"][row][0]] == spans[
            "love"
        ]
    for outputs in (found, tags, spanned):
        assert outputs["start"][3] == outputs["end"][3] == []


def test_tokens_say_where_they_come_from():
    text = "Ada\u3000met  caf\u00e9 lovelace!"
    found = called(tokens(), [text, "", "ada " * 40])
    assert found["count"].tolist() == [6, 0, 40]  # 40 exceeds a row's length
    spans = zip(found["start"][0], found["end"][0], strict=True)
    slices = ["Ada", "met", "caf\u00e9", "love", "lace", "!"]
    assert [text[a:b] for a, b in spans] == slices
    assert found["pieces"][0][3:5] == [b"love", b"##lace"]
    assert found["token_ids"][0][4] == VOCABULARY.index("##lace")
