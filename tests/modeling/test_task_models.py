import functools
import pickle
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling.embedder import BertEmbedder
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import LogitsHead
from bert_keras.modeling.pretrainer import (
    BertCausalModel,
    BertPretrainer,
    causal_targets,
)
from bert_keras.modeling.task_base import TaskModel, symbolic_inputs
from bert_keras.modeling.task_base import encode as encoded
from bert_keras.modeling.task_models import (
    BertChooser,
    BertClassifier,
    BertSpanPredictor,
    BertTagger,
    span_losses,
)
from bert_keras.modeling.weights import (
    POOLER,
    published_weights,
    split_trainable,
)
from bert_keras.training import step_tensorflow
from bert_keras.training.optimizers import adamw
from tests.support.model_samples import (
    LABELS,
    MODELS,
    STILL,
    fill,
    make_encoder,
    make_inputs,
    make_model,
    numpy_weights,
    random_inputs,
)
from tests.support.numpy_bert import dense, encode, gelu_tanh, layer_norm

pytestmark = pytest.mark.heavy

CLASSES = np.array([0, 1, 2])


VARIANTS = {
    "BiLSTM": {"bilstm_dim": 4},
    "on features": {"recipe": "weighted_sum:0,1", "pooling": "max"},
}
EVERY = [*MODELS, *VARIANTS]


def make(name):
    if name in VARIANTS:
        return BertClassifier(make_encoder(), LABELS, **VARIANTS[name])
    return make_model(name)


@functools.cache
def filled(name):
    """Return a model, which tests share and must not change."""
    return fill(make(name))


def entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def all_inputs(model, name):
    """Return inputs with values for the optional ones too."""
    inputs = make_inputs(name)
    mask = inputs["padding_mask"]
    values = {
        "position_ids": mask * np.arange(mask.shape[-1]),
        "example_ids": mask,
        "pooling_mask": mask,
    }
    return {key: inputs.get(key, values.get(key)) for key in model.input}


def compute_outputs(model, inputs):
    outputs = keras.tree.flatten(model(inputs))
    return [np.array(x, "float32") for x in outputs]


def assert_same_outputs(left, right, inputs):
    pairs = compute_outputs(left, inputs), compute_outputs(right, inputs)
    for first, second in zip(*pairs, strict=True):
        np.testing.assert_array_equal(first, second)


# These models cover all input formats. BiLSTM loops over sequences of any
# length.
@pytest.mark.parametrize(
    "name",
    ["encoder", "chooser", "embedder", "pretrainer", "causal", "BiLSTM"],
)
def test_a_keras_export_answers_as_the_model(name, tmp_path):
    model, inputs = filled(name), make_inputs(name)
    model.export(tmp_path, verbose=False)
    loaded = tf.saved_model.load(tmp_path)
    tensors = {k: tf.constant(v, "int32") for k, v in inputs.items()}
    found = keras.tree.flatten(loaded.serve(tensors))
    expected = compute_outputs(model, inputs)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_a_saved_model_and_a_copy_have_arguments_and_weights(name, tmp_path):
    model = filled(name)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    pickled = pickle.loads(pickle.dumps(model))
    for copy in (loaded, pickled, model.with_dtype("float32")):
        assert type(copy) is type(model)
        assert copy.arguments() == model.arguments()
        assert_same_outputs(model, copy, make_inputs(name))


@pytest.mark.parametrize("name", EVERY)
def test_half_precision_gives_float32_logits(name):
    model, inputs = filled(name), make_inputs(name)
    half = model.with_dtype("mixed_bfloat16")
    pairs = compute_outputs(model, inputs), compute_outputs(half, inputs)
    for left, right in zip(*pairs, strict=True):
        assert np.abs(left - right).mean() < 0.05
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        made_under_it = make(name)
    finally:
        keras.config.set_dtype_policy("float32")
    for model in (half, made_under_it):
        assert model.dtype_policy.name == "mixed_bfloat16"
        dtype = "bfloat16" if name == "encoder" else "float32"
        for logits in keras.tree.flatten(model(inputs)):
            assert keras.backend.standardize_dtype(logits.dtype) == dtype


