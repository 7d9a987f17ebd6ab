"""Effects of the fine-tuning hyperparameters on weights and losses."""

import functools
import json
import math
import shutil
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

import bert_keras
from bert_keras import InputError
from bert_keras.modeling.weights import lora_layers, published_weights
from bert_keras.training import schedules, step_tensorflow
from bert_keras.training.state import TrainingState
from official_tasks import finetune
from official_tasks.engine import batches, finetuning
from official_tasks.engine.balance import balance, smooth
from official_tasks.engine.hyperparameters import (
    EXECUTION,
    Hyperparameters,
)
from official_tasks.engine.models import load_model, load_trained
from official_tasks.evaluate import evaluate
from official_tasks.optimizers import OPTIMIZERS
from official_tasks.options import list_options
from official_tasks.tasks.base import Encoded, Metric
from official_tasks.tasks.own_tasks import classify_task
from tests.support.run_script import call_script
from tests.support.script_flags import parse_flags
from tests.support.task_samples import (
    QUICK,
    save_toy_model,
    sentences,
    write_csv,
    write_reviews,
)

pytestmark = pytest.mark.heavy

RATE = 1e-2
IDS = np.random.default_rng(0).integers(5, 20, (6, 7))
LABELS = np.array([0, 1, 1, 0, 1, 0])


@pytest.fixture(scope="module")
def two_layers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "layers"
    return save_toy_model(folder, num_layers=2)


@pytest.fixture(scope="module")
def step(two_layers, task):
    """Function that trains a model for one step with some hyperparameters and
    returns the model, and its weights before and after the step, by name."""

    @functools.cache
    def run(**arguments):
        chosen = Hyperparameters(**arguments)
        chosen.check()
        keras.utils.set_random_seed(0)
        model = load_model(task, two_layers, **chosen.encoder_arguments())
        chosen.adapt(model)
        model.compile(
            chosen.make_optimizer(RATE, 1), task.loss(), run_eagerly=True
        )
        before = weights_of(model)
        model.train_on_batch(IDS, LABELS)
        return model, before, weights_of(model)

    return run


def weights_of(model):
    return {k: w.numpy() for k, w in published_weights(model).items()}


def changed(before, after):
    return {k for k in before if not np.array_equal(before[k], after[k])}


def test_frozen_layers_keep_their_weights_and_the_rest_learns(step):
    _, before, after = step(freeze_layers=1)
    frozen = {k for k in before if k.startswith(("encoder/emb", "encoder/la"))}
    frozen -= {k for k in before if k.startswith("encoder/layer_1")}
    # Key biases do not change the softmax, so their gradient is rounding error.
    still = {k for k in before if k.endswith("key/bias")}
    assert changed(before, after) | still == (set(before) - frozen) | still
    _, before, after = step(freeze_layers=0)
    assert not any("embeddings" in k for k in changed(before, after))
    assert "encoder/layer_0/output/kernel" in changed(before, after)
    with pytest.raises(InputError, match="`freeze_layers` is 3; .* at most 2"):
        step(freeze_layers=3)


def test_lora_changes_queries_values_and_the_head_alone(step):
    model, before, after = step(lora_rank=3)
    names = {f"encoder/layer_{i}/attention" for i in range(2)}
    assert changed(before, after) - {"classifier/bias"} == {
        "classifier/kernel",
        *(f"{name}/query/kernel" for name in names),
        *(f"{name}/value/kernel" for name in names),
    }
    name = "encoder/layer_0/attention/value/kernel"
    assert np.linalg.matrix_rank(after[name] - before[name], 1e-6) <= 3


