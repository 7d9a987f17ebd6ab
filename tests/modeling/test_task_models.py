import contextlib
import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from model_samples import SMALL, fill, numpy_weights, random_inputs
from numpy_bert import dense, encode, gelu_tanh, layer_norm

from bert_keras.errors import InputError
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
    BertEmbedder,
    BertSpanPredictor,
    BertTagger,
    span_losses,
)
from bert_keras.modeling.weights import published_weights
from bert_keras.training import step_tensorflow
from bert_keras.training.optimizers import adamw

LABELS = ["no", "perhaps", "yes"]


def encoder(**arguments):
    return BertEncoder(**{**SMALL, "num_layers": 1, **arguments})


def choices(seed=0):
    inputs = random_inputs(seed, batch=6)
    return {name: x.reshape(2, 3, 7) for name, x in inputs.items()}


def directed():
    return BertCausalModel(encoder(attention="left_to_right"))


MODELS = {
    "classifier": lambda: BertClassifier(encoder(), LABELS),
    "regression": lambda: BertClassifier(
        encoder(), problem="regression", pair=True
    ),
    "with a BiLSTM": lambda: BertClassifier(encoder(), LABELS, bilstm_dim=4),
    "on features": lambda: BertClassifier(
        encoder(), LABELS, recipe="weighted_sum:0,1", pooling="max"
    ),
    "span": lambda: BertSpanPredictor(encoder()),
    "tagger": lambda: BertTagger(encoder(), LABELS),
    "chooser": lambda: BertChooser(encoder()),
    "embedder": lambda: BertEmbedder(encoder(), "max"),
    "causal": directed,
}

PRETRAINER = {"pretrainer": lambda: BertPretrainer(encoder())}


@functools.cache
def filled(name):
    """One model for all tests that leave it as it is."""
    return fill(MODELS[name]())


def make_inputs(model):
    return choices() if isinstance(model, BertChooser) else random_inputs()


def compute_outputs(model, inputs=None):
    outputs = model(make_inputs(model) if inputs is None else inputs)
    return [np.array(x, "float32") for x in keras.tree.flatten(outputs)]


def assert_same_outputs(left, right):
    for first, second in zip(
        compute_outputs(left), compute_outputs(right), strict=True
    ):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", [*MODELS, "pretrainer", "encoder"])
def test_a_keras_export_answers_as_the_model(name, tmp_path):
    makers = {**MODELS, **PRETRAINER, "encoder": encoder}
    model = fill(makers[name]())
    model.export(tmp_path, verbose=False)
    loaded = tf.saved_model.load(tmp_path)
    inputs = make_inputs(model)
    if name == "pretrainer":
        inputs["mask_positions"] = np.array([[1, 2]] * 3)
    tensors = {k: tf.constant(v, "int32") for k, v in inputs.items()}
    found = keras.tree.flatten(loaded.serve(tensors))
    expected = compute_outputs(model, inputs)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_and_a_copy_have_arguments_and_weights(name, tmp_path):
    model = filled(name)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for copy in (loaded, model.with_dtype("float32")):
        assert type(copy) is type(model)
        assert copy.arguments() == model.arguments()
        assert_same_outputs(model, copy)


@pytest.mark.parametrize("name", MODELS)
def test_half_precision_gives_float32_logits(name):
    model = filled(name)
    half = model.with_dtype("mixed_bfloat16")
    assert half.dtype_policy.name == "mixed_bfloat16"
    for left, right in zip(
        compute_outputs(model), compute_outputs(half), strict=True
    ):
        assert np.abs(left - right).mean() < 0.05
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        made_under_it = MODELS[name]()
    finally:
        keras.config.set_dtype_policy("float32")
    for model in (half, made_under_it):
        assert model.encoder.compute_dtype == "bfloat16"
        for logits in keras.tree.flatten(model(make_inputs(model))):
            assert keras.backend.standardize_dtype(logits.dtype) == "float32"