@pytest.mark.parametrize("name", sorted({*EVERY} - {"pretrainer"}))
def test_left_out_inputs_are_filled_in(name):
    model = filled(name)
    ids = make_inputs(name)["token_ids"]
    whole = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
    }
    expected = compute_outputs(model, whole)
    alike = [ids, *({"token_ids": ids.astype(t)} for t in ("int8", "float32"))]
    if name != "encoder":
        alike.append(ids.tolist())
    for alone in alike:
        pairs = zip(compute_outputs(model, alone), expected, strict=True)
        for left, right in pairs:
            np.testing.assert_allclose(left, right, atol=1e-6)


def restated(model, inputs):
    weights = numpy_weights(model)
    return weights, encode(weights, model.encoder.get_config(), inputs)


@pytest.mark.parametrize("name", ["classifier", "tagger", "span", "chooser"])
def test_heads_equal_the_numpy_restatement(name):
    model, inputs = filled(name), make_inputs(name)
    rows = {name: x.reshape(-1, 7) for name, x in inputs.items()}
    weights, second = restated(model, rows)
    output = "pooled_output" if model.pools else "sequence_output"
    logits = dense(weights, name, second[output])
    if name == "span":
        expected = [logits[..., 1], logits[..., 0]]  # end, start
    else:
        expected = [logits.reshape(2, 3) if name == "chooser" else logits]
    for left, right in zip(
        compute_outputs(model, inputs), expected, strict=True
    ):
        np.testing.assert_allclose(left, right, atol=1e-5)


@pytest.mark.parametrize(
    ("recipe", "pooling"),
    [
        ("concat:-1,0", None),
        ("sum:0,1,2", "max"),
        ("weighted_sum:1,-1", "mean"),
        ("second_to_last", "cls"),
        ("last", "last"),
    ],
)
def test_a_classifier_on_features_equals_numpy_and_only_its_head_learns(
    recipe, pooling
):
    body = make_encoder(num_layers=2)
    model = fill(BertClassifier(body, LABELS, recipe=recipe, pooling=pooling))
    inputs = random_inputs()
    weights, second = restated(model, inputs)
    states = second["hidden_states"]
    parts = {"second_to_last": [1], "last": [2]}.get(recipe)
    parts = parts or [int(n) for n in recipe.split(":")[1].split(",")]
    chosen = [states[part] for part in parts]
    if recipe.startswith("weighted"):
        mix = np.exp(weights["features/mix"])
        mix *= weights["features/scale"] / mix.sum()
        vectors = np.tensordot(mix, np.stack(chosen), 1)
    elif recipe.startswith("sum"):
        vectors = sum(chosen)
    else:
        vectors = np.concatenate(chosen, axis=-1)
    pool = {
        "mean": lambda rows: rows.mean(axis=0),
        "max": lambda rows: rows.max(axis=0),
        "cls": lambda rows: rows[0],
        "last": lambda rows: rows[-1],
    }[pooling or "mean"]
    real = inputs["padding_mask"].astype(bool)
    pooled = [pool(row[mask]) for row, mask in zip(vectors, real, strict=True)]
    expected = dense(weights, "classifier", np.stack(pooled))
    np.testing.assert_allclose(model(inputs), expected, atol=1e-5)
    assert {w.path.split("/")[0] for w in split_trainable(model)[0]} <= {
        "classifier",
        "features",
    }