def test_lora_changes_the_named_projections_by_alpha_over_rank(step):
    targets = ("key", "feed_forward")
    model, before, after = step(
        lora_rank=2, lora_alpha=6, lora_targets=targets, weight_decay=0
    )
    kernels = {
        f"encoder/layer_{i}/{name}/kernel"
        for i in range(2)
        for name in ("attention/key", "intermediate", "output")
    }
    head = {"classifier/kernel", "classifier/bias"}
    assert changed(before, after) - head == kernels
    layer = model.encoder.transformer_layers[1].output_projection
    product = np.matmul(layer.lora_kernel_a, layer.lora_kernel_b)
    name = "encoder/layer_1/output/kernel"
    np.testing.assert_allclose(
        after[name] - before[name], 3 * product, atol=1e-6
    )


def test_lora_drops_out_the_inputs_of_its_matrices_alone(step):
    model, *_ = step(lora_rank=2, lora_dropout=0.25, dropout=0.1)
    rates = {layer.path: layer.lora_dropout for layer in lora_layers(model)}
    changed = [k for k, rate in rates.items() if rate == 0.25]
    assert len(changed) == 4  # queries and values of two layers
    assert {path.split("/")[-1] for path in changed} == {"query", "value"}
    model, *_ = step(lora_rank=2)
    assert not any(layer.lora_dropout for layer in lora_layers(model))


def test_an_average_keeps_its_momentum_of_the_former_average(step):
    model, _, first = step(ema=0.75, schedule="constant")
    model.train_on_batch(IDS, LABELS)
    second, (average,) = (
        weights_of(model)["classifier/kernel"],
        (
            np.array(average)
            for weight, average in zip(
                model.trainable_weights,
                model.optimizer._model_variables_moving_average,
                strict=True,
            )
            if weight.path == "classifier/kernel"
        ),
    )
    expected = 0.75 * first["classifier/kernel"] + 0.25 * second
    np.testing.assert_allclose(average, expected, atol=1e-6)
    assert np.abs(average - second).max() > 1e-3


def test_each_layer_below_learns_at_the_rate_times_the_decay(step):
    _, before, after = step(layer_decay=0.5, weight_decay=0)
    # Adam's first step changes each weight by the learning rate, whatever
    # its gradient.
    for name, factor in (
        ("classifier/kernel", 1),
        ("encoder/layer_1/output/kernel", 0.5),
        ("encoder/layer_0/output/kernel", 0.25),
        ("encoder/embeddings/position/embeddings", 0.125),
    ):
        moved = np.abs(after[name] - before[name]).max()
        # Adam's epsilon shortens the steps of small gradients.
        assert moved == pytest.approx(RATE * factor, rel=0.1), name


def test_weight_decay_takes_its_share_of_kernels_but_not_of_biases(step):
    _, before, without = step(weight_decay=0)
    _, _, after = step(weight_decay=0.3)
    for name, decay in (
        ("encoder/layer_0/output/kernel", 0.3),
        ("encoder/layer_0/output/bias", 0),
    ):
        expected = without[name] - RATE * decay * before[name]
        np.testing.assert_allclose(after[name], expected, atol=1e-6)


def test_lamb_moves_a_kernel_by_the_rate_times_its_length(step):
    _, before, after = step(optimizer="lamb")
    name = "encoder/layer_1/output/kernel"
    length = np.linalg.norm(before[name])
    moved = np.linalg.norm(after[name] - before[name])
    assert moved == pytest.approx(RATE * length, rel=1e-4)


def make_sgd(learning_rate, steps, warmup, schedule):
    rate = schedules.schedule(learning_rate, steps, warmup, schedule)
    return keras.optimizers.SGD(rate)


