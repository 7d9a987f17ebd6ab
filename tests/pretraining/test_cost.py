import itertools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from run_script import ROOT, run_script
from toy_pretraining import SMALLEST

from bert_keras import BertEncoder, BertPretrainer, InputError
from bert_keras.data.record_files import row_shapes, serialize
from bert_keras.data.sampling import SamplingRules
from official_tasks.pretraining import cost as estimated_plan
from official_tasks.pretraining import cost as estimating
from official_tasks.pretraining import cost as measuring
from official_tasks.pretraining.cost import (
    DEVICES,
    UTILISATION,
    Corpus,
    Machine,
    Model,
)
from official_tasks.pretraining.settings import Settings, phases

BASE = Model(12, 768, 12, 3072)
LARGE = Model(24, 1024, 16, 4096)
TOY = Model(2, 16, 4, 64, 100, 32)


def toy_pretrainer():
    encoder = BertEncoder(100, 2, 4, 16, 64, max_sequence_length=32)
    return BertPretrainer(encoder)


def ratio(one, other):
    return max(one / other, other / one)


def test_parameters_are_those_of_the_model_and_of_the_released_ones():
    assert TOY.parameters == toy_pretrainer().count_params()
    # As transformers counts BertForPreTraining.
    assert BASE.parameters == 110_106_428
    assert LARGE.parameters == 336_226_108


def test_operations_are_those_of_the_matrix_products_in_the_graph():
    model = toy_pretrainer()
    spec = {
        name: tf.TensorSpec((1, length), "int32", name)
        for name, length in (
            ("token_ids", 24),
            ("segment_ids", 24),
            ("padding_mask", 24),
            ("mask_positions", 5),
        )
    }
    call = tf.function(lambda inputs: model(inputs, training=False))
    graph = call.get_concrete_function(spec).graph
    count = sum(_products(graph))
    forward = estimating.sequence_flops(TOY, 24, 5) / estimating.PASSES
    assert forward == pytest.approx(count, rel=0.01)  # segments by a product


def _products(graph):
    """2 m n k of each matrix product of a graph and of its functions."""
    for operation in graph.get_operations():
        if "MatMul" in operation.type:
            inputs = [x.shape for x in operation.inputs[:2]]
            inner = inputs[0][
                -2 if operation.get_attr(_turned(operation)) else -1
            ]
            yield 2 * operation.outputs[0].shape.num_elements() * inner


def _turned(operation):
    return "transpose_a" if operation.type == "MatMul" else "adj_x"


@pytest.mark.parametrize(
    "rate, devices, length, predictions",
    [
        (485.59, 1, 128, 20),
        (96.52, 1, 512, 77),
        (110280.73, 256, 128, 20),
        (22506.23, 256, 512, 77),
    ],
)
def test_rates_published_for_large_on_a100_are_within_a_factor_of_1_3(
    rate, devices, length, predictions
):
    work = estimating.sequence_flops(LARGE, length, predictions)
    expected = DEVICES["a100"].flops * UTILISATION * devices / work
    assert ratio(expected, rate) < 1.3


def test_two_hours_on_256_a100_are_within_a_factor_of_1_3():
    settings = Settings(
        size="large",
        batch_size=65536,
        phase_2_batch_size=32768,
        steps=7038 + 1563,
        phase_2_steps=1563,
        dtype="mixed_float16",
    )
    published = Machine(
        256,
        312e12,
        80e9,
        sequences_per_second=(110280.73 / 256, 22506.23 / 256),
    )
    for machine in (Machine(256, 312e12, 80e9), published):
        figures = estimated_plan.estimate(settings, LARGE, machine)
        assert ratio(figures["seconds"], 2.02 * 3600) < 1.3


@pytest.mark.parametrize("model, chips", [(BASE, 16), (LARGE, 64)])
def test_the_papers_four_days_are_those_of_128000_tokens_a_step(model, chips):
    machine = Machine(chips, *DEVICES["tpu-v2"])
    # 256 sequences of 512 tokens; in phase 1 as many tokens.
    tokens = Settings(batch_size=1024, phase_2_batch_size=256)
    figures = estimated_plan.estimate(tokens, model, machine)
    assert ratio(figures["seconds"], 4 * 86400) < 1.5
    literal = estimated_plan.estimate(Settings(), model, machine)
    assert 3.5 < 4 * 86400 / literal["seconds"] < 4.5


def test_mlperfs_packed_run_on_eight_h100_is_within_a_factor_of_1_6():
    sequences = 2_625_459  # mean of the reference's runs at batch 448
    settings = Settings(
        size="large",
        packed=True,
        steps=1,
        phase_2_steps=0,
        batch_size=sequences,
        sequence_length=512,
        max_predictions=77,
    )
    machine = Machine(8, *DEVICES["h100"])
    figures = estimated_plan.estimate(settings, LARGE, machine, padding=0.5)
    assert ratio(figures["seconds"], 5.349 * 60) < 1.6


def test_batches_that_were_published_for_a_memory_fit_into_it():
    for batch, length, predictions, memory in (
        (312, 128, 20, 80e9),
        (40, 512, 77, 80e9),
        (60, 128, 20, 32e9),
        (10, 512, 77, 32e9),
    ):
        need = estimating.memory_bytes(LARGE, length, predictions, batch)
        assert memory / 2.5 < need < memory