def test_inputs_of_another_form_are_refused_with_the_right_one():
    encoder = make_encoder(**STILL)
    ids = random_inputs()["token_ids"]
    models = [encoder, BertClassifier(encoder, LABELS), BertEmbedder(encoder)]
    for model in models:
        # For an encoder, Keras stacks the list.
        with pytest.raises(InputError, match=r"list of 2 arrays|\(2, 3, 7\)"):
            model([ids, 0 * ids])
        with pytest.raises(InputError, match="at least one token in a row"):
            model(ids[:, :0])
    model = models[1]
    assert model(ids.tolist()).shape == (3, 3)
    model.compile("sgd", entropy())
    with pytest.raises(InputError, match="at least one token in a row"):
        model.fit(ids[:, :0], CLASSES, verbose=0)
    with pytest.raises(InputError, match=r"reshape the rows to \(B \* K, T"):
        encoder(ids[np.newaxis])
    with pytest.raises(AttributeError, match="hidden_states=True"):
        _ = encoder.get_layer("layer_0").output
    states = encoder(ids, hidden_states=True)["hidden_states"]
    np.testing.assert_array_equal(states[1], encoder(ids)["sequence_output"])


def test_a_chooser_that_reads_left_to_right_reads_the_last_token():
    """Left to right, [CLS] sees only itself, so it is equal in every choice."""
    encoder = make_encoder(attention="left_to_right", **STILL)
    model = fill(BertChooser(encoder))
    inputs = random_inputs()
    scores = np.array(model({k: v[None] for k, v in inputs.items()}))[0]
    assert np.ptp(scores) > 1e-3
    output = np.array(encoder(inputs)["sequence_output"])
    last = inputs["padding_mask"].sum(1) - 1
    vectors = output[np.arange(len(last)), last]
    expected = dense(numpy_weights(model), "chooser", vectors)[:, 0]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert not model.pools and encoder.pooler.trainable


def test_an_encoder_may_be_made_inside_a_layers_build():
    class Scorer(keras.layers.Layer):
        def build(self, shape):
            self.encoder = BertEncoder.from_preset("bert_keras_mini_en")

        def call(self, ids):
            return self.encoder(ids)["pooled_output"]

    inputs = random_inputs()["token_ids"]
    expected = BertEncoder.from_preset("bert_keras_mini_en")(inputs)
    with warnings.catch_warnings(action="error"):
        found = Scorer()(inputs)
    np.testing.assert_allclose(found, expected["pooled_output"], atol=1e-6)