def test_an_optimizer_of_keras_is_a_row_of_the_table(
    step, two_layers, task, monkeypatch
):
    """The first step of plain gradient descent subtracts rate x gradient."""
    monkeypatch.setitem(OPTIMIZERS, "sgd", lambda: make_sgd)
    _, before, after = step(optimizer="sgd")
    keras.utils.set_random_seed(0)
    model = load_model(task, two_layers)
    with tf.GradientTape() as tape:
        loss = task.loss()(LABELS, model(IDS, training=True))
    weight = model.classifier.kernel.value
    gradient = tape.gradient(loss, weight)
    name = "classifier/kernel"
    np.testing.assert_allclose(
        after[name] - before[name], -RATE * gradient, atol=1e-6
    )
    for changed in ({"ema": 0.9}, {"accumulation": 2}, {"layer_decay": 0.9}):
        (name,) = changed
        with pytest.raises(InputError, match=f"`{name}` has no effect with"):
            step(optimizer="sgd", **changed)


def test_a_run_with_an_optimizer_of_keras_ends_and_is_scored(
    place, task, tmp_path, monkeypatch, eagerly
):
    monkeypatch.setitem(OPTIMIZERS, "sgd", lambda: make_sgd)
    arguments = {**QUICK, "epochs": 1, "optimizer": "sgd"}
    results = finetuning.run(
        task, place / "init", tmp_path / "run", **arguments
    )
    assert math.isfinite(results["curve"][-1]["loss"])
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["settings"]["optimizer"] == "sgd"


def test_micro_batches_and_second_computations_change_no_number(
    step, monkeypatch
):
    counts, micro_batches = [], step_tensorflow._accumulate

    def accumulate(compute, batch, count):
        counts.append(count)
        return micro_batches(compute, batch, count)

    again, remat = [], keras.remat
    monkeypatch.setattr(step_tensorflow, "_accumulate", accumulate)
    monkeypatch.setattr(keras, "remat", lambda f: again.append(f) or remat(f))
    _, _, expected = step()
    _, _, after = step(accumulation=3)
    assert again == []
    _, _, twice = step(rematerialize=True)
    assert counts == [3] and len(again) == 2  # one per layer
    # The gradients of the key biases are only rounding errors.
    for name in [k for k in expected if not k.endswith("key/bias")]:
        np.testing.assert_allclose(after[name], expected[name], atol=2e-4)
        np.testing.assert_allclose(twice[name], expected[name], atol=2e-4)


def test_dropout_is_that_of_encoder_attention_and_head(step):
    model, *_ = step()
    quiet = np.array(model(IDS))
    np.testing.assert_array_equal(model(IDS, training=True), quiet)
    model, *_ = step(dropout=0.5)
    rates = {
        layer.rate
        for layer in model._flatten_layers()
        if type(layer).__name__ == "Dropout"
    }
    assert rates == {0.5} and model.encoder.attention_dropout == 0.5
    assert np.abs(np.array(model(IDS, training=True)) - model(IDS)).max() > 0.01


def test_balanced_classes_weigh_the_same_as_scikit_learn_says():
    labels = ["a", "b", "c"]
    task = SimpleNamespace(name="toy", labels=labels, loss=lambda: None)
    targets = np.array([0, 0, 0, 2], np.int32)
    weighted = balance(task, Encoded({}, targets))[0].weights
    np.testing.assert_allclose(weighted, [4 / 6, 4 / 6, 4 / 6, 2], rtol=1e-6)
    # Tokens of weight 0 do not count.
    tags = tf.ragged.constant([[0, 0, 1], [0, 1]], tf.int32)
    counted = tf.ragged.constant([[1.0, 1, 1], [1, 0]])
    found = balance(task, Encoded({}, tags, counted))[0].weights
    expected = [2 / 3, 2 / 3, 2, 2 / 3, 0]
    np.testing.assert_allclose(found.flat_values, expected, rtol=1e-6)
    assert found.row_lengths().numpy().tolist() == [3, 2]
    for wrong in (targets.astype("f4"), {"start": targets}):
        with pytest.raises(InputError, match="task toy has no classes"):
            balance(task, Encoded({}, wrong))


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_smoothed_labels_have_the_loss_that_keras_has(shape):
    random = np.random.default_rng(0)
    logits = random.normal(size=(*shape, 4)).astype("f4")
    labels = random.integers(0, 4, shape)
    weights = random.random(shape).astype("f4")
    plain = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task = SimpleNamespace(name="toy", labels=["a", "b", "c", "d"])
    found = smooth(task, plain, 0.3)(labels, logits, weights)
    expected = keras.losses.CategoricalCrossentropy(True, label_smoothing=0.3)
    np.testing.assert_allclose(
        found, expected(np.eye(4)[labels], logits, weights), rtol=1e-6
    )
    squared = keras.losses.MeanSquaredError()
    for labels, loss in ((None, plain), (task.labels, squared)):
        task.labels = labels
        with pytest.raises(InputError, match="does not have one class"):
            smooth(task, loss, 0.3)


