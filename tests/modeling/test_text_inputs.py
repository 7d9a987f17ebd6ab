"""Models that read texts, against the same models on ids made by hand."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import bert_keras
from bert_keras import InputError
from tests.support.model_samples import fill, random_encoder

pytestmark = pytest.mark.heavy

TEXTS = ["An hour well spent.", "Bad film.", "A good one", "awful"] * 3
PAIRS = [f"{text} again" for text in reversed(TEXTS)]
LABELS = np.array([1, 0, 1, 0] * 3)
WEIGHTS = np.linspace(0.5, 1.5, 12)


class Column:
    """A column like one of pandas."""

    dtype = np.dtype(object)

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, object)

    def __len__(self):
        return len(self.values)

    def tolist(self):
        return list(self.values)


class Batches(keras.utils.PyDataset):
    def __init__(self, *arrays):
        super().__init__(workers=2, use_multiprocessing=True)
        self.arrays = arrays

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = slice(4 * index, 4 * index + 4)
        return tuple(array[rows] for array in self.arrays)


def slices(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(4)


def generate(*arrays):
    yield from Batches(*arrays)


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    """A folder with a small classifier of two labels without dropout."""
    folder = tmp_path_factory.mktemp("preset")
    encode = bert_keras.BertPreprocessor.from_preset(
        "bert_keras_mini_en", sequence_length=16
    )
    body = random_encoder(
        vocabulary_size=encode.tokenizer.vocabulary_size,
        num_layers=1,
        max_sequence_length=512,
        dropout=0.0,
        attention_dropout=0.0,
    )
    model = bert_keras.BertClassifier(body, labels=["bad", "good"])
    fill(model)
    model.save_preset(folder, encode)
    return folder


def load(preset, **arguments):
    if "preprocessor" not in arguments:
        arguments["sequence_length"] = 16
    model = bert_keras.BertClassifier.from_preset(
        preset, dropout=0.0, **arguments
    )
    model.encoder.trainable = False
    return model


def ids_of(model, texts):
    return {k: x.numpy() for k, x in model.preprocessor(texts).items()}


def test_every_form_of_texts_is_predicted_as_ids_are(preset):
    model = load(preset)
    expected = model.predict(ids_of(model, TEXTS), verbose=0)
    for texts in (
        TEXTS,
        np.array(TEXTS),
        np.array(TEXTS, object),
        tf.constant(TEXTS),
        Column(TEXTS),
    ):
        for found in (
            model.predict(texts, verbose=0),
            model.predict_on_batch(texts),
            model(texts),
        ):
            np.testing.assert_allclose(
                found, expected, atol=1e-6, err_msg=str(type(texts))
            )


def test_pairs_data_sets_and_generators_are_predicted_as_ids_are(preset):
    model = load(preset)
    expected = model.predict(ids_of(model, (TEXTS, PAIRS)), verbose=0)
    apart = model.predict(ids_of(model, TEXTS), verbose=0)
    assert abs(expected - apart).max() > 1e-3
    pairs = tf.data.Dataset.from_tensor_slices((TEXTS, PAIRS)).batch(5)
    for data in ((TEXTS, PAIRS), pairs.map(lambda a, b: ((a, b),))):
        found = model.predict(data, verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    one = tf.data.Dataset.from_tensor_slices(TEXTS).batch(5)
    for data in (one, slices(TEXTS), generate(TEXTS), Batches(TEXTS)):
        found = model.predict(data, verbose=0)
        np.testing.assert_allclose(found, apart, atol=1e-6)


@pytest.mark.parametrize(
    "make", [slices, Batches, pytest.param(generate, marks=pytest.mark.long)]
)
def test_training_on_texts_equals_training_on_ids(preset, make):
    """Also with weights and validation data, and of batches by hand."""
    histories = []
    for by_hand in (True, False):
        model = load(preset)
        model.compile(keras.optimizers.SGD(0.1))
        few, texts = TEXTS[:4], TEXTS
        if by_hand:
            few, texts = ids_of(model, few), ids_of(model, texts)
        arrays = texts, LABELS, WEIGHTS
        if by_hand:
            data, dev = slices(*arrays), slices(*arrays)
        else:
            data, dev = make(*arrays), make(*arrays)
        first = model.train_on_batch(few, LABELS[:4])
        tested = model.test_on_batch(few, LABELS[:4])
        model.reset_metrics()
        fitted = model.fit(data, validation_data=dev, verbose=0, shuffle=False)
        history = fitted.history
        scores = model.evaluate(texts, LABELS, verbose=0)
        histories.append([*first, *tested, *scores, *history.values()])
        assert set(history) == {
            *("loss", "accuracy", "val_loss", "val_accuracy"),
        }
    for left, right in zip(*histories, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5)


@pytest.mark.parametrize("make", [generate, Batches])
def test_batches_may_be_lists_and_labels_lists_or_names(preset, make):
    model = load(preset)
    model.compile(keras.optimizers.SGD(0.1))
    expected = model.evaluate(TEXTS, LABELS, verbose=0)
    names = [model.labels[label] for label in LABELS]
    for labels in (LABELS.tolist(), names, np.array(names)):
        found = model.evaluate(make(TEXTS, labels), verbose=0)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    batches = map(list, make(TEXTS, LABELS))  # as Keras splits [x, y]
    found = model.evaluate((batch for batch in batches), verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    weighted = model.evaluate(TEXTS, LABELS, sample_weight=WEIGHTS, verbose=0)
    batches = map(list, make(TEXTS, LABELS, WEIGHTS))
    found = model.evaluate((batch for batch in batches), verbose=0)
    np.testing.assert_allclose(found, weighted, rtol=1e-5)
    assert abs(weighted[0] - expected[0]) > 1e-3


def test_columns_of_pandas_may_follow_arrays(preset):
    import pandas

    table = pandas.DataFrame({"text": TEXTS, "label": LABELS, "w": WEIGHTS})
    model = load(preset)
    model.compile(keras.optimizers.SGD(0.1))
    expected = model.evaluate(TEXTS, LABELS, sample_weight=WEIGHTS, verbose=0)
    for text in (table.text, table.text.astype("category")):
        found = model.evaluate(
            text, table.label, sample_weight=table.w, verbose=0
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(InputError, match=r"of shape \(12, 1\).*tuple"):
        model.evaluate(table[["text"]], table.label, verbose=0)


def test_elements_that_are_dicts_may_lack_the_label_to_predict(preset):
    model = load(preset)
    pairs = {"a": TEXTS, "b": PAIRS}
    model.preprocessor = bert_keras.BertPreprocessor(
        *(model.preprocessor.tokenizer, 16),
        text_keys=("a", "b"),
        label_key="label",
    )
    model.compile(keras.optimizers.SGD(0.0))
    expected = model.predict((TEXTS, PAIRS), verbose=0)
    data = tf.data.Dataset.from_tensor_slices(pairs).batch(5)
    for found in (model.predict(x, verbose=0) for x in (pairs, data)):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    rows = {**pairs, "label": LABELS}
    scores = model.evaluate((TEXTS, PAIRS), LABELS, verbose=0)
    for dev in (rows, tf.data.Dataset.from_tensor_slices(rows).batch(5)):
        history = model.fit(rows, validation_data=dev, verbose=0).history
        found = [history["val_loss"][0], history["val_accuracy"][0]]
        np.testing.assert_allclose(found, scores, rtol=1e-5)
    with pytest.raises(InputError, match=r"no labels.*label_key"):
        model.fit(pairs, verbose=0)


@pytest.mark.filterwarnings("error:.*unknown settings")
def test_a_preset_keeps_the_keys_of_its_dicts(preset, tmp_path):
    model = load(preset)
    keys = {"text_keys": ("a", "b"), "label_key": "answer"}
    model.preprocessor = bert_keras.BertPreprocessor.from_preset(
        preset, sequence_length=16, **keys
    )
    pairs = {"a": TEXTS, "b": PAIRS}
    expected = model.predict(pairs, verbose=0)
    model.save_preset(tmp_path / "keys")
    again = bert_keras.BertClassifier.from_preset(tmp_path / "keys")
    found = again.predict({**pairs, "answer": LABELS}, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    load_preprocessor = functools.partial(
        bert_keras.BertPreprocessor.from_preset, tmp_path / "keys"
    )
    for arguments, expected in (
        ({}, (("a", "b"), "answer")),
        ({"label_key": "y"}, (("a", "b"), "y")),
        ({"text_keys": "text"}, (("text",), None)),
        ({"text_keys": None}, (None, None)),
    ):
        encode = load_preprocessor(**arguments)
        assert (encode.text_keys, encode.label_key) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"sample_weight": WEIGHTS, "validation_split": 0.25, "batch_size": 4},
        {"shuffle": "batch", "batch_size": 5, "class_weight": {1: 3.0}},
        {"steps_per_epoch": 2, "class_weight": {"bad": 2.0}},
        {"validation_batch_size": 4, "validation_steps": 2, "batch_size": 7},
    ],
    ids=["split", "batch", "steps", "validation"],
)
def test_arrays_of_texts_take_keras_own_arguments(preset, arguments):
    """Keras shuffles the rows of texts and of ids in the same order."""
    found = []
    for texts in (True, False):
        model = load(preset)
        model.compile(keras.optimizers.SGD(0.1))
        x = TEXTS if texts else ids_of(model, TEXTS)
        if "validation_steps" in arguments:
            arguments["validation_data"] = (x, LABELS, WEIGHTS)
        keras.utils.set_random_seed(3)
        history = model.fit(x, LABELS, epochs=3, verbose=0, **arguments)
        found.append([*history.history.values(), history.params["steps"]])
    for left, right in zip(*found, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5)


def test_arrays_of_texts_are_encoded_in_the_pipeline(preset):
    model = load(preset)
    model.compile(keras.optimizers.SGD(0.1))
    encode, in_a_graph = model.encode_texts, []

    def watched(*batch):
        in_a_graph.append(not tf.executing_eagerly())
        return encode(*batch)

    model.encode_texts = watched
    model.fit(TEXTS, LABELS, verbose=0, validation_data=(TEXTS, LABELS))
    model.evaluate(np.array(TEXTS), LABELS, verbose=0)
    model.predict(TEXTS, verbose=0)
    assert in_a_graph == [True] * 4


def test_rows_as_long_as_the_longest_have_one_length(preset):
    """Keras cannot join the tags of batches of different lengths."""
    texts = ["a", "An hour well spent."]
    model = bert_keras.BertTagger.from_preset(preset, labels=["x", "y"])
    encode = type(model.preprocessor)(
        model.preprocessor.tokenizer, 16, pad_to_longest=True
    )
    model.preprocessor = encode
    found = model.predict(texts, batch_size=1, verbose=0)
    expected = model(encode(texts))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_rows_as_long_as_the_longest_keep_their_weights(preset):
    encode = bert_keras.BertPreprocessor.from_preset(
        preset, sequence_length=16, pad_to_longest=True
    )
    model = load(preset, preprocessor=encode)
    model.compile("sgd", weighted_metrics=[])
    texts, labels = ["a", "An hour well spent."], np.array([0, 1])
    weights = np.array([3.0, 0.5])
    logits = np.array(model(encode(texts)), "float64")
    losses = np.log(np.exp(logits).sum(-1)) - logits[[0, 1], labels]
    found = model.evaluate(texts, labels, sample_weight=weights, verbose=0)
    assert found == pytest.approx(np.mean(weights * losses), 1e-5)


@pytest.mark.parametrize(
    ("texts", "wrong", "make"),
    [(True, 2, slices), (True, -1, Batches), (False, 2, generate)],
)
def test_labels_out_of_range_are_refused_under_xla(preset, make, wrong, texts):
    """The loss would be NaN, without a word."""
    model = load(preset)
    model.compile(keras.optimizers.SGD(0.1), jit_compile=True)
    labels = LABELS.copy()
    labels[3] = wrong
    x = TEXTS if texts else ids_of(model, TEXTS)["token_ids"]
    with pytest.raises(InputError, match=rf"contain {wrong}\. .* from 0 to 1"):
        model.fit(make(x, labels), verbose=0)
    with pytest.raises(InputError, match=rf"contain {wrong}\. "):
        model.fit(make(x, LABELS), validation_data=make(x, labels), verbose=0)
    assert model.predict(make(x, labels), verbose=0).shape == (12, 2)


def test_an_error_of_a_later_batch_is_one_sentence(preset):
    model = load(preset)
    model.compile(keras.optimizers.SGD(0.1))
    for wrong in ("x", None):
        texts = [*TEXTS[:9], wrong or "a", *TEXTS[10:]]
        labels = LABELS.copy()
        labels[9] = 7 if wrong else 0
        if not wrong:
            texts[9] = None
        for make in (generate, Batches):
            with pytest.raises(InputError) as caught:
                model.fit(make(texts, labels), verbose=0)
            assert len(str(caught.value)) < 300


def test_labels_and_weights_may_be_lists_as_the_texts_are(preset):
    losses = []
    for make in (list, np.array):
        model = load(preset)
        model.compile(keras.optimizers.SGD(0.1), weighted_metrics=[])
        y, weights = make(LABELS.tolist()), make(WEIGHTS.tolist())
        history = model.fit(
            *(TEXTS, y),
            sample_weight=weights,
            validation_data=(TEXTS, y, weights),
            shuffle=False,
            verbose=0,
        ).history
        scores = model.evaluate(TEXTS, y, sample_weight=weights, verbose=0)
        batch = model.train_on_batch(TEXTS, y, sample_weight=weights)
        losses.append(
            np.hstack([history["loss"], history["val_loss"], scores, batch])
        )
    np.testing.assert_array_equal(*losses)
    with pytest.raises(ValueError, match="cardinality"):
        model.fit(TEXTS, LABELS.tolist()[1:], verbose=0)


def test_a_data_set_of_dicts_is_refused_with_the_keys_to_name(preset):
    model = load(preset)
    model.compile("sgd")
    rows = {"review": TEXTS, "label": LABELS}
    data = tf.data.Dataset.from_tensor_slices(rows).batch(4)
    with pytest.raises(InputError, match=r"\('review',\), label_key='label'"):
        model.fit(data, verbose=0)
    with pytest.raises(InputError, match=r"\('review',\)\)\. A model takes"):
        model.fit(data.map(lambda x: ({"review": x["review"]}, x["label"])))
    model.preprocessor = bert_keras.BertPreprocessor.from_preset(
        preset, sequence_length=16, text_keys=("review",), label_key="label"
    )
    assert model.fit(data, verbose=0).history["loss"][0] > 0


def test_a_saved_model_keeps_its_preprocessor(preset, tmp_path):
    model = load(preset)
    model.compile(keras.optimizers.SGD(0.1))
    model.fit(TEXTS, LABELS, verbose=0)
    expected = model.predict(TEXTS, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    model.save_preset(tmp_path / "preset")
    stored = bert_keras.BertClassifier.from_preset(tmp_path / "preset")
    for other in (again, stored, model.with_dtype("float32")):
        assert other.preprocessor.sequence_length == 16
        found = other.predict(TEXTS, verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    again.fit(TEXTS, LABELS, verbose=0)  # compiled as before
    model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported")
    found = served.serve(tf.constant(TEXTS))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    bert_keras.export_saved_model(model, tmp_path / "served")
    answers = bert_keras.load_saved_model(tmp_path / "served").classify(TEXTS)
    named = model.predict_labels(TEXTS)
    assert [row["label"] for row in named] == answers["label"]
    np.testing.assert_allclose(
        [[*row["probabilities"].values()] for row in named],
        answers["probabilities"],
        atol=1e-5,
    )


def test_an_export_of_pairs_takes_two_texts(preset, tmp_path):
    model = load(preset, pair=True)
    expected = model.predict((TEXTS, PAIRS), verbose=0)
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    found = loaded.serve(tf.constant(TEXTS), tf.constant(PAIRS))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_export_of_spans_takes_a_question_and_a_context(preset, tmp_path):
    model = bert_keras.BertSpanPredictor.from_preset(preset, sequence_length=16)
    expected = model.predict((TEXTS, PAIRS), verbose=0)
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    found = loaded.serve(tf.constant(TEXTS), tf.constant(PAIRS))
    for name in ("start", "end"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
    ranker = load(preset, problem="ranking", labels=None)
    assert ranker.reads_pairs() and not load(preset).reads_pairs()


def test_several_labels_are_named_by_their_thresholds(preset):
    model = load(preset, problem="multi", thresholds=[0.2, 0.9])
    logits = model.predict(TEXTS, verbose=0)
    for row, values in zip(model.predict_labels(TEXTS), logits, strict=True):
        shares = 1 / (1 + np.exp(-values))
        expected = [
            n
            for n, p, t in zip(model.labels, shares, (0.2, 0.9), strict=True)
            if p >= t
        ]
        assert row["labels"] == expected
        np.testing.assert_allclose(
            [*row["probabilities"].values()], shares, atol=1e-6
        )
    model = load(preset, thresholds=[0.99, 0.01])
    for row in model.predict_labels(TEXTS):
        assert row["unsure"] == (row["label"] == "bad")
    number = load(preset, problem="regression", labels=None)
    with pytest.raises(InputError, match="has no classes. Call predict"):
        number.predict_labels(TEXTS)


def test_an_embedder_reads_texts_and_groups_of_texts(preset, tmp_path):
    model = bert_keras.BertEmbedder.from_preset(preset, sequence_length=16)
    vectors = model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(model.encode(TEXTS), vectors, atol=1e-5)
    groups = model.predict((TEXTS, PAIRS), verbose=0)  # (B, 2, D)
    np.testing.assert_allclose(groups[:, 0], vectors, atol=1e-5)
    np.testing.assert_allclose(model(TEXTS), vectors, atol=1e-5)
    np.testing.assert_allclose(model((TEXTS, PAIRS)), groups, atol=1e-5)
    model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported")
    found = served.serve(tf.constant(TEXTS))
    np.testing.assert_allclose(found, vectors, atol=1e-5)
    model.compile(keras.optimizers.SGD(0.1))
    by_hand = model.preprocessor.each((TEXTS[:4], PAIRS[:4]))
    ids = {name: value.numpy() for name, value in by_hand.items()}
    expected = model.test_on_batch(ids, np.zeros(4))
    assert model.test_on_batch((TEXTS[:4], PAIRS[:4])) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("problem", "loss"),
    [
        ("single", keras.losses.SparseCategoricalCrossentropy(True)),
        ("multi", keras.losses.BinaryCrossentropy(True)),
        ("regression", keras.losses.MeanSquaredError()),
    ],
)
def test_the_loss_follows_from_the_problem(preset, problem, loss):
    labels = LABELS if problem == "single" else np.eye(2)[LABELS]
    found = []
    for losses in ((), (loss,)):
        model = load(preset, problem=problem)
        model.compile("sgd", *losses)
        ids = ids_of(model, TEXTS)
        found.append(model.evaluate(ids, labels, verbose=0, return_dict=True))
    assert found[0]["loss"] == pytest.approx(found[1]["loss"])
    assert set(found[0]) > set(found[1])  # and a metric
    model = load(preset, problem=problem)
    model.compile("sgd", loss=None)
    with pytest.raises(InputError, match="compiled without a loss"):
        model.fit(ids, labels, verbose=0)


def test_what_no_model_can_read_is_refused(preset):
    model = load(preset)
    for texts in ("one", ["one"][0], tf.constant("one")):
        with pytest.raises(InputError, match=r"one text.*\[text\]"):
            model.predict(texts, verbose=0)
    with pytest.raises(
        InputError, match=r"one text in an element.*batch\(32\)"
    ):
        model.predict(tf.data.Dataset.from_tensor_slices(TEXTS), verbose=0)
    columns = tf.data.Dataset.from_tensor_slices([["a", "b"]]).batch(1)
    with pytest.raises(InputError, match=r"of shape \(None, 2\)"):
        model.predict(columns, verbose=0)
    model.compile("sgd")
    both = model.preprocessor(TEXTS, LABELS)
    for call in (model.fit, model.evaluate, model.predict, model):
        for inputs in (both, (both[0], ["good"] * 12)):
            with pytest.raises(InputError, match=r"fit\(\*preprocess"):
                call(inputs)
    for nothing, word in (
        ([], "rows"),
        (np.array([], str), "texts"),
        (np.zeros((0, 16), "int32"), "rows"),
    ):
        with pytest.raises(InputError, match=f"no {word}. Expected at least"):
            model.predict(nothing, verbose=0)
    with pytest.raises(InputError, match="Text 1 is None"):
        model.predict(["a", None], verbose=0)
    plain = load(preset, preprocessor=None)
    assert plain.preprocessor is None
    with pytest.raises(InputError, match="Assign a BertPreprocessor"):
        plain.predict(TEXTS, verbose=0)
    with pytest.raises(InputError, match="The model has no preprocessor"):
        bert_keras.export_saved_model(plain, "somewhere")
    plain.preprocessor = model.preprocessor
    assert plain.predict(TEXTS, verbose=0).shape == (12, 2)
    with pytest.raises(InputError, match="Expected the BertPreprocessor"):
        plain.preprocessor = len
    with pytest.raises(InputError, match="takes probabilities"):
        model.compile("sgd", "sparse_categorical_crossentropy")
    pretrainer = bert_keras.BertPretrainer.from_preset("bert_keras_mini_en")
    with pytest.raises(InputError, match="no preprocessor that makes"):
        pretrainer.predict(TEXTS, verbose=0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"labels": 3}, "num_classes=3"),
        ({"num_classes": 0}, "num_classes is 0"),
        ({"num_classes": 2, "labels": ["a"]}, "labels has 1 names"),
        ({"num_labels": 2}, "num_classes=2"),
        ({"sequence_length": 1000}, "has 512 positions"),
        ({"sequence_length": 8, "preprocessor": None}, "both given"),
    ],
)
def test_arguments_of_from_preset_that_do_not_fit_are_named(
    preset, arguments, words
):
    with pytest.raises(InputError, match=words):
        bert_keras.BertClassifier.from_preset(preset, **arguments)


def test_classes_may_be_counted(preset):
    for count, labels in ((3, ["0", "1", "2"]), (2, ["bad", "good"])):
        model = bert_keras.BertClassifier.from_preset(preset, num_classes=count)
        assert model.labels == labels


@keras.saving.register_keras_serializable("test_text_inputs")
class WithOwnPreprocessor(bert_keras.BertClassifier):
    def __init__(self, encoder, preprocessor=None, labels=None, name="own"):
        super().__init__(encoder, labels=labels, name=name)
        self.preprocessor = preprocessor


class WithFewArguments(bert_keras.BertClassifier):
    def __init__(self, encoder, labels=None, name="few"):
        super().__init__(encoder, labels=labels, name=name)


class WithRequiredArgument(bert_keras.BertClassifier):
    def __init__(self, encoder, width, **kwargs):
        super().__init__(encoder, **kwargs)
        self.width = width


def test_a_subclass_with_other_arguments_is_named(preset):
    with pytest.raises(InputError) as caught:
        WithFewArguments.from_preset(preset)
    words = "WithFewArguments has no argument", "problem", "**kwargs"
    assert all(word in str(caught.value) for word in words)
    with pytest.raises(InputError, match=r"WithRequiredArgument.*'width'"):
        WithRequiredArgument.from_preset(preset)
    model = WithRequiredArgument.from_preset(preset, width=3, dropout=0.0)
    expected = load(preset).predict(TEXTS, verbose=0)
    found = model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_subclass_may_take_the_preprocessor_itself():
    load = functools.partial(
        WithOwnPreprocessor.from_preset,
        "bert_keras_mini_en",
        labels=["bad", "good"],
    )
    encode = bert_keras.BertPreprocessor.from_preset(
        "bert_keras_mini_en", sequence_length=9
    )
    model = load(preprocessor=encode)
    again = WithOwnPreprocessor.from_config(model.get_config())
    assert model.preprocessor is encode
    assert again.preprocessor.sequence_length == 9
    assert load().preprocessor is None