def test_models_of_one_encoder_train_in_turns():
    encoder = make_encoder(**STILL)
    classifier, tagger = (
        BertClassifier(encoder, ["a", "b"]),
        BertTagger(encoder, ["a", "b"]),
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for model in (classifier, tagger):
        model.compile("sgd", loss, run_eagerly=True)
    inputs = random_inputs()
    tags = inputs["token_ids"] % 2
    for _ in range(2):
        before = np.array(encoder.pooler.kernel)
        tagger.train_on_batch(inputs, tags)
        np.testing.assert_array_equal(encoder.pooler.kernel, before)
        logs = classifier.train_on_batch(inputs, tags[:, 0], None, None, True)
        assert logs["loss"] > 0
        assert np.abs(encoder.pooler.kernel - before).max() > 0


@pytest.mark.parametrize("attention", ["left_to_right", "right_to_left"])
def test_a_causal_model_never_sees_what_it_predicts(attention):
    model = fill(BertCausalModel(make_encoder(attention=attention)))
    inputs = random_inputs()
    weights, second = restated(model, inputs)
    x = gelu_tanh(dense(weights, "mlm/dense", second["sequence_output"]))
    x = layer_norm(weights, "mlm/norm", x)
    table = weights["encoder/embeddings/token/embeddings"]
    real = inputs["padding_mask"].astype(bool)
    np.testing.assert_allclose(
        np.array(model(inputs))[real],
        (x @ table.T + weights["mlm/bias"])[real],
        atol=1e-5,
    )
    ids = inputs["token_ids"][:1]
    logits = np.array(model(ids))[0]
    for position in range(7):
        changed = ids.copy()
        changed[0, position] = (changed[0, position] + 1) % 30
        moved = np.abs(np.array(model(changed))[0] - logits).max(-1) > 1e-4
        seen = np.arange(7) >= position
        if attention == "right_to_left":
            seen = np.arange(7) <= position
        np.testing.assert_array_equal(moved, seen)


def test_causal_targets_are_the_neighbours_of_the_same_example():
    inputs = {
        "token_ids": np.array([[5, 6, 7, 8, 0]]),
        "padding_mask": np.array([[1, 1, 1, 1, 0]]),
    }

    def targets(attention, **more):
        ids, weights = causal_targets({**inputs, **more}, attention)
        pairs = zip(np.array(ids)[0], np.array(weights)[0], strict=True)
        return [int(i) if w else None for i, w in pairs]

    assert targets("left_to_right") == [6, 7, 8, None, None]
    assert targets("right_to_left") == [None, 5, 6, 7, None]
    examples = np.array([[1, 1, 2, 2, 0]])
    packed = targets("left_to_right", example_ids=examples)
    assert packed == [6, None, 8, None, None]


def test_packed_rows_give_the_logits_of_their_examples_apart():
    shared = make_encoder()
    ids = np.random.default_rng(1).integers(0, 30, (2, 4))
    row = {
        "token_ids": ids.reshape(1, 8),
        "example_ids": [[1] * 4 + [2] * 4],
        "position_ids": [[0, 1, 2, 3] * 2],
    }
    packed = fill(BertClassifier(shared, LABELS, examples_per_row=3))
    apart = BertClassifier(shared, LABELS)
    apart.set_weights(packed.get_weights())
    logits = packed(row)
    assert logits.shape == (1, 3, 3)
    np.testing.assert_allclose(logits[0, :2], apart(ids), atol=1e-5)
    packed = fill(BertPretrainer(shared, examples_per_row=2))
    apart = BertPretrainer(shared)
    apart.set_weights(packed.get_weights())
    row["mask_positions"] = [[1, 6]]
    logits = packed(row)
    single = apart({"token_ids": ids, "mask_positions": [[1], [2]]})
    np.testing.assert_allclose(logits["mlm"][0], single["mlm"][:, 0], atol=1e-5)
    np.testing.assert_allclose(logits["nsp"][0], single["nsp"], atol=1e-5)
    with pytest.raises(InputError, match="no input named example_ids"):
        apart(row)


def test_a_bilstm_skips_padding():
    model = fill(BertTagger(make_encoder(), LABELS, bilstm_dim=4))
    inputs = random_inputs()
    wider = {k: np.pad(v, ((0, 0), (0, 3))) for k, v in inputs.items()}
    wider["token_ids"][:, 7:] = 9
    real = inputs["padding_mask"].astype(bool)
    np.testing.assert_allclose(
        np.array(model(inputs))[real],
        np.array(model(wider))[:, :7][real],
        atol=1e-5,
    )


def test_compile_and_fit_learn_a_batch_by_heart_in_one_trace(monkeypatch):
    traced = []

    def train_step(*arguments):
        traced.append(arguments)
        return step(*arguments)

    step = step_tensorflow.train_step
    monkeypatch.setattr(step_tensorflow, "train_step", train_step)
    keras.utils.set_random_seed(3)
    model = BertSpanPredictor(make_encoder())
    model.compile(adamw(3e-2, 40), span_losses())
    labels = {"start": np.array([1, 0, 2]), "end": np.array([1, 2, 2])}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Gradients do not exist")
        history = model.fit(random_inputs(), labels, epochs=35, verbose=0)
    assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]
    # tf.function traces twice if the first trace creates variables.
    assert len(traced) == 1


def test_a_bilstm_trains_on_several_labels_a_text():
    model = BertClassifier(make_encoder(), LABELS, "multi", bilstm_dim=4)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(adamw(1e-2, 9, warmup=0), loss, run_eagerly=True)
    before = {x.path: x.numpy() for x in model.trainable_weights}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Gradients do not exist")
        model.train_on_batch(random_inputs(), np.eye(3)[CLASSES])
    for weight in model.trainable_weights:
        if weight.path.startswith("bilstm"):
            assert (weight.numpy() != before[weight.path]).any(), weight.path