def test_averaged_weights_are_scored_and_saved(place, tmp_path, eagerly):
    train = write_reviews(tmp_path / "train.csv", 24)
    task = classify_task(train, str(place / "dev.csv"))
    quick = {**QUICK, "ema": 0.9, "schedule": "constant", "epochs": 1}
    quick |= {"label_smoothing": 0.1}
    watch, run = Watch(), tmp_path / "run"
    results = finetuning.run(
        task, place / "init", run, callbacks=[watch], **quick
    )
    scores = evaluate(task, [str(run)])
    assert scores["accuracy"] == pytest.approx(results["accuracy"])
    saved = weights_of(load_trained(task, run)[0])["classifier/kernel"]
    last = weights_of(watch.model)["classifier/kernel"]
    assert not np.array_equal(saved, last)
    optimizer = watch.model.optimizer
    averages = {
        weight.path: np.array(average)
        for weight, average in zip(
            watch.model.trainable_weights,
            optimizer._model_variables_moving_average,
            strict=True,
        )
    }
    np.testing.assert_array_equal(saved, averages["classifier/kernel"])
    assert float(optimizer.learning_rate) == pytest.approx(1e-2)


class Watch(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches, self.epochs, self.began = [], [], 0

    def on_train_begin(self, logs=None):
        self.began += 1
        self.frozen = weights_of(self.model)["encoder/embeddings/norm/gamma"]

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append((batch, logs["loss"]))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(logs)


def test_a_run_takes_them_all_and_tells_callbacks(place, tmp_path, monkeypatch):
    given, plain = [], batches.training_batches
    monkeypatch.setattr(
        batches,
        "training_batches",
        lambda rows, *a, **k: given.append(rows) or plain(rows, *a, **k),
    )
    rows = [(t, ("bad", "good")[y]) for t, y in sentences(32) if y or "a" in t]
    path = str(write_csv(tmp_path / "rows.csv", rows))
    task = classify_task(path, str(place / "dev.csv"))
    arguments = {
        "freeze_layers": 0,
        "class_weights": "balanced",
        "steps_per_execution": 2,
        "optimizer": "lamb",
        "accumulation": 2,
        "layer_decay": 0.9,
        "epochs": 6 / (len(rows) / 8),
    }
    run, watch = tmp_path / "run", Watch()
    results = finetuning.run(
        task, place / "init", run, callbacks=[watch], **QUICK | arguments
    )
    steps = results["curve"][-1]["step"]
    assert steps == 6 and watch.began >= 1
    assert len(watch.batches) < steps  # two steps per call
    assert [line["val_accuracy"] for line in watch.epochs] == [
        line["val_accuracy"] for line in results["curve"]
    ]
    assert all(math.isfinite(loss) for _, loss in watch.batches)
    optimizer = watch.model.optimizer
    assert (type(optimizer).__name__, optimizer.accumulate) == ("Lamb", 2)
    assert min(rate for _, rate in optimizer._groups) == pytest.approx(0.9)
    np.testing.assert_array_equal(
        weights_of(watch.model)["encoder/embeddings/norm/gamma"], watch.frozen
    )
    weights, labels = given[0].weights, given[0].targets
    assert weights[labels == 0].sum() == pytest.approx(weights.sum() / 2)
    settings = json.loads((run / "run.json").read_text())["settings"]
    kept = {k: v for k, v in arguments.items() if k not in EXECUTION}
    assert settings.items() >= kept.items()
    assert not settings.keys() & set(EXECUTION)  # these may change
    assert "dropout" not in settings  # defaults are left out: old runs resume
    with pytest.raises(InputError, match="layer_decay was 0.9 and is now not"):
        finetuning.run(
            task,
            place / "init",
            run,
            **QUICK | {k: v for k, v in arguments.items() if k[:2] != "la"},
        )


def test_a_run_out_of_memory_resumes_with_more_micro_batches(
    place, task, tmp_path, monkeypatch, eagerly
):
    arguments = {**QUICK, "epochs": 2, "learning_rate": 1e-3, "dropout": 0.0}
    left, on_batch = [12], TrainingState.on_train_batch_end

    def stop(self, batch, logs=None):
        on_batch(self, batch, logs)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    def run(name, **execution):
        output = tmp_path / name
        finetuning.run(task, place / "init", output, **arguments, **execution)
        return load_file(output / "model" / "model.safetensors")

    expected = run("whole")
    monkeypatch.setattr(TrainingState, "on_train_batch_end", stop)
    with pytest.raises(KeyboardInterrupt):
        run("run", save_every=5)
    found = run("run", accumulation=2, steps_per_execution=2)
    assert found.keys() == expected.keys()
    for name in found:
        if not name.endswith("key.bias"):  # gradients are rounding errors
            np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
    with pytest.raises(InputError, match="other settings"):
        run("run", label_smoothing=0.1)


def test_the_curve_says_when_a_run_ends():
    f1 = Metric("f1", higher_is_better=True)
    loss = Metric("loss", higher_is_better=False)
    curve = [{"val_f1": x} for x in (0.1, 0.3, float("nan"), 0.3, 0.2)]
    stops = [
        Hyperparameters(early_stopping=2).has_stopped(f1, curve[:n])
        for n in range(6)
    ]
    assert stops == [False] * 4 + [True, True]
    assert not Hyperparameters().has_stopped(f1, curve)
    falling = [{"val_loss": x} for x in (0.3, 0.2, 0.1)]
    once = Hyperparameters(early_stopping=1)
    assert not once.has_stopped(loss, falling)
    assert once.has_stopped(loss, falling[::-1])


def test_a_lora_run_leaves_its_adapters_apart(place, task, tmp_path):
    shutil.copytree(place, tmp_path / "place", dirs_exist_ok=True)
    words = "-m official_tasks.finetune --task=classify --train=train.csv "
    words += "--dev=dev.csv --init=init --output=run --epochs=1 "
    words += (
        "--lora_rank=2 --batch_size=8 --sequence_length=24 --learning_rate=0.01"
    )
    done = call_script(*words.split(), folder=tmp_path / "place")
    assert done.returncode == 0, done.stderr
    # `evaluate` reads the task and its files from the run.
    words_again = "-m official_tasks.evaluate --model=run".split()
    scored = call_script(*words_again, folder=tmp_path / "place")
    assert scored.returncode == 0, scored.stderr
    run = tmp_path / "place" / "run"
    accuracy = json.loads((run / "results.json").read_text())["accuracy"]
    assert f"{accuracy:.4f}" in scored.stdout
    trained, preprocess = load_trained(task, run)
    model = load_model(task, place / "init")
    bert_keras.load_lora(model, run / "adapter")
    inputs = preprocess(["a good film", "one awful cat"])
    np.testing.assert_allclose(model(inputs), trained(inputs), atol=1e-5)
    before = np.array(load_model(task, place / "init").encoder.weights[0])
    np.testing.assert_array_equal(trained.encoder.weights[0], before)
    again = call_script(
        *words.replace("rank=2", "rank=4").split(), folder=tmp_path / "place"
    )
    assert again.returncode == 2
    assert "lora_rank was 2 and is now 4" in again.stderr


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("lora_rank=0", "--lora_rank=0: expected a whole number, 1"),
        ("freeze_layers=-1", "expected a whole number, 0 or more"),
        ("layer_decay=1.5", "expected a number above 0 and at most 1"),
        ("weight_decay=-1", "expected a number, 0 or more"),
        ("dropout=1", "expected a number from 0 to below 1"),
        ("accumulation=0", "expected a whole number, 1 or more"),
        ("steps_per_execution=0", "expected a whole number, 1 or more"),
        ("early_stopping=0", "expected a whole number, 1 or more"),
        ("optimizer=sgd", "<adamw|lamb>"),
        ("class_weights=equal", "<balanced>"),
        (
            "lora_rank=2 --freeze_layers=1",
            "LoRA freezes the entire encoder",
        ),
        ("lora_rank=2 --from_scratch", "keep trained weights"),
        ("lora_alpha=2", "these have no effect: --lora_alpha"),
        ("lora_rank=2 --lora_targets=pooler", "some of query, key"),
        ("lora_dropout=0.1", "these have no effect: --lora_dropout"),
        ("lora_rank=2 --lora_alpha=0", "expected a number above 0"),
        ("label_smoothing=1", "expected a number from 0 to below 1"),
        ("ema=1", "expected a number from 0 to below 1"),
        ("schedule=line", "<linear|cosine|constant>"),
        ("layer_decay=0.9 --recipe=last", "only applies without --recipe"),
        ("warmup=-1", "expected a number, 0 or more"),
        ("clip_norm=inf", "expected a number, 0 or more"),
        ("evaluations=0", "expected a whole number, 1 or more"),
        ("max_rows=0", "expected a whole number, 1 or more"),
        ("save_every=0", "expected a whole number, 1 or more"),
        ("warmup=99 --epochs=1", "no more warm-up steps than steps"),
        ("learning_rate=2e-5,x", "--learning_rate=2e-5,x: expected numbers"),
        ("learning_rate=2e-5,-1", "--learning_rate is 2e-05, -1; expected a"),
        ("learning_rate=2e-5,2e-5", "2e-05; expected a number, 0 or more, or"),
        ("learning_rate=", "--learning_rate is empty; expected a number"),
        ("learning_rate=1,2 --folds=3", "--learning_rate has several values"),
        ("grid", "Unknown command line flag 'grid'"),
        ("class_weights=balanced --task=glue", "--train, --class_weights only"),
        ("folds=3 --dry_run", "--folds only applies without --dry_run"),
    ],
)
def test_a_value_that_cannot_be_is_refused(place, tmp_path, flag, message):
    words = "-m official_tasks.finetune --train=train.csv --init=init --output="
    words += f"{tmp_path}/run --{flag}"
    done = call_script(*words.split(), folder=place)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    name = flag.split("=")[0]
    fields = list_options(Hyperparameters)
    has_range = name in fields and fields[name].expected
    if "expected" in message and has_range and " " not in flag:
        value = float(flag.split("=")[1])
        with pytest.raises(InputError, match=f"`{name}` is {value}; expected"):
            Hyperparameters(**{name: value}).check()