@pytest.mark.parametrize("name", MODELS)
def test_left_out_inputs_are_filled_in(name):
    model = filled(name)
    ids = make_inputs(model)["token_ids"]
    whole = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
    }
    expected = compute_outputs(model, whole)
    for alone in (ids, {"token_ids": ids}, ids.tolist()):
        pairs = zip(compute_outputs(model, alone), expected, strict=True)
        for left, right in pairs:
            np.testing.assert_allclose(left, right, atol=1e-6)


def restated(model, inputs):
    weights = numpy_weights(model)
    return weights, encode(weights, model.encoder.get_config(), inputs)


HEADS = {
    "classifier": (lambda: BertClassifier(encoder(), LABELS), "pooled_output"),
    "tagger": (lambda: BertTagger(encoder(), LABELS), "sequence_output"),
    "span": (lambda: BertSpanPredictor(encoder()), "sequence_output"),
    "chooser": (lambda: BertChooser(encoder()), "pooled_output"),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_equal_the_numpy_restatement(name):
    make, output = HEADS[name]
    model = fill(make())
    inputs = make_inputs(model)  # one row a choice
    rows = {name: x.reshape(-1, 7) for name, x in inputs.items()}
    weights, second = restated(model, rows)
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
    body = encoder(num_layers=2)
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
    assert {w.path.split("/")[0] for w in model.trainable_weights} <= {
        "classifier",
        "features",
    }


@pytest.mark.parametrize("attention", ["left_to_right", "right_to_left"])
def test_a_causal_model_never_sees_what_it_predicts(attention):
    model = fill(BertCausalModel(encoder(attention=attention)))
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
        ids, weights = np.array(ids), np.array(weights)
        return [
            int(i) if w else None
            for i, w in zip(ids[0], weights[0], strict=True)
        ]

    assert targets("left_to_right") == [6, 7, 8, None, None]
    assert targets("right_to_left") == [None, 5, 6, 7, None]
    examples = np.array([[1, 1, 2, 2, 0]])
    packed = targets("left_to_right", example_ids=examples)
    assert packed == [6, None, 8, None, None]


def test_a_packed_classifier_finds_each_example():
    shared = encoder()
    packed = fill(BertClassifier(shared, LABELS, examples_per_row=3))
    apart = BertClassifier(shared, LABELS)
    apart.set_weights(packed.get_weights())
    ids = np.random.default_rng(1).integers(0, 30, (2, 4))
    logits = packed(
        {
            "token_ids": ids.reshape(1, 8),
            "example_ids": [[1] * 4 + [2] * 4],
            "position_ids": [[0, 1, 2, 3] * 2],
        }
    )
    assert logits.shape == (1, 3, 3)
    np.testing.assert_allclose(logits[0, :2], apart(ids), atol=1e-5)


def test_a_bilstm_skips_padding():
    model = fill(BertTagger(encoder(), LABELS, bilstm_dim=4))
    inputs = random_inputs()
    wider = {k: np.pad(v, ((0, 0), (0, 3))) for k, v in inputs.items()}
    wider["token_ids"][:, 7:] = 9
    real = inputs["padding_mask"].astype(bool)
    np.testing.assert_allclose(
        np.array(model(inputs))[real],
        np.array(model(wider))[:, :7][real],
        atol=1e-5,
    )


FITS = {
    "multi": (
        lambda: BertClassifier(encoder(), LABELS, "multi", bilstm_dim=4),
        lambda: keras.losses.BinaryCrossentropy(from_logits=True),
        np.array([[0.0, 1, 1], [1, 0, 0], [0, 0, 0]]),
    ),
    "span": (
        lambda: BertSpanPredictor(encoder()),
        span_losses,
        {"start": np.array([1, 0, 2]), "end": np.array([1, 2, 2])},
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_compile_and_fit_learn_a_batch_by_heart(name, monkeypatch):
    traced = []

    def train_step(*arguments):
        traced.append(arguments)
        return step(*arguments)

    step = step_tensorflow.train_step
    monkeypatch.setattr(step_tensorflow, "train_step", train_step)
    keras.utils.set_random_seed(3)
    make, loss, labels = FITS[name]
    model = make()
    model.compile(adamw(2e-2, 60), loss())
    # The same three rows twenty times, three at a time.
    inputs = {k: np.tile(x, (20, 1)) for k, x in random_inputs().items()}
    labels = keras.tree.map_structure(
        lambda x: np.concatenate([x] * 20), labels
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of weights without a gradient
        history = model.fit(inputs, labels, batch_size=3, epochs=3, verbose=0)
    assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]
    # A second time where the first trace made variables, as Keras has it.
    assert len(traced) == 1


def test_frozen_layers_stay_as_they_are_in_a_loaded_model_too(tmp_path):
    model = BertClassifier(encoder(num_layers=2), LABELS)
    bottom = model.encoder
    bottom.embeddings.trainable = False
    bottom.transformer_layers[0].trainable = False
    before = {k: v.numpy() for k, v in published_weights(model).items()}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adamw(1e-2, 2, warmup=0), loss)
    model.fit(random_inputs(), np.array([0, 1, 2]), verbose=0)
    for name, weight in published_weights(model).items():
        frozen = "embeddings/" in name or "layer_0/" in name
        assert np.array_equal(weight.numpy(), before[name]) == frozen, name
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.trainable_weights) == len(model.trainable_weights)
    assert int(loaded.optimizer.iterations.numpy()) == 1


def freeze_model(model):
    model.trainable = False


def freeze_head_and_a_layer(model):
    model.layers[-1].trainable = False
    model.encoder.transformer_layers[0].attention.trainable = False


def freeze_two_weights(model):
    model.encoder.embeddings.token.embeddings.trainable = False
    model.encoder.transformer_layers[0].output_norm.gamma.trainable = False


@pytest.mark.parametrize(
    ("name", "freeze"),
    [
        ("classifier", freeze_model),
        ("causal", freeze_head_and_a_layer),
        ("tagger", freeze_two_weights),
    ],
)
def test_what_was_frozen_is_frozen_in_copies_however_it_was(
    name, freeze, tmp_path
):
    """Without `compile`; in a file, by Keras's model around, by dtype."""
    model = {**MODELS, **PRETRAINER}[name]()
    freeze(model)
    expected = [weight.path for weight in model.trainable_weights]
    model.save(tmp_path / "model.keras")
    copies = [
        keras.saving.load_model(tmp_path / "model.keras"),
        type(model).from_config(model.get_config()),
        model.with_dtype("mixed_bfloat16"),
    ]
    for copy in copies:
        assert [x.path for x in copy.trainable_weights] == expected
        assert copy.encoder.trainable == model.encoder.trainable


@pytest.mark.parametrize(
    "name",
    [
        "encoder",
        "with a BiLSTM",
        "chooser",
        "causal",
        "span",
        "pretrainer",
    ],
)
def test_keras_shows_counts_and_clones_every_kind_of_model(name):
    made = {"encoder": encoder, **MODELS, **PRETRAINER}[name]
    model = made()
    lines = []
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

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = Dearer(encoder(), LABELS)
    model.compile(adamw(1e-3, 9), loss)
    assert model.train_on_batch(random_inputs(), np.array([0, 1, 2])) > 999


def test_parts_of_a_batch_of_no_fixed_size_are_refused_under_xla():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rows = tf.data.Dataset.from_tensor_slices((random_inputs(), [0, 1, 2]))
    rows = rows.repeat(2)
    for size, fixed in ((2, False), (3, True), (2, True)):
        model = BertClassifier(encoder(), LABELS)
        model.compile(adamw(1e-3, 9, accumulate=2), loss, jit_compile=True)
        refused = pytest.raises(InputError, match="drop_remainder=True, or")
        fits = fixed and size == 2
        with contextlib.nullcontext() if fits else refused:
            model.fit(rows.batch(size, drop_remainder=fixed), verbose=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BertClassifier(encoder()), "labels is None"),
        (lambda: BertClassifier(encoder(), "yes"), "labels is 'yes'"),
        (lambda: BertClassifier(encoder(), 2), "labels is 2"),
        (lambda: BertClassifier(encoder(), [0, 1]), r"labels is \[0, 1\]"),
        (lambda: BertTagger(encoder(), []), r"labels is \[\]"),
        (lambda: BertClassifier(encoder(), ["a", "a"]), "a class twice"),
        (lambda: BertClassifier(encoder(), ["a"], "double"), "'double'"),
        (
            lambda: BertClassifier(
                encoder(), ["a"], bilstm_dim=2, examples_per_row=2
            ),
            "from one example into",
        ),
        (
            lambda: BertClassifier(
                encoder(), ["a"], bilstm_dim=2, recipe="last"
            ),
            "Leave bilstm_dim",
        ),
        (lambda: BertClassifier(encoder(), ["a"], recipe="x"), "no recipe"),
        (lambda: BertClassifier(encoder(), ["a"], pooling="cls"), "a recipe"),
        (
            lambda: BertClassifier(
                encoder(), ["a"], recipe="last", pooling="pooled"
            ),
            "pooling is 'pooled'",
        ),
        (lambda: BertCausalModel(encoder()), "sees the very token"),
        (
            lambda: filled("classifier")(
                {"token_ids": [[1]], "mask_positions": [[0]]}
            ),
            "no input named mask_positions",
        ),
        (
            lambda: BertPretrainer(encoder())(
                {**random_inputs(), "mask_positions": np.full((3, 1), 7)}
            ),
            "mask_positions has 7",
        ),
    ],
)
def test_what_cannot_be_built_or_called_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@keras.saving.register_keras_serializable("elsewhere")
class MeanRegressor(TaskModel):
    """A head from outside the package: a number from the mean vector."""

    pools = False

    def __init__(self, encoder, factor=1.0, name="mean_regressor"):
        self.factor = factor
        self.head = LogitsHead(1, name="mean", dtype=encoder.dtype_policy)
        inputs = symbolic_inputs()
        sequence = encoded(encoder, inputs)["sequence_output"]
        mean = keras.layers.GlobalAveragePooling1D()(sequence)
        super().__init__(inputs, self.head(mean) * factor, encoder, name)