def freeze_model(model):
    model.trainable = False


def freeze_head_and_layers(model):
    model.layers[-1].trainable = False
    model.encoder.embeddings.trainable = False
    model.encoder.transformer_layers[0].attention.trainable = False


def freeze_two_weights(model):
    model.encoder.embeddings.token.embeddings.trainable = False
    model.encoder.transformer_layers[0].output_norm.gamma.trainable = False


@pytest.mark.parametrize(
    ("name", "freeze"),
    [
        ("classifier", freeze_model),
        ("causal", freeze_head_and_layers),
        ("tagger", freeze_two_weights),
    ],
)
def test_frozen_weights_stay_as_they_are_and_are_frozen_in_copies(
    name, freeze, tmp_path
):
    model = make_model(name)
    freeze(model)
    expected = [weight.path for weight in model.trainable_weights]
    before = {k: v.numpy() for k, v in published_weights(model).items()}
    optimizer = adamw(1e-2, 2, warmup=0)
    model.compile(optimizer, entropy(), run_eagerly=True)
    if name == "tagger":
        model.fit(random_inputs(), random_inputs()["segment_ids"], verbose=0)
        for key, weight in published_weights(model).items():
            moved = not np.array_equal(weight.numpy(), before[key])
            is_used = key not in POOLER  # the tagger does not read the pooler
            assert moved == (key in expected and is_used), key
    model.save(tmp_path / "model.keras")
    copies = [
        keras.saving.load_model(tmp_path / "model.keras"),
        type(model).from_config(model.get_config()),
        model.with_dtype("mixed_bfloat16"),
    ]
    for copy in copies:
        assert [x.path for x in copy.trainable_weights] == expected
        assert copy.encoder.trainable == model.encoder.trainable


@pytest.mark.parametrize("name", [*MODELS, "BiLSTM"])
def test_keras_shows_counts_and_clones_every_model(name):
    model, lines = make(name), []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    model.summary(
        expand_nested=True,
        show_trainable=True,
        print_fn=lambda line, **_: lines.append(line),
    )
    assert "(None, None, 8)" in lines[1] and "?" not in lines[1]
    total = sum(int(np.prod(x.shape)) for x in model.weights)
    assert model.count_params() == total
    assert f"Total params: {total:,}" in lines[0]
    for layer in model.layers:
        assert model.get_layer(layer.name) is layer
    copy = keras.models.clone_model(model)
    if name == "encoder":
        assert type(copy) is BertEncoder and copy.count_params() == total
    else:
        if name != "BiLSTM":  # whose weights a plain model lists otherwise
            copy.set_weights(model.get_weights())
            assert_same_outputs(copy, model, all_inputs(model, name))
        outputs = [keras.tree.flatten(m.output) for m in (copy, model)]
        for left, right in zip(*outputs, strict=True):
            assert (left.shape, left.dtype) == (right.shape, right.dtype)
        model.compile(adamw(1e-2, 9), "mse")
        assert keras.models.clone_model(model).compiled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        message = rf"{type(model).__name__}.quantize.*dtype=\"int8\""
        with pytest.raises(InputError, match=message):
            model.quantize("int8")


def test_a_loss_of_a_subclass_counts():
    class Dearer(BertClassifier):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs) + 1000

    model = Dearer(make_encoder(), LABELS)
    model.compile(adamw(1e-3, 9), entropy(), run_eagerly=True)
    assert model.train_on_batch(random_inputs(), CLASSES) > 999