def test_each_flag_of_a_run_reaches_what_is_computed(
    place, tmp_path, monkeypatch, eagerly
):
    optimizers, saved = [], []
    make, save = Hyperparameters.make_optimizer, TrainingState.save
    monkeypatch.setattr(
        Hyperparameters,
        "make_optimizer",
        lambda *words: optimizers.append(make(*words)) or optimizers[-1],
    )
    monkeypatch.setattr(
        TrainingState,
        "save",
        lambda self, **copies: (
            saved.append(self.progress.step) or save(self, **copies)
        ),
    )
    words = f"--train={place}/train.csv --dev={place}/dev.csv --epochs=2.5 "
    words += f"--init={place}/init --output={tmp_path}/run --batch_size=8 "
    words += "--learning_rate=1e-2 --warmup=4 --clip_norm=1e-3 --max_rows=22 "
    words += "--evaluations=4 --save_every=2"
    finetune.main(parse_flags(finetune.Options, words.split()))
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (results["rows"], results["dev_rows"]) == (22, 22)
    notes = " ".join(results["notes"])
    assert "leaves out 58 of the 80 rows of train" in notes
    assert "leaves out 8 of the 30 rows of dev" in notes
    # 2.5 x 22 / 8 is 7 steps, in four parts. Each has the rate of the next one.
    curve = results["curve"]
    assert [line["step"] for line in curve] == [2, 4, 6, 7]
    rates = [line["learning_rate"] for line in curve]
    expected = [1e-2 * x for x in (2 / 4, 3 / 7, 1 / 7, 0)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-9)
    assert {2, 4, 6} <= {*saved}
    # Clipped gradients of norm c give first moments of a norm of at most c.
    (optimizer,) = optimizers
    assert min(line["gradient_norm"] for line in curve) > 2e-3
    moments = [np.ravel(m) for m in optimizer._momentums]
    assert 1e-4 < np.linalg.norm(np.concatenate(moments)) <= 1e-3