def test_a_batch_that_does_not_fit_is_cut_into_parts_or_refused():
    settings = Settings(steps=10, dtype="mixed_bfloat16")
    for memory, parts in ((80e9, 1), (8e9, 4), (1e9, None)):
        machine = Machine(1, 1e12, memory)
        cost = estimated_plan.phase_costs(settings, BASE, machine)[0]
        assert cost["accumulation"] == parts
        assert (cost["memory"] <= memory) == (parts is not None)
    # Half a batch is too much for 8 GB, and thirds are not equal.
    assert estimating.memory_bytes(BASE, 128, 20, 64) <= 8e9
    assert estimating.memory_bytes(BASE, 128, 20, 128) > 8e9


def test_a_record_takes_the_bytes_that_are_written():
    rules = SamplingRules(128, 20)
    random = np.random.default_rng(0)
    rows = {
        name: random.integers(200, 16000, (4, *shape))
        for name, shape in row_shapes(rules).items()
    }
    for name in ("padding_mask", "segment_ids", "next_sentence_labels"):
        rows[name] = rows[name] % 2
    rows["mask_positions"] %= 128
    size = np.mean([len(record) + 16 for record in serialize(rows)])
    assert estimating.record_bytes(128, 20) == pytest.approx(size, rel=0.02)


def test_money_epochs_and_data_follow_from_the_rates():
    settings = Settings(steps=1000, phase_2_steps=0, batch_size=100)
    machine = Machine(4, 0, 80e9, sequences_per_second=(50,), price=3.0)
    corpus = Corpus(4.5e6, cores=2, tokens_per_second=100_000)
    figures = estimated_plan.estimate(settings, BASE, machine, corpus)
    assert figures["seconds"] == 1000 * 100 / 200
    assert figures["money"] == pytest.approx(500 / 3600 * 4 * 3)
    assert figures["corpus"]["tokens"] == 1e6
    assert figures["corpus"]["epochs"] == 1000 * 100 * 128 / 1e6
    assert figures["corpus"]["seconds"] == 5
    assert figures["corpus"]["store_bytes"] == 2.5e6


def test_one_direction_predicts_every_place():
    settings = Settings(steps=10, phase_2_steps=0)
    phase = phases(settings)[0]
    assert estimated_plan.predictions_of(settings, phase) == 20
    settings = settings._replace(objectives="left_to_right")
    assert estimated_plan.predictions_of(settings, phase) == 128


@pytest.mark.parametrize("objectives", ["mlm+nsp", "left_to_right"])
def test_training_steps_are_timed(objectives, monkeypatch):
    clock = itertools.count()  # a second from one look to the next
    ticking = types.SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(measuring, "time", ticking)
    monkeypatch.setattr(measuring, "STEPS", 3)
    settings = Settings(
        **{k: v for k, v in SMALLEST.items() if k in Settings._fields},
        objectives=objectives,
    )
    rate = measuring.training_rate(
        settings, phases(settings)[0], 50, batch=2, seconds=2.5
    )
    assert rate == 2 * 3 * 2 / 4  # twice three steps of two rows, in 4 s
    keras.backend.clear_session()


def test_the_script_measures_text_and_tells_the_plan(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "ship", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(f"A ship. {name[:3]}.\n" * 50)
    done = run_script(
        ROOT / "tools/estimate.py",
        *"--num_layers=1 --hidden_dim=16 --num_heads=2 --steps=20".split(),
        *"--vocabulary_size=50 --batch_size=4 --sequence_length=16".split(),
        *"--max_predictions=3 --phase_2_steps=0 --price=2".split(),
        *"--measure --measure_batch=2 --measure_seconds=0.01".split(),
        *("--corpus=*.txt", "--vocabulary=vocab.txt", "--corpus_gb=0.001"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for told in ("sequences of 16 a second", "tokens a second on a core"):
        assert told in done.stdout
    for line in ("Model:", "Phase 1:", "Time:", "Money:", "Disk", "Corpus:"):
        assert f"\n{line}" in done.stdout


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--flops=0", "expected a number above 0"),
        ("--price=nan", "expected a number above 0"),
        ("--sequences_per_second=-3", "expected a number above 0"),
        ("--padding=1", "expected a share below 1"),
        ("--utilisation=1.5", "expected a share above 0"),
        ("--dtype=float8", "mixed_bfloat16"),
    ],
)
def test_a_number_that_is_not_possible_is_refused(flag, message, tmp_path):
    done = run_script(ROOT / "tools/estimate.py", flag, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unknown_device_is_named():
    with pytest.raises(InputError, match="no device 'a1000'.*a100"):
        estimating.device_named("a1000")


def test_figures_are_told_in_units_that_suit_them():
    assert estimating.told_bytes(1_234_000) == "1.23 MB"
    assert estimating.told_bytes(2.5e15) == "2,500 TB"
    assert estimating.told_time(86400 * 4) == "4.0 days"
    assert estimating.told_time(90) == "90 seconds"