def test_parts_of_a_batch_of_no_fixed_size_are_refused_under_xla():
    """tests/training/test_strategy.py has an accepted case."""
    rows = tf.data.Dataset.from_tensor_slices((random_inputs(), [0, 1, 2]))
    model = make_model("classifier")
    for size, fixed in ((2, False), (3, True)):
        optimizer = adamw(1e-3, 9, accumulate=2)
        model.compile(optimizer, entropy(), jit_compile=True)
        with pytest.raises(InputError, match="drop_remainder=True, or"):
            model.fit(rows.batch(size, drop_remainder=fixed), verbose=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: BertClassifier(x), "labels is None"),
        (lambda x: BertClassifier(x, "yes"), "labels is 'yes'"),
        (lambda x: BertClassifier(x, 2), "labels is 2"),
        (lambda x: BertClassifier(x, [0, 1]), r"labels is \[0, 1\]"),
        (lambda x: BertTagger(x, []), r"labels is \[\]"),
        (lambda x: BertClassifier(x, ["a", "a"]), "each class once"),
        (lambda x: BertClassifier(x, ["a"], "double"), "'double'"),
        (
            lambda x: BertClassifier(
                x, ["a"], bilstm_dim=2, examples_per_row=2
            ),
            "from one example into",
        ),
        (
            lambda x: BertClassifier(x, ["a"], bilstm_dim=2, recipe="last"),
            "Leave `bilstm_dim`",
        ),
        (lambda x: BertClassifier(x, ["a"], recipe="x"), "no recipe"),
        (lambda x: BertClassifier(x, ["a"], pooling="cls"), "a recipe"),
        (
            lambda x: BertClassifier(x, ["a"], recipe="last", pooling="pooled"),
            "`pooling` is 'pooled'",
        ),
        (lambda x: BertCausalModel(x), "attends to the token that it"),
        (
            lambda x: BertTagger(x, ["a"])({"token_ids": [[1]], "odd": [[0]]}),
            "no input named odd",
        ),
        (
            lambda x: BertPretrainer(x)(
                {**random_inputs(), "mask_positions": np.full((3, 1), 7)}
            ),
            "mask_positions contains the number 7",
        ),
    ],
)
def test_what_cannot_be_built_or_called_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make(make_encoder())


@keras.saving.register_keras_serializable("elsewhere")
class MeanRegressor(TaskModel):
    """Task model outside the package: regression on the mean vector."""

    pools = False

    def __init__(self, encoder, factor=1.0, name="mean_regressor"):
        self.factor = factor
        self.head = LogitsHead(1, name="mean", dtype=encoder.dtype_policy)
        inputs = symbolic_inputs()
        sequence = encoded(encoder, inputs)["sequence_output"]
        mean = keras.layers.GlobalAveragePooling1D()(sequence)
        super().__init__(inputs, self.head(mean) * factor, encoder, name)


def test_a_head_from_outside_the_package_fits_saves_and_loads(tmp_path):
    model = MeanRegressor(make_encoder(), factor=2.0)
    model.compile(adamw(1e-2, 5), "mse", run_eagerly=True)
    model.fit(random_inputs(), np.ones((3, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.factor == 2.0
    assert_same_outputs(model, loaded, random_inputs())
    assert "mean/kernel" in published_weights(loaded)


TEXTS = ["an hour", "good", "bad"]


def test_texts_are_refused_and_the_model_stays_compiled():
    model = make_model("classifier")
    model.compile(adamw(1e-3, 9), entropy())
    for texts in (
        TEXTS,
        np.array(TEXTS, object),
        (tf.constant(TEXTS), TEXTS),
        {"token_ids": np.array(TEXTS)},
        tf.data.Dataset.from_tensor_slices((TEXTS, [0, 1, 2])).batch(2),
    ):
        labels = () if hasattr(texts, "batch") else (CLASSES,)
        for loop in (model.fit, model.evaluate, model.predict):
            given = () if loop == model.predict else labels
            with pytest.raises(InputError, match="dataset.map.pre.*") as caught:
                loop(texts, *given, verbose=0)
            assert "\n" not in str(caught.value)  # a graph would add lines
    with pytest.raises(InputError, match="dataset.map.pre.*"):
        model.fit(random_inputs(), CLASSES, validation_data=(TEXTS, CLASSES))
    model.fit(random_inputs(), CLASSES, verbose=0)