def test_the_norm_of_the_first_gradient_is_clipped_or_left(step):
    def norm(**arguments):
        optimizer = step(**arguments)[0].optimizer
        moments = np.concatenate([np.ravel(m) for m in optimizer._momentums])
        # The first moment after one step is a tenth of the gradient.
        return 10 * np.linalg.norm(moments), float(optimizer.gradient_norm)

    whole, stated = norm(clip_norm=0)
    assert whole == pytest.approx(stated, rel=1e-4)
    assert norm(clip_norm=None)[0] == pytest.approx(stated, rel=1e-4)
    least = stated / 3
    assert norm(clip_norm=least)[0] == pytest.approx(least, rel=1e-4)


def test_one_epoch_with_several_evaluations_ends_early_and_resumes(
    place, task, tmp_path, monkeypatch, eagerly
):
    arguments = {**QUICK, "epochs": 1, "evaluations": 5, "early_stopping": 1}
    arguments |= {"learning_rate": 0.0, "save_every": 3}
    whole = finetuning.run(task, place / "init", tmp_path / "a", **arguments)
    # Without learning, the second score is no better than the first.
    assert [line["step"] for line in whole["curve"]] == [2, 4]
    assert whole["best_step"] == 2
    left, on_batch = [3], TrainingState.on_train_batch_end

    def stop(self, batch, logs=None):
        on_batch(self, batch, logs)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    arguments |= {"learning_rate": 1e-2, "early_stopping": 4}
    whole = finetuning.run(task, place / "init", tmp_path / "b", **arguments)
    assert [line["step"] for line in whole["curve"]] == [2, 4, 6, 8, 10]
    monkeypatch.setattr(TrainingState, "on_train_batch_end", stop)
    with pytest.raises(KeyboardInterrupt):
        finetuning.run(task, place / "init", tmp_path / "c", **arguments)
    arguments["save_every"] = 7  # may change
    again = finetuning.run(task, place / "init", tmp_path / "c", **arguments)
    assert left == [-7]  # it resumed after step 3
    assert again == whole
    name = "model/model.safetensors"
    first, second = ((tmp_path / n / name).read_bytes() for n in "bc")
    assert first == second
    arguments["evaluations"] = 4
    with pytest.raises(InputError, match="evaluations was 5 and is now 4"):
        finetuning.run(task, place / "init", tmp_path / "c", **arguments)


def test_a_choice_of_none_is_refused_in_python_too():
    with pytest.raises(InputError, match="`optimizer` is None; .* of adamw"):
        Hyperparameters(optimizer=None).check()