def test_a_head_from_outside_the_package_fits_saves_and_loads(tmp_path):
    model = MeanRegressor(encoder(), factor=2.0)
    model.compile(adamw(1e-2, 5), "mse")
    model.fit(random_inputs(), np.ones((3, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.factor == 2.0
    assert_same_outputs(model, loaded)
    assert "mean/kernel" in published_weights(loaded)


TEXTS = ["an hour", "good", "bad"]


@pytest.mark.parametrize(
    "texts",
    [
        TEXTS,
        np.array(TEXTS, object),
        (tf.constant(TEXTS), TEXTS),
        {"token_ids": np.array(TEXTS)},
        tf.data.Dataset.from_tensor_slices((TEXTS, [0, 1, 2])).batch(2),
    ],
    ids=["list", "objects", "pair", "dict", "data set"],
)
def test_texts_are_refused_and_the_model_stays_compiled(texts):
    model = BertClassifier(encoder(), LABELS)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adamw(1e-3, 9), loss)
    labels = () if hasattr(texts, "batch") else (np.array([0, 1, 2]),)
    for loop in (model.fit, model.evaluate, model.predict):
        given = () if loop == model.predict else labels
        with pytest.raises(InputError, match="dataset.map.pre.*") as caught:
            loop(texts, *given, verbose=0)
        assert "\n" not in str(caught.value)  # it never came to a graph
    model.fit(random_inputs(), np.array([0, 1, 2]), verbose=0)
